"""The chosen candidates as the memories of an answer: passages, counts, where else it was said, why it is there.

What this does not do: choose (`selection`); say what a score is made of (`explanation`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from memory_agent.errors import DeadlineExceededError, IndexDamagedError
from memory_agent.recall.explanation import explain, number
from memory_agent.recall.inquiry import Inquiry
from memory_agent.recall.query_vectors import QueryVector
from memory_agent.recall.ranked_search import RankedSearch
from memory_agent.recall.ranking import Rows
from memory_agent.recall.scoring import Scored
from memory_agent.recall.selection import Choice
from memory_agent.records import MemoryRecord, Origin, Retrieval, RetrievedMemory, UnderstoodDate
from memory_agent.storage.archive import Archive
from memory_agent.storage.codec import microseconds, time_of

_MOST_ORIGINS = 8


class Answering:
    """Words the answer to one recall."""

    def __init__(
        self,
        archive: Archive,
        search: RankedSearch,
        inquiry: Inquiry,
        vector: QueryVector | None,
        dates: Sequence[UnderstoodDate],
    ) -> None:
        self._archive = archive
        self._search = search
        self._inquiry = inquiry
        self._vector = vector
        self._dates = dates

    def memories(self, scored: Scored, choices: Sequence[Choice]) -> tuple[RetrievedMemory, ...]:
        """Return the memories of the answer, in the order of the choices."""
        rows = [int(scored.rows[choice.place]) for choice in choices]
        records = self._search.load(rows)
        marked = self._marked(records)
        raw = self._raw_cosines(np.array(rows, dtype=np.int64))
        said = self._said(choices)
        return tuple(
            self._memory(scored, choice, records[row], raw[place], marked[row], said)
            for place, (row, choice) in enumerate(zip(rows, choices, strict=True))
        )

    def _memory(
        self,
        scored: Scored,
        choice: Choice,
        record: MemoryRecord,
        cosine: float,
        highlights: tuple[str, ...],
        said: dict[int, list[tuple[int, int]]],
    ) -> RetrievedMemory:
        bm25 = scored.found.bm25[choice.place]
        row = int(scored.rows[choice.place])
        times = self._times(scored, choice, said)
        return RetrievedMemory(
            record=self._whole(row, record),
            score=number(cosine),
            lexical_score=number(bm25) if bm25 > 0 else None,
            sona_score=choice.score,
            retrieval=_retrieval(scored, choice.place),
            highlights=highlights,
            explanation=self._explanation(scored, choice),
            count=len(times),
            first_seen=time_of(min(times.values())),
            last_seen=time_of(max(times.values())),
            origins=self._origins([other for other in times if other != row]),
        )

    def _explanation(self, scored: Scored, choice: Choice) -> dict[str, object]:
        row = int(scored.rows[choice.place])
        lenders = [loan.lender for loan in scored.loans if loan.borrower == row]
        return explain(
            scored,
            choice,
            self._inquiry,
            self._dates,
            centred=self._vector is not None and self._vector.centred is not self._vector.raw,
            lent_by=[record.id for record in self._search.load(lenders).values()],
            like=None if choice.like is None else self._search.records[int(scored.rows[choice.like])].id,
        )

    def _said(self, choices: Sequence[Choice]) -> dict[int, list[tuple[int, int]]]:
        """Return by fingerprint the rows of all memories with such a text, and when they happened, newest first."""
        said: dict[int, list[tuple[int, int]]] = {}
        try:
            wanted = {fingerprint for choice in choices for fingerprint in choice.fingerprints}
            for fingerprint, row, time_us in self._archive.lexicon.saying(wanted, self._inquiry.filter):
                said.setdefault(fingerprint, []).append((row, time_us))
        except (IndexDamagedError, DeadlineExceededError):
            said.clear()  # what was folded is counted all the same
        return said

    def _times(self, scored: Scored, choice: Choice, said: dict[int, list[tuple[int, int]]]) -> dict[int, int]:
        """Return the rows that say the same as a choice and when they happened, microseconds, newest first."""
        folded = self._search.load(int(scored.rows[place]) for place in (choice.place, *choice.folded))
        times = {row: microseconds(record.timestamp, "timestamp") for row, record in folded.items()}
        for fingerprint in choice.fingerprints:
            times.update(said.get(fingerprint, ()))
        return dict(sorted(times.items(), key=lambda item: (-item[1], -item[0])))

    def _origins(self, rows: Sequence[int]) -> tuple[Origin, ...]:
        return tuple(
            Origin(
                id=record.id,
                timestamp=record.timestamp,
                source=record.source,
                session_id=record.session_id,
                run_id=record.run_id,
                quality_score=record.quality_score,
            )
            for record in self._search.load(rows[:_MOST_ORIGINS]).values()
        )

    def _marked(self, records: dict[int, MemoryRecord]) -> dict[int, tuple[str, ...]]:
        try:
            return self._archive.lexicon.passages(self._inquiry.query, records)
        except IndexDamagedError:
            return dict.fromkeys(records, ())

    def _raw_cosines(self, rows: Rows) -> list[float]:
        if self._vector is None:
            return [float("nan")] * len(rows)
        try:
            return [float(cosine) for cosine in self._archive.index.score_rows(self._vector.raw, rows)]
        except IndexDamagedError:
            return [float("nan")] * len(rows)

    def _whole(self, row: int, record: MemoryRecord) -> MemoryRecord:
        """Return the record with its vector, where that was asked for."""
        if not self._inquiry.with_embedding:
            return record
        return self._archive.store.records([row], True)[0] or record


def _retrieval(scored: Scored, place: int) -> Retrieval:
    has_vector, has_words = not np.isnan(scored.found.cosines[place]), scored.found.bm25[place] > 0
    if has_vector:
        return "hybrid" if has_words else "vector"
    return "lexical"
