"""The candidates of one recall with what each is worth, in the context of its time and of its neighbours.

Candidates come from both sides, and once more from the times that the query names. The best of them are seen among
their neighbours in the session, which then take part themselves. What this does not do: choose among them
(`selection`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from memory_agent.config import LearningSettings, RecallSettings
from memory_agent.recall import contiguity
from memory_agent.recall.attempt import Attempt
from memory_agent.recall.candidates import Candidates, CandidateSearch, merge
from memory_agent.recall.contiguity import Window
from memory_agent.recall.coverage import coverage
from memory_agent.recall.date_boost import nearness
from memory_agent.recall.inquiry import Inquiry
from memory_agent.recall.learned import associations, recurring
from memory_agent.recall.query_vectors import QueryVector
from memory_agent.recall.ranking import Rows, Scores
from memory_agent.recall.repeats import Repeats
from memory_agent.recall.scoring import Scored, joined, score, with_association, with_context, with_loans
from memory_agent.recall.sides import Sides
from memory_agent.records import MemoryFilter, MemoryRecord, UnderstoodDate
from memory_agent.storage.archive import Archive
from memory_agent.storage.conditions import spanned, unlike
from memory_agent.storage.lexicon_rows import record_fingerprint
from sona.learner import Adaptation

_MOST_OF_A_TIME = 50
"""Candidates from each side that are looked for within the times of the query, besides the usual ones."""


class RankedSearch:
    """One recall's search. `records` holds by row what was read on the way."""

    def __init__(
        self,
        archive: Archive,
        settings: RecallSettings,
        inquiry: Inquiry,
        attempt: Attempt,
        vector: QueryVector | None,
        dates: Sequence[UnderstoodDate],
    ) -> None:
        """Search by `vector` and words. A filter by `dates` is in the inquiry already."""
        self.records: dict[int, MemoryRecord] = {}
        self.sides = Sides(archive, attempt)
        self.repeats = Repeats(archive, inquiry, vector)
        self._archive = archive
        self._settings = settings
        self._inquiry = inquiry
        self._attempt = attempt
        self._vector = vector
        self._said: dict[int, int] = {}
        self._boosting = dates if inquiry.dates == "boost" and inquiry.mode == "hybrid" else ()

    def find(self, limit: int) -> Scored:
        """Return the candidates, at most about `limit` from each side, and what they are worth."""
        search = CandidateSearch(self._archive, self._inquiry, self._attempt, limit)
        found = search.find(self._vector)
        if self._boosting:
            narrowed = spanned(self._inquiry.filter, [(date.since, date.until) for date in self._boosting])
            found = merge(found, self._narrower(narrowed, min(limit, _MOST_OF_A_TIME)))
        return self._worth(search, found)

    def find_more(self, before: Scored, said: Iterable[int], limit: int) -> Scored:
        """Return the candidates of `before` with others that say something else than these fingerprints."""
        search = CandidateSearch(self._archive, self._inquiry, self._attempt, limit)
        others = self._narrower(unlike(self._inquiry.filter, said), limit)
        return self._worth(search, msgspec.structs.replace(merge(before.found, others), more=others.more))

    def fingerprints(self, rows: Rows) -> dict[int, int]:
        """Return the fingerprint of each of `rows` that is still stored (`lexicon_rows.record_fingerprint`)."""
        new = np.array([row for row in rows.tolist() if row not in self._said], dtype=np.int64)
        if new.size:
            nothing: dict[int, int] = {}
            known = self.sides.ask("lexicon", lambda: self._archive.lexicon.fingerprints(new), nothing)
            unknown = self.load(row for row in new.tolist() if row not in known)
            self._said |= known | {row: record_fingerprint(record) for row, record in unknown.items()}
        return {row: self._said[row] for row in rows.tolist() if row in self._said}

    def adapted(self, scored: Scored, adaptation: Adaptation, settings: LearningSettings) -> Scored:
        """Return the candidates with what they gain by having been used; what recurs is one of them from now on."""
        new = recurring(adaptation.reached, scored.rows, settings)
        scored = self._with_reached(scored, new) if new.size else scored
        return with_association(scored, associations(scored.rows, scored.total, adaptation, settings))

    def _with_reached(self, scored: Scored, rows: Rows) -> Scored:
        """Add memories that were no candidates, as far as they pass the filter and have a vector."""
        if self._vector is None:
            return scored
        new = scored.found.sieve.passing(rows)
        search = CandidateSearch(self._archive, self._inquiry, self._attempt, len(new))
        cosines = search.cosines(self._vector.centred, new).astype(np.float64)
        known = np.isfinite(cosines)
        nothing = np.zeros(int(known.sum()))
        found = Candidates(new[known], cosines[known], nothing, scored.found.sieve)
        return joined(scored, Scored(found, scored.weight, scored.weight * cosines[known], *(nothing,) * 4))

    def _worth(self, search: CandidateSearch, found: Candidates) -> Scored:
        scored = self._weigh(found)
        if self._inquiry.mode != "hybrid" or scored.weight == 0.0 or self._attempt.is_over():
            return scored  # by words alone, what shares none with the query has no part in it
        return self._in_context(search, scored)

    def load(self, rows: Iterable[int]) -> dict[int, MemoryRecord]:
        """Return the memories in `rows` that are still stored, reading none twice."""
        wanted = list(rows)
        missing = [row for row in wanted if row not in self.records]
        if missing:
            found = zip(missing, self._archive.store.records(missing), strict=True)
            self.records |= {row: record for row, record in found if record is not None}
        return {row: self.records[row] for row in wanted if row in self.records}

    def _narrower(self, filter: MemoryFilter, limit: int) -> Candidates:
        return CandidateSearch(self._archive, self._inquiry, self._attempt, limit).find(self._vector, filter)

    def _weigh(self, found: Candidates) -> Scored:
        return score(found, self._settings.alpha, self._date_boost(found.rows))

    def _date_boost(self, rows: Rows) -> Scores:
        if not self._boosting or not rows.size:
            return np.zeros(rows.shape)
        nothing: dict[int, int] = {}
        times = self.sides.ask("lexicon", lambda: self._archive.lexicon.times(rows), nothing)
        known = np.array([times.get(row, 0) for row in rows.tolist()], dtype=np.int64)
        return self._settings.date_weight * nearness(known, self._boosting)

    def _in_context(self, search: CandidateSearch, alone: Scored) -> Scored:
        """See the best among their neighbours; a memory without neighbours says what it says."""
        if not (self._settings.contiguity or self._settings.context_words):
            return alone
        windows = search.windows(contiguity.lenders(alone.total, alone.rows))
        around = {row for window in windows for row in window.rows}
        if all(len(window.rows) == 1 for window in windows):
            return alone
        scored = self._weigh(search.widen(alone.found, self._vector, around))
        if self._settings.context_words:
            scored = self._with_context_words(search, scored, windows, around)
        loans = contiguity.loans(scored.total, scored.rows, windows, self._settings.contiguity)
        said = self.fingerprints(np.array(sorted(around), dtype=np.int64))  # a copy of itself tells nothing of a memory
        apart = [loan for loan in loans if said.get(loan.lender) != said.get(loan.borrower)]
        return with_loans(scored, apart, alone.rows)

    def _with_context_words(
        self, search: CandidateSearch, scored: Scored, windows: list[Window], around: set[int]
    ) -> Scored:
        rows = np.intersect1d(scored.rows, np.array(sorted(around), dtype=np.int64))
        covered = coverage(search.hits(rows), rows, windows)
        return with_context(scored, rows, self._settings.context_words * covered)
