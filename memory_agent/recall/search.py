"""Searches all memories by words, vector, time and filter, and excludes the caller's own words.

A filter narrows an answer and is not access control: memories outside it still count towards the rarity of words, and
keep their places in sessions. Memories that a caller must not see are not in the view (`Query.within`).

Own words are memories that the caller already has, such as the message that is the query. `RecallResult.excluded`
counts them by reason:

    event     the memory of the event that causes the recall
    run       memories of the calling run
    session   memories of the calling session from the last minutes (`recall.echo_minutes`)
    echo      a request with the query's words from the last minutes, unless it belongs to a different session

Only a memory created from an event can be an echo. If the filter selects the calling run or session, only the echo is
excluded.

Shapes: n = all slots of the view, m slots among them, d = dimensions of an embedding, q = words of the query, e =
dimensions of a word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import hypot
from typing import NamedTuple

import msgspec
import numpy as np

from memory_agent.embedders import LazyEmbedder, comparable
from memory_agent.errors import IndexDamagedError, IndexUnavailableError, IndexUnusableError
from memory_agent.indexes import COLUMNS, EVERYTHING, Where
from memory_agent.recall.kinds import Asked, asked_of
from memory_agent.recall.query import Deadline, Query
from memory_agent.recall.query_vector import AskedVector, QueryVector, QueryVectors
from memory_agent.records.memories import SOURCES, MemoryFilter, UnderstoodDate, microseconds
from memory_agent.records.shared_requests import NO_VECTOR, PendingItems, SentVector
from memory_agent.settings import RecallSettings
from memory_agent.storage.archive import Archive
from memory_agent.storage.column import Cosines, Mask, Scores, Slots
from memory_agent.storage.columns import untitled_fingerprints
from memory_agent.storage.store import Store
from memory_agent.storage.terms import query_words
from memory_agent.storage.view import View
from memory_agent.tracing import current_span

IS_REQUEST = np.array([source in ("user_input", "conductor_plan") for source in SOURCES])
"""For each source in `SOURCES`, whether its memories may be requests."""

_FIRST_REACHING, _FURTHER = 1_000, 8
"""The number of memories first requested from an index to find those that reach the floor, and the factor by which it
grows.
"""


BeginShared = Callable[[Query, SentVector | None], PendingItems | None]
"""Starts a search of shared items with the query's vector; without a vector, the items' store embeds the query."""


class OwnWords(NamedTuple):
    """The excluded slots (m,), and their number by reason.

    A slot is counted only under the first reason that applies.
    """

    slots: Slots
    counts: dict[str, int]


class Search(msgspec.Struct, frozen=True):
    """The results of searching one view.

    `mask` (n,) marks the memories that pass: they match the filter, lie within the dates (if these are used as a
    filter) and reach the floor. It excludes `own` words and memories that match `Query.without`. It is None if all
    memories pass. A memory that does not pass has no cosine, and its `bm25` (n,) is 0. `cosines` is None if no passing
    memory has a cosine.
    """

    query: Query
    view: View
    store: Store  # contains the view's memories, or newer versions of them
    settings: RecallSettings
    deadline: Deadline
    dates: tuple[UnderstoodDate, ...]
    boosting: tuple[UnderstoodDate, ...]  # the dates that raise scores
    words: list[str]
    vector: QueryVector | None
    own: OwnWords
    is_filtered: bool  # whether anything except the caller's own words and `Query.without` is excluded
    mask: Mask | None
    bm25: Scores
    cosines: Cosines | None
    asked: Asked | None  # None if the query asks for no particular kind
    shared: PendingItems | None  # the search for shared items that was started together with this search

    @property
    def is_hybrid(self) -> bool:
        return self.query.mode == "hybrid" and self.cosines is not None

    @property
    def total(self) -> int:
        return self.view.live if self.mask is None else int(np.count_nonzero(self.mask))

    def passing(self, slots: Slots) -> Slots:
        return slots if self.mask is None else slots[self.mask[slots]]

    def with_more_cosines(self, limit: int) -> Search:
        """Return the search with the cosines of all memories, or of the best `limit` if an index has the vectors."""
        if self.vector is None or self.cosines is None or self.cosines.unseen == -np.inf:
            return self
        everything = self.view.alive if self.mask is None else self.mask
        found = scanned(self.vector, self.view, everything, limit, self.query.filter, self.deadline)
        return self if found is None else msgspec.structs.replace(self, cosines=found)


class Searcher:
    """Searches the memories of one user. Thread-safe."""

    def __init__(self, archive: Archive, embedder: LazyEmbedder, settings: RecallSettings) -> None:
        self._archive = archive
        self._vectors = QueryVectors(embedder)
        self._settings = settings

    def begin(self, query: Query, deadline: Deadline) -> AskedVector | None:
        """Send a query to the embedder. Return None if no vector is needed, or if `deadline` records a failure."""
        if not query.needs_vector or query.vector is not None or query.embedded is not None:
            return None
        return self._vectors.begin(query, self._archive.store.state, deadline)

    def search(
        self,
        query: Query,
        dates: tuple[UnderstoodDate, ...],
        pending: AskedVector | None,
        deadline: Deadline,
        begin_shared: BeginShared | None = None,
    ) -> Search:
        """Search all memories by words and by the `pending` vector, with the query's filter, within the deadline.

        `begin_shared` is called once there is a vector, and the shared items are then searched in parallel.
        """
        if self._archive.is_rebuilding:
            deadline.degrade("index_rebuilding")
        view, store, words = self._archive.view.among(query.within), self._archive.store, query_words(query.text)
        mask = _filtered(query, dates, view, store)
        own = _own_words(query, view, store, mask)
        bm25 = None if query.mode == "vector" or deadline.expired() else view.words.scores(words)
        span = current_span()
        span.mark("words")
        stored = view.stamp or store.state.stamp or ""
        given = None if query.embedded is None else QueryVector.received(query.embedded)
        if given is not None and not comparable(stored or given.stamp, given.stamp):
            given, pending = None, self._vectors.begin(query, store.state, deadline)
        vector = given if pending is None else self._vectors.result(pending, stored, deadline)
        shared = begun(begin_shared, query, vector, deadline)
        span.mark("embedding")
        if query.vector is not None:
            vector = _own_vector(query.vector, query.vector_model, view, deadline)
        _note_pending(vector, view, deadline)
        wanted = _reaching_floor(query, vector, view, mask, deadline)
        aside = own.slots if query.without is None else np.union1d(own.slots, view.matching(query.without))
        limit = max(self._settings.candidates, query.ranked)
        cosines = None
        if query.mode != "lexical" and vector is not None and view.vectors.count:
            cosines = _by_vector(vector, view, wanted, aside, limit, query.filter, deadline)
        is_searched = vector is not None and "index_unavailable" not in deadline.degraded
        if query.mode == "vector" and not is_searched:  # search by words instead of returning nothing
            bm25 = view.words.scores(words)
        if bm25 is None:
            bm25 = np.zeros(view.count)
        mask = _without(aside, wanted, view)
        asked = None
        if query.mode == "hybrid" and self._settings.kind_weight:
            asked = asked_of(query, words, [date.phrase for date in dates], view, mask)
        span.mark("search")
        return Search(
            query=query,
            view=view,
            store=store,
            settings=self._settings,
            deadline=deadline,
            dates=dates,
            boosting=dates if query.dates == "boost" and query.mode == "hybrid" else (),
            words=words,
            vector=vector,
            own=own,
            is_filtered=wanted is not None,
            mask=mask,
            bm25=bm25 if mask is None else np.where(mask, bm25, 0.0),
            cosines=cosines,
            asked=asked,
            shared=shared,
        )


def begun(
    begin_shared: BeginShared | None, query: Query, vector: QueryVector | None, deadline: Deadline
) -> PendingItems | None:
    """Start the search for shared items, if the query requests it. A late embedder is not called again."""
    if begin_shared is None or "global" not in query.tiers:
        return None
    left = msgspec.structs.replace(query, deadline_ms=deadline.remaining_s * 1000)
    if vector is None:
        return begin_shared(left, NO_VECTOR if "embedder_timeout" in deadline.degraded else None)
    return begin_shared(left, vector.sent())


def _own_vector(numbers: tuple[float, ...], stamp: str, view: View, deadline: Deadline) -> QueryVector | None:
    """Return the caller's own vector, or None if it cannot be compared with the memories' vectors."""
    if not (comparable(view.stamp or stamp, stamp) and view.vectors.ndim in (0, len(numbers))):
        deadline.degrade("model_changed")
        return None
    raw = (np.array(numbers) / hypot(*numbers)).astype(np.float32)  # NumPy's norm overflows for numbers above 1e154
    return QueryVector(raw, stamp, (), np.empty((0, raw.size), dtype=np.float16), "")


def _note_pending(vector: QueryVector | None, view: View, deadline: Deadline) -> None:
    if vector is not None and view.vectors.count < view.live:
        deadline.degrade("vectors_pending")
    if vector is not None and vector.words_stamp and view.word_bits.count < view.vectors.count:
        deadline.degrade("word_vectors_pending")


def _filtered(query: Query, dates: tuple[UnderstoodDate, ...], view: View, store: Store) -> Mask | None:
    mask = view.mask(query.filter, store.excluded_rows(query.filter))
    if query.dates != "filter" or not dates:
        return mask
    within = view.within((date.since, date.until) for date in dates)
    return within if mask is None else mask & within


def _without(aside: Slots, mask: Mask | None, view: View) -> Mask | None:
    if not aside.size:
        return mask
    others = (view.alive if mask is None else mask).copy()
    others[aside] = False
    return others


def scanned(
    vector: QueryVector,
    view: View,
    mask: Mask | None,
    limit: int,
    filter: MemoryFilter | None,
    deadline: Deadline,
) -> Cosines | None:
    """Return the cosines of at least the best `limit` memories in `mask` (n,). All memories in it pass `filter`.

    If the index is in another engine that does not answer in time, return None, and record that in `deadline`.
    """
    try:
        return view.vectors.scan(vector.raw, limit, mask, _where(filter), max(0.0, deadline.remaining_s))
    except (IndexDamagedError, IndexUnavailableError, IndexUnusableError):
        deadline.degrade("index_unavailable")
        return None


def _where(filter: MemoryFilter | None) -> Where:
    if filter is None:
        return EVERYTHING
    named = (filter.session_id, filter.run_id, filter.channel_id, filter.agent_id)
    names: tuple[tuple[str, ...], ...] = (
        filter.kinds,
        filter.sources,
        *(() if name is None else (name,) for name in named),
    )
    since, until = (
        None if time is None else microseconds(time, field)
        for time, field in ((filter.since, "since"), (filter.until, "until"))
    )
    among = {column: chosen for column, chosen in zip(COLUMNS, names, strict=True) if chosen}
    return Where(among=among, since_us=since, until_us=until)


def _by_vector(
    vector: QueryVector,
    view: View,
    mask: Mask | None,
    aside: Slots,
    limit: int,
    filter: MemoryFilter | None,
    deadline: Deadline,
) -> Cosines | None:
    """Return the cosines of memories that pass `mask` (n,), except those in the slots `aside`.

    The mask does not exclude `aside`, because a search with a mask cannot use the approximate index. If the index does
    not answer, the cosines of memories found by words are computed later.
    """
    found = scanned(vector, view, mask, limit + aside.size, filter, deadline)
    if found is None:
        return Cosines(np.full(view.count, np.nan, dtype=np.float32), 0.0, -np.inf)
    found.values[aside] = np.nan
    return found if (mask is None and not aside.size) or np.isfinite(found.values).any() else None


def _reaching_floor(
    query: Query, vector: QueryVector | None, view: View, mask: Mask | None, deadline: Deadline
) -> Mask | None:
    """Restrict the mask to memories whose raw cosine reaches the floor.

    Without cosines, no memory reaches a floor set by the caller, and every memory reaches a floor from the settings.
    """
    if query.floor is None:
        return mask
    if vector is None or not view.vectors.count:
        return np.zeros(view.count, dtype=np.bool_) if query.insists else mask
    everything = view.alive if mask is None else mask & view.alive
    limit = _FIRST_REACHING
    while True:
        found = scanned(vector, view, everything, limit, query.filter, deadline)
        if found is None and deadline.expired():
            return np.zeros(view.count, dtype=np.bool_) if query.insists else mask
        if found is not None and found.unseen + found.error < query.floor:
            break
        limit = view.count if found is None else limit * _FURTHER  # a search for all rows needs no index
    reaching = found.values >= query.floor + found.error
    unsure = np.flatnonzero((found.values >= query.floor - found.error) & ~reaching)
    reaching[unsure] = view.vectors.cosines(vector.raw, unsure) >= query.floor
    return reaching & everything


def _own_words(query: Query, view: View, store: Store, mask: Mask | None) -> OwnWords:
    found, counts = np.empty(0, dtype=np.int64), {}
    for reason, slots in _reasons(query, view, store):
        if slots.size and (new := np.setdiff1d(slots if mask is None else slots[mask[slots]], found)).size:
            counts[reason] = new.size
            found = np.union1d(found, new)
    return OwnWords(found, counts)


def _reasons(query: Query, view: View, store: Store) -> Iterator[tuple[str, Slots]]:
    filter = query.filter or MemoryFilter()
    if query.by_event is not None and (row := store.row_of_event(query.by_event)) is not None:
        slots = view.slots([row])
        yield "event", slots[slots >= 0]
    if query.by_run is not None and query.by_run != filter.run_id:
        with store.snapshot() as snapshot:
            run = next(snapshot.runs_named(query.by_run), None)
        slots = view.of_run(query.by_run)  # if the id was reused, only the slots of the last run
        yield "run", slots if run is None else slots[view.times_us[slots] >= run.since_us]
    if query.present_us is None:
        return
    if query.by_session is not None and query.by_session != filter.session_id:
        yield "session", view.of_session(query.by_session, *query.present_us)
    yield "echo", _echoes(query, view, store, *query.present_us)


def _echoes(query: Query, view: View, store: Store, since_us: int, until_us: int) -> Slots:
    slots: Slots = np.concatenate(view.same(np.array(untitled_fingerprints(query.stored_text))))
    times_us = view.times_us[slots]
    slots = slots[(times_us >= since_us) & (times_us < until_us) & IS_REQUEST[view.sources[slots]]]
    sessions = (None, query.by_session)
    is_echo = [
        record is not None
        and record.event_id is not None
        and (query.by_session is None or record.session_id in sessions)
        for record in (store.records(view.rows[slots].tolist()) if slots.size else ())
    ]
    return slots[np.array(is_echo, dtype=np.bool_)]
