"""Lists the memories that pass a filter, or their sessions, in pages, ordered by time.

A cursor identifies the last memory of a page by its time and row. Sessions are ordered by their newest memories.

Shapes: n slots that pass the filter.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from memory_agent.errors import InvalidInputError
from memory_agent.recall.query import check_filter
from memory_agent.records.arguments import MOST_LISTED, check_choice, check_whole
from memory_agent.records.memories import (
    KINDS,
    ORDERS,
    SOURCES,
    MemoryFilter,
    MemoryPage,
    MemoryRecord,
    Order,
    SessionPage,
    SessionSummary,
    time_of,
)
from memory_agent.storage.archive import Archive
from memory_agent.storage.column import Slots, are_any
from memory_agent.storage.view import NO_NAME, View
from relay import described

_MOST_TITLE_CHARS = 200
_REQUEST = SOURCES.index("user_input")
_MOST_BYTES = 8 << 20  # limit for the records in a page, because a page is sent as one message


class _Place(NamedTuple):
    """A position in an order, given by the `time_us` and `row` of a memory."""

    order: Order
    time_us: int
    row: int


_places = msgspec.msgpack.Decoder(described(_Place))


def list_page(
    archive: Archive,
    filter: MemoryFilter | Mapping[str, Any] | None,
    order: Order,
    limit: int,
    after: str | None,
) -> MemoryPage:
    """Return at most `limit` memories after a cursor, fewer if they are large. Raises `InvalidInputError`."""
    check_choice("order", order, ORDERS)
    check_whole("limit", limit, MOST_LISTED)
    view, slots = _chosen(archive, filter)
    following = _following(view, slots, order, limit + 1, _place_of(after, order))
    records: list[MemoryRecord] = []
    shown = size = 0
    rows = view.rows[following[:limit]].tolist()
    for record in map(archive.store.record, rows):  # one by one, because a record may take megabytes
        size += 0 if record is None else len(msgspec.msgpack.encode(record))
        if shown and size > _MOST_BYTES:
            break
        shown += 1
        if record is not None:  # the memory may have been forgotten since
            records.append(record)
    cursor = _cursor_of(view, following[shown - 1], order) if shown < len(following) else None
    return MemoryPage(records=tuple(records), total=len(slots), next_cursor=cursor)


def list_sessions(
    archive: Archive, filter: MemoryFilter | Mapping[str, Any] | None, limit: int, after: str | None
) -> SessionPage:
    """Return at most `limit` sessions with matching memories, the session with the newest memory first.

    Raises `InvalidInputError`.
    """
    check_whole("limit", limit, MOST_LISTED)
    view, slots = _chosen(archive, filter)
    slots = slots[view.sessions[slots] != NO_NAME]
    newest = _newest_of_sessions(view, slots)
    following = _following(view, newest, "newest", limit + 1, _place_of(after, "newest"))
    shown = following[:limit]
    sessions = view.sessions[shown].tolist()
    of_page = slots[are_any(view.sessions[slots], sessions)]
    everything = np.flatnonzero(are_any(view.sessions, sessions) & view.alive)  # a title does not depend on the filter
    channels, titled = _newest_with_channel(view, of_page), _first_requests(view, everything)
    found = []
    for number in sessions:
        inside = of_page[view.sessions[of_page] == number]
        request, channel = archive.store.records(view.rows[[titled[number], channels[number]]])
        if request is not None and channel is not None:  # they may have been forgotten since
            found.append(_summary(view, inside, request, channel.channel_id))
    cursor = _cursor_of(view, shown[-1], "newest") if len(following) > limit else None
    return SessionPage(sessions=tuple(found), total=len(newest), next_cursor=cursor)


def beginning(text: str, most_chars: int) -> str:
    line = " ".join(text[: 4 * most_chars].split())
    return line if len(line) <= most_chars else line[: most_chars - 1].rstrip() + "…"


def _summary(view: View, slots: Slots, request: MemoryRecord, channel_id: str | None) -> SessionSummary:
    times_us, runs = view.times_us[slots], view.runs[slots]
    counts = np.bincount(view.kinds[slots], minlength=len(KINDS)).tolist()
    return SessionSummary(
        session_id=request.session_id or "",
        first=time_of(int(times_us.min())),
        last=time_of(int(times_us.max())),
        memories=len(slots),
        runs=len(np.unique(runs[runs != NO_NAME])),
        kinds={kind: count for kind, count in zip(KINDS, counts, strict=True) if count},
        channel_id=channel_id,
        title=beginning(request.text, _MOST_TITLE_CHARS),
    )


def _chosen(archive: Archive, filter: MemoryFilter | Mapping[str, Any] | None) -> tuple[View, Slots]:
    chosen = check_filter(filter, is_query=False)
    view = archive.settled_view()
    mask = view.mask(chosen, archive.store.excluded_rows(chosen))
    return view, np.flatnonzero(view.alive if mask is None else mask)


def _following(view: View, slots: Slots, order: Order, limit: int, after: _Place | None) -> Slots:
    """Return the first `limit` of `slots` (n,) that follow a position."""
    times, rows = _times(view, order)[slots], view.rows[slots]
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
    return slots[rest]


def _newest_of_sessions(view: View, slots: Slots) -> Slots:
    """Return each session's newest slot among `slots` (n,), by time and row. Ten times as fast as sorting."""
    sessions = view.sessions[slots]
    for column in (view.times_us, view.rows):
        values = column[slots]
        greatest = np.full(int(sessions.max(initial=-1)) + 1, np.iinfo(np.int64).min)
        np.maximum.at(greatest, sessions, values)
        is_greatest = values == greatest[sessions]
        slots, sessions = slots[is_greatest], sessions[is_greatest]
    return slots


def _newest_with_channel(view: View, slots: Slots) -> dict[int, int]:
    """For each session in `slots` (n,), return its newest slot that has a channel, or else its newest slot."""
    ordered = slots[np.lexsort((view.rows[slots], view.times_us[slots], view.channels[slots] != NO_NAME))]
    return dict(zip(view.sessions[ordered].tolist(), ordered.tolist(), strict=True))


def _first_requests(view: View, slots: Slots) -> dict[int, int]:
    """For each session in `slots` (n,), return the slot of its first user request, or else its first slot."""
    is_other = view.sources[slots] != _REQUEST
    ordered = slots[np.lexsort((view.rows[slots], view.times_us[slots], is_other))][::-1]
    return dict(zip(view.sessions[ordered].tolist(), ordered.tolist(), strict=True))


def _times(view: View, order: Order) -> npt.NDArray[np.int64]:
    return view.updated_us if order == "updated" else view.times_us


def _cursor_of(view: View, slot: int, order: Order) -> str:
    place = _Place(order, int(_times(view, order)[slot]), int(view.rows[slot]))
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
