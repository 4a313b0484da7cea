"""The stages between the shortlist and the selection. Each takes and returns candidates.

**Neighbours.** The words of a question are often spread over a few turns, so a memory gains from how well it and its
neighbours match them (`evidence`). An answer often follows an earlier instance of the question. So if the query is a
question, a memory that is also a question passes the part of its score above the floor to the next memory, and ranks
below it. Both gains are smaller for longer memories.

**Earlier requests** resemble the query, but do not answer it. An earlier request has a cosine of at least
`REQUEST_COSINE` with the query or, if there are no vectors, the same words. It is either the start of a run with only
an objective, or a user's message whose content words all occur in the query or in such a start. A message that answers
the query contains other words too. The request with the best run gets the number 1 and represents the others
(`selection`). Memories that the caller just wrote are not candidates (`search.OwnWords`).

**Kinds**, if the query asks for particular kinds of memories (`recall/kinds`). A memory of these kinds gains

    kind = w_k (1 + newness) + .7 (best - own)        best = the best score in its run or, without a run, its session

because the memories that name a run's topic are often not the memories asked for: the end of a run may be only "all
tests pass". In addition, a memory of one of these kinds is at least as relevant as the most relevant memory of its run.
If the query asks only for requests, neither this minimum nor the second term applies, since a request names its topic
itself. If the query asks for the newest memories, `newness` is 2^-i for the i-th newest memory plus 2^-j for the j-th
newest run, both counted from 0. If the query names only kinds and times, every memory of these kinds and times is
relevant.

**Past use**, if the learner is enabled (decision 0020):

    association = scale * (w_a * reach * own + w_r * min(support, 1) + w_p * lift)
    shift       = scale * w_s * <memory, direction>                                                  (`selection`)
    scale       = 2.5 times the spread of the best fifty scores without the best tenth of them

`reach` is the similarity of the query to a request for which a run used the memory. `support` grows with each run that
used the memory for a request whose cosine is at least .5 (`sona/association`). `lift` states how much better than
average the outcomes of the runs that used the memory were. `own` is the memory's score divided by the best score. The
gain is proportional to the memory's own score, unless runs used it repeatedly for the same request. The scale follows
the spread of the scores, so that a gain moves a memory past about the same number of others in any query.

**Outcome.** Among memories that are about equally good, those of successful runs come first, in either ranking
(decision 0021):

    outcome = w_o * best * (quality - 1/2) * own^6        own = min(score / best, 1)        best = the best score

`quality` is the quality of the memory or, if it is unknown, of its run; a user's message has the quality of the run
that it began. Earlier requests do not count towards `best`, since every answer scores far below a repetition of the
query. If a memory's score is .9 of the best score, the gain or loss is half as large; at .6, it is a twentieth.

Shapes: n candidates, m slots or memories reached, p answers, d dimensions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from memory_agent.recall.candidates import Candidates, groups_of, newest, scored
from memory_agent.recall.dates import ask_for_nothing_else
from memory_agent.recall.evidence import credit, places_of, relevance
from memory_agent.recall.search import IS_REQUEST, Search
from memory_agent.records.embedded import Embedding
from memory_agent.records.memories import SOURCES, MemoryRecord
from memory_agent.settings import LearningSettings
from memory_agent.storage.column import Scores, Slots
from memory_agent.storage.languages import STOP_WORDS
from memory_agent.storage.snapshot import Snapshot
from memory_agent.storage.terms import asks, said_words
from memory_agent.storage.view import NO_NAME, View
from sona import Adaptation

REQUEST_COSINE = 0.8  # minimum cosine similarity of a rewording to the query (decision 0016)
SAME_COSINE = 0.9  # minimum cosine of equal requests; a run with a merely similar request may have had a different task

_FLOOR = 20  # number of best candidates that may pass on part of their score; the next best score is the floor
_WHOLE_TOKENS = 64  # an answer of at most this length receives the full gain
_GIVES_WAY = 0.06
_BEFORE, _AFTER = 0, 2

_LONGER_CHARS = 60  # characters beyond twice the query's length; longer texts differ too much to be examined
_UNINFORMATIVE = STOP_WORDS - {"no", "nor", "not"}

_MOST_RECURRING = 16
_WORTH_READING = 0.1
_SPREAD_OVER, _OUTSTANDING = 50, 10
_SPREADS, _LEAST = 2.5, 0.1

_SHARED = 0.7

_NEUTRAL = 0.5
_STEEPNESS = 6
_RUN_REACH = 2  # a message's run begins at most this many memories later in the session, since a reply may come first
_BEGINS_WITHIN_US = 600_000_000
_MESSAGE, _PLAN = SOURCES.index("user_input"), SOURCES.index("conductor_plan")


def evaluated(found: Candidates, search: Search) -> Candidates:
    for stage in (with_neighbours, with_qualities, with_former_requests, with_relevance, with_kinds):
        found = stage(found, search)
    return found


def with_neighbours(found: Candidates, search: Search) -> Candidates:
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
    place = max(scores.size - _FLOOR - 1, 0)
    floor = float(np.partition(scores, place)[place]) if scores.size else 0.0
    above: Scores = np.maximum(scores - floor, 0.0)
    return above


def with_qualities(found: Candidates, search: Search) -> Candidates:
    """Add each memory's quality: its own, its run's or, for a user's message, that of the run it began; else NaN."""
    view, slots = search.view, found.slots
    qualities = view.qualities_with_runs(slots)
    (asked,) = (np.isnan(qualities) & (view.sources[slots] == _MESSAGE)).nonzero()
    if asked.size:
        plans = _begun_by(view, slots[asked])
        is_known = plans >= 0
        qualities[asked[is_known]] = view.qualities[plans[is_known]]
    return replace(found, qualities=qualities)


def _begun_by(view: View, messages: Slots) -> Slots:
    """Return the first plan (m,) after each message and before the user's next message, or -1 if there is none."""
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
    """Number the earlier requests, starting with 1 for the best, unless the filter selects only users' messages."""
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
    """A candidate that may be a rewording of the query: its position and record, and whether it is the same request."""

    place: int
    record: MemoryRecord
    is_same: bool


def _alike(found: Candidates, search: Search) -> list[_Alike]:
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
    """Return whether a memory is the start of a run and contains only the objective."""
    run = None if record.source == "user_input" else snapshot.run_of(record)
    if run is None or run.begin_row is None or run.begin_row != snapshot.row_of_id(record.id):
        return False
    begin = next(mark for mark in run.marks if mark.role == "begin")
    return begin.said_chars in (0, len(record.text))


def _telling(text: str) -> frozenset[str]:
    return frozenset(said_words(text)) - _UNINFORMATIVE


def _adds_nothing(text: str, telling: frozenset[str], known: set[str]) -> bool:
    """Return whether all content words of a text are in `telling`, and at least half of its words are in `known`."""
    words = text.casefold().split()
    return 2 * sum(word in known for word in words) >= len(words) and _telling(text) <= telling


def _goodness(one: _Alike, found: Candidates, search: Search) -> tuple[bool, bool, float, float, int]:
    """Return a request's sort key.

    It compares, in this order: whether the query contains all numbers of the request, whether it is the same request,
    its outcome, and its time.
    """
    others = _telling(one.record.text) - _telling(search.query.text)
    has_its_numbers = not any(any(map(str.isdigit, word)) for word in others)
    outcome = float(np.nan_to_num(found.qualities[one.place], nan=-1.0))
    return has_its_numbers, one.is_same, outcome, one.record.timestamp.timestamp(), int(found.rows[one.place])


def with_relevance(found: Candidates, search: Search) -> Candidates:
    """Add the relevance of the candidates.

    The best evidence raises the relevance of the other candidates. Earlier requests are not taken as the best evidence,
    since they are always similar to the query. If the query specifies only a time, every memory of that time is
    relevant.
    """
    likely = relevance(found.evidence, credit(found.cosines), found.best_evidence)
    if ask_for_nothing_else((date.phrase for date in search.dates), search.words):
        of_then = search.view.within((date.since, date.until) for date in search.dates)
        likely = np.where(of_then[found.slots], 1.0, likely)
    return replace(found, relevance=likely)


def with_kinds(found: Candidates, search: Search) -> Candidates:
    asked = search.asked
    if asked is None:
        return found
    is_asked = asked.members[found.slots]
    weight, likely = search.settings.kind_weight, found.relevance
    gained = weight * is_asked
    groups = groups_of(search.view, found.slots)
    if asked.kinds != {"request"}:
        gained += _SHARED * is_asked * (_best_of(groups, found.total) - found.total)
        likely = np.where(is_asked, np.fmax(likely, _best_of(groups, likely)), likely)
    if asked.is_latest:
        order = np.searchsorted(found.slots, newest(search, found.slots[is_asked]))
        runs = list(dict.fromkeys(groups[order].tolist()))
        gained[order] += weight * np.exp2(-np.arange(order.size))
        gained[order] += weight * np.exp2([-float(runs.index(run)) for run in groups[order].tolist()])
    if asked.is_general:
        spans = [(date.since, date.until) for date in search.dates]
        of_then = search.view.within(spans)[found.slots] if spans else True
        likely = np.where(is_asked & of_then, 1.0, likely)
    return replace(found, kind=gained, relevance=likely)


def _best_of(groups: Slots, values: Scores) -> Scores:
    """Return the best value of each memory's run or session (n,), or its own value if it has neither."""
    numbers, places = np.unique(groups, return_inverse=True)
    best = np.full(numbers.shape, np.nan)
    np.fmax.at(best, places, values)
    return np.where(groups == NO_NAME, values, best[places])


def without_irrelevant(found: Candidates, search: Search) -> Candidates:
    is_irrelevant = (found.relevance < search.query.min_relevance) & ~found.vouched
    return found.take(~is_irrelevant) if is_irrelevant.any() else found


class PastUse(NamedTuple):
    """The learner's advice for a query, the weights of its parts, and the score that a weight of 1 adds."""

    adaptation: Adaptation
    settings: LearningSettings
    scale: float


def scale_of(totals: Scores) -> float:
    """Return the score that a weight of 1 adds, given the answers' scores (p,) in descending order, without duplicate
    texts.

    If all scores are equal, this is a tenth of the best score, so that past use decides their order.
    """
    if not totals.size:
        return 0.0
    near = totals[:_SPREAD_OVER]
    spread = float(near[near.size // _OUTSTANDING] - near[-1])
    return max(_SPREADS * spread, _LEAST * float(totals[0]))


def with_recurring(found: Candidates, search: Search, past_use: PastUse) -> Candidates:
    """Add the memories that runs used repeatedly for similar requests, and evaluate all candidates again.

    Considers the 16 memories with the most support, and adds those that pass the filter and have a vector. A memory
    that was used only once is either a candidate anyway or not an answer.
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
    """Add the candidates' gains from past use, and mark the candidates that their gain makes relevant."""
    adaptation, settings, scale = past_use
    reached = adaptation.reached
    places, is_used = places_of(reached.memories, found.rows)
    (used,) = is_used.nonzero()
    gained = np.zeros(found.rows.shape)
    if used.size:
        places = places[used]
        own, best = found.total[used], float(found.total.max())
        own = np.maximum(own / best, 0.0) if best > 0 else np.zeros(own.shape)
        support = np.minimum(reached.support[places], 1.0)
        gained[used] = settings.association * reached.amounts[places] * own + settings.recurrence * support
    if settings.prior:
        gained += settings.prior * np.array([adaptation.prior.lift(row) for row in found.rows.tolist()])
    return replace(found, association=scale * gained, vouched=gained >= _WORTH_READING)


def shifts(vectors: Embedding, past_use: PastUse) -> Scores:
    along = vectors.dot(past_use.adaptation.direction).astype(np.float64)
    found: Scores = past_use.scale * past_use.settings.shift * along
    return found


def with_outcomes(found: Candidates, search: Search) -> Candidates:
    """In a hybrid recall, add each candidate's gain or loss due to its quality."""
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
