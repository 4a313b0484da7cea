"""A recall from query to answer.

    search       the query's words and vector against every memory that passes the filter, the caller's own words aside
    shortlist    the best of each, scored word by word
    neighbours   what they gain from their session
    past use     what they gain from what runs used          (where the learner may rank)
    relevance    without what does not bear on the query
    outcome      the runs that went well before those that failed, among about equally good ones
    duplicates   one of each, one of the former requests that ask the same
    selection    the best that say different things; where runs are asked for, requests of runs only if there is room
    answering    with passages, counts and reasons
    tiers        with what others share (where asked for)
    runs         ended runs whose request resembles the query (where asked for)

Recall is advisory and never fails or hangs for want of a part: one that is missing, late or damaged is left out and
named in `degraded`. The deadline bounds the wait for the embedder, the one part that may be slow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

import msgspec
import numpy as np
from ulid import ULID

from memory_agent.embedders import Pending
from memory_agent.embedders.lazy_embedder import LazyEmbedder
from memory_agent.learning.learner import USUAL, Advice, UserLearner
from memory_agent.recall.answering import Answering, marked
from memory_agent.recall.candidates import Candidates, keep, shortlist
from memory_agent.recall.context import context_block
from memory_agent.recall.dates import ask_for_nothing_else, understand_dates
from memory_agent.recall.deadline import Deadline
from memory_agent.recall.duplicates import FormerRequests, Leader, Leaders, leaders_of
from memory_agent.recall.interleaving import Pick, interleave, ranked
from memory_agent.recall.learned import PastUse, scale_of, shifts, with_past_use, with_recurring
from memory_agent.recall.neighbours import with_neighbours
from memory_agent.recall.outcome import with_outcomes, with_qualities
from memory_agent.recall.query import Query
from memory_agent.recall.query_log import note_of
from memory_agent.recall.query_vectors import QueryVectors
from memory_agent.recall.relevance import credit, relevance
from memory_agent.recall.search import Search, looking_at_all, search
from memory_agent.recall.selection import Choice, mmr
from memory_agent.recall.shared_items import as_memories, found_items
from memory_agent.recall.similar_runs import Answered, is_told, similar_runs, telling_runs
from memory_agent.recall.tiers import merged
from memory_agent.recall.tokens import TokenCounter
from memory_agent.records.embedded import EmbeddedQuery, Embedding
from memory_agent.records.memories import RecallResult, RetrievedMemory, UnderstoodDate, time_of
from memory_agent.records.trajectories import SimilarRun
from memory_agent.settings import RecallSettings
from memory_agent.shared_asks import PendingItems
from memory_agent.storage.archive import Archive
from memory_agent.storage.indexes import Mask, Scores
from memory_agent.storage.recall_notes import RecallNote
from memory_agent.storage.terms import query_words
from memory_agent.storage.view import View

BeginShared = Callable[[Query], PendingItems | None]
"""Begins to search what others share, where a query asks for it."""

_SPARE = 25
_FURTHER = 8
"""Factor on the shortlist while too few of it say different things."""


class RecallPipeline:
    """Answers the recalls of one user. Thread-safe."""

    def __init__(
        self, archive: Archive, embedder: LazyEmbedder, settings: RecallSettings, learner: UserLearner
    ) -> None:
        self._archive = archive
        self._embedder = embedder
        self._settings = settings
        self._learner = learner
        self._vectors = QueryVectors(archive, embedder)

    def answer(self, query: Query, now: datetime, begin_shared: BeginShared | None = None) -> RecallResult:
        """Return the memories that resemble the query, best first, with what others share. Raises only `StoreError`.

        `begin_shared` is called once the query is with the embedder, whose answer both searches wait for.
        """
        deadline = Deadline(query.deadline_ms)
        dates = _dates_in(query)
        recall_id = str(ULID.from_datetime(now))
        result = RecallResult(recall_id=recall_id, memories=(), dates=dates)
        if not deadline.expired():
            result = self._with_memories(result, query, deadline, now, begin_shared or _share_nothing)
        result = self._with_context(result, query, deadline)
        deadline.expired()
        return msgspec.structs.replace(result, degraded=tuple(deadline.degraded), took_ms=deadline.elapsed_s * 1000)

    def similar_runs(self, query: Query) -> list[SimilarRun]:
        """Return at most `top_k` ended runs whose request resembles the query, best first. Raises only `StoreError`."""
        deadline = Deadline(query.deadline_ms)
        searched = self._search(query, (), self._archive.view, self._begun(query, deadline), deadline)
        return similar_runs(searched, self._archive.store, query.top_k)

    def _with_memories(
        self, result: RecallResult, query: Query, deadline: Deadline, now: datetime, begin_shared: BeginShared
    ) -> RecallResult:
        """Add the memories, and note the recall."""
        if "local" not in query.tiers:
            found = self._merged((), begin_shared(query), query_words(query.text), query, result, deadline)
            if query.is_noted:
                self._note(note_of(result.recall_id, query, None, USUAL, (), now, found))
            return msgspec.structs.replace(result, memories=found)
        pending = self._begun(query, deadline)
        shared = begin_shared(query)
        if self._archive.is_rebuilding:
            deadline.degrade("index_rebuilding")
        view, store = self._archive.view.among(query.within), self._archive.store
        searched = self._search(query, result.dates, view, pending, deadline)
        advice = self._advice(searched, result.recall_id)
        picks = self._select(searched, advice)
        answering = Answering(store, searched, advice, picks)
        memories = answering.memories()
        if shared is not None:
            by_id = dict(zip((memory.record.id for memory in memories), answering.shown, strict=True))
            memories = self._merged(memories, shared, searched.words, query, result, deadline)
            picks = [by_id[memory.record.id] for memory in memories if memory.record.id in by_id]
        if query.is_noted:
            items = [memory for memory in memories if memory.tier == "global"]
            self._note(note_of(result.recall_id, query, searched.vector, advice, picks, now, items))
        result = msgspec.structs.replace(result, memories=memories, excluded=searched.own.counts)
        if not query.runs or deadline.expired():
            return result
        best = float(np.fmax.reduce([pick.found.evidence[pick.choice.place] for pick in picks], initial=-np.inf))
        answered = Answered(tuple(pick.row for pick in picks), best)
        told = telling_runs(searched, store, query.runs, answered)
        return msgspec.structs.replace(result, **told._asdict())

    def _note(self, note: RecallNote) -> None:
        """Note a recall, and that it showed its memories."""
        self._archive.store.touch([shown.row for shown in note.shown], time_of(note.at_us))
        self._archive.store.note_recall(note)

    def _merged(
        self,
        local: tuple[RetrievedMemory, ...],
        shared: PendingItems | None,
        words: Sequence[str],
        query: Query,
        result: RecallResult,
        deadline: Deadline,
    ) -> tuple[RetrievedMemory, ...]:
        """Return the user's own memories with what others share, as far as that comes in time.

        `words` are those of the query.
        """
        if shared is None:
            return local
        items = found_items(shared, deadline)
        others = as_memories(items, with_embedding=query.with_embedding)
        found = merged(local, others, query.top_k, result.recall_id, query.min_relevance)
        return tuple(memory if memory.tier == "local" else marked(memory, words) for memory in found)

    def _begun(self, query: Query, deadline: Deadline) -> Pending[EmbeddedQuery] | None:
        return self._vectors.begin(query.text, deadline) if query.needs_vector else None

    def _search(
        self,
        query: Query,
        dates: tuple[UnderstoodDate, ...],
        view: View,
        pending: Pending[EmbeddedQuery] | None,
        deadline: Deadline,
    ) -> Search:
        return search(query, dates, view, self._archive.store, self._vectors, pending, self._settings, deadline)

    def _advice(self, searched: Search, recall_id: str) -> Advice:
        if searched.vector is None or searched.query.mode != "hybrid":
            return USUAL
        return self._learner.advise(searched.vector.raw, recall_id)

    def _select(self, searched: Search, advice: Advice) -> list[Pick]:
        """Select by the ranking whose turn it is; interleave both, or answer by one and compare it with the other."""
        former = FormerRequests(self._archive.store, searched)
        found, leaders = self._candidates(searched, former)
        answers = leaders.places[~former.among(found.slots[leaders.places])]
        best = float(np.fmax.reduce(found.evidence[answers], initial=-np.inf))
        judged = _judged(found, best, searched)
        if advice.adaptation is None or advice.route == "baseline":
            return self._ranked(searched, judged, former)
        past_use = PastUse(advice.adaptation, self._learner.settings, scale_of(found.total[answers]))
        baseline = [] if advice.route == "learned" else self._ranked(searched, judged, former)
        if advice.route == "compare" and searched.deadline.expired():
            return baseline
        wider = with_recurring(found, searched, past_use)
        wider = judged if wider is found else _judged(wider, best, searched)
        learned = self._ranked(searched, wider, former, past_use)
        if advice.route == "learned":
            return learned
        if advice.route == "compare":
            return ranked(baseline, learned)
        return interleave(baseline, learned, searched.query.top_k, advice.key)

    def _candidates(self, searched: Search, former: FormerRequests) -> tuple[Candidates, Leaders]:
        """Return the candidates and their leaders, enough to fill the answer with different memories."""
        top_k = searched.query.top_k
        limit = max(self._settings.candidates, _examined(top_k))
        while True:
            found = with_neighbours(shortlist(searched, limit, _examined(top_k)), searched)
            leaders = leaders_of(found, searched)
            if found.is_all or former.leave_enough(found, leaders, top_k) or searched.deadline.expired():
                return found, leaders
            limit, searched = limit * _FURTHER, looking_at_all(searched)

    def _ranked(
        self, searched: Search, found: Candidates, former: FormerRequests, past_use: PastUse | None = None
    ) -> list[Pick]:
        """Select from candidates whose relevance is known: by the baseline, or with what `past_use` adds."""
        is_vouched = None
        if past_use is not None:
            found, is_vouched = with_past_use(found, past_use)
        found = _relevant(found, searched, is_vouched)
        found = with_outcomes(found, former.among(found.slots), searched)
        top_k = searched.query.top_k
        leaders = former.fold(found, leaders_of(found, searched), top_k, _examined(top_k))
        places = [leader.place for leader in leaders]
        vectors, scores = searched.view.vectors.vectors(found.slots[places]), found.total[places]
        if past_use is None:
            return [Pick(found, choice) for choice in self._different(searched, found, leaders, vectors, scores)]
        gained = shifts(vectors, past_use)
        shift_at = dict(zip(places, gained.tolist(), strict=True))
        choices = self._different(searched, found, leaders, vectors, scores + gained)
        return [Pick(found, choice, "learned", shift_at[choice.place]) for choice in choices]

    def _different(
        self, searched: Search, found: Candidates, leaders: Sequence[Leader], vectors: Embedding, scores: Scores
    ) -> list[Choice]:
        """Return the best that say different things, at most `top_k`.

        Where the answer tells runs, memories that only say what such a run was asked give way to the others.
        """
        query = searched.query
        diversity = self._settings.diversity if query.mode == "hybrid" else 0.0
        if not query.runs:
            return mmr(leaders, vectors, scores, query.top_k, diversity)
        choices = mmr(leaders, vectors, scores, len(leaders), diversity)
        told = {
            choice.place for choice in choices if is_told(searched, self._archive.store, int(found.slots[choice.place]))
        }
        room = max(query.top_k - (len(choices) - len(told)), 0)
        kept_told = [choice.place for choice in choices if choice.place in told][:room]
        left_out = told.difference(kept_told)
        return [choice for choice in choices if choice.place not in left_out][: query.top_k]

    def _with_context(self, result: RecallResult, query: Query, deadline: Deadline) -> RecallResult:
        """Add the block for a prompt, where requested."""
        if query.context_tokens is None:
            return result
        count = TokenCounter(self._embedder, deadline)
        block = context_block(
            result,
            query.context_tokens,
            heading=query.context_heading,
            now=query.reference_time,
            count_tokens=count,
        )
        return msgspec.structs.replace(result, context=block)


def _share_nothing(_: Query) -> None:
    return None


def _judged(found: Candidates, best: float, searched: Search) -> Candidates:
    """Return the candidates with their relevance, and with how their runs ended.

    `best` is the best evidence for an answer: a former request resembles the query and vouches for nothing. Where a
    time is all that the query asks for, what is of that time answers it.
    """
    likely = relevance(found.evidence, credit(found.cosines), best)
    if ask_for_nothing_else((date.phrase for date in searched.dates), searched.words):
        of_then = searched.view.within((date.since, date.until) for date in searched.dates)
        likely = np.where(of_then[found.slots], 1.0, likely)
    return with_qualities(msgspec.structs.replace(found, relevance=likely), searched.view)


def _relevant(found: Candidates, searched: Search, is_vouched: Mask | None) -> Candidates:
    """Return the candidates without those known to have too little relevance.

    What `is_vouched` for (n,) stays: runs used it again and again for such a request.
    """
    is_irrelevant = found.relevance < searched.query.min_relevance
    if is_vouched is not None:
        is_irrelevant &= ~is_vouched
    return keep(found, ~is_irrelevant) if is_irrelevant.any() else found


def _examined(top_k: int) -> int:
    """Return how many leaders to examine for `top_k` answers, since some resemble each other."""
    return top_k + max(_SPARE, top_k // 2)


def _dates_in(query: Query) -> tuple[UnderstoodDate, ...]:
    if query.dates == "ignore":
        return ()
    spans = understand_dates(query.text, query.reference_time)
    return tuple(UnderstoodDate(phrase=span.phrase, since=span.since, until=span.until) for span in spans)
