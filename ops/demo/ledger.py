"""Where every event of the demo ended up, counted from what the parts themselves report. Pure.

Each published event is in exactly one place: recognised as a repeat by the relay, set aside as unreadable, kept as a
memory, dropped for a reason, or in quarantine. What is in none of them is lost; what is in two would make the number
negative. Events that a killed actor was given again are not a place: the store recognised them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from memory_agent.protocol import DaemonStatus
from memory_agent.records import MemoryStats


@dataclass(frozen=True)
class Ledger:
    """The figures of the closing table."""

    published: int
    journaled: int
    repeats: int
    kept: int
    dropped: dict[str, int]
    quarantined: int
    memories: int

    @property
    def lost(self) -> int:
        """How many published events are nowhere; below zero, how many are somewhere twice."""
        settled = self.repeats + self.kept + sum(self.dropped.values()) + self.quarantined
        return self.published - settled


def make_ledger(published: int, repeats: int, status: DaemonStatus, stats: Sequence[MemoryStats]) -> Ledger:
    """Return the figures: `published` and `repeats` are what the emitters know, the rest what the daemon reports."""
    dropped: Counter[str] = Counter()
    for user in stats:
        dropped.update(user.events_dropped)
    return Ledger(
        published=published,
        journaled=status.journal["entries"],
        repeats=repeats,
        kept=sum(user.events_kept for user in stats),
        dropped=dict(dropped.most_common()),
        quarantined=status.journal["quarantined"],
        memories=sum(user.memories for user in stats),
    )
