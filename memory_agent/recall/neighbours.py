"""What a memory gains from its neighbours in the session. Pure.

Contiguity: what answers a question often stands next to what resembles it (temporal contiguity; Howard and Kahana,
2002). Only the best `LENDERS` candidates lend, and only what they score above the next best, so that a crowd of
middling matches moves nothing; a neighbour of several takes the best offer. Rejected by measurement: lending by every
candidate, which costs recall at 1 and a query per candidate (decision 0013); adding offers, which costs recall at 1
(decision 0015).

Context words: the words of a question are often spread over a few turns. The best matches and their neighbours are
credited with the query words that they or a memory at most `REACH` places away have, weighted by rarity among these
memories. Rejected by measurement (decision 0015): adding BM25 over neighbours, which counts repeated words several
times; rarity in the whole store, which is no better and reads every memory that has the word.

Shapes: n candidates, l lenders, r = 2 REACH + 1 places of a window, m memories around the lenders, w words.
"""

from __future__ import annotations

import msgspec
import numpy as np

from memory_agent.recall.candidates import Candidates, add, keep, passing
from memory_agent.recall.fusion import best_first, places_of
from memory_agent.recall.search import Search
from memory_agent.storage.indexes import Mask, Scores, Slots

LENDERS = 20
REACH = 2
_SHARES = np.array([0.6, 1.0, 0.0, 1.0, 0.6])
"""What each place of a window gets: two places away less than adjacent, the lender itself nothing."""
_LEAST_FLOOR = 0.4
"""The least floor, as a share of the best score: with few matches it would be 0, and neighbours outrank matches."""


def with_neighbours(found: Candidates, search: Search) -> Candidates:
    """Add what the best candidates and their neighbours gain from each other; borrowers become candidates."""
    settings = search.settings
    if search.query.mode != "hybrid" or found.weight == 0.0 or search.deadline.expired():
        return found  # by words alone, a neighbour without a query word cannot take part
    if not (settings.contiguity or settings.context_words):
        return found
    lenders = found.slots[best_first(found.total, found.rows, LENDERS)]
    windows = search.view.windows(lenders, REACH)
    around = np.unique(windows[windows >= 0])
    if np.count_nonzero(windows >= 0) == lenders.size:
        return found
    new = passing(search, around[~places_of(found.slots, around)[1]])
    own = found.slots
    if new.size:
        found = add(found, new, search)
    if settings.context_words:
        found = _with_context_words(found, windows, around, search)
    found = _with_loans(found, windows, search)
    return keep(found, (found.lent > 0) | places_of(own, found.slots)[1]) if new.size else found


def _with_context_words(found: Candidates, windows: Slots, around: Slots, search: Search) -> Candidates:
    places, known = places_of(found.slots, around)
    slots = around[known]
    context = np.zeros(found.slots.shape)
    hits = search.view.words.hits(search.words, slots)
    context[places[known]] = search.settings.context_words * coverage(hits, slots, windows)
    return msgspec.structs.replace(found, context=context)


def coverage(hits: Mask, slots: Slots, windows: Slots) -> Scores:
    """Return (m,) the weight of the query words that each of `slots` (ascending) covers, relative to the best.

    `hits` (w, m) marks which memory has which word; `windows` is (l, r). All zeros when none has any.
    """
    weights: Scores = _rarity(hits) @ (hits.astype(np.float64) @ _beside(slots, windows) > 0)
    best = float(np.max(weights, initial=0.0))
    return weights / best if best > 0 else np.zeros(slots.shape)


def _beside(slots: Slots, windows: Slots) -> Scores:
    """Return (m, m): 1 where two memories are the same or at most `REACH` places apart."""
    near = np.eye(slots.size)
    places, known = places_of(slots, windows)
    for apart in range(1, REACH + 1):
        both = known[:, :-apart] & known[:, apart:]
        ones, others = places[:, :-apart][both], places[:, apart:][both]
        near[ones, others] = near[others, ones] = 1.0
    return near


def _rarity(hits: Mask) -> Scores:
    """Return (w,) the inverse document frequency of BM25 of each word among these memories."""
    having = hits.sum(axis=1)
    weights: Scores = np.log1p((hits.shape[1] - having + 0.5) / (having + 0.5))
    return np.where(having > 0, weights, 0.0)


def _with_loans(found: Candidates, windows: Slots, search: Search) -> Candidates:
    """Add the best offer to each candidate; a duplicate of the lender gets nothing."""
    borrowers, lenders, amounts = loans(found, windows, search.settings.contiguity)
    prints = search.view.fingerprints
    places, known = places_of(found.slots, borrowers)
    known &= prints[borrowers] != prints[lenders]
    lent, lent_by = np.zeros(found.slots.shape), np.full(found.slots.shape, -1, dtype=np.int64)
    lent[places[known]], lent_by[places[known]] = amounts[known], lenders[known]
    return msgspec.structs.replace(found, lent=lent, lenders=lent_by)


def loans(found: Candidates, windows: Slots, share: float) -> tuple[Slots, Slots, Scores]:
    """Return borrowers, each once, with the lender of the best offer and its amount, (k,) each.

    An offer is `share` of what a lender scores above the floor: the first candidate that is not a lender, at least
    `_LEAST_FLOOR` of the best.
    """
    total = found.total
    order = best_first(total, found.rows, LENDERS + 1)
    nothing = np.empty(0, dtype=np.int64)
    if order.size < 2:
        return nothing, nothing, np.empty(0)
    floor = max(float(total[order[-1]]), _LEAST_FLOOR * float(total[order[0]]))
    centres = windows[:, REACH]
    offers = np.outer((total[places_of(found.slots, centres)[0]] - floor) * share, _SHARES)
    made = (offers > 0) & (windows >= 0)
    borrowers, amounts = windows[made], offers[made]
    lenders = np.broadcast_to(centres[:, None], windows.shape)[made]
    best = np.lexsort((-amounts, borrowers))
    first = best[np.unique(borrowers[best], return_index=True)[1]]
    return borrowers[first], lenders[first], amounts[first]
