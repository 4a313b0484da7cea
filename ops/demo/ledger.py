"""Where every event of the demo is, counted from the reports of the parts. Pure.

Each published event is in exactly one place: recognised as a repeat by the relay, kept as a memory, dropped with a
reason, or in quarantine. An event in none of them is lost; one in two makes the number negative. Events redelivered to
a killed actor's successor are not counted: the store recognised them.
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
        """Number of published events that are nowhere; negative: counted twice."""
        settled = self.repeats + self.kept + sum(self.dropped.values()) + self.quarantined
        return self.published - settled


def make_ledger(published: int, repeats: int, status: DaemonStatus, stats: Sequence[MemoryStats]) -> Ledger:
    """Return the figures: `published` and `repeats` come from the emitters, the rest from the daemon."""
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
