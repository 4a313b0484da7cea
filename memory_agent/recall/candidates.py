"""The memories that may answer a query, from both sides, under a filter that holds exactly.

Filter first: the rows that pass are taken from the lexicon's columns, and only those are scored, so that a filter that
keeps 3 of 100,000 finds those 3. (Where a filter keeps most, `VectorIndex.search_within` searches wider until enough of
them are found.) A side that is damaged is mended in the background, and the other one answers. What this does not do:
weigh the sides against each other (`ranking`).

Shapes: n candidates.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from memory_agent.errors import IndexDamagedError
from memory_agent.recall import ranking
from memory_agent.recall.attempt import Attempt
from memory_agent.recall.contiguity import REACH, Loan, loan
from memory_agent.recall.inquiry import Inquiry
from memory_agent.recall.query_vectors import QueryVector
from memory_agent.records import Embedding, MemoryFilter
from memory_agent.storage.archive import Archive, Side
from memory_agent.storage.changes import Rows, Scores

Found = tuple[Rows, Scores]

_NOTHING: Found = (np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float32))


class Candidates(msgspec.Struct, frozen=True):
    """Rows (n,) ascending and their scores.

    `cosines` are those with the searched vector, NaN where there is none; `bm25` is 0 where no word is shared.
    `allowed` are the rows that pass the filter, ascending, None without one.
    """

    rows: Rows
    cosines: ranking.Scores
    bm25: ranking.Scores
    allowed: Rows | None


class CandidateSearch:
    """Finds the candidates of one recall."""

    def __init__(self, archive: Archive, inquiry: Inquiry, attempt: Attempt, limit: int) -> None:
        """Take at most `limit` candidates from each side."""
        self._archive = archive
        self._inquiry = inquiry
        self._attempt = attempt
        self._limit = limit

    def find(self, vector: QueryVector | None) -> Candidates:
        """Return the candidates for the query, and for its vector where there is one."""
        allowed = self._allowed(vector)
        by_vector = None if vector is None else self._by_vector(vector.centred, allowed)
        by_words = self._by_words(allowed) if by_vector is None or self._inquiry.mode != "vector" else _NOTHING
        rows = ranking.unite((by_vector or _NOTHING)[0], by_words[0])
        cosines = ranking.spread(rows, *(by_vector or _NOTHING), missing=np.nan)
        if vector is not None and by_vector is not None:
            unscored = np.isnan(cosines)
            cosines[unscored] = self.cosines(vector.centred, rows[unscored])
        bm25 = ranking.spread(rows, *by_words, missing=0.0)
        return Candidates(rows, cosines, bm25, allowed)

    def loans(self, surpluses: dict[int, float], share: float) -> list[Loan]:
        """Return what each lender (row: surplus) lends to its neighbours in its session."""
        try:
            return [
                loan(lender, int(row), int(offset), surplus, share)
                for lender, surplus in surpluses.items()
                for row, offset in zip(*self._archive.lexicon.neighbours(lender, REACH), strict=True)
            ]
        except IndexDamagedError:
            self._mend("lexicon")
            return []

    def widen(self, found: Candidates, vector: QueryVector | None, rows: Iterable[int]) -> Candidates:
        """Return the candidates with those of `rows` among them that pass the filter."""
        wanted = np.setdiff1d(np.fromiter(rows, dtype=np.int64), found.rows)
        new = wanted if found.allowed is None else np.intersect1d(wanted, found.allowed)
        if not new.size:
            return found
        united = ranking.unite(found.rows, new)
        cosines = ranking.spread(united, found.rows, found.cosines, missing=np.nan)
        if vector is not None and np.isfinite(found.cosines).any():
            cosines[np.isin(united, new)] = self.cosines(vector.centred, new)
        bm25 = ranking.spread(united, found.rows, found.bm25, missing=0.0)
        return Candidates(united, cosines, bm25, found.allowed)

    def cosines(self, vector: Embedding, rows: Rows) -> Scores:
        """Return (n,) the cosine of each row with `vector`; NaN where there is none."""
        try:
            return self._archive.index.score_rows(vector, rows)
        except IndexDamagedError:
            self._mend("index")
            return np.full(len(rows), np.nan, dtype=np.float32)

    def _allowed(self, vector: QueryVector | None) -> Rows | None:
        """Return the rows that pass the filter and the floor, ascending; None when every memory does."""
        allowed = None
        if self._inquiry.filter is not None:
            allowed = self._matching(self._inquiry.filter)
            if allowed is None:
                return _NOTHING[0]  # better nothing than what was not asked for
        if self._inquiry.floor is None:
            return allowed
        if vector is None:
            return _NOTHING[0] if self._inquiry.insists else allowed
        return self._above(vector.raw, self._inquiry.floor, allowed)

    def _matching(self, filter: MemoryFilter) -> Rows | None:
        if self._is_rebuilding("lexicon"):
            return None
        try:
            return self._archive.lexicon.matching_rows(filter)
        except IndexDamagedError:
            self._mend("lexicon")
            return None

    def _above(self, vector: Embedding, floor: float, allowed: Rows | None) -> Rows:
        """Return the rows whose cosine is at least `floor`: look further until the last one found lies below."""
        limit = self._limit
        while True:
            rows, scores = self._nearest(vector, allowed, limit) or _NOTHING
            if len(rows) < limit or scores[-1] < floor:
                return np.sort(rows[scores >= floor])
            limit *= 4

    def _by_vector(self, vector: Embedding, allowed: Rows | None) -> Found | None:
        return None if self._inquiry.mode == "lexical" else self._nearest(vector, allowed, self._limit)

    def _nearest(self, vector: Embedding, allowed: Rows | None, limit: int) -> Found | None:
        index = self._archive.index
        if self._is_rebuilding("index"):
            return None
        try:
            return index.search(vector, limit) if allowed is None else index.search_within(vector, allowed, limit)
        except IndexDamagedError:
            self._mend("index")
            return None

    def _by_words(self, allowed: Rows | None) -> Found:
        if self._attempt.remaining_s <= 0:
            self._attempt.degrade("deadline")
            return _NOTHING
        if self._is_rebuilding("lexicon"):
            return _NOTHING
        limit = self._limit if self._inquiry.floor is None else max(self._limit, self._archive.store.count)
        try:
            rows, scores = self._archive.lexicon.search(self._inquiry.query, limit, self._inquiry.filter)
        except IndexDamagedError:
            self._mend("lexicon")
            return _NOTHING
        kept = slice(None) if allowed is None else np.isin(rows, allowed)
        return rows[kept], scores[kept]

    def _is_rebuilding(self, side: Side) -> bool:
        if not self._archive.is_mending(side):
            return False
        self._attempt.degrade("index_rebuilding")
        return True

    def _mend(self, side: Side) -> None:
        self._attempt.degrade("index_rebuilding")
        self._archive.mend_soon(side)
