"""Collects the memories that may answer a query, with the parts of their scores.

    total = fused + dates + speaker + context + lent + kind + association + outcome
    fused = w * cosine + (1 - w) * (late interaction + .1 * bm25 / max(bm25)) / 1.1      w = recall.vector_weight

`shortlist` creates the candidates; every later stage takes and returns candidates (`stages`, `selection`). BM25 has no
fixed scale, so each value is divided by the largest. A memory without a vector gets the mean cosine. `speaker` lowers
the scores of an agent's intermediate texts, which repeat what the user wrote and what was found (decision 0013).

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
from memory_agent.recall.kinds import Asked
from memory_agent.recall.search import Search
from memory_agent.records.memories import KINDS, SOURCES, UnderstoodDate, microseconds
from memory_agent.storage.column import Mask, Scores, Slots
from memory_agent.storage.terms import is_foreign
from memory_agent.storage.view import NO_NAME, View

AnyScores = npt.NDArray[np.float32] | npt.NDArray[np.float64]
Places = npt.NDArray[np.intp]

_BM25 = 0.1
_SAMPLED_FROM = 4_096
_STRIDE = 16
_MOST_TIED = 8  # as a multiple of the limit; many texts can tie, such as 20,000 notes of the form "build N failed"
_OTHER_LANGUAGE = 3.0  # the model rates all texts in one foreign language as similar (decision 0015)
_LEAST_FADING = timedelta(days=1)
_MOST_FADING = timedelta(days=7)
_MOST_RUNS, _MOST_OF_RUNS = 5, 60
_NO_SLOTS: Slots = np.empty(0, dtype=np.int64)
_AGENT, _EPISODE = SOURCES.index("worker_result"), KINDS.index("episode")


class Candidates(msgspec.Struct, frozen=True, dict=True):
    """Candidates and the parts of their scores, as arrays (n,), in order of slots or, after selection, best first."""

    slots: Slots
    rows: Slots
    fingerprints: Slots
    cosines: Scores  # NaN without a vector
    bm25: Scores
    shares: Scores  # `bm25` divided by its best value
    words: Scores  # how well the memory matches the query's words
    near: Scores  # how well the memory or its neighbours match them
    evidence: Scores  # the logit of the relevance, ignoring other candidates
    fused: Scores
    dates: Scores
    speaker: Scores

    # Set by `stages`; 0 or NaN until then.
    context: Scores
    lent: Scores
    kind: Scores
    lenders: Slots  # the slot of the memory that the score in `lent` comes from, or -1
    requests: Slots  # the rank among the earlier requests that the query repeats (1 is the best), or 0
    relevance: Scores  # NaN if unknown
    qualities: Scores  # of the memory or its run; NaN if unknown
    association: Scores
    vouched: Mask  # relevant because runs used the memory often for similar requests
    outcome: Scores

    # Set by `selection`.
    shift: Scores
    arms: Slots  # the ranking that the candidate comes from
    ranks: Slots  # the rank in the learned ranking, from 1, if the baseline was compared with it
    boosts: Slots  # what past use predicts, if the rankings were compared (`storage/stored_runs`)
    by_score: Slots  # the rank by score, from 1, if a judge selected the candidate
    copies: tuple[Slots, ...] = ()  # the duplicates folded into each candidate
    folded: tuple[Slots, ...] = ()  # the earlier requests folded into each candidate, and their copies
    is_all: bool = False  # whether no memory outside the candidates can answer

    @cached_property
    def total(self) -> Scores:
        """The scores (n,) without `shift`."""
        parts = self.fused + self.dates + self.speaker + self.context + self.lent
        return parts + self.kind + self.association + self.outcome

    @property
    def scores(self) -> Scores:
        """The scores (n,) by which an answer is ranked."""
        return self.total + self.shift

    @property
    def learned(self) -> Scores:
        return self.association + self.shift

    @cached_property
    def leaders(self) -> Places:
        """The indices of the best candidates, one for each text, from best to worst."""
        order = best_first(self.total, self.rows, self.rows.size)
        leaders: Places = order[np.sort(np.unique(self.fingerprints[order], return_index=True)[1])]
        return leaders

    @property
    def answers(self) -> Places:
        answers: Places = self.leaders[self.requests[self.leaders] == 0]
        return answers

    @property
    def best_evidence(self) -> float:
        """The best evidence among the answers, or minus infinity if all evidence is unknown."""
        return float(np.fmax.reduce(self.evidence[self.answers], initial=-np.inf))

    def take(self, places: Places | Mask) -> Candidates:
        """Return the candidates at `places`, in that order; `places` may also be a mask (n,)."""
        if places.dtype == np.bool_:
            (places,) = places.nonzero()
        parts: dict[str, object] = {}
        for name, part in msgspec.structs.asdict(self).items():
            if isinstance(part, np.ndarray):
                parts[name] = part[places]
            elif isinstance(part, tuple) and part:
                parts[name] = tuple(part[place] for place in places.tolist())
        return msgspec.structs.replace(self, **parts)

    def first(self, limit: int) -> Candidates:
        return self.take(np.arange(min(limit, self.slots.size)))

    def joined(self, other: Candidates) -> Candidates:
        parts: dict[str, object] = {}
        for name, part in msgspec.structs.asdict(self).items():
            if isinstance(part, np.ndarray):
                parts[name] = np.concatenate((part, getattr(other, name)))
            elif isinstance(part, tuple):
                parts[name] = part + getattr(other, name)
        return msgspec.structs.replace(self, **parts)


def shortlist(search: Search, limit: int, sure: int) -> Candidates:
    """Return the `limit` best memories by vector, by words, and by the times mentioned in the query, with their
    neighbours.

    In `vector` mode, they include the `sure` best memories by exact cosine. If copies of a few texts crowd out other
    texts, `limit` counts distinct texts. If the query asks for certain kinds of memories, adds memories of these kinds.
    """
    best = [_by_vector(search, limit, sure), _of_texts(search, search.bm25, limit, above=0.0), _by_time(search, limit)]
    slots = search.view.distinct(np.concatenate(best))
    is_all = _is_all(search, slots, limit)
    if search.is_hybrid and not search.deadline.expired():
        slots = search.passing(search.view.distinct(search.view.windows(slots, REACH)))
    found = scored(search, slots)
    if search.asked is not None and not search.deadline.expired():
        found = scored(search, np.union1d(slots, _of_kinds(search, found, search.asked, limit)))
    return msgspec.structs.replace(found, is_all=is_all)


def _of_kinds(search: Search, found: Candidates, asked: Asked, limit: int) -> Slots:
    """Return memories of the kinds that the query asks for: the nearest, the newest, and those of the query's dates."""
    slots = asked.members.nonzero()[0]
    best = found.fused + search.settings.context_words * found.near
    groups = groups_of(search.view, found.slots[best_first(best, found.rows, found.rows.size)])
    leading = list(dict.fromkeys(groups[groups != NO_NAME].tolist()))[:_MOST_RUNS]
    of_runs = slots[np.isin(groups_of(search.view, slots), leading)]
    parts = [_nearest(search, of_runs, _MOST_OF_RUNS), _nearest(search, slots, limit)]
    if search.boosting:
        parts.append(_nearest(search, slots[nearness(search.view.times_us[slots], search.boosting) >= 1.0], limit))
    if asked.is_latest:
        parts.append(newest(search, slots)[:limit])
    return np.concatenate(parts)


def _nearest(search: Search, slots: Slots, limit: int) -> Slots:
    """Return the `limit` slots nearest to the query or, if there are no cosines, the last `limit` slots."""
    if search.cosines is None:
        return slots[-limit:]
    if slots.size <= limit:
        return slots
    values = np.nan_to_num(search.cosines.values[slots], nan=-1.0)
    return slots[np.argsort(-values, kind="stable")[:limit]]


def groups_of(view: View, slots: Slots) -> Slots:
    """Return the number of each slot's run, else the number of its session, else `NO_NAME`."""
    runs = view.runs[slots]
    return np.where(runs == NO_NAME, view.sessions[slots], runs)


def newest(search: Search, slots: Slots) -> Slots:
    times_us = search.view.times_us[slots]
    past = times_us <= microseconds(search.query.reference_time, "reference_time")
    return slots[past][np.argsort(-times_us[past], kind="stable")]


def scored(search: Search, slots: Slots, reach: int = REACH) -> Candidates:
    """Return the candidates for ascending `slots`, with `reach` neighbours on each side as evidence."""
    view = search.view
    cosines = np.full(slots.shape, np.nan)
    if search.cosines is not None and search.vector is not None:
        cosines = view.vectors.cosines(search.vector.raw, slots)
    bm25 = search.bm25[slots]
    shares = lexical_share(bm25, float(search.bm25.max(initial=0.0)))
    met = late_interaction(search, slots, credit(cosines), reach)
    nothing, unknown = np.zeros(slots.shape), np.full(slots.shape, np.nan)
    none = np.zeros(slots.shape, dtype=np.int64)
    return Candidates(
        slots=slots,
        rows=view.rows[slots],
        fingerprints=view.fingerprints[slots],
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
        kind=nothing,
        lenders=none - 1,
        requests=none,
        relevance=unknown,
        qualities=unknown,
        association=nothing,
        vouched=none > 0,
        outcome=nothing,
        shift=nothing,
        arms=none,
        ranks=none,
        boosts=none,
        by_score=none,
    )


def _evidence(search: Search, slots: Slots, cosines: Scores, met: Met) -> Scores:
    lengths = search.view.words.lengths
    words = search.view.words.total if search.mask is None else int(np.dot(lengths, search.mask))
    found = evidence(met, cosines, lengths[slots], words)
    if search.vector is not None and is_foreign(search.query.text):
        found = np.where(np.isnan(cosines), found, found - _OTHER_LANGUAGE)
    stamp = CALIBRATED_MODEL if search.vector is None else search.vector.stamp
    is_calibrated = stamp.partition("|")[0] == CALIBRATED_MODEL and not has_prefixes(stamp)
    return found if is_calibrated else np.where(np.isnan(cosines), found, np.nan)


def _fused(search: Search, cosines: Scores, words: Scores, shares: Scores) -> Scores:
    if search.is_hybrid:
        return fuse(cosines, words, shares, search.settings.vector_weight)
    return shares if search.cosines is None else np.where(np.isnan(cosines), -1.0, cosines)


def _dates(search: Search, slots: Slots) -> Scores:
    if not search.boosting:
        return np.zeros(slots.shape)
    return search.settings.date_weight * nearness(search.view.times_us[slots], search.boosting)


def _by_speaker(search: Search, slots: Slots) -> Scores:
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


def _by_time(search: Search, limit: int) -> Slots:
    """Of the memories dated at or soon after a time named in the query, return the best by nearness and cosine."""
    if not search.boosting or search.cosines is None:
        return _NO_SLOTS
    near, values = nearness(search.view.times_us, search.boosting), search.cosines.values
    is_near = (near > 0) & ~np.isnan(values)
    return _of_texts(search, np.where(is_near, search.settings.date_weight * near + values, -np.inf), limit)


def _of_texts(search: Search, values: AnyScores, limit: int, above: float = -np.inf) -> Slots:
    """Return the slots of the `limit` highest of those values (n,) that exceed `above`, including ties.

    If there are far too many, or if most are copies, return the newest `limit` slots and one slot for each of `limit`
    texts.
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
    """Whether `slots` contain each memory that can answer, or a copy of that memory. False if cosines are missing."""
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
    """Return the nearness (0 to 1) of each time (n,), in microseconds since 1970, to the nearest of `dates`.

    The value is 1 within a span, fades after it, and is 0 before it, because an event is often mentioned in the days
    after it happened, but not earlier.
    """
    nearest = np.zeros(times_us.shape)
    for date in dates:
        np.maximum(nearest, _nearness_to(times_us, date), out=nearest)
    return nearest


def _nearness_to(times_us: npt.NDArray[np.int64], date: UnderstoodDate) -> npt.NDArray[np.float64]:
    begun = np.ones(times_us.shape, dtype=np.bool_)
    if date.since is not None:
        begun = times_us >= microseconds(date.since, "since")
    near = begun.astype(np.float64)
    if date.until is not None:
        late_us = times_us - microseconds(date.until, "until")
        late = begun & (late_us >= 0)
        fades = date.since is not None
        near[late] = np.exp(-late_us[late] / _fading(date).total_seconds() / 1e6) if fades else late_us[late] <= 0
    return near


def _fading(date: UnderstoodDate) -> timedelta:
    """Return how long the boost takes to fade to 1/e after a span: the span's length, within bounds."""
    if date.since is None or date.until is None:
        return _LEAST_FADING
    return min(max(date.until - date.since, _LEAST_FADING), _MOST_FADING)


def fuse(cosines: Scores, words: Scores, shares: Scores, weight: float) -> Scores:
    """Fuse cosines, late interaction (`words`) and BM25 `shares` into scores (n,). `weight` applies to the cosines."""
    present = np.isfinite(cosines)
    filled = cosines if present.all() else np.where(present, cosines, cosines[present].mean())
    return weight * filled + (1.0 - weight) * (words + _BM25 * shares) / (1.0 + _BM25)


def lexical_share(bm25: Scores, best_bm25: float) -> Scores:
    return bm25 / best_bm25 if best_bm25 > 0 else np.zeros(bm25.shape)


def best_first(scores: Scores, rows: Slots, limit: int) -> npt.NDArray[np.intp]:
    """Return the positions of the best `limit` scores, best first; in a tie, the higher row comes first."""
    return np.lexsort((-rows, -scores))[:limit]


def highest(scores: AnyScores, limit: int, above: float = -np.inf) -> npt.NDArray[np.intp]:
    """Return the positions, ascending, of the highest `limit` scores above `above`, with all ties. NaN is omitted."""
    floor = _floor_of(scores, limit, above)
    order = (scores > floor).nonzero()[0]
    if floor > above and order.size < limit:
        order = (scores > above).nonzero()[0]
    if order.size > limit:
        kept = scores[order]
        order = order[kept >= np.partition(kept, order.size - limit)[order.size - limit]]
    return order


def _floor_of(scores: AnyScores, limit: int, above: float) -> float:
    """Estimate, from a sample, a score that more than `limit` scores exceed; return `above` if that is impossible."""
    sample = scores[::_STRIDE]
    sample = sample[sample > above]
    beyond = 2 * limit // _STRIDE + 8
    if scores.size < _SAMPLED_FROM or beyond >= sample.size:
        return above
    return float(np.partition(sample, sample.size - beyond)[sample.size - beyond])
