"""The stages between the shortlist and the answer, in order; each takes candidates and returns candidates. Pure.

**Neighbours.** Context: the words of a question are often spread over a few turns, so a memory gains by how well they
are met here or beside it (`evidence`). Answers: what answers a question often follows where it was asked before. If the
query asks, a memory that asks lends what it scores above the next best to the memory that follows it, and ranks below
it. Both count less the longer the answer, since a long text needs no help to be found. Rejected by measurement
(decision 0013): lending to both sides, and lending by every candidate.

**Relevance** and qualities are found next, and **past use** where the learner may rank:

    association = scale * (w_a * reach * own + w_r * min(support, 1) + w_p * lift)
    shift       = scale * w_s * <memory, direction>
    scale       = 2.5 times the spread of the best fifty scores without the best tenth of them

`reach` is the likeness of the request to one for which a run used the memory, `support` adds up over all such runs from
a cosine of .5 on (`sona/association`), `lift` is how much better than usual the runs went that used it, `own` the
memory's score as a share of the best. A used memory gains only as far as it also answers this query, unless runs used
it repeatedly for the same request; so frequently used memories do not displace better answers (decision 0020). What
learning adds is measured in the spread of the scores, so it moves a memory past as many others whether they are near or
far, in any query and after a change of the ranking. It is about 1 in LoCoMo. Leaders that stand out do not widen it:
they would be overtaken the more easily the better they match (decision 0020). Each part is bounded, so no score rises
by more than their sum. Candidates are those of the query itself: searching with the moved query too finds some that
never reach the first five (decision 0020). Whether the learner may rank is decided by `learning/learner`.

**Outcome.** Of about equally good memories, those whose runs worked come first, in either ranking:

    outcome = w_o * best * (quality - 1/2) * own^6        own = min(score / best, 1)        best = the best score

`quality` is how the memory itself went, else its run; so it follows each revision: a retry, a later approval, feedback.
A user's message has that of the run it began. What followed the run counts in, where it has an implicit quality, which
never turns the order of two verdicts. Without a quality a memory neither gains nor loses. Former requests do not set
`best`: nothing scores like the query's own words, and beside them all answers would be far below the best. A memory a
tenth below the best gains or loses half as much, one at .6 a twentieth: a success passes a failure that scores up to
some 30 % more, and a clearly better match stays first. It needs no learning and no gate, since it decides between
memories that are about equally relevant and brings none in (decision 0021). Rejected by measurement: a weight that
ignores the scale of the scores, which differs from query to query; lower powers, which cost relevance.

Shapes: n candidates, m slots or memories reached, p leaders or answers, d dimensions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from memory_agent.recall.candidates import Candidates, scored
from memory_agent.recall.dates import ask_for_nothing_else
from memory_agent.recall.evidence import credit, places_of, relevance
from memory_agent.recall.search import Search
from memory_agent.records.embedded import Embedding
from memory_agent.records.memories import SOURCES
from memory_agent.settings import LearningSettings
from memory_agent.storage.column import Mask, Scores, Slots
from memory_agent.storage.terms import asks
from memory_agent.storage.view import View
from sona.learner import Adaptation

_FLOOR = 20
"""Candidates that lend nothing to each other: what the next best scores is the floor."""
_WHOLE_TOKENS = 64
"""Of an answer, up to which it counts whole."""
_GIVES_WAY = 0.06
_BEFORE, _AFTER = 0, 2

_MOST_RECURRING = 16
_WORTH_READING = 0.1
_SPREAD_OVER, _OUTSTANDING = 50, 10
_SPREADS, _LEAST = 2.5, 0.1

_NEUTRAL = 0.5
_STEEPNESS = 6
_RUN_REACH = 2  # memories of the session after a message among which its run begins: there may be a reply before it
_BEGINS_WITHIN_US = 600_000_000
_MESSAGE, _PLAN = SOURCES.index("user_input"), SOURCES.index("conductor_plan")


def with_neighbours(found: Candidates, search: Search) -> Candidates:
    """Add what the candidates gain from each other."""
    if not search.is_hybrid:
        return found
    found = replace(found, context=search.settings.context_words * found.near)
    return _with_answers(found, search) if search.settings.contiguity and asks(search.query.text) else found


def _with_answers(found: Candidates, search: Search) -> Candidates:
    beside = search.view.windows(found.slots, 1)
    places, known = places_of(found.slots, beside)
    asking = search.view.asks[found.slots]
    whole = _WHOLE_TOKENS / np.maximum(search.view.word_bits.lengths[found.slots], _WHOLE_TOKENS)
    before, is_answer = places[:, _BEFORE], known[:, _BEFORE] & asking[places[:, _BEFORE]]
    lent = np.where(is_answer, _above_floor(found.fused)[before] * whole, 0.0)
    after, gives_way = places[:, _AFTER], known[:, _AFTER] & asking
    taken = np.where(gives_way, _GIVES_WAY * whole[after], 0.0)
    return replace(
        found,
        lent=search.settings.contiguity * (lent - taken),
        lenders=np.where(lent > 0, beside[:, _BEFORE], -1),
    )


def _above_floor(scores: Scores) -> Scores:
    """Return what each score (n,) exceeds the first one that lends nothing by, 0 for the others."""
    place = max(scores.size - _FLOOR - 1, 0)
    floor = float(np.partition(scores, place)[place]) if scores.size else 0.0
    above: Scores = np.maximum(scores - floor, 0.0)
    return above


def with_relevance(found: Candidates, search: Search, best: float) -> Candidates:
    """Add the relevance of the candidates, and how their runs ended.

    `best` is the best evidence for an answer: a former request resembles the query and vouches for nothing. Where a
    time is all that the query asks for, what is of that time answers it.
    """
    likely = relevance(found.evidence, credit(found.cosines), best)
    if ask_for_nothing_else((date.phrase for date in search.dates), search.words):
        of_then = search.view.within((date.since, date.until) for date in search.dates)
        likely = np.where(of_then[found.slots], 1.0, likely)
    qualities, implicit = qualities_of(search.view, found.slots)
    return replace(found, relevance=likely, qualities=qualities, implicit=implicit)


def relevant(found: Candidates, search: Search) -> Candidates:
    """Return the candidates without those known to have too little relevance and not `vouched` for."""
    is_irrelevant = (found.relevance < search.query.min_relevance) & ~found.vouched
    return found.keep(~is_irrelevant) if is_irrelevant.any() else found


class PastUse(NamedTuple):
    """What the learner advises for a query, the weights of its parts, and what a weight of 1 adds (`scale_of`)."""

    adaptation: Adaptation
    settings: LearningSettings
    scale: float


def scale_of(totals: Scores) -> float:
    """Return what a weight of 1 adds, given the scores of answers (p,), best first, one of each text.

    Of equal scores, which past use decides between, it is a tenth of the best.
    """
    if not totals.size:
        return 0.0
    near = totals[:_SPREAD_OVER]
    spread = float(near[near.size // _OUTSTANDING] - near[-1])
    return max(_SPREADS * spread, _LEAST * float(totals[0]))


def with_recurring(found: Candidates, search: Search, past_use: PastUse) -> Candidates:
    """Add the memories that runs used repeatedly for such a request; without any, return `found` itself.

    At most 16, the best supported ones, that pass the filter and have a vector: what one run used once is a candidate
    anyway, or no answer.
    """
    reached = past_use.adaptation.reached
    (supported,) = (reached.support * past_use.settings.recurrence >= _WORTH_READING).nonzero()
    if not supported.size or search.vector is None:
        return found
    slots = search.view.slots(reached.memories[supported])
    (new,) = ((slots >= 0) & ~places_of(found.slots, slots)[1]).nonzero()
    if not new.size:
        return found
    slots, support = slots[new], reached.support[supported[new]]
    best = search.passing(slots[np.argsort(-support, kind="stable")[:_MOST_RECURRING]])
    new = best[np.isfinite(search.view.vectors.cosines(search.vector.raw, best))]
    return with_neighbours(scored(search, np.union1d(found.slots, new)), search) if new.size else found


def with_past_use(found: Candidates, past_use: PastUse) -> Candidates:
    """Add what candidates gain from past use, and which of them are vouched for by it."""
    adaptation, settings, scale = past_use
    reached = adaptation.reached
    places, is_used = places_of(reached.memories, found.rows)
    (used,) = is_used.nonzero()
    gained = np.zeros(found.rows.shape)
    if used.size:
        places = places[used]
        own = _own(found.total, used)
        support = np.minimum(reached.support[places], 1.0)
        gained[used] = settings.association * reached.amounts[places] * own + settings.recurrence * support
    if settings.prior:
        gained += settings.prior * np.array([adaptation.prior.lift(row) for row in found.rows.tolist()])
    return replace(found, association=scale * gained, vouched=gained >= _WORTH_READING)


def shifts(vectors: Embedding, past_use: PastUse) -> Scores:
    """Return what memories with `vectors` (p, d) gain from the adapted query (p,)."""
    along = vectors.dot(past_use.adaptation.direction).astype(np.float64)
    found: Scores = past_use.scale * past_use.settings.shift * along
    return found


def _own(totals: Scores, places: npt.NDArray[np.intp]) -> Scores:
    """Return the scores at `places` as shares of the best, 0 to 1."""
    best, own = float(totals[totals.argmax()]), totals[places]
    return np.maximum(own / best, 0.0) if best > 0 else np.zeros(own.shape)


def with_outcomes(found: Candidates, search: Search, is_request: Mask) -> Candidates:
    """Add what candidates with qualities gain or lose by them in a hybrid recall.

    `is_request` (n,) marks former requests in the words of the query.
    """
    if search.query.mode != "hybrid":
        return found
    totals = found.total
    answers = totals[~is_request]
    best = float((answers if answers.size else totals).max(initial=0.0))
    if best <= 0.0:
        return found
    own = np.minimum(np.maximum(totals / best, 0.0), 1.0)
    counted = np.where(np.isnan(found.implicit), found.qualities, found.implicit)
    apart = np.where(np.isnan(counted), 0.0, counted - _NEUTRAL)
    return replace(found, outcome=search.settings.outcome * best * apart * own**_STEEPNESS)


def qualities_of(view: View, slots: Slots) -> tuple[Scores, Scores]:
    """Return how each memory went (m,), else its run, else the run that a user's message began; NaN where unknown.

    First as stated, then with what followed.
    """
    found, implicit = view.qualities_with_runs(slots)
    (asked,) = (np.isnan(found) & np.isnan(implicit) & (view.sources[slots] == _MESSAGE)).nonzero()
    if asked.size:
        plans = _begun_by(view, slots[asked])
        is_known = plans >= 0
        found[asked[is_known]] = view.qualities[plans[is_known]]
        implicit[asked[is_known]] = view.implicit[plans[is_known]]
    return found, implicit


def _begun_by(view: View, messages: Slots) -> Slots:
    """Return the first plan (m,) after each message and before the user's next one, -1 for none."""
    found: Slots = np.full(messages.shape, -1, dtype=np.int64)
    is_open = np.ones(messages.shape, dtype=np.bool_)
    for after in view.windows(messages, _RUN_REACH)[:, _RUN_REACH + 1 :].T:
        is_open &= (after >= 0) & (view.sources[after] != _MESSAGE)
        is_open &= view.times_us[after] - view.times_us[messages] <= _BEGINS_WITHIN_US
        is_plan = is_open & (view.sources[after] == _PLAN)
        found[is_plan] = after[is_plan]
        is_open &= ~is_plan
    return found
