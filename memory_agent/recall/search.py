"""What the stages of one recall share: the checked query, one view of the memories, and what was searched in it.

The query went to the embedder before; its words are scored while that works.

A filter narrows an answer and protects nothing: a key reads all memories of a user or none. So memories outside it
still count in the rarity of words, by which the same word weighs alike under any filter, and keep their places in
sessions, where they neither lend nor answer. What a caller may not see at all is not in the view (`Query.within`).

Shapes: n = all slots of the view, d = dimensions.
"""

from __future__ import annotations

import msgspec
import numpy as np

from memory_agent.embedders import Pending
from memory_agent.recall.deadline import Deadline
from memory_agent.recall.own_words import OwnWords, own_words
from memory_agent.recall.query import Query
from memory_agent.recall.query_vectors import QueryVector, QueryVectors
from memory_agent.records.embedded import EmbeddedQuery
from memory_agent.records.memories import UnderstoodDate
from memory_agent.settings import RecallSettings
from memory_agent.storage.indexes import Cosines, Mask, Scores, Slots
from memory_agent.storage.store import Store
from memory_agent.storage.terms import query_words
from memory_agent.storage.view import View


class Search(msgspec.Struct, frozen=True):
    """One recall over one view.

    `mask` (n,) marks what passes the filter, the dates that filter and the floor, `own` words and what matches
    `Query.without` aside; None if everything does. What does not pass has `bm25` (n,) 0, as without a shared word, and
    no cosine. `cosines` is None where no memory that passes has one. `is_filtered`: more than these is left out.
    `dates` are all that the query names, `boosting` those that raise a score.
    """

    query: Query
    view: View
    settings: RecallSettings
    deadline: Deadline
    dates: tuple[UnderstoodDate, ...]
    boosting: tuple[UnderstoodDate, ...]
    words: list[str]
    vector: QueryVector | None
    own: OwnWords
    is_filtered: bool
    mask: Mask | None
    bm25: Scores
    cosines: Cosines | None


def search(
    query: Query,
    dates: tuple[UnderstoodDate, ...],
    view: View,
    store: Store,
    vectors: QueryVectors,
    pending: Pending[EmbeddedQuery] | None,
    settings: RecallSettings,
    deadline: Deadline,
) -> Search:
    """Search all memories of `view` by words and by `pending` vector, under the query's filter, within the deadline.

    The `store` names the rows of events and records; its memories are those of the view, or newer.
    """
    words = query_words(query.text)
    mask = _filtered(query, dates, view, store)
    own = own_words(query, view, store, mask)
    bm25 = _by_words(query, words, view, deadline)
    vector = None if pending is None else vectors.finish(pending, view.stamp, deadline)
    if vector is not None and view.vectors.count < view.live:
        deadline.degrade("vectors_pending")
    if vector is not None and vector.words_stamp and view.word_bits.count < view.vectors.count:
        deadline.degrade("word_vectors_pending")
    if vector is None and query.mode == "vector":  # words rather than nothing
        bm25 = view.words.scores(words)
    wanted = _above_floor(query, vector, view, mask)
    aside = own.slots if query.without is None else np.union1d(own.slots, view.matching(query.without))
    mask = _leaving_out(aside, wanted, view)
    return Search(
        query=query,
        view=view,
        settings=settings,
        deadline=deadline,
        dates=dates,
        boosting=dates if query.dates == "boost" and query.mode == "hybrid" else (),
        words=words,
        vector=vector,
        own=own,
        is_filtered=wanted is not None,
        mask=mask,
        bm25=bm25 if mask is None else np.where(mask, bm25, 0.0),
        cosines=None
        if query.mode == "lexical"
        else _by_vector(vector, view, wanted, aside, max(settings.candidates, query.top_k)),
    )


def passing(search: Search, slots: Slots) -> Slots:
    """Return those of `slots` that pass the filter."""
    return slots if search.mask is None else slots[search.mask[slots]]


def looking_at_all(search: Search) -> Search:
    """Return the search with the cosines of all memories, where a graph looked at a part of them."""
    if search.vector is None or search.cosines is None or search.cosines.unseen == -np.inf:
        return search
    looked_at = search.view.alive if search.mask is None else search.mask
    cosines = search.view.vectors.scan(search.vector.raw, search.view.count, looked_at)
    return msgspec.structs.replace(search, cosines=cosines)


def _filtered(query: Query, dates: tuple[UnderstoodDate, ...], view: View, store: Store) -> Mask | None:
    mask = view.mask(query.filter, store.excluded_rows(query.filter))
    if query.dates != "filter" or not dates:
        return mask
    within = view.within((date.since, date.until) for date in dates)
    return within if mask is None else mask & within


def _leaving_out(aside: Slots, mask: Mask | None, view: View) -> Mask | None:
    """Return the mask (n,) without the slots `aside`."""
    if not aside.size:
        return mask
    others = (view.alive if mask is None else mask).copy()
    others[aside] = False
    return others


def _by_words(query: Query, words: list[str], view: View, deadline: Deadline) -> Scores:
    if query.mode == "vector" or deadline.expired():
        return np.zeros(view.count)
    return view.words.scores(words)


def _by_vector(vector: QueryVector | None, view: View, mask: Mask | None, aside: Slots, limit: int) -> Cosines | None:
    """Return the cosines of what passes `mask` (n,), without those `aside`: slots, for a mask would bypass a graph."""
    if vector is None or not view.vectors.count:
        return None
    found = view.vectors.scan(vector.raw, limit + aside.size, mask)
    found.values[aside] = np.nan
    return found if (mask is None and not aside.size) or np.isfinite(found.values).any() else None


def _above_floor(query: Query, vector: QueryVector | None, view: View, mask: Mask | None) -> Mask | None:
    """Narrow the mask to memories whose raw cosine reaches the floor.

    Without cosines nothing passes a floor that the caller set, and everything one of the settings.
    """
    if query.floor is None:
        return mask
    if vector is None or not view.vectors.count:
        return np.zeros(view.count, dtype=np.bool_) if query.insists else mask
    everything = view.alive if mask is None else mask & view.alive
    found = view.vectors.scan(vector.raw, view.count, everything)
    reaching = found.values >= query.floor + found.error
    unsure = np.flatnonzero((found.values >= query.floor - found.error) & ~reaching)
    reaching[unsure] = view.vectors.cosines(vector.raw, unsure) >= query.floor
    return reaching & everything
