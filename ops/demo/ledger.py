"""Counts the outcomes of the demo's events from what the processes report. Pure.

Each published event is recognised as a repeat by the relay, stored as a memory, dropped with a reason, or quarantined.
An event with none of these outcomes is lost. If an event has two outcomes, the number of lost events comes out too low,
or even negative. Events redelivered to a killed actor's successor are not counted twice, because the store recognises
them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from memory_agent.records.memories import MemoryStats
from memory_agent.verbs.protocol import DaemonStatus


@dataclass(frozen=True)
class Ledger:
    """The counts in the closing table. `journaled` excludes the `blocks`, which the memory itself published."""

    published: int
    journaled: int
    repeats: int
    kept: int
    dropped: dict[str, int]
    quarantined: int
    memories: int
    blocks: int = 0

    @property
    def lost(self) -> int:
        """The number of published events with no outcome; negative if events were counted twice."""
        settled = self.repeats + self.kept + sum(self.dropped.values()) + self.quarantined
        return self.published - settled


def make_ledger(published: int, repeats: int, status: DaemonStatus, stats: Sequence[MemoryStats]) -> Ledger:
    """Return the counts: the demo counts `published` and `repeats`, and the daemon reports the other counts."""
    dropped: Counter[str] = Counter()
    blocks = int(status.triggers.get("published", 0))
    for user in stats:
        dropped.update(user.events_dropped)
    return Ledger(
        published=published,
        journaled=status.journal["entries"] - blocks,
        repeats=repeats,
        kept=sum(user.events_kept for user in stats),
        dropped=dict(dropped.most_common()),
        quarantined=status.journal["quarantined"],
        memories=sum(user.memories for user in stats),
        blocks=blocks,
    )
