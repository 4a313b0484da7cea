"""The memories that may answer a query, from the vector and the lexical side, under an exact filter.

Filter and floor are applied by `FilteredSearch`, on both sides and to neighbours. A damaged side is rebuilt in the
background while the other answers.

Shapes: n candidates, m memories, w words.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np
import numpy.typing as npt

from memory_agent.recall import fusion
from memory_agent.recall.boosts import REACH, Hits, Window
from memory_agent.recall.deadline import Deadline, Indexes
from memory_agent.recall.filter_plan import Strategy
from memory_agent.recall.filtered_search import NOTHING, FilteredSearch, Found
from memory_agent.recall.query import Query
from memory_agent.recall.query_vectors import QueryVector
from memory_agent.records import Embedding, MemoryFilter
from memory_agent.storage.archive import Archive
from memory_agent.storage.changes import IndexScores, Rows


class Candidates(msgspec.Struct, frozen=True):
    """Rows (n,), ascending, and their scores.

    `cosines` are with the searched vector, NaN without one; `bm25` is 0 where no word is shared. `filtered` is the
    search that found them. `more`: a side has further candidates beyond the limit.
    """

    rows: Rows
    cosines: fusion.Scores
    bm25: fusion.Scores
    filtered: FilteredSearch
    more: bool = False


def merge(one: Candidates, other: Candidates) -> Candidates:
    """Merge the candidates of two searches by the same query; the filter of `one` holds."""
    rows = fusion.unite(one.rows, other.rows)
    cosines = fusion.spread(rows, one.rows, one.cosines, missing=np.nan)
    others = fusion.spread(rows, other.rows, other.cosines, missing=np.nan)
    bm25 = [fusion.spread(rows, side.rows, side.bm25, missing=0.0) for side in (one, other)]
    return Candidates(rows, np.where(np.isnan(cosines), others, cosines), np.maximum(*bm25), one.filtered, one.more)


def join(one: Candidates, other: Candidates, order: npt.NDArray[np.intp]) -> Candidates:
    """Join candidates with distinct rows; `order` sorts the rows."""
    rows, cosines, bm25 = (
        np.concatenate((getattr(one, part), getattr(other, part)))[order] for part in ("rows", "cosines", "bm25")
    )
    return msgspec.structs.replace(one, rows=rows, cosines=cosines, bm25=bm25)


def keep(found: Candidates, kept: npt.NDArray[np.bool_]) -> Candidates:
    """Return the candidates selected by the mask `kept` (n,)."""
    return msgspec.structs.replace(found, rows=found.rows[kept], cosines=found.cosines[kept], bm25=found.bm25[kept])


class CandidateSearch:
    """Finds the candidates of one recall."""

    def __init__(
        self, archive: Archive, query: Query, deadline: Deadline, limit: int, strategy: Strategy | None = None
    ) -> None:
        """Take at most `limit` candidates from each side; `strategy` forces a filter strategy, for comparison."""
        self._archive = archive
        self._indexes = Indexes(archive, deadline)
        self._query = query
        self._deadline = deadline
        self._limit = limit
        self._strategy = strategy

    def find(self, vector: QueryVector | None, filter: MemoryFilter | None = None) -> Candidates:
        """Return the candidates for the query's words and vector, under `filter` instead of the query's if given."""
        filtered = self._filtered(self._query.filter if filter is None else filter, vector)
        by_vector = None
        if vector is not None and self._query.mode != "lexical":
            by_vector = filtered.nearest(vector.centred, self._limit)
        by_words = self._by_words(filtered) if by_vector is None or self._query.mode != "vector" else NOTHING
        rows = fusion.unite((by_vector or NOTHING)[0], by_words[0])
        cosines = fusion.spread(rows, *(by_vector or NOTHING), missing=np.nan)
        if vector is not None and by_vector is not None:
            unscored = np.isnan(cosines)
            cosines[unscored] = self.cosines(vector.centred, rows[unscored])
        bm25 = fusion.spread(rows, *by_words, missing=0.0)
        more = max(len((by_vector or NOTHING)[0]), len(by_words[0])) >= self._limit
        return Candidates(rows, cosines, bm25, filtered, more)

    def windows(self, centres: Iterable[int]) -> list[Window]:
        """Return each of `centres` with its neighbours in its session."""
        wanted = list(centres)
        nothing: list[tuple[int, ...]] = []
        around = self._indexes.ask("lexicon", lambda: self._archive.lexicon.around(wanted, REACH), nothing)
        return [Window(centre, rows) for centre, rows in zip(wanted, around, strict=False)]

    def hits(self, rows: Rows) -> Hits:
        """Return (w, m): which of `rows` (m,) has which word of the query; w is 0 without the lexicon."""
        nothing = np.zeros((0, len(rows)), dtype=np.bool_)
        return self._indexes.ask("lexicon", lambda: self._archive.lexicon.word_hits(self._query.text, rows), nothing)

    def widen(self, found: Candidates, vector: QueryVector | None, rows: Iterable[int]) -> Candidates:
        """Return the candidates with those of `rows` added that pass the filter."""
        new = found.filtered.passing(np.setdiff1d(np.fromiter(rows, dtype=np.int64), found.rows))
        if not new.size:
            return found
        united = fusion.unite(found.rows, new)
        cosines = fusion.spread(united, found.rows, found.cosines, missing=np.nan)
        if vector is not None and np.isfinite(found.cosines).any():
            cosines[np.isin(united, new)] = self.cosines(vector.centred, new)
        bm25 = fusion.spread(united, found.rows, found.bm25, missing=0.0)
        return Candidates(united, cosines, bm25, found.filtered, found.more)

    def cosines(self, vector: Embedding, rows: Rows) -> IndexScores:
        """Return (n,) the cosine of each row with `vector`, NaN without one."""
        nothing = np.full(len(rows), np.nan, dtype=np.float32)
        return self._indexes.ask("index", lambda: self._archive.index.score_rows(vector, rows), nothing)

    def _filtered(self, filter: MemoryFilter | None, vector: QueryVector | None) -> FilteredSearch:
        filtered = FilteredSearch(self._indexes, filter, self._limit, strategy=self._strategy)
        if self._query.floor is not None:
            if vector is not None:
                filtered.apply_floor(vector.raw, self._query.floor, insists=self._query.insists)
            elif self._query.insists:
                filtered.reject_all()
        return filtered

    def _by_words(self, filtered: FilteredSearch) -> Found:
        if self._deadline.remaining_s <= 0:
            self._deadline.degrade("deadline")
            return NOTHING
        return filtered.by_words(self._query.text, self._limit)
