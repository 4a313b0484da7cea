"""The steps of a recall, in order, from the query to the answer.

    search       match words and vector against all memories that pass the filter, except the caller's own words
    shortlist    take the best memories by each criterion, and score them word by word (`candidates`)
    evaluated    add gains from neighbours, outcomes of runs, earlier requests, relevance and kinds (`stages`)
    selected     keep relevant memories, one for each text, add the gains from past use and outcomes, and rank them by
                 the baseline, the learned ranking, or both (`selection`)
    judged       keep what a language model selects, if there is one (`judgement`)
    answer       add passages, counts and explanations
    shared       add items of other users, if requested
    runs         add finished runs with a request that resembles the query, if requested
    context      render a block for a prompt, if requested

Recall is advisory, and never fails or hangs because a part is unavailable. A part that is missing, late or damaged is
omitted and named in `degraded`. The deadline bounds the waits for the embedder and the judge, the only parts that may
be slow.
"""

from __future__ import annotations

from datetime import datetime
from functools import partial

from msgspec.structs import replace
from ulid import ULID

from memory_agent.embedders import Embedder, LazyEmbedder, failing_as_model_error
from memory_agent.embedders.weights import DEFAULT_SHAPE
from memory_agent.errors import EmbedderUnavailableError, ModelError
from memory_agent.learning import USUAL, Advice, UserLearner
from memory_agent.recall.answer import Answer, answer_of, note_of
from memory_agent.recall.candidates import Candidates, shortlist
from memory_agent.recall.context import context_block, estimate_tokens
from memory_agent.recall.dates import understand_dates
from memory_agent.recall.judgement import judged
from memory_agent.recall.query import Deadline, Query
from memory_agent.recall.runs import similar_runs, with_runs, without_requests_of_runs
from memory_agent.recall.search import BeginShared, Search, Searcher, begun
from memory_agent.recall.selection import compared, examined, has_enough, interleaved, selected, shifted
from memory_agent.recall.shared import with_shared
from memory_agent.recall.stages import (
    PastUse,
    evaluated,
    scale_of,
    with_outcomes,
    with_past_use,
    with_recurring,
    without_irrelevant,
)
from memory_agent.records.memories import RecallResult, UnderstoodDate, time_of
from memory_agent.records.trajectories import SimilarRun
from memory_agent.rerankers import Judge
from memory_agent.settings import LearningSettings, RecallSettings
from memory_agent.storage.archive import Archive
from memory_agent.storage.terms import query_words
from memory_agent.tracing import current_span

_FURTHER = 8
"""Factor by which the shortlist grows while it has too few distinct texts."""
_REST_SHARE = 0.1  # share of the deadline that is reserved for the steps after counting tokens
_MOST_REST_S = 0.02


class RecallPipeline:
    """Answers the recalls of one user. Thread-safe."""

    def __init__(
        self, archive: Archive, embedder: LazyEmbedder, settings: RecallSettings, learner: UserLearner, judge: Judge
    ) -> None:
        self._store = archive.store
        self._embedder = embedder
        self._learner = learner
        self._judge = judge
        self._searcher = Searcher(archive, embedder, settings)

    def answer(self, query: Query, now: datetime, begin_shared: BeginShared | None = None) -> RecallResult:
        """Return the memories that match the query, best first, including shared items. Raises only `StoreError`.

        `begin_shared` is called once the query's vector is available, since both searches need it.
        """
        deadline = Deadline(query.deadline_ms)
        result = RecallResult(recall_id=str(ULID.from_datetime(now)), memories=(), dates=_dates_in(query))
        if not deadline.expired():
            result = self._with_memories(result, query, deadline, now, begin_shared)
        if query.context_tokens is not None:
            result = replace(result, context=self._context(result, query, query.context_tokens, deadline))
            current_span().mark("context")
        deadline.expired()
        if deadline.degraded:
            current_span().set("memory_agent.degraded", tuple(deadline.degraded))
        return replace(result, degraded=tuple(deadline.degraded), took_ms=deadline.elapsed_s * 1000)

    def similar_runs(self, query: Query) -> list[SimilarRun]:
        """Return at most `top_k` finished runs with a request like the query, best first. Raises only `StoreError`."""
        deadline = Deadline(query.deadline_ms)
        search = self._searcher.search(query, (), self._searcher.begin(query, deadline), deadline)
        return similar_runs(search, query.top_k)

    def _with_memories(
        self,
        result: RecallResult,
        query: Query,
        deadline: Deadline,
        now: datetime,
        begin_shared: BeginShared | None,
    ) -> RecallResult:
        """Add memories, shared items and runs, and log the recall."""
        is_local, span = "local" in query.tiers, current_span()
        answer: Answer | None = None
        if not is_local:
            shared, words = begun(begin_shared, query, None, deadline), query_words(query.text)
        else:
            pending = self._searcher.begin(query, deadline)
            pool = self._judge.settings.candidates if self._judge.is_on and query.text.strip() else 0
            search = self._searcher.search(replace(query, pool=pool), result.dates, pending, deadline, begin_shared)
            shared, words = search.shared, search.words
            advice = self._advice(search, result.recall_id)
            found = _selected(search, advice, self._learner.settings)
            span.mark("ranking")
            found, judgement = judged(found, search, self._judge)
            if judgement is not None:
                span.mark("judge")
            answer = answer_of(found, search, advice)
            result = replace(result, memories=answer.memories, excluded=search.own.counts, total=search.total)
            result = replace(result, judgement=judgement)
        result = with_shared(result, shared, query, words, deadline)
        if shared is not None:
            span.mark("shared")
        if answer is not None:
            answer = answer.showing(result.memories)
        if query.is_noted:
            note = note_of(result, query, now, answer)
            self._store.touch(list(note.rows), time_of(note.at_us))
            self._store.note_recall(note)
        return result if answer is None else with_runs(result, answer.search, answer.found)

    def _advice(self, search: Search, recall_id: str) -> Advice:
        if search.vector is None or search.query.mode != "hybrid":
            return USUAL
        return self._learner.advise(search.vector.raw, recall_id)

    def _context(self, result: RecallResult, query: Query, max_tokens: int, deadline: Deadline) -> str:
        count_tokens = TokenCounter(self._embedder, deadline)
        render = partial(context_block, result, max_tokens, heading=query.context_heading, now=query.reference_time)
        is_embedded = query.mode != "lexical" and query.vector is None  # so the embedder has answered in this recall
        if is_embedded and count_tokens.is_bounded:
            estimate = _Estimate()
            block = render(count_tokens=estimate)
            if estimate.tokens <= (max_tokens // 2 if result.runs else max_tokens):
                return block  # everything fits, since the model's counts are not higher
        return render(count_tokens=count_tokens)


def _selected(search: Search, advice: Advice, settings: LearningSettings) -> Candidates:
    """Select memories with one ranking, interleave both rankings, or answer with one and compare it with the other."""
    found = _evaluated(search)
    if advice.adaptation is None or advice.route == "baseline":
        return _by_baseline(found, search)
    past_use = PastUse(advice.adaptation, settings, scale_of(found.total[found.answers]))
    if advice.route == "learned":
        return _by_past_use(found, search, past_use)
    baseline = _by_baseline(found, search)
    if advice.route == "interleave":
        return interleaved(baseline, _by_past_use(found, search, past_use), search.query.ranked, advice.key)
    return (
        baseline
        if search.deadline.expired()
        else compared(baseline, _by_past_use(found, search, past_use), past_use.adaptation.reached)
    )


def _evaluated(search: Search) -> Candidates:
    """Return enough evaluated candidates to fill the answer with distinct memories."""
    wanted = examined(search.query)
    limit = max(search.settings.candidates, wanted)
    while True:
        found = evaluated(shortlist(search, limit, wanted), search)
        if found.is_all or has_enough(found, search.query.ranked) or search.deadline.expired():
            return found
        limit *= _FURTHER
        search = search.with_more_cosines(limit)


def _by_baseline(found: Candidates, search: Search) -> Candidates:
    found = without_irrelevant(found, search)
    found = with_outcomes(found, search)
    found = selected(found, search)
    return without_requests_of_runs(found, search).first(search.query.ranked)


def _by_past_use(found: Candidates, search: Search, past_use: PastUse) -> Candidates:
    found = with_recurring(found, search, past_use)
    found = with_past_use(found, past_use)
    found = without_irrelevant(found, search)
    found = with_outcomes(found, search)
    found = selected(found, search)
    found = shifted(found, search, past_use)
    return without_requests_of_runs(found, search).first(search.query.ranked)


def _dates_in(query: Query) -> tuple[UnderstoodDate, ...]:
    if query.dates == "ignore":
        return ()
    spans = understand_dates(query.text, query.reference_time)
    return tuple(UnderstoodDate(phrase=span.phrase, since=span.since, until=span.until) for span in spans)


class _Estimate:
    """Estimates the number of tokens of each text, and adds up the estimates."""

    def __init__(self) -> None:
        self.tokens = 0

    def __call__(self, text: str) -> int:
        tokens = estimate_tokens(text)
        self.tokens += tokens
        return tokens


class TokenCounter:
    """Counts the tokens of texts in one recall: with the model while time remains, then with the estimate."""

    def __init__(self, embedder: LazyEmbedder, deadline: Deadline) -> None:
        self._deadline = deadline
        self._rest_s = min(_REST_SHARE * deadline.limit_s, _MOST_REST_S)
        self._embedder = self._ready(embedder)

    @property
    def is_bounded(self) -> bool:
        """Whether the estimate is never below the model's count. May block if the embedder has not answered yet."""
        try:
            return self._embedder is not None and self._embedder.info.model == DEFAULT_SHAPE.name
        except ModelError:
            return False

    def __call__(self, text: str) -> int:
        """Return the number of tokens of `text`, or an upper bound."""
        counted = None if self._embedder is None else self._count(self._embedder, text)
        return estimate_tokens(text) if counted is None else counted

    def _ready(self, embedder: LazyEmbedder) -> Embedder | None:
        """Return the embedder if it is ready and was not late in this recall."""
        if "embedder_timeout" in self._deadline.degraded:
            return None
        try:
            return embedder.get(0)
        except EmbedderUnavailableError:
            self._deadline.degrade("embedder_timeout")
        except ModelError:
            pass  # without a model, none can be late
        return None

    def _count(self, embedder: Embedder, text: str) -> int | None:
        timeout_s = self._deadline.remaining_s - self._rest_s
        try:
            if timeout_s > 0:
                with failing_as_model_error():
                    return embedder.count_tokens(text, timeout_s)
            self._deadline.degrade("deadline")
        except EmbedderUnavailableError:
            self._deadline.degrade("embedder_timeout")
        except ModelError:
            self._deadline.degrade("no_model")
        self._embedder = None
        return None
