"""The memories that may answer a query, with the parts of their scores, so that an answer can explain them.

    total = fused + dates + context + lent + association

A stage takes candidates and returns candidates; `shortlist` makes the first ones.

Shapes: n candidates; in `shortlist`, all slots of the view.
"""

from __future__ import annotations

import msgspec
import numpy as np

from memory_agent.recall.dates.nearness import nearness
from memory_agent.recall.fusion import AnyScores, effective_weight, fuse, highest, places_of
from memory_agent.recall.search import Search
from memory_agent.storage.indexes import Mask, Scores, Slots

_PARTS = ("slots", "cosines", "bm25", "context", "lent", "lenders", "association")


class Candidates(msgspec.Struct, frozen=True):
    """Candidates by slot, ascending, and the parts of their scores, each (n,).

    `cosines` are with the searched vector, NaN without one; `bm25` is 0 where no word is shared. `weight` is that of
    the vector side, `best_bm25` what a share of 1 is. `lenders` holds the slot that lent the score, -1 for none.
    `association` is 0 unless the learner ranks. `is_all`: nothing else can answer.
    """

    slots: Slots
    rows: Slots
    cosines: Scores
    bm25: Scores
    weight: float
    best_bm25: float
    fused: Scores
    dates: Scores
    context: Scores
    lent: Scores
    lenders: Slots
    association: Scores
    is_all: bool = False

    @property
    def total(self) -> Scores:
        """The score that they are ranked by."""
        return self.fused + self.dates + self.context + self.lent + self.association


def shortlist(search: Search, limit: int, sure: int) -> Candidates:
    """Return at least the best `limit` by fused score and dates, rescored; of these the best `sure` are certain.

    Every memory is scored, by its approximate cosine; what might belong to the best in spite of a low one is added.
    """
    best_bm25 = float(search.bm25.max(initial=0.0))
    weight = effective_weight(search.settings.vector_weight, search.cosines is not None, best_bm25)
    scores = _approximate(search, weight, best_bm25)
    slots = highest(scores, limit)
    found = _with_sums(search, _unsummed(search, slots, weight, best_bm25))
    if weight > 0.0 and search.cosines is not None and sure <= slots.size:
        reached = float(np.partition(found.total, slots.size - sure)[slots.size - sure])
        floor = reached - weight * search.cosines.error
        if floor < float(scores[slots].min()):
            slots = np.flatnonzero(scores >= floor)
    unseen = _without_cosine(search, limit)
    slots = np.union1d(slots, unseen) if unseen.size else slots
    further = slots[~places_of(found.slots, slots)[1]]
    if further.size:
        found = add(found, further, search)
    return msgspec.structs.replace(found, is_all=found.slots.size >= _answering(search, scores))


def add(found: Candidates, slots: Slots, search: Search) -> Candidates:
    """Return the candidates with `slots`, none of them a candidate yet, scored like them."""
    new = _unsummed(search, slots, found.weight, found.best_bm25)
    order = np.argsort(np.concatenate((found.slots, slots)))
    parts = {part: np.concatenate((getattr(found, part), getattr(new, part)))[order] for part in _PARTS}
    return _with_sums(search, msgspec.structs.replace(found, **parts))


def keep(found: Candidates, kept: Mask) -> Candidates:
    """Return the candidates selected by the mask `kept` (n,)."""
    parts = {part: getattr(found, part)[kept] for part in (*_PARTS, "rows", "fused", "dates")}
    return msgspec.structs.replace(found, **parts)


def passing(search: Search, slots: Slots) -> Slots:
    """Return those of `slots` that pass the filter."""
    return slots if search.mask is None else slots[search.mask[slots]]


def _approximate(search: Search, weight: float, best_bm25: float) -> AnyScores:
    """Return (n,) the approximate score of every memory, minus infinity for what cannot answer, or has no cosine."""
    if search.cosines is None or weight == 0.0:
        scores: AnyScores = np.where(search.bm25 > 0, search.bm25 / (best_bm25 or 1.0), -np.inf)
    else:
        scores = search.cosines.values * np.float32(weight)
        if weight < 1.0:
            scores += search.bm25 * ((1.0 - weight) / best_bm25)
    if search.boosting:
        scores = scores + search.settings.date_weight * nearness(search.view.times_us, search.boosting)
    scores[np.isnan(scores)] = -np.inf
    return scores


def _answering(search: Search, scores: AnyScores) -> float:
    """Return how many memories can answer; infinity while the vector index has not looked at all."""
    if search.cosines is not None and search.cosines.unseen > -np.inf:
        return np.inf
    return float(np.count_nonzero((scores > -np.inf) | (search.bm25 > 0)))


def _without_cosine(search: Search, limit: int) -> Slots:
    """Return the best `limit` by words among memories without a vector, or beyond what the vector index looked at."""
    view, cosines = search.view, search.cosines
    if cosines is None or (cosines.unseen == -np.inf and view.vectors.count == view.live):
        return np.empty(0, dtype=np.int64)
    return highest(np.where(np.isnan(cosines.values) & (search.bm25 > 0), search.bm25, -np.inf), limit)


def _unsummed(search: Search, slots: Slots, weight: float, best_bm25: float) -> Candidates:
    """Return candidates without rows, fused scores and dates."""
    nothing = np.zeros(slots.shape)
    cosines = np.full(slots.shape, np.nan)
    if search.cosines is not None and search.vector is not None:
        cosines = search.view.vectors.cosines(search.vector.centred, slots)
    return Candidates(
        slots=slots,
        rows=slots,
        cosines=cosines,
        bm25=search.bm25[slots],
        weight=weight,
        best_bm25=best_bm25,
        fused=nothing,
        dates=nothing,
        context=nothing,
        lent=nothing,
        lenders=np.full(slots.shape, -1, dtype=np.int64),
        association=nothing,
    )


def _with_sums(search: Search, found: Candidates) -> Candidates:
    """Return the candidates with what follows from their cosines, words and times."""
    dates = np.zeros(found.slots.shape)
    if search.boosting:
        dates = search.settings.date_weight * nearness(search.view.times_us[found.slots], search.boosting)
    return msgspec.structs.replace(
        found,
        rows=search.view.rows[found.slots],
        fused=fuse(found.cosines, found.bm25, found.weight, found.best_bm25),
        dates=dates,
    )
