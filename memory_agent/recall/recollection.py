"""A query in, memories out: candidates are found, ranked and chosen, and what could not take part is named.

Recall is advice and never holds anybody up: each part that is missing, late or damaged is left out and named in
`degraded`; the deadline bounds the wait for the embedder, the one part that may be slow. What this does not do: find
and weigh candidates (`ranked_search`), choose among them (`selection`), word the answer (`answering`), check arguments
(`inquiry`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

import msgspec
import numpy as np
import numpy.typing as npt
from ulid import ULID

from memory_agent.config import RecallSettings
from memory_agent.embedders.lazy_embedder import LazyEmbedder
from memory_agent.learning.learner import USUAL, Advice, UserLearner
from memory_agent.recall.answering import Answering
from memory_agent.recall.arms import Pick, learned_picks, usual_picks, woven
from memory_agent.recall.attempt import Attempt
from memory_agent.recall.context import context_block
from memory_agent.recall.dates import understand_dates
from memory_agent.recall.inquiry import Inquiry
from memory_agent.recall.learned import lifts
from memory_agent.recall.noting import note_of
from memory_agent.recall.query_vectors import QueryVector, QueryVectors
from memory_agent.recall.ranked_search import RankedSearch
from memory_agent.recall.ranking import Scores, best_first
from memory_agent.recall.scoring import Scored
from memory_agent.recall.selection import Choice, Leader, choose, fold
from memory_agent.recall.tokens import TokenCounter
from memory_agent.records import Embedding, MemoryRecord, RecallResult, RetrievedMemory, UnderstoodDate
from memory_agent.storage.archive import Archive
from memory_agent.storage.conditions import spanned
from sona.learner import Adaptation

_SPARE = 25
"""Candidates that are looked at beyond those that are asked for, since some may say the same."""


class Recollection:
    """Answers the recalls of one user. Any number of threads may ask."""

    def __init__(
        self, archive: Archive, embedder: LazyEmbedder, settings: RecallSettings, learner: UserLearner
    ) -> None:
        self._archive = archive
        self._embedder = embedder
        self._settings = settings
        self._learner = learner
        self._vectors = QueryVectors(archive, embedder, settings.centering)

    def answer(self, inquiry: Inquiry, now: datetime) -> RecallResult:
        """Return the memories that resemble the query, best first. Raises `StoreError` and nothing else."""
        attempt = Attempt(inquiry.deadline_ms)
        dates = _understood(inquiry)
        recall_id = str(ULID.from_datetime(now))
        memories: tuple[RetrievedMemory, ...] = ()
        if not attempt.is_over():
            memories = self._search(_narrowed(inquiry, dates), attempt, dates, recall_id, now)
        result = self._with_context(RecallResult(recall_id=recall_id, memories=memories, dates=dates), inquiry, attempt)
        attempt.is_over()
        return msgspec.structs.replace(result, degraded=tuple(attempt.degraded), took_ms=attempt.elapsed_s * 1000)

    def _search(
        self, inquiry: Inquiry, attempt: Attempt, dates: Sequence[UnderstoodDate], recall_id: str, now: datetime
    ) -> tuple[RetrievedMemory, ...]:
        vector = self._vector(inquiry, attempt)
        advice = self._advice(inquiry, vector, recall_id)
        with self._archive.lexicon.until(attempt.ends_at_s):
            search = RankedSearch(self._archive, self._settings, inquiry, attempt, vector, dates)
            picked = self._picked(search, inquiry, attempt, advice)
            self._archive.store.touch([pick.row for pick in picked], now)
            answering = Answering(self._archive, search, inquiry, vector, dates, advice)
            memories = answering.memories(picked)
        self._archive.store.note_recall(note_of(recall_id, inquiry, vector, advice, picked, now))
        return memories

    def _advice(self, inquiry: Inquiry, vector: QueryVector | None, recall_id: str) -> Advice:
        if vector is None or inquiry.mode != "hybrid":
            return USUAL
        return self._learner.advise(vector.raw, recall_id)

    def _picked(self, search: RankedSearch, inquiry: Inquiry, attempt: Attempt, advice: Advice) -> list[Pick]:
        """Choose by the ranking that has its turn, or by both."""
        found = search.find(max(self._settings.candidates, inquiry.top_k))
        adaptation = advice.adaptation
        if adaptation is None or advice.route == "baseline":
            return self._usual(search, found, inquiry, attempt)
        learned = self._learned(search, found, inquiry, attempt, adaptation)
        if advice.route == "learned":
            return learned
        return woven(self._usual(search, found, inquiry, attempt), learned, inquiry.top_k, advice.key)

    def _usual(self, search: RankedSearch, found: Scored, inquiry: Inquiry, attempt: Attempt) -> list[Pick]:
        scored, leaders = self._led(search, found, inquiry, attempt)
        places = [leader.place for leader in leaders]
        vectors = self._archive.store.vectors(scored.rows[places])
        return usual_picks(scored, self._choose(leaders, vectors, scored.total[places], inquiry))

    def _learned(
        self, search: RankedSearch, found: Scored, inquiry: Inquiry, attempt: Attempt, adaptation: Adaptation
    ) -> list[Pick]:
        settings = self._learner.settings
        scored, leaders = self._led(
            search, found, inquiry, attempt, lambda found: search.adapted(found, adaptation, settings)
        )
        places = [leader.place for leader in leaders]
        vectors = self._archive.store.vectors(scored.rows[places])
        records = [search.records[row] for row in scored.rows[places].tolist()]
        totals = scored.total[places]
        lifted = lifts(totals, vectors, records, adaptation, settings)
        choices = self._choose(leaders, vectors, totals + lifted.shift + lifted.outcome, inquiry)
        return learned_picks(scored, choices, [lifted.of(places.index(choice.place)) for choice in choices])

    def _led(
        self,
        search: RankedSearch,
        found: Scored,
        inquiry: Inquiry,
        attempt: Attempt,
        weigh: Callable[[Scored], Scored] = lambda found: found,
    ) -> tuple[Scored, list[Leader]]:
        """Look for other things to say while what was found says the same over and over, and there is more."""
        limit = max(self._settings.candidates, inquiry.top_k)
        scored = weigh(found)
        leaders = self._leaders(search, scored, inquiry)
        count = self._apart(search, scored, leaders)
        while count < inquiry.top_k and found.found.more and not attempt.is_over():
            found = search.find_more(found, [leader.fingerprint for leader in leaders], limit)
            further = weigh(found)
            leaders_then = self._leaders(search, further, inquiry)
            count_then = self._apart(search, further, leaders_then)
            if count_then <= count:
                break
            scored, leaders, count = further, leaders_then, count_then
        return scored, search.repeats.folded(scored.found, leaders, search.records, inquiry.top_k)

    def _apart(self, search: RankedSearch, scored: Scored, leaders: list[Leader]) -> int:
        return len(leaders) - search.repeats.surplus(scored.found, leaders, search.records)

    def _leaders(self, search: RankedSearch, scored: Scored, inquiry: Inquiry) -> list[Leader]:
        """Return the best of each that say the same, enough of them to choose from, repeats of the query aside."""
        order = best_first(scored.total, scored.rows, scored.rows.size)
        most = looked_at = inquiry.top_k + max(_SPARE, inquiry.top_k // 2)
        leaders = self._news(search, scored, order, most, inquiry)
        while looked_at < order.size:
            wanted = most + search.repeats.surplus(scored.found, leaders, search.records)
            if wanted <= looked_at:
                break
            looked_at = wanted
            leaders = self._news(search, scored, order, looked_at, inquiry)
        return leaders

    def _news(
        self, search: RankedSearch, scored: Scored, order: npt.NDArray[np.intp], most: int, inquiry: Inquiry
    ) -> list[Leader]:
        """Return at most `most` leaders, best first; only what is stored, and tells who asks something."""
        leaders = self._fold(search, scored, order[: 2 * most], most)
        if len(leaders) < most or inquiry.floor is not None:  # under a floor those that were found are counted
            leaders = self._fold(search, scored, order, most)
        rows = scored.rows.tolist()
        present = search.load(rows[leader.place] for leader in leaders)
        return [leader for leader in leaders if _is_news(present.get(rows[leader.place]), inquiry)]

    def _fold(self, search: RankedSearch, scored: Scored, order: npt.NDArray[np.intp], most: int) -> list[Leader]:
        rows = scored.rows.tolist()
        said = search.fingerprints(np.sort(scored.rows[order]))
        return fold(((place, said[rows[place]]) for place in order.tolist() if rows[place] in said), most)

    def _choose(self, leaders: list[Leader], vectors: Embedding, totals: Scores, inquiry: Inquiry) -> list[Choice]:
        diversity = self._settings.diversity if inquiry.mode == "hybrid" else 0.0
        return choose(leaders, vectors, totals, inquiry.top_k, diversity)

    def _vector(self, inquiry: Inquiry, attempt: Attempt) -> QueryVector | None:
        if inquiry.mode == "lexical" and inquiry.floor is None:
            return None
        vector = self._vectors.make(inquiry.query, attempt)
        if vector is not None and self._archive.store.pending_count:
            attempt.degrade("vectors_pending")
        return vector

    def _with_context(self, result: RecallResult, inquiry: Inquiry, attempt: Attempt) -> RecallResult:
        """Add the block for a prompt, where one was asked for."""
        if inquiry.context_tokens is None:
            return result
        count = TokenCounter(self._embedder, attempt)
        block = context_block(result, inquiry.context_tokens, now=inquiry.reference_time, count_tokens=count)
        return msgspec.structs.replace(result, context=block)


def _is_news(record: MemoryRecord | None, inquiry: Inquiry) -> bool:
    """Whether a memory is stored, and tells the run that asks something: its own words it knows."""
    return record is not None and (inquiry.by_run is None or record.run_id != inquiry.by_run)


def _understood(inquiry: Inquiry) -> tuple[UnderstoodDate, ...]:
    if inquiry.dates == "ignore":
        return ()
    spans = understand_dates(inquiry.query, inquiry.reference_time)
    return tuple(UnderstoodDate(phrase=span.phrase, since=span.since, until=span.until) for span in spans)


def _narrowed(inquiry: Inquiry, dates: Sequence[UnderstoodDate]) -> Inquiry:
    """The inquiry with a filter by what its query says of time, where that was asked for."""
    if inquiry.dates != "filter" or not dates:
        return inquiry
    within = spanned(inquiry.filter, [(date.since, date.until) for date in dates])
    return msgspec.structs.replace(inquiry, filter=within)
