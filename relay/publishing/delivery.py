"""A publisher's unacknowledged events, and totals of their outcomes. Pure: uses no sockets and no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice

import msgspec

from relay.wire import Ack, Receipt

_MAX_REJECTIONS = 10_000
_PARTS = 4  # messages per window: with fewer, the relay waits for the publisher; with more, it commits small groups


@dataclass
class Outgoing:
    """An unacknowledged event. `spool_seq` is the event's number in the spool, or 0 if the event is only in memory."""

    event_id: str
    user_id: str
    data: bytes = field(repr=False)
    spool_seq: int = 0
    receipt: Receipt | None = None


class Window:
    """The unacknowledged events of one producer, oldest first, numbered from 1.

    Acks are cumulative, with a receipt for each event. An event leaves the window once it is the oldest event and has a
    receipt.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._waiting: deque[Outgoing] = deque()
        self._sent = 0
        self.base_seq = 1
        self.attempt = 1

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Outgoing]:
        return iter(self._waiting)

    @property
    def room(self) -> int:
        return max(0, self._capacity - len(self._waiting))

    @property
    def added(self) -> int:
        """The total number of events ever added."""
        return self.base_seq - 1 + len(self._waiting)

    def add(self, outgoing: Outgoing) -> None:
        self._waiting.append(outgoing)

    @property
    def is_due(self) -> bool:
        """Whether to send now: all sent events are acknowledged, or a full part of the window is ready."""
        ready = len(self._waiting) - self._sent
        return ready > 0 and (not self._sent or ready >= self._capacity // _PARTS)

    def unsent(self, max_bytes: int) -> tuple[int, list[bytes]]:
        """Return the next event's number, and the unsent events up to `max_bytes`, but at least one event if any is
        unsent.
        """
        events: list[bytes] = []
        size_bytes = 0
        for outgoing in islice(self._waiting, self._sent, None):
            size_bytes += len(outgoing.data)
            if events and size_bytes > max_bytes:
                break
            events.append(outgoing.data)
        return self.base_seq + self._sent, events

    def mark_sent(self, count: int) -> None:
        self._sent += count

    def rewind(self) -> None:
        """Start a new attempt, which sends every event again."""
        self._sent = 0
        self.attempt += 1

    def receive(self, ack: Ack) -> list[tuple[Outgoing, Receipt]]:
        """Apply an ack; return the events that leave the window, with their receipts, in order."""
        for position, receipt in enumerate(ack.receipts, ack.first_seq - self.base_seq):
            if 0 <= position < len(self._waiting):
                self._waiting[position].receipt = receipt
        done: list[tuple[Outgoing, Receipt]] = []
        while self._waiting and self._waiting[0].receipt is not None:
            outgoing = self._waiting.popleft()
            done.append((outgoing, outgoing.receipt))  # type: ignore[arg-type]
        self.base_seq += len(done)
        self._sent = max(0, self._sent - len(done))
        return done


class Rejection(msgspec.Struct, frozen=True):
    """An event that the relay rejected permanently, and the invalid field."""

    event_id: str
    code: str
    field: str
    reason: str


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Totals of a publisher.

    `acked` counts new events, and `duplicates` counts events that the relay already had; both are durable at the relay.
    `spooled` events are in the local spool, `pending` events only in memory.
    """

    published: int
    acked: int
    duplicates: int
    rejected: int
    spooled: int
    pending: int


class FlushReport(Progress, frozen=True, kw_only=True):
    """The totals, the newest 10,000 rejections, and the highest acknowledged journal number of each user."""

    rejections: tuple[Rejection, ...]
    acked_through: dict[str, int]


class Tally:
    """Counts the outcomes of one publisher's events."""

    def __init__(self, on_progress: Callable[[Progress], None] | None) -> None:
        self._on_progress = on_progress
        self.acked = self.duplicates = self.rejected = 0
        self._rejections: deque[Rejection] = deque(maxlen=_MAX_REJECTIONS)
        self.acked_through: dict[str, int] = {}

    def settle(self, outgoing: Outgoing, receipt: Receipt) -> None:
        if receipt.code:
            self.reject(outgoing.event_id, receipt.code, receipt.field, receipt.reason)
            return
        self.acked += not receipt.duplicate
        self.duplicates += receipt.duplicate
        through = self.acked_through.get(outgoing.user_id, 0)
        self.acked_through[outgoing.user_id] = max(through, receipt.seq)

    def reject(self, event_id: str, code: str, field: str, reason: str) -> None:
        self.rejected += 1
        self._rejections.append(Rejection(event_id, code, field, reason))

    def call_back(self, published: int, spooled: int, pending: int) -> None:
        if self._on_progress is not None:
            self._on_progress(Progress(**self._totals(published, spooled, pending)))

    def report(self, published: int, spooled: int, pending: int) -> FlushReport:
        return FlushReport(
            **self._totals(published, spooled, pending),
            rejections=tuple(self._rejections),
            acked_through=dict(self.acked_through),
        )

    def _totals(self, published: int, spooled: int, pending: int) -> dict[str, int]:
        return {
            "published": published,
            "acked": self.acked,
            "duplicates": self.duplicates,
            "rejected": self.rejected,
            "spooled": spooled,
            "pending": pending,
        }
