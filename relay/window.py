"""What a publisher has sent or has to send, and has no ack for. Pure: no sockets, no clock.

Numbers are the producer's own, from 1. Acks are cumulative but each event has its receipt; an event leaves the window
when it is the oldest and its receipt is there, so receipts come out in order. What this does not do: decide when to
send again (`publisher`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from relay.wire import Ack, Receipt


@dataclass
class Outgoing:
    """An event on its way. `spool_seq` is its number in the spool, 0 when it is not there."""

    event_id: str
    user_id: str
    data: bytes = field(repr=False)
    spool_seq: int = 0
    receipt: Receipt | None = None


class Window:
    """The events of one producer that wait for an ack, oldest first."""

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
        """How many more events fit."""
        return max(0, self._capacity - len(self._waiting))

    @property
    def in_flight(self) -> int:
        """How many events were sent in this attempt and have no ack."""
        return self._sent

    def add(self, outgoing: Outgoing) -> None:
        self._waiting.append(outgoing)

    def unsent(self, max_bytes: int) -> tuple[int, list[bytes]]:
        """Return the next events to send, at least one if there is any, and the number of the first."""
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
        """Begin a new attempt: everything is to be sent again."""
        self._sent = 0
        self.attempt += 1

    def receive(self, ack: Ack) -> list[tuple[Outgoing, Receipt]]:
        """Take an ack in; return the events that leave the window with their receipts, in order."""
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
