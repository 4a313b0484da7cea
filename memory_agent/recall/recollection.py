"""A query in, memories out: candidates are found and ranked, and what could not take part is named.

Recall is advice and never holds anybody up: each part that is missing, late or damaged is left out and named in
`degraded`; the deadline bounds the wait for the embedder, the one part that may be slow. What this does not do: find
candidates (`candidates`), weigh scores (`ranking`), check arguments (`inquiry`).
"""

from __future__ import annotations

import math
from datetime import datetime

import numpy as np
from ulid import ULID

from memory_agent.config import RecallSettings
from memory_agent.errors import IndexDamagedError
from memory_agent.late_embedder import LateEmbedder
from memory_agent.recall import contiguity, ranking
from memory_agent.recall.attempt import Attempt
from memory_agent.recall.candidates import Candidates, CandidateSearch
from memory_agent.recall.inquiry import Inquiry
from memory_agent.recall.query_vectors import QueryVector, QueryVectors
from memory_agent.records import MemoryRecord, RecallResult, Retrieval, RetrievedMemory
from memory_agent.storage.archive import Archive

Ranked = list[tuple[int, MemoryRecord]]
"""Places among the candidates and their memories, best first."""


class Recollection:
    """Answers the recalls of one user. Any number of threads may ask."""

    def __init__(self, archive: Archive, embedder: LateEmbedder, settings: RecallSettings) -> None:
        self._archive = archive
        self._settings = settings
        self._vectors = QueryVectors(archive, embedder, settings.centering)

    def answer(self, inquiry: Inquiry, now: datetime, with_embedding: bool = False) -> RecallResult:
        """Return the memories that resemble the query, best first. Raises `StoreError` and nothing else."""
        attempt = Attempt(inquiry.deadline_ms)
        memories: tuple[RetrievedMemory, ...] = ()
        if attempt.remaining_s > 0:
            memories = self._search(inquiry, attempt, now, with_embedding)
        else:
            attempt.degrade("deadline")
        return RecallResult(
            recall_id=str(ULID.from_datetime(now)),
            memories=memories,
            degraded=tuple(attempt.degraded),
            took_ms=attempt.elapsed_s * 1000,
        )

    def _search(
        self, inquiry: Inquiry, attempt: Attempt, now: datetime, with_embedding: bool
    ) -> tuple[RetrievedMemory, ...]:
        vector = self._vector(inquiry, attempt)
        search = CandidateSearch(self._archive, inquiry, attempt, max(self._settings.candidates, inquiry.top_k))
        found, loans = self._with_neighbours(search, search.find(vector), vector, inquiry)
        weight = ranking.vector_weight(found.cosines, found.bm25, self._settings.alpha)
        own = ranking.fuse(found.cosines, found.bm25, weight)
        scores = contiguity.lend(own, found.rows, loans)
        ranked = self._best(found, scores, inquiry.top_k, with_embedding)
        rows = found.rows[[place for place, _ in ranked]]
        raw = np.full(len(rows), np.nan) if vector is None else search.cosines(vector.raw, rows)
        highlights = self._highlights(inquiry.query, [record for _, record in ranked])
        self._archive.store.touch(rows.tolist(), now)
        shares = ranking.lexical_share(found.bm25)
        return tuple(
            RetrievedMemory(
                record=record,
                score=_number(raw[position]),
                lexical_score=_number(found.bm25[place]) if found.bm25[place] > 0 else None,
                sona_score=float(scores[place]),
                retrieval=_retrieval(found, place),
                highlights=highlights[position],
                explanation={
                    "vector": _number(found.cosines[place]),
                    "lexical": float(shares[place]),
                    "alpha": weight,
                    "centred": vector is not None and vector.centred is not vector.raw,
                    "filter": "none" if found.allowed is None else "exact",
                    "matching": None if found.allowed is None else len(found.allowed),
                    "contiguity": float(scores[place] - own[place]),
                    "lent_by": self._lenders(loans, int(found.rows[place])),
                },
            )
            for position, (place, record) in enumerate(ranked)
        )

    def _with_neighbours(
        self, search: CandidateSearch, found: Candidates, vector: QueryVector | None, inquiry: Inquiry
    ) -> tuple[Candidates, list[contiguity.Loan]]:
        """Let the best candidates lend to their neighbours, which become candidates too; in hybrid mode only."""
        share = self._settings.contiguity
        if inquiry.mode != "hybrid" or not share:
            return found, []
        scores = ranking.fuse(found.cosines, found.bm25, self._settings.alpha)
        loans = search.loans(contiguity.surpluses(scores, found.rows), share)
        return search.widen(found, vector, {loan.borrower for loan in loans}), loans

    def _lenders(self, loans: list[contiguity.Loan], borrower: int) -> list[str]:
        """Return the ids of the memories that lent to the one in row `borrower`."""
        records = self._archive.store.records([loan.lender for loan in loans if loan.borrower == borrower])
        return [record.id for record in records if record is not None]

    def _vector(self, inquiry: Inquiry, attempt: Attempt) -> QueryVector | None:
        if inquiry.mode == "lexical" and inquiry.floor is None:
            return None
        vector = self._vectors.make(inquiry.query, attempt)
        if vector is not None and self._archive.store.pending_count:
            attempt.degrade("vectors_pending")
        return vector

    def _best(self, found: Candidates, scores: ranking.Scores, top_k: int, with_embedding: bool) -> Ranked:
        """Return the best `top_k` candidates that are still stored."""
        order = ranking.best_first(scores, found.rows, len(found.rows))
        best: Ranked = []
        while len(best) < top_k and order.size:
            places, order = order[: top_k - len(best)], order[top_k - len(best) :]
            records = self._archive.store.records(found.rows[places], with_embedding)
            best += [(int(place), record) for place, record in zip(places, records, strict=True) if record is not None]
        return best

    def _highlights(self, query: str, records: list[MemoryRecord]) -> list[tuple[str, ...]]:
        try:
            return self._archive.lexicon.highlights(query, records)
        except IndexDamagedError:
            return [()] * len(records)


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _retrieval(found: Candidates, place: int) -> Retrieval:
    has_vector, has_words = not math.isnan(found.cosines[place]), found.bm25[place] > 0
    if has_vector:
        return "hybrid" if has_words else "vector"
    return "lexical"
