"""The stages between the shortlist and the selection, in order; each takes candidates and returns candidates.

**Neighbours.** Context: the words of a question are often spread over a few turns, so a memory gains by how well they
are met here or beside it (`evidence`). Answers: what answers a question often follows where it was asked before. If the
query asks, a memory that asks lends what it scores above the next best to the memory that follows it, and ranks below
it. Both count less the longer the answer, since a long text needs no help to be found. Rejected by measurement
(decision 0013): lending to both sides, and lending by every candidate.

**Former requests.** Nothing resembles a query like the same request made before, and nothing answers it less. A memory
is such a request if its cosine with the query is at least `REQUEST_COSINE` (without vectors: if it has the same words),
and it is the begin of a run with nothing but its objective, or a user's message in which every telling word is one of
the query or of such a begin. An informative message has other words, so no answer is taken for a question. Of several
requests, the one whose run went best is numbered 1: it represents the others (`selection`). What the caller itself just
wrote is no candidate at all (`search.OwnWords`). Rejected (decision 0016): a lower score, which depends on how many
there are; the cosine alone, which takes answers for questions.

**Relevance** and qualities come next, and **past use** if the learner may rank:

    association = scale * (w_a * reach * own + w_r * min(support, 1) + w_p * lift)
    shift       = scale * w_s * <memory, direction>                                                  (`selection`)
    scale       = 2.5 times the spread of the best fifty scores without the best tenth of them

`reach` is the likeness of the request to one for which a run used the memory. `support` adds up over all such runs from
a cosine of .5 on (`sona/association`). `lift` is how much better than usual the runs went that used it. `own` is the
memory's score as a share of the best. A used memory gains only as far as it also answers this query, unless runs used
it repeatedly for the same request; so frequently used memories do not displace better answers (decision 0020). What
learning adds is measured in the spread of the scores, so it moves a memory past as many others whether they are near or
far, in any query and after a change of the ranking. It is about 1 in LoCoMo. Leaders that stand out do not widen it:
they would be overtaken the more easily the better they match (decision 0020). Each part is bounded, so no score rises
by more than their sum. Candidates are those of the query itself: searching with the moved query too finds some that
never reach the first five (decision 0020). `learning/learner` decides whether the learner may rank.

**Outcome.** Of about equally good memories, those whose runs worked come first, in either ranking:

    outcome = w_o * best * (quality - 1/2) * own^6        own = min(score / best, 1)        best = the best score

`quality` is how the memory itself went, else its run; so it follows each revision: a retry, a later approval, feedback.
A user's message has the quality of the run it began. Without a quality a memory neither gains nor loses. Former
requests do not set `best`: nothing scores like the query's own words, and beside them all answers would be far below
the best. A memory a tenth below the best gains or loses half as much, one at .6 a twentieth: a success passes a failure
that scores up to some 30 % more, and a clearly better match stays first. It needs no learning and no gate, since it
decides between memories that are about equally relevant and brings none in (decision 0021). Rejected by measurement: a
weight that ignores the scale of the scores, which differs from query to query; lower powers, which cost relevance.

Shapes: n candidates, m slots or memories reached, p answers, d dimensions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from memory_agent.recall.candidates import Candidates, scored
from memory_agent.recall.dates import ask_for_nothing_else
from memory_agent.recall.evidence import credit, places_of, relevance
from memory_agent.recall.search import IS_REQUEST, Search
from memory_agent.records.embedded import Embedding
from memory_agent.records.memories import SOURCES, MemoryRecord
from memory_agent.settings import LearningSettings
from memory_agent.storage.column import Scores, Slots
from memory_agent.storage.snapshot import Snapshot
from memory_agent.storage.terms import STOP_WORDS, asks, said_words
from memory_agent.storage.view import View
from sona import Adaptation

REQUEST_COSINE = 0.8
"""Cosine from which a request counts as the query in other words (decision 0017)."""
SAME_COSINE = 0.9
"""Cosine from which it counts as the same request; the run of a merely similar one may have succeeded elsewhere."""

_FLOOR = 20
"""The best candidates that may lend; the score of the next best is the floor."""
_WHOLE_TOKENS = 64
"""Tokens of an answer up to which it counts in full."""
_GIVES_WAY = 0.06
_BEFORE, _AFTER = 0, 2

_LONGER_CHARS = 60  # allowed beyond twice the query; longer texts are too different and are not examined
_UNINFORMATIVE = STOP_WORDS - {"no", "nor", "not"}

_MOST_RECURRING = 16
_WORTH_READING = 0.1
_SPREAD_OVER, _OUTSTANDING = 50, 10
_SPREADS, _LEAST = 2.5, 0.1

_NEUTRAL = 0.5
_STEEPNESS = 6
_RUN_REACH = 2  # memories of the session after a message among which its run begins: there may be a reply before it
_BEGINS_WITHIN_US = 600_000_000
_MESSAGE, _PLAN = SOURCES.index("user_input"), SOURCES.index("conductor_plan")


def evaluated(found: Candidates, search: Search) -> Candidates:
    """Take candidates through the stages that need no advice of the learner."""
    for stage in (with_neighbours, with_qualities, with_former_requests, with_relevance):
        found = stage(found, search)
    return found


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
    """Return by how much each score (n,) exceeds the floor, 0 if it does not."""
    place = max(scores.size - _FLOOR - 1, 0)
    floor = float(np.partition(scores, place)[place]) if scores.size else 0.0
    above: Scores = np.maximum(scores - floor, 0.0)
    return above


def with_qualities(found: Candidates, search: Search) -> Candidates:
    """Add how each memory went, else its run, else the run that a user's message began; NaN if unknown."""
    view, slots = search.view, found.slots
    qualities = view.qualities_with_runs(slots)
    (asked,) = (np.isnan(qualities) & (view.sources[slots] == _MESSAGE)).nonzero()
    if asked.size:
        plans = _begun_by(view, slots[asked])
        is_known = plans >= 0
        qualities[asked[is_known]] = view.qualities[plans[is_known]]
    return replace(found, qualities=qualities)


def _begun_by(view: View, messages: Slots) -> Slots:
    """Return the first plan (m,) after each message and before the user's next message, -1 for none."""
    found: Slots = np.full(messages.shape, -1, dtype=np.int64)
    is_open = np.ones(messages.shape, dtype=np.bool_)
    for after in view.windows(messages, _RUN_REACH)[:, _RUN_REACH + 1 :].T:
        is_open &= (after >= 0) & (view.sources[after] != _MESSAGE)
        is_open &= view.times_us[after] - view.times_us[messages] <= _BEGINS_WITHIN_US
        is_plan = is_open & (view.sources[after] == _PLAN)
        found[is_plan] = after[is_plan]
        is_open &= ~is_plan
    return found


def with_former_requests(found: Candidates, search: Search) -> Candidates:
    """Number the former requests, the best one 1; none if the filter selects users' messages alone."""
    filter = search.query.filter
    if filter is not None and filter.sources == ("user_input",):
        return found
    alike = _alike(found, search)
    if not alike:
        return found
    with search.store.snapshot() as snapshot:
        begins = [one for one in alike if is_bare_begin(snapshot, one.record)]
    texts = [search.query.text, *(one.record.text for one in begins)]
    telling = frozenset[str]().union(*map(_telling, texts))
    known = {word for text in texts for word in text.casefold().split()}
    messages = [one for one in alike if one.record.source == "user_input"]
    former = begins + [one for one in messages if _adds_nothing(one.record.text, telling, known)]
    requests = found.requests.copy()
    best_first = sorted(former, key=lambda one: _goodness(one, found, search), reverse=True)
    requests[[one.place for one in best_first]] = np.arange(1, len(former) + 1)
    return replace(found, requests=requests)


class _Alike(NamedTuple):
    """A candidate that may be the query in other words: its place and record, and whether it asks just the same."""

    place: int
    record: MemoryRecord
    is_same: bool


def _alike(found: Candidates, search: Search) -> list[_Alike]:
    """Return the candidates that resemble the query as a request in other words does."""
    (places,) = IS_REQUEST[search.view.sources[found.slots]].nonzero()
    is_same = np.zeros(places.shape, dtype=np.bool_)
    if search.vector is not None:
        cosines = search.view.vectors.cosines(search.vector.raw, found.slots[places])
        is_near = cosines >= REQUEST_COSINE
        places, is_same = places[is_near], cosines[is_near] >= SAME_COSINE
    if not places.size:
        return []
    records = search.store.records(found.rows[places].tolist())
    most_chars = 2 * len(search.query.text) + _LONGER_CHARS
    alike = [
        _Alike(place, record, same)
        for place, record, same in zip(places.tolist(), records, is_same.tolist(), strict=True)
        if record is not None and len(record.text) <= most_chars
    ]
    if search.vector is not None:
        return alike
    said = said_words(search.query.text)
    return [one for one in alike if said_words(one.record.text) == said]


def is_bare_begin(snapshot: Snapshot, record: MemoryRecord) -> bool:
    """Return whether a memory is the begin of a run and has nothing but the objective."""
    run = None if record.source == "user_input" else snapshot.run_of(record)
    if run is None or run.begin_row is None or run.begin_row != snapshot.row_of_id(record.id):
        return False
    begin = next(mark for mark in run.marks if mark.role == "begin")
    return begin.said_chars in (0, len(record.text))


def _telling(text: str) -> frozenset[str]:
    return frozenset(said_words(text)) - _UNINFORMATIVE


def _adds_nothing(text: str, telling: frozenset[str], known: set[str]) -> bool:
    """Return whether all telling words of a text, and half of all its words, are among these."""
    words = text.casefold().split()
    return 2 * sum(word in known for word in words) >= len(words) and _telling(text) <= telling


def _goodness(one: _Alike, found: Candidates, search: Search) -> tuple[bool, bool, float, float, int]:
    """Return the sort key of a request: no numbers beyond the query's, the same request, its outcome, its time."""
    others = _telling(one.record.text) - _telling(search.query.text)
    has_its_numbers = not any(any(map(str.isdigit, word)) for word in others)
    outcome = float(np.nan_to_num(found.qualities[one.place], nan=-1.0))
    return has_its_numbers, one.is_same, outcome, one.record.timestamp.timestamp(), int(found.rows[one.place])


def with_relevance(found: Candidates, search: Search) -> Candidates:
    """Add the relevance of the candidates.

    The best evidence among the answers vouches for the others; a former request, which resembles the query anyway,
    vouches for nothing. If a time is all that the query asks for, any memory of that time answers it.
    """
    likely = relevance(found.evidence, credit(found.cosines), found.best_evidence)
    if ask_for_nothing_else((date.phrase for date in search.dates), search.words):
        of_then = search.view.within((date.since, date.until) for date in search.dates)
        likely = np.where(of_then[found.slots], 1.0, likely)
    return replace(found, relevance=likely)


def without_irrelevant(found: Candidates, search: Search) -> Candidates:
    """Return the candidates without those of too little relevance, except those that past use vouches for."""
    is_irrelevant = (found.relevance < search.query.min_relevance) & ~found.vouched
    return found.take(~is_irrelevant) if is_irrelevant.any() else found


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
    """Add the memories that runs used repeatedly for such a request, and evaluate all candidates again.

    At most 16, the best supported ones, that pass the filter and have a vector. A memory that one run used once is
    either a candidate anyway or no answer.
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
    if not new.size:
        return found
    return evaluated(scored(search, np.union1d(found.slots, new)), search)


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


def with_outcomes(found: Candidates, search: Search) -> Candidates:
    """Add what candidates with qualities gain or lose by them in a hybrid recall."""
    if search.query.mode != "hybrid":
        return found
    totals = found.total
    answers = totals[found.requests == 0]
    best = float((answers if answers.size else totals).max(initial=0.0))
    if best <= 0.0:
        return found
    own = np.minimum(np.maximum(totals / best, 0.0), 1.0)
    apart = np.where(np.isnan(found.qualities), 0.0, found.qualities - _NEUTRAL)
    return replace(found, outcome=search.settings.outcome * best * apart * own**_STEEPNESS)
