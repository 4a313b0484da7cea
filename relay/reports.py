"""What became of the events a publisher took: counts, rejections, and how far each user is in the journal."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from relay.window import Outgoing
from relay.wire import Receipt

_MAX_REJECTIONS = 10_000


class Rejection(msgspec.Struct, frozen=True):
    """An event that the relay will never take, and which field is wrong."""

    event_id: str
    code: str
    field: str
    reason: str


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Totals of a publisher. `acked` counts new events, `duplicates` those the relay had already, both durable there.

    `spooled` events are on this side's disk, `pending` ones only in memory.
    """

    published: int
    acked: int
    duplicates: int
    rejected: int
    spooled: int
    pending: int


class FlushReport(Progress, frozen=True, kw_only=True):
    """Totals, the newest 10,000 rejections, and the highest journal number acknowledged, by user."""

    rejections: tuple[Rejection, ...]
    acked_through: dict[str, int]


class Tally:
    """Counts, for one publisher."""

    def __init__(self, on_progress: Callable[[Progress], None] | None) -> None:
        self._on_progress = on_progress
        self.published = self.acked = self.duplicates = self.rejected = 0
        self._rejections: deque[Rejection] = deque(maxlen=_MAX_REJECTIONS)
        self.acked_through: dict[str, int] = {}

    def settle(self, outgoing: Outgoing, receipt: Receipt) -> None:
        """Count an event that has its receipt."""
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

    def tell(self, spooled: int, pending: int) -> None:
        """Call back with the totals."""
        if self._on_progress is not None:
            self._on_progress(
                Progress(
                    published=self.published,
                    acked=self.acked,
                    duplicates=self.duplicates,
                    rejected=self.rejected,
                    spooled=spooled,
                    pending=pending,
                )
            )

    def report(self, spooled: int, pending: int) -> FlushReport:
        return FlushReport(
            published=self.published,
            acked=self.acked,
            duplicates=self.duplicates,
            rejected=self.rejected,
            spooled=spooled,
            pending=pending,
            rejections=tuple(self._rejections),
            acked_through=dict(self.acked_through),
        )
