"""The candidates of one recall with their scores, by query, time and neighbours.

Candidates come from both indexes, and once more from the times that the query names. The best are scored with their
neighbours in the session, which then are candidates too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from memory_agent.recall import boosts
from memory_agent.recall.boosts import Window, coverage, nearness
from memory_agent.recall.candidates import Candidates, CandidateSearch, merge
from memory_agent.recall.deadline import Deadline, Indexes
from memory_agent.recall.fusion import Rows, Scores
from memory_agent.recall.learned import associations, recurring
from memory_agent.recall.query import Query
from memory_agent.recall.query_echoes import QueryEchoes
from memory_agent.recall.query_vectors import QueryVector
from memory_agent.recall.scoring import Scored, joined, score, with_association, with_context, with_loans
from memory_agent.records import MemoryFilter, MemoryRecord, UnderstoodDate
from memory_agent.settings import LearningSettings, RecallSettings
from memory_agent.storage.archive import Archive
from memory_agent.storage.filter_sql import spanned, unlike
from memory_agent.storage.lexicon_schema import record_fingerprint
from sona.learner import Adaptation

_MOST_BY_DATE = 50
"""Candidates from each side within the times of the query, besides the others."""


class RankedSearch:
    """The search of one recall. `records` holds, by row, the records read so far."""

    def __init__(
        self,
        archive: Archive,
        settings: RecallSettings,
        query: Query,
        deadline: Deadline,
        vector: QueryVector | None,
        dates: Sequence[UnderstoodDate],
    ) -> None:
        """Search by `vector` and words. A filter by `dates` is in the query already."""
        self.records: dict[int, MemoryRecord] = {}
        self.indexes = Indexes(archive, deadline)
        self.echoes = QueryEchoes(archive, query, vector)
        self._archive = archive
        self._settings = settings
        self._query = query
        self._deadline = deadline
        self._vector = vector
        self._fingerprints: dict[int, int] = {}
        self._boosting = dates if query.dates == "boost" and query.mode == "hybrid" else ()

    def find(self, limit: int) -> Scored:
        """Return the scored candidates, at most about `limit` from each side."""
        search = CandidateSearch(self._archive, self._query, self._deadline, limit)
        found = search.find(self._vector)
        if self._boosting:
            narrowed = spanned(self._query.filter, [(date.since, date.until) for date in self._boosting])
            found = merge(found, self._find_under(narrowed, min(limit, _MOST_BY_DATE)))
        return self._score(search, found)

    def find_more(self, before: Scored, said: Iterable[int], limit: int) -> Scored:
        """Return the candidates of `before` with further ones whose fingerprints are none of `said`."""
        search = CandidateSearch(self._archive, self._query, self._deadline, limit)
        others = self._find_under(unlike(self._query.filter, said), limit)
        return self._score(search, msgspec.structs.replace(merge(before.found, others), more=others.more))

    def fingerprints(self, rows: Rows) -> dict[int, int]:
        """Return the fingerprint of each of `rows` that is still stored (`lexicon_schema.record_fingerprint`)."""
        new = np.array([row for row in rows.tolist() if row not in self._fingerprints], dtype=np.int64)
        if new.size:
            nothing: dict[int, int] = {}
            known = self.indexes.ask("lexicon", lambda: self._archive.lexicon.fingerprints(new), nothing)
            unknown = self.load(row for row in new.tolist() if row not in known)
            self._fingerprints |= known | {row: record_fingerprint(record) for row, record in unknown.items()}
        return {row: self._fingerprints[row] for row in rows.tolist() if row in self._fingerprints}

    def adapted(self, scored: Scored, adaptation: Adaptation, settings: LearningSettings) -> Scored:
        """Return the candidates with what they gain from past use; memories used repeatedly are added."""
        new = recurring(adaptation.reached, scored.rows, settings)
        scored = self._with_reached(scored, new) if new.size else scored
        return with_association(scored, associations(scored.rows, scored.total, adaptation, settings))

    def _with_reached(self, scored: Scored, rows: Rows) -> Scored:
        """Add memories that pass the filter and have a vector as candidates."""
        if self._vector is None:
            return scored
        new = scored.found.filtered.passing(rows)
        search = CandidateSearch(self._archive, self._query, self._deadline, len(new))
        cosines = search.cosines(self._vector.centred, new).astype(np.float64)
        known = np.isfinite(cosines)
        nothing = np.zeros(int(known.sum()))
        found = Candidates(new[known], cosines[known], nothing, scored.found.filtered)
        return joined(scored, Scored(found, scored.weight, scored.weight * cosines[known], *(nothing,) * 4))

    def _score(self, search: CandidateSearch, found: Candidates) -> Scored:
        scored = self._score_alone(found)
        if self._query.mode != "hybrid" or scored.weight == 0.0 or self._deadline.expired():
            return scored  # by words alone, a neighbour without a query word cannot take part
        return self._with_neighbours(search, scored)

    def load(self, rows: Iterable[int]) -> dict[int, MemoryRecord]:
        """Return the memories in `rows` that are still stored; each is read once."""
        wanted = list(rows)
        missing = [row for row in wanted if row not in self.records]
        if missing:
            found = zip(missing, self._archive.store.records(missing), strict=True)
            self.records |= {row: record for row, record in found if record is not None}
        return {row: self.records[row] for row in wanted if row in self.records}

    def _find_under(self, filter: MemoryFilter, limit: int) -> Candidates:
        return CandidateSearch(self._archive, self._query, self._deadline, limit).find(self._vector, filter)

    def _score_alone(self, found: Candidates) -> Scored:
        return score(found, self._settings.vector_weight, self._date_boost(found.rows))

    def _date_boost(self, rows: Rows) -> Scores:
        if not self._boosting or not rows.size:
            return np.zeros(rows.shape)
        nothing: dict[int, int] = {}
        times = self.indexes.ask("lexicon", lambda: self._archive.lexicon.times(rows), nothing)
        known = np.array([times.get(row, 0) for row in rows.tolist()], dtype=np.int64)
        return self._settings.date_weight * nearness(known, self._boosting)

    def _with_neighbours(self, search: CandidateSearch, alone: Scored) -> Scored:
        """Add what the best candidates and their neighbours gain from each other."""
        if not (self._settings.contiguity or self._settings.context_words):
            return alone
        windows = search.windows(boosts.lenders(alone.total, alone.rows))
        around = {row for window in windows for row in window.rows}
        if all(len(window.rows) == 1 for window in windows):
            return alone
        scored = self._score_alone(search.widen(alone.found, self._vector, around))
        if self._settings.context_words:
            scored = self._with_context_words(search, scored, windows, around)
        loans = boosts.loans(scored.total, scored.rows, windows, self._settings.contiguity)
        said = self.fingerprints(np.array(sorted(around), dtype=np.int64))  # a duplicate lends nothing
        apart = [loan for loan in loans if said.get(loan.lender) != said.get(loan.borrower)]
        return with_loans(scored, apart, alone.rows)

    def _with_context_words(
        self, search: CandidateSearch, scored: Scored, windows: list[Window], around: set[int]
    ) -> Scored:
        rows = np.intersect1d(scored.rows, np.array(sorted(around), dtype=np.int64))
        covered = coverage(search.hits(rows), rows, windows)
        return with_context(scored, rows, self._settings.context_words * covered)
