"""A query in, memories out: candidates are found, ranked and chosen, and what could not take part is named.

Recall is advice and never holds anybody up: each part that is missing, late or damaged is left out and named in
`degraded`; the deadline bounds the wait for the embedder, the one part that may be slow. What this does not do: find
and weigh candidates (`ranked_search`), choose among them (`selection`), word the answer (`answering`), check arguments
(`inquiry`).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec
import numpy as np
import numpy.typing as npt
from ulid import ULID

from memory_agent.config import RecallSettings
from memory_agent.errors import DeadlineExceededError, EmbedderUnavailableError, IndexDamagedError, ModelError
from memory_agent.late_embedder import LateEmbedder
from memory_agent.recall.answering import Answering
from memory_agent.recall.attempt import Attempt
from memory_agent.recall.context import context_block
from memory_agent.recall.dates import understand_dates
from memory_agent.recall.inquiry import Inquiry
from memory_agent.recall.query_vectors import QueryVector, QueryVectors
from memory_agent.recall.ranked_search import RankedSearch
from memory_agent.recall.ranking import Rows, best_first
from memory_agent.recall.scoring import Scored
from memory_agent.recall.selection import Choice, Contenders, choose
from memory_agent.records import MemoryRecord, RecallResult, RetrievedMemory, UnderstoodDate
from memory_agent.storage.archive import Archive
from memory_agent.storage.conditions import spanned
from memory_agent.storage.terms import fingerprint

_SPARE = 25
"""Candidates that are looked at beyond those that are asked for, since some may say the same."""
_WIDER = 4


class Recollection:
    """Answers the recalls of one user. Any number of threads may ask."""

    def __init__(self, archive: Archive, embedder: LateEmbedder, settings: RecallSettings) -> None:
        self._archive = archive
        self._embedder = embedder
        self._settings = settings
        self._vectors = QueryVectors(archive, embedder, settings.centering)

    def answer(self, inquiry: Inquiry, now: datetime) -> RecallResult:
        """Return the memories that resemble the query, best first. Raises `StoreError` and nothing else."""
        attempt = Attempt(inquiry.deadline_ms)
        dates = _understood(inquiry)
        memories: tuple[RetrievedMemory, ...] = ()
        if not attempt.is_over():
            memories = self._search(_narrowed(inquiry, dates), attempt, dates, now)
        result = RecallResult(
            recall_id=str(ULID.from_datetime(now)),
            memories=memories,
            degraded=tuple(attempt.degraded),
            took_ms=attempt.elapsed_s * 1000,
            dates=dates,
        )
        return self._with_context(result, inquiry, attempt)

    def _search(
        self, inquiry: Inquiry, attempt: Attempt, dates: Sequence[UnderstoodDate], now: datetime
    ) -> tuple[RetrievedMemory, ...]:
        vector = self._vector(inquiry, attempt)
        with self._archive.lexicon.until(attempt.ends_at_s):
            search = RankedSearch(self._archive, self._settings, inquiry, attempt, vector, dates)
            scored, choices = self._choose(search, inquiry, attempt)
            self._archive.store.touch([int(scored.rows[choice.place]) for choice in choices], now)
            return Answering(self._archive, search, inquiry, vector, dates).memories(scored, choices)

    def _choose(self, search: RankedSearch, inquiry: Inquiry, attempt: Attempt) -> tuple[Scored, list[Choice]]:
        """Look further while what was found says the same over and over, and there is more."""
        limit = max(self._settings.candidates, inquiry.top_k)
        while True:
            scored = search.find(limit)
            choices = self._best(search, scored, inquiry)
            if len(choices) >= inquiry.top_k or not scored.found.more or attempt.is_over():
                return scored, choices
            limit *= _WIDER

    def _best(self, search: RankedSearch, scored: Scored, inquiry: Inquiry) -> list[Choice]:
        """Return the best `top_k` candidates that are still stored."""
        order = best_first(scored.total, scored.rows, scored.rows.size)
        looked_at = inquiry.top_k + max(_SPARE, inquiry.top_k // 2)
        while True:
            choices = self._among(search, scored, order[:looked_at], inquiry)
            if len(choices) >= inquiry.top_k or looked_at >= order.size:
                return choices
            looked_at *= _WIDER

    def _among(
        self, search: RankedSearch, scored: Scored, places: npt.NDArray[np.intp], inquiry: Inquiry
    ) -> list[Choice]:
        """Choose among the candidates at `places`, best first."""
        records = search.load(scored.rows[places].tolist())
        present = [int(place) for place in places if int(scored.rows[place]) in records]
        rows = scored.rows[present]
        return choose(
            Contenders(
                places=tuple(present),
                records=tuple(records[row] for row in rows.tolist()),
                fingerprints=self._fingerprints(rows, records),
                vectors=self._archive.store.vectors(rows),
                scores=scored.total[present],
            ),
            inquiry.top_k,
            self._settings.diversity if inquiry.mode == "hybrid" else 0.0,
        )

    def _fingerprints(self, rows: Rows, records: dict[int, MemoryRecord]) -> Rows:
        try:
            known = self._archive.lexicon.fingerprints(rows)
        except (IndexDamagedError, DeadlineExceededError):
            known = {}
        prints = [known.get(row) or fingerprint(records[row].text) for row in rows.tolist()]
        return np.array(prints, dtype=np.int64)

    def _vector(self, inquiry: Inquiry, attempt: Attempt) -> QueryVector | None:
        if inquiry.mode == "lexical" and inquiry.floor is None:
            return None
        vector = self._vectors.make(inquiry.query, attempt)
        if vector is not None and self._archive.store.pending_count:
            attempt.degrade("vectors_pending")
        return vector

    def _with_context(self, result: RecallResult, inquiry: Inquiry, attempt: Attempt) -> RecallResult:
        """Add the block for a prompt; tokens are estimated where the model's tokenizer is not there, or not in time."""
        if inquiry.context_tokens is None:
            return result
        try:
            embedder = self._embedder.get(0)

            def count(text: str) -> int:
                if attempt.remaining_s <= 0:
                    raise EmbedderUnavailableError("no time to count tokens")
                return embedder.count_tokens(text, attempt.remaining_s)

            block = context_block(result, inquiry.context_tokens, now=inquiry.reference_time, count_tokens=count)
        except (EmbedderUnavailableError, ModelError):
            block = context_block(result, inquiry.context_tokens, now=inquiry.reference_time)
        return msgspec.structs.replace(result, context=block)


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
