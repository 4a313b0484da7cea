"""Lists the memories that pass a filter in pages, ordered by time.

A cursor identifies the last memory of a page by its time and row, so adding or removing memories between two pages does
not repeat or hide others. In the order `updated`, a memory that is replaced between two pages moves to the front,
before the cursor. Each page is read from one view. If a memory is replaced while the page is read, its new version is
returned at its old position.

Shapes: n slots that pass the filter.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np

from memory_agent.errors import InvalidInputError
from memory_agent.recall.query import check_filter
from memory_agent.records.arguments import MOST_LISTED, check_choice, check_whole
from memory_agent.records.memories import ORDERS, MemoryFilter, MemoryPage, MemoryRecord, Order
from memory_agent.storage.archive import Archive
from memory_agent.storage.changes import Rows

_MOST_BYTES = 8 << 20  # of the records in a page, because a page is sent as one message


class _Place(NamedTuple):
    """A position in an order, given by the `time_us` and `row` of a memory."""

    order: Order
    time_us: int
    row: int


_places = msgspec.msgpack.Decoder(_Place)


def list_page(
    archive: Archive,
    filter: MemoryFilter | Mapping[str, Any] | None,
    order: Order,
    limit: int,
    after: str | None,
) -> MemoryPage:
    """Return at most `limit` memories after a cursor, fewer if they are large. Raises `InvalidInputError`."""
    chosen = check_filter(filter, is_query=False)
    check_choice("order", order, ORDERS)
    check_whole("limit", limit, MOST_LISTED)
    rows, times_us, total = _following(archive, chosen, order, limit + 1, _place_of(after, order))
    records: list[MemoryRecord] = []
    shown = size = 0
    for record in map(archive.store.record, rows[:limit].tolist()):  # one by one, because a record may take megabytes
        size += 0 if record is None else len(msgspec.msgpack.encode(record))
        if shown and size > _MOST_BYTES:
            break
        shown += 1
        if record is not None:  # it may have been forgotten since
            records.append(record)
    last = _Place(order, int(times_us[shown - 1]), int(rows[shown - 1])) if shown < len(rows) else None
    return MemoryPage(records=tuple(records), total=total, next_cursor=None if last is None else _cursor_of(last))


def _following(
    archive: Archive, chosen: MemoryFilter | None, order: Order, limit: int, after: _Place | None
) -> tuple[Rows, Rows, int]:
    """Return the rows and times of the first `limit` memories after a place, and n."""
    view = archive.settled_view()
    mask = view.mask(chosen, archive.store.excluded_rows(chosen))
    slots = np.flatnonzero(view.alive if mask is None else mask)
    times, rows = (view.updated_us if order == "updated" else view.times_us)[slots], view.rows[slots]
    sign = 1 if order == "oldest" else -1
    keys, ties = sign * times, sign * rows
    rest = np.arange(len(slots))
    if after is not None:
        key, tie = sign * after.time_us, sign * after.row
        rest = np.flatnonzero((keys > key) | ((keys == key) & (ties > tie)))
    if len(rest) > limit:
        last = np.partition(keys[rest], limit - 1)[limit - 1]
        rest = rest[keys[rest] <= last]
    rest = rest[np.lexsort((ties[rest], keys[rest]))[:limit]]
    return rows[rest], times[rest], len(slots)


def _cursor_of(place: _Place) -> str:
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(place)).decode().rstrip("=")


def _place_of(cursor: str | None, order: Order) -> _Place | None:
    if cursor is None:
        return None
    try:
        place = _places.decode(base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True))
    except (msgspec.DecodeError, TypeError, ValueError) as error:
        raise InvalidInputError("after", "is not a cursor returned by a list") from error
    if place.order != order or max(abs(place.time_us), abs(place.row)) >= 1 << 63:
        raise InvalidInputError("after", f"is a cursor for the order {place.order}")
    return place
