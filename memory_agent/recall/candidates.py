"""The memories that may answer a query, with the parts of their scores, so that an answer can explain them.

    total = fused + dates + speaker + context + lent + association + outcome
    fused = w * cosine + (1 - w) * (late interaction + .1 * bm25 / max(bm25)) / 1.1      w = recall.vector_weight

`shortlist` makes the candidates; each stage after it takes candidates and returns candidates (`stages`).

The cosine and the late interaction are used as they are, BM25, which has no fixed scale, as a share of the best match.
A missing side is absent, not zero: a memory without a vector gets the mean cosine. Rejected by measurement (decision
0013): min-max over the candidates, which makes a score depend on the other candidates and amplifies noise in small
sets; z-scores; reciprocal ranks.

`speaker`: what an agent writes along the way, such as an assistant's messages, repeats at greater length what the user
wrote and what was found. It ranks below others that match about as well (decision 0013).

Shapes: n candidates; in `shortlist`, all slots of the view.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from functools import cached_property

import msgspec
import numpy as np
import numpy.typing as npt

from memory_agent.embedders import has_prefixes
from memory_agent.recall.evidence import CALIBRATED_MODEL, REACH, Met, credit, evidence, late_interaction
from memory_agent.recall.search import Search
from memory_agent.records.memories import KINDS, SOURCES, UnderstoodDate, microseconds
from memory_agent.storage.column import Mask, Scores, Slots
from memory_agent.storage.terms import is_foreign

AnyScores = npt.NDArray[np.float32] | npt.NDArray[np.float64]
_BM25 = 0.1
_SAMPLED_FROM = 4_096
_STRIDE = 16
_MOST_TIED = 8
"""Limits of slots with one score; of 20,000 notes "build N failed" all have the same words."""
_OTHER_LANGUAGE = 3.0
"""Logits by which texts in one language resemble each other to a model that reads another (decision 0015)."""
_LEAST_FADING = timedelta(days=1)
_MOST_FADING = timedelta(days=7)
_NO_SLOTS: Slots = np.empty(0, dtype=np.int64)
_AGENT, _EPISODE = SOURCES.index("worker_result"), KINDS.index("episode")


class Candidates(msgspec.Struct, frozen=True, dict=True):
    """Candidates by slot, ascending, and the parts of their scores, each (n,).

    `cosines` are NaN without a vector; `bm25` is 0 where no word is shared, and `shares` what it is of the best one.
    `words` and `near` are how well the query's words are met, here, and here or beside it (`late_interaction`).
    `evidence` is the logit of its relevance by itself, `relevance` what follows with the others, NaN before that and
    where it is not known. `lenders` holds the slot that lent the score, -1 for none. `association` is 0 unless the
    learner ranks. `qualities` are how the run of each ended, `implicit` with what followed it, NaN where that is not
    known, `outcome` what it gains by that, all unset before their stage. `vouched` are those that runs
    used so often for such requests that this alone makes them relevant. `is_all`: nothing else can answer.
    """

    slots: Slots
    rows: Slots
    cosines: Scores
    bm25: Scores
    shares: Scores
    words: Scores
    near: Scores
    evidence: Scores
    fused: Scores
    dates: Scores
    speaker: Scores
    context: Scores
    lent: Scores
    lenders: Slots
    association: Scores
    relevance: Scores
    qualities: Scores
    implicit: Scores
    outcome: Scores
    vouched: Mask
    is_all: bool = False

    @cached_property
    def total(self) -> Scores:
        """The score that they are ranked by."""
        parts = self.fused + self.dates + self.speaker + self.context + self.lent
        return parts + self.association + self.outcome

    def keep(self, kept: Mask) -> Candidates:
        """Return the candidates selected by the mask `kept` (n,)."""
        parts = {
            name: part[kept] for name, part in msgspec.structs.asdict(self).items() if isinstance(part, np.ndarray)
        }
        return msgspec.structs.replace(self, **parts)


def shortlist(search: Search, limit: int, sure: int) -> Candidates:
    """Return the best `limit` by vector, as many by words and by the times that the query names, and their neighbours.

    By vector alone the best `sure` are exact. Where copies of few texts crowd out others, `limit` counts texts.
    """
    best = [_by_vector(search, limit, sure), _by_words(search, limit), _by_time(search, limit)]
    slots = search.view.distinct(np.concatenate(best))
    is_all = _is_all(search, slots, limit)
    if search.is_hybrid and not search.deadline.expired():
        slots = search.passing(search.view.distinct(search.view.windows(slots, REACH)))
    return msgspec.structs.replace(scored(search, slots), is_all=is_all)


def scored(search: Search, slots: Slots, reach: int = REACH) -> Candidates:
    """Return `slots`, ascending, as candidates. What they gain from neighbours is another stage (`stages`).

    `reach` is the number of neighbours on each side that are evidence for them.
    """
    view = search.view
    cosines = np.full(slots.shape, np.nan)
    if search.cosines is not None and search.vector is not None:
        cosines = view.vectors.cosines(search.vector.raw, slots)
    bm25 = search.bm25[slots]
    shares = lexical_share(bm25, float(search.bm25.max(initial=0.0)))
    met = late_interaction(search, slots, credit(cosines), reach)
    nothing, unknown = np.zeros(slots.shape), np.full(slots.shape, np.nan)
    return Candidates(
        slots=slots,
        rows=view.rows[slots],
        cosines=cosines,
        bm25=bm25,
        shares=shares,
        words=met.own,
        near=met.near,
        evidence=_evidence(search, slots, cosines, met),
        fused=_fused(search, cosines, met.own, shares),
        dates=_dates(search, slots),
        speaker=_by_speaker(search, slots),
        context=nothing,
        lent=nothing,
        lenders=np.full(slots.shape, -1, dtype=np.int64),
        association=nothing,
        relevance=unknown,
        qualities=unknown,
        implicit=unknown,
        outcome=nothing,
        vouched=np.zeros(slots.shape, dtype=np.bool_),
    )


def _evidence(search: Search, slots: Slots, cosines: Scores, met: Met) -> Scores:
    lengths = search.view.words.lengths
    words = search.view.words.total if search.mask is None else int(np.dot(lengths, search.mask))
    found = evidence(met, cosines, lengths[slots], words)
    if search.vector is not None and is_foreign(search.query.text):
        found = np.where(np.isnan(cosines), found, found - _OTHER_LANGUAGE)
    return found if is_calibrated(search) else np.where(np.isnan(cosines), found, np.nan)


def is_calibrated(search: Search) -> bool:
    """Whether the query's vector, if any, is of the model whose cosines say how relevant a memory is, as it is."""
    stamp = CALIBRATED_MODEL if search.vector is None else search.vector.stamp
    return stamp.partition("|")[0] == CALIBRATED_MODEL and not has_prefixes(stamp)


def _fused(search: Search, cosines: Scores, words: Scores, shares: Scores) -> Scores:
    if search.is_hybrid:
        return fuse(cosines, words, shares, search.settings.vector_weight)
    return shares if search.cosines is None else np.where(np.isnan(cosines), -1.0, cosines)


def _dates(search: Search, slots: Slots) -> Scores:
    if not search.boosting:
        return np.zeros(slots.shape)
    return search.settings.date_weight * nearness(search.view.times_us[slots], search.boosting)


def _by_speaker(search: Search, slots: Slots) -> Scores:
    """Return what candidates lose because an agent wrote them along the way; nothing where this holds for all."""
    is_said = (search.view.sources[slots] == _AGENT) & (search.view.kinds[slots] == _EPISODE)
    if not search.is_hybrid or is_said.all():
        return np.zeros(slots.shape)
    return np.where(is_said, -search.settings.speaker_weight, 0.0)


def _by_vector(search: Search, limit: int, sure: int) -> Slots:
    if search.cosines is None or search.vector is None:
        return _NO_SLOTS
    values = search.cosines.values
    slots = _of_texts(search, values, limit)
    if search.query.mode == "vector" and slots.size >= sure:
        exact = search.view.vectors.cosines(search.vector.raw, slots)
        floor = float(np.partition(exact, slots.size - sure)[slots.size - sure]) - search.cosines.error
        if floor < values[slots].min():
            return _of_texts(search, np.where(values >= floor, values, -np.inf), values.size)
    return slots


def _by_words(search: Search, limit: int) -> Slots:
    return _of_texts(search, search.bm25, limit, above=0.0)


def _by_time(search: Search, limit: int) -> Slots:
    """Return the memories of a time that the query names, or of soon after, that are nearest by both."""
    if not search.boosting or search.cosines is None:
        return _NO_SLOTS
    near, values = nearness(search.view.times_us, search.boosting), search.cosines.values
    is_near = (near > 0) & ~np.isnan(values)
    return _of_texts(search, np.where(is_near, search.settings.date_weight * near + values, -np.inf), limit)


def _of_texts(search: Search, values: AnyScores, limit: int, above: float = -np.inf) -> Slots:
    """Return the slots of the `highest` values (n,) with their ties; of copies or far too many, the newest.

    Where most are copies, one of each text, so that `limit` texts are found, besides the `limit` slots.
    """
    slots = highest(values, limit, above)
    fingerprints = search.view.fingerprints
    if slots.size <= _MOST_TIED * limit and 2 * len(set(fingerprints[slots].tolist())) >= slots.size:
        return slots
    found = np.flatnonzero(values > above)
    found = found[np.lexsort((-found, -values[found]))]
    first = np.sort(np.unique(fingerprints[found], return_index=True)[1])[:limit]
    return np.union1d(found[:limit], found[first])


def _is_all(search: Search, slots: Slots, limit: int) -> bool:
    """Whether each memory that can answer is among `slots`, or a copy of it; False while vectors are unseen."""
    can_answer = search.bm25 > 0
    if search.cosines is not None:
        if search.cosines.unseen > -np.inf:
            return False
        can_answer |= ~np.isnan(search.cosines.values)
    if slots.size >= np.count_nonzero(can_answer):
        return True
    fingerprints = search.view.fingerprints
    texts = set(fingerprints[slots].tolist())
    return len(texts) < limit and bool(np.isin(fingerprints[can_answer], list(texts)).all())


def nearness(times_us: npt.NDArray[np.int64], dates: Iterable[UnderstoodDate]) -> npt.NDArray[np.float64]:
    """Return (n,) from 0 to 1: how near each time, in microseconds since 1970, is to the nearest of `dates`.

    An event is often mentioned on the days after it and never before, so a memory inside a span scores 1, and fades
    after its end.
    """
    nearest = np.zeros(times_us.shape)
    for date in dates:
        np.maximum(nearest, _to_one(times_us, date), out=nearest)
    return nearest


def _to_one(times_us: npt.NDArray[np.int64], date: UnderstoodDate) -> npt.NDArray[np.float64]:
    begun = np.ones(times_us.shape, dtype=np.bool_)
    if date.since is not None:
        begun = times_us >= microseconds(date.since, "since")
    near = begun.astype(np.float64)
    if date.until is not None:
        late_us = times_us - microseconds(date.until, "until")
        late = begun & (late_us >= 0)
        told_later = date.since is not None
        near[late] = np.exp(-late_us[late] / _fading(date).total_seconds() / 1e6) if told_later else late_us[late] <= 0
    return near


def _fading(date: UnderstoodDate) -> timedelta:
    """Return the time after a span in which its boost fades to 1/e: the length of the span, within bounds."""
    if date.since is None or date.until is None:
        return _LEAST_FADING
    return min(max(date.until - date.since, _LEAST_FADING), _MOST_FADING)


def fuse(cosines: Scores, words: Scores, shares: Scores, weight: float) -> Scores:
    """Return (n,) fused scores, higher is better; `weight` is that of the vector side.

    `cosines` is NaN for a memory without a vector, `words` its late interaction, `shares` its BM25 as a share.
    """
    present = np.isfinite(cosines)
    filled = cosines if present.all() else np.where(present, cosines, cosines[present].mean())
    return weight * filled + (1.0 - weight) * (words + _BM25 * shares) / (1.0 + _BM25)


def lexical_share(bm25: Scores, best_bm25: float) -> Scores:
    """Return (n,) BM25 as shares of the best, 0 to 1."""
    return bm25 / best_bm25 if best_bm25 > 0 else np.zeros(bm25.shape)


def best_first(scores: Scores, rows: Slots, limit: int) -> npt.NDArray[np.intp]:
    """Return the positions of the best `limit` scores, best first; of equal scores the later row comes first."""
    return np.lexsort((-rows, -scores))[:limit]


def highest(scores: AnyScores, limit: int, above: float = -np.inf) -> npt.NDArray[np.intp]:
    """Return the positions of the highest `limit` scores that exceed `above`, ascending; all of a tie. NaN is left out.

    A sample of one score in 16 gives a bound below which nothing is sorted: .1 ms instead of .9 for 100,000 scores.
    """
    floor = _floor_of(scores, limit, above)
    order = (scores > floor).nonzero()[0]
    if floor > above and order.size < limit:
        order = (scores > above).nonzero()[0]
    if order.size > limit:
        kept = scores[order]
        order = order[kept >= np.partition(kept, order.size - limit)[order.size - limit]]
    return order


def _floor_of(scores: AnyScores, limit: int, above: float) -> float:
    """Return a score that more than `limit` others probably exceed, going by a sample; else `above`."""
    sample = scores[::_STRIDE]
    sample = sample[sample > above]
    beyond = 2 * limit // _STRIDE + 8
    if scores.size < _SAMPLED_FROM or beyond >= sample.size:
        return above
    return float(np.partition(sample, sample.size - beyond)[sample.size - beyond])
