"""A recall from query to answer: candidates are found, ranked and selected, and what could not take part is named.

Recall is advisory and never fails or hangs for want of a part: one that is missing, late or damaged is left out and
named in `degraded`. The deadline bounds the wait for the embedder, the one part that may be slow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

import msgspec
import numpy as np
import numpy.typing as npt
from ulid import ULID

from memory_agent.embedders.lazy_embedder import LazyEmbedder
from memory_agent.learning.learner import USUAL, Advice, UserLearner
from memory_agent.recall.answering import Answering
from memory_agent.recall.context import context_block
from memory_agent.recall.dates import understand_dates
from memory_agent.recall.deadline import Deadline
from memory_agent.recall.fusion import Scores, best_first
from memory_agent.recall.interleaving import Pick, baseline_picks, interleave, learned_picks
from memory_agent.recall.learned import lifts
from memory_agent.recall.query import Query
from memory_agent.recall.query_log import note_of
from memory_agent.recall.query_vectors import QueryVector, QueryVectors
from memory_agent.recall.ranked_search import RankedSearch
from memory_agent.recall.scoring import Scored
from memory_agent.recall.selection import Choice, Leader, fold, mmr
from memory_agent.recall.tokens import TokenCounter
from memory_agent.records import Embedding, MemoryRecord, RecallResult, RetrievedMemory, UnderstoodDate
from memory_agent.settings import RecallSettings
from memory_agent.storage.archive import Archive
from memory_agent.storage.filter_sql import spanned
from sona.learner import Adaptation

_SPARE = 25
"""Candidates read beyond `top_k`, since some may say the same."""


class RecallPipeline:
    """Answers the recalls of one user. Thread-safe."""

    def __init__(
        self, archive: Archive, embedder: LazyEmbedder, settings: RecallSettings, learner: UserLearner
    ) -> None:
        self._archive = archive
        self._embedder = embedder
        self._settings = settings
        self._learner = learner
        self._vectors = QueryVectors(archive, embedder, settings.centering)

    def answer(self, query: Query, now: datetime) -> RecallResult:
        """Return the memories that resemble the query, best first. Raises only `StoreError`."""
        deadline = Deadline(query.deadline_ms)
        dates = _dates_in(query)
        recall_id = str(ULID.from_datetime(now))
        memories: tuple[RetrievedMemory, ...] = ()
        if not deadline.expired():
            memories = self._search(_with_dates(query, dates), deadline, dates, recall_id, now)
        result = self._with_context(RecallResult(recall_id=recall_id, memories=memories, dates=dates), query, deadline)
        deadline.expired()
        return msgspec.structs.replace(result, degraded=tuple(deadline.degraded), took_ms=deadline.elapsed_s * 1000)

    def _search(
        self, query: Query, deadline: Deadline, dates: Sequence[UnderstoodDate], recall_id: str, now: datetime
    ) -> tuple[RetrievedMemory, ...]:
        vector = self._vector(query, deadline)
        advice = self._advice(query, vector, recall_id)
        with self._archive.lexicon.until(deadline.ends_at_s):
            search = RankedSearch(self._archive, self._settings, query, deadline, vector, dates)
            picked = self._select(search, query, deadline, advice)
            self._archive.store.touch([pick.row for pick in picked], now)
            answering = Answering(self._archive, search, query, vector, dates, advice)
            memories = answering.memories(picked)
        self._archive.store.note_recall(note_of(recall_id, query, vector, advice, picked, now))
        return memories

    def _advice(self, query: Query, vector: QueryVector | None, recall_id: str) -> Advice:
        if vector is None or query.mode != "hybrid":
            return USUAL
        return self._learner.advise(vector.raw, recall_id)

    def _select(self, search: RankedSearch, query: Query, deadline: Deadline, advice: Advice) -> list[Pick]:
        """Select by the ranking whose turn it is, or interleave both."""
        found = search.find(max(self._settings.candidates, query.top_k))
        adaptation = advice.adaptation
        if adaptation is None or advice.route == "baseline":
            return self._baseline(search, found, query, deadline)
        learned = self._learned(search, found, query, deadline, adaptation)
        if advice.route == "learned":
            return learned
        return interleave(self._baseline(search, found, query, deadline), learned, query.top_k, advice.key)

    def _baseline(self, search: RankedSearch, found: Scored, query: Query, deadline: Deadline) -> list[Pick]:
        scored, leaders = self._rank(search, found, query, deadline)
        places = [leader.place for leader in leaders]
        vectors = self._archive.store.vectors(scored.rows[places])
        return baseline_picks(scored, self._choose(leaders, vectors, scored.total[places], query))

    def _learned(
        self, search: RankedSearch, found: Scored, query: Query, deadline: Deadline, adaptation: Adaptation
    ) -> list[Pick]:
        settings = self._learner.settings
        scored, leaders = self._rank(
            search, found, query, deadline, lambda found: search.adapted(found, adaptation, settings)
        )
        places = [leader.place for leader in leaders]
        vectors = self._archive.store.vectors(scored.rows[places])
        records = [search.records[row] for row in scored.rows[places].tolist()]
        totals = scored.total[places]
        lifted = lifts(totals, vectors, records, adaptation, settings)
        choices = self._choose(leaders, vectors, totals + lifted.shift + lifted.outcome, query)
        return learned_picks(scored, choices, [lifted.of(places.index(choice.place)) for choice in choices])

    def _rank(
        self,
        search: RankedSearch,
        found: Scored,
        query: Query,
        deadline: Deadline,
        weigh: Callable[[Scored], Scored] = lambda found: found,
    ) -> tuple[Scored, list[Leader]]:
        """Return scored candidates with their leaders, searching further while too few say different things."""
        limit = max(self._settings.candidates, query.top_k)
        scored = weigh(found)
        leaders = self._leaders(search, scored, query)
        count = self._count_distinct(search, scored, leaders)
        while count < query.top_k and found.found.more and not deadline.expired():
            found = search.find_more(found, [leader.fingerprint for leader in leaders], limit)
            further = weigh(found)
            further_leaders = self._leaders(search, further, query)
            further_count = self._count_distinct(search, further, further_leaders)
            if further_count <= count:
                break
            scored, leaders, count = further, further_leaders, further_count
        return scored, search.echoes.fold(scored.found, leaders, search.records, query.top_k)

    def _count_distinct(self, search: RankedSearch, scored: Scored, leaders: list[Leader]) -> int:
        return len(leaders) - search.echoes.surplus(scored.found, leaders, search.records)

    def _leaders(self, search: RankedSearch, scored: Scored, query: Query) -> list[Leader]:
        """Return the best candidate of each duplicate group, enough to choose from without echoes of the query."""
        order = best_first(scored.total, scored.rows, scored.rows.size)
        most = examined = query.top_k + max(_SPARE, query.top_k // 2)
        leaders = self._new_leaders(search, scored, order, most, query)
        while examined < order.size:
            wanted = most + search.echoes.surplus(scored.found, leaders, search.records)
            if wanted <= examined:
                break
            examined = wanted
            leaders = self._new_leaders(search, scored, order, examined, query)
        return leaders

    def _new_leaders(
        self, search: RankedSearch, scored: Scored, order: npt.NDArray[np.intp], most: int, query: Query
    ) -> list[Leader]:
        """Return at most `most` leaders, best first, that are stored and not of the asking run."""
        leaders = self._fold(search, scored, order[: 2 * most], most)
        if len(leaders) < most or query.floor is not None:  # under a floor, `count` is of those found
            leaders = self._fold(search, scored, order, most)
        rows = scored.rows.tolist()
        present = search.load(rows[leader.place] for leader in leaders)
        return [leader for leader in leaders if _is_new(present.get(rows[leader.place]), query)]

    def _fold(self, search: RankedSearch, scored: Scored, order: npt.NDArray[np.intp], most: int) -> list[Leader]:
        rows = scored.rows.tolist()
        said = search.fingerprints(np.sort(scored.rows[order]))
        return fold(((place, said[rows[place]]) for place in order.tolist() if rows[place] in said), most)

    def _choose(self, leaders: list[Leader], vectors: Embedding, totals: Scores, query: Query) -> list[Choice]:
        diversity = self._settings.diversity if query.mode == "hybrid" else 0.0
        return mmr(leaders, vectors, totals, query.top_k, diversity)

    def _vector(self, query: Query, deadline: Deadline) -> QueryVector | None:
        if query.mode == "lexical" and query.floor is None:
            return None
        vector = self._vectors.make(query.text, deadline)
        if vector is not None and self._archive.store.pending_count:
            deadline.degrade("vectors_pending")
        return vector

    def _with_context(self, result: RecallResult, query: Query, deadline: Deadline) -> RecallResult:
        """Add the block for a prompt, where requested."""
        if query.context_tokens is None:
            return result
        count = TokenCounter(self._embedder, deadline)
        block = context_block(result, query.context_tokens, now=query.reference_time, count_tokens=count)
        return msgspec.structs.replace(result, context=block)


def _is_new(record: MemoryRecord | None, query: Query) -> bool:
    """Whether a memory is stored and not of the asking run, which knows its own words."""
    return record is not None and (query.by_run is None or record.run_id != query.by_run)


def _dates_in(query: Query) -> tuple[UnderstoodDate, ...]:
    if query.dates == "ignore":
        return ()
    spans = understand_dates(query.text, query.reference_time)
    return tuple(UnderstoodDate(phrase=span.phrase, since=span.since, until=span.until) for span in spans)


def _with_dates(query: Query, dates: Sequence[UnderstoodDate]) -> Query:
    """Return the query with the dates in its text as a filter, where requested."""
    if query.dates != "filter" or not dates:
        return query
    within = spanned(query.filter, [(date.since, date.until) for date in dates])
    return msgspec.structs.replace(query, filter=within)
