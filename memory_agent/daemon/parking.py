"""Events published under `system` that wait until the owner of their run or session is known. Pure.

Bounded in number and time; the dispatcher quarantines what stays unclaimed.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass


@dataclass(frozen=True)
class Parked:
    """A waiting event: journal number, bytes, keys of its run and session, and when waiting ends (monotonic s).

    `event_type` and `received_ms` are as in the journal.
    """

    seq: int
    data: bytes
    keys: tuple[str, ...]
    until_s: float
    event_type: str = ""
    received_ms: int = 0


class Parking:
    """Waiting events, indexed by their keys."""

    def __init__(self, limit: int) -> None:
        """Hold at most `limit` events."""
        self._limit = limit
        self._parked: dict[int, Parked] = {}
        self._by_key: defaultdict[str, set[int]] = defaultdict(set)

    def __len__(self) -> int:
        return len(self._parked)

    def __contains__(self, seq: int) -> bool:
        return seq in self._parked

    @property
    def surplus(self) -> int:
        """How many events exceed the limit."""
        return max(0, len(self._parked) - self._limit)

    def park(self, event: Parked) -> None:
        """Add an event."""
        self._parked[event.seq] = event
        for key in event.keys:
            self._by_key[key].add(event.seq)

    def claim(self, keys: tuple[str, ...]) -> list[Parked]:
        """Remove and return the events with any of `keys`, in journal order."""
        seqs = {seq for key in keys for seq in self._by_key.get(key, ())}
        return [self._take(seq) for seq in sorted(seqs)]

    def expired(self, now_s: float) -> list[Parked]:
        """Return the events past their time and the oldest above the limit; they stay until `leave`."""
        surplus = self.surplus
        waiting = enumerate(self._parked.values())
        return [event for place, event in waiting if event.until_s <= now_s or place < surplus]

    def leave(self, seq: int) -> None:
        """Remove an event, if it is still there."""
        if seq in self._parked:
            self._take(seq)

    def oldest(self) -> int | None:
        """Return the lowest waiting journal number, or None."""
        return min(self._parked, default=None)

    def _take(self, seq: int) -> Parked:
        event = self._parked.pop(seq)
        for key in event.keys:
            self._by_key[key].discard(seq)
            if not self._by_key[key]:
                del self._by_key[key]
        return event
