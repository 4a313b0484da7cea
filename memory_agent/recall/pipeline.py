"""A recall from query to answer.

    search       the query's words and vector against all memories that pass the filter, without the caller's own words
    shortlist    the best of each, scored word by word                                                    (`candidates`)
    neighbours   what they gain from their session                                                            (`stages`)
    past use     what they gain from what runs used                                      (where the learner may rank)
    relevance    without what does not bear on the query
    outcome      the runs that went well before those that failed, among about equally good ones
    selection    one of each text, one of the former requests that ask the same
    runs         where runs are asked for, requests of runs only if there is room
    answer       with passages, counts and reasons
    shared       with what others share (where asked for)
    runs         ended runs whose request resembles the query (where asked for)
    context      as a block for a prompt (where asked for)

Recall is advisory and never fails or hangs for want of a part: one that is missing, late or damaged is left out and
named in `degraded`. The deadline bounds the wait for the embedder, the one part that may be slow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace
from ulid import ULID

from memory_agent.embedders import LazyEmbedder, Pending
from memory_agent.learning.learner import USUAL, Advice, UserLearner
from memory_agent.recall.answer import Answering, note_of
from memory_agent.recall.candidates import Candidates, shortlist
from memory_agent.recall.context import context_block
from memory_agent.recall.dates import understand_dates
from memory_agent.recall.query import Deadline, Query
from memory_agent.recall.runs import Answered, informative_runs, similar_runs, without_requests_of_runs
from memory_agent.recall.search import Search, Searcher
from memory_agent.recall.selection import FormerRequests, Leaders, Pick, compared, interleave, shifted
from memory_agent.recall.shared import with_shared
from memory_agent.recall.stages import (
    PastUse,
    relevant,
    scale_of,
    with_neighbours,
    with_outcomes,
    with_past_use,
    with_recurring,
    with_relevance,
)
from memory_agent.recall.tokens import TokenCounter
from memory_agent.records.embedded import EmbeddedQuery
from memory_agent.records.memories import RecallResult, RetrievedMemory, UnderstoodDate, time_of
from memory_agent.records.shared_requests import PendingItems
from memory_agent.records.trajectories import SimilarRun
from memory_agent.settings import RecallSettings
from memory_agent.storage.archive import Archive

BeginShared = Callable[[Query], PendingItems | None]
"""Begins to search what others share, where a query asks for it."""

_SPARE = 25
_FURTHER = 8
"""Factor on the shortlist while too few of it are different texts."""


class _Own(NamedTuple):
    """What the user's own memories answer; no search where only shared items are asked for."""

    search: Search | None = None
    advice: Advice = USUAL
    picks: Sequence[Pick] = ()
    memories: tuple[RetrievedMemory, ...] = ()


class RecallPipeline:
    """Answers the recalls of one user. Thread-safe."""

    def __init__(
        self, archive: Archive, embedder: LazyEmbedder, settings: RecallSettings, learner: UserLearner
    ) -> None:
        self._store = archive.store
        self._embedder = embedder
        self._settings = settings
        self._learner = learner
        self._searcher = Searcher(archive, embedder, settings)

    def answer(self, query: Query, now: datetime, begin_shared: BeginShared | None = None) -> RecallResult:
        """Return the memories that resemble the query, best first, with what others share. Raises only `StoreError`.

        `begin_shared` is called once the query is with the embedder, whose answer both searches wait for.
        """
        deadline = Deadline(query.deadline_ms)
        recall_id = str(ULID.from_datetime(now))
        result = RecallResult(recall_id=recall_id, memories=(), dates=_dates_in(query))
        if not deadline.expired():
            result = self._with_memories(result, query, deadline, now, begin_shared)
        result = self._with_context(result, query, deadline)
        deadline.expired()
        return replace(result, degraded=tuple(deadline.degraded), took_ms=deadline.elapsed_s * 1000)

    def similar_runs(self, query: Query) -> list[SimilarRun]:
        """Return at most `top_k` ended runs whose request resembles the query, best first. Raises only `StoreError`."""
        deadline = Deadline(query.deadline_ms)
        searched = self._searcher.search(query, (), self._searcher.begin(query, deadline), deadline)
        return similar_runs(searched, query.top_k)

    def _with_memories(
        self,
        result: RecallResult,
        query: Query,
        deadline: Deadline,
        now: datetime,
        begin_shared: BeginShared | None,
    ) -> RecallResult:
        """Add the memories and runs, and note the recall."""
        is_local = "local" in query.tiers
        pending = self._searcher.begin(query, deadline) if is_local else None
        shared = None if begin_shared is None else begin_shared(query)
        search, advice, picks, own = self._own(result, query, pending, deadline) if is_local else _Own()
        memories = with_shared(own, shared, query, result.recall_id, deadline)
        shown = {memory.record.id for memory in memories}
        picks = [pick for pick, memory in zip(picks, own, strict=True) if memory.record.id in shown]
        if query.is_noted:
            vector = None if search is None else search.vector
            items = [memory for memory in memories if memory.tier == "global"]
            note = note_of(result.recall_id, query, vector, advice, picks, now, items)
            self._store.touch([one.row for one in note.shown], time_of(note.at_us))
            self._store.note_recall(note)
        if search is None:
            return replace(result, memories=memories)
        result = replace(result, memories=memories, excluded=search.own.counts)
        if not query.runs or deadline.expired():
            return result
        best = float(np.fmax.reduce([pick.found.evidence[pick.place] for pick in picks], initial=-np.inf))
        runs = informative_runs(search, query.runs, Answered(tuple(pick.row for pick in picks), best))
        return replace(result, **runs._asdict())

    def _own(
        self, result: RecallResult, query: Query, pending: Pending[EmbeddedQuery] | None, deadline: Deadline
    ) -> _Own:
        """Return what the user's own memories answer, and the picks that are shown."""
        search = self._searcher.search(query, result.dates, pending, deadline)
        advice = USUAL
        if search.vector is not None and query.mode == "hybrid":
            advice = self._learner.advise(search.vector.raw, result.recall_id)
        answering = Answering(search, advice, self._select(search, advice))
        return _Own(search, advice, answering.shown, answering.memories())

    def _select(self, search: Search, advice: Advice) -> list[Pick]:
        """Select by the ranking whose turn it is; interleave both, or answer by one and compare it with the other."""
        former = FormerRequests(search)
        leaders = self._leaders(search, former)
        found, answers = leaders.found, leaders.places[~former.among(leaders.slots)]
        best = float(np.fmax.reduce(found.evidence[answers], initial=-np.inf))
        judged = with_relevance(found, search, best)
        if advice.adaptation is None or advice.route == "baseline":
            return _ranked(judged, search, former)
        past_use = PastUse(advice.adaptation, self._learner.settings, scale_of(found.total[answers]))
        baseline = [] if advice.route == "learned" else _ranked(judged, search, former)
        if advice.route == "compare" and search.deadline.expired():
            return baseline
        wider = with_recurring(found, search, past_use)
        wider = judged if wider is found else with_relevance(wider, search, best)
        learned = _ranked(wider, search, former, past_use)
        if advice.route == "learned":
            return learned
        if advice.route == "compare":
            return compared(baseline, learned)
        return interleave(baseline, learned, search.query.top_k, advice.key)

    def _leaders(self, search: Search, former: FormerRequests) -> Leaders:
        """Return the leaders of enough candidates to fill the answer with different memories."""
        top_k = search.query.top_k
        limit = max(self._settings.candidates, _examined(top_k))
        while True:
            found = with_neighbours(shortlist(search, limit, _examined(top_k)), search)
            leaders = Leaders(found, search)
            if found.is_all or former.leave_enough(leaders, top_k) or search.deadline.expired():
                return leaders
            limit, search = limit * _FURTHER, search.with_all_cosines()

    def _with_context(self, result: RecallResult, query: Query, deadline: Deadline) -> RecallResult:
        """Add the block for a prompt, where requested."""
        if query.context_tokens is None:
            return result
        block = context_block(
            result,
            query.context_tokens,
            heading=query.context_heading,
            now=query.reference_time,
            count_tokens=TokenCounter(self._embedder, deadline),
        )
        return replace(result, context=block)


def _ranked(found: Candidates, search: Search, former: FormerRequests, past_use: PastUse | None = None) -> list[Pick]:
    """Select from candidates whose relevance is known: by the baseline, or with what `past_use` adds."""
    if past_use is not None:
        found = with_past_use(found, past_use)
    found = relevant(found, search)
    found = with_outcomes(found, search, former.among(found.slots))
    top_k = search.query.top_k
    picks = former.fold(Leaders(found, search), top_k, _examined(top_k))
    if past_use is not None:
        picks = shifted(picks, search, past_use)
    return without_requests_of_runs(picks, search)[:top_k]


def _examined(top_k: int) -> int:
    """Return how many leaders to examine for `top_k` answers, since some are folded or moved."""
    return top_k + max(_SPARE, top_k // 2)


def _dates_in(query: Query) -> tuple[UnderstoodDate, ...]:
    if query.dates == "ignore":
        return ()
    spans = understand_dates(query.text, query.reference_time)
    return tuple(UnderstoodDate(phrase=span.phrase, since=span.since, until=span.until) for span in spans)
