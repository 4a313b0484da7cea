"""The memories that may answer a query, from both sides, under a filter that holds exactly.

A filter and a floor are a `Sieve`, which both sides and the neighbours go through. A side that is damaged is mended in
the background, and the other one answers. What this does not do: weigh the sides against each other (`ranking`).

Shapes: n candidates.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np
import numpy.typing as npt

from memory_agent.recall import ranking
from memory_agent.recall.attempt import Attempt
from memory_agent.recall.contiguity import REACH, Window
from memory_agent.recall.coverage import Hits
from memory_agent.recall.filter_plan import Strategy
from memory_agent.recall.inquiry import Inquiry
from memory_agent.recall.query_vectors import QueryVector
from memory_agent.recall.sides import Sides
from memory_agent.recall.sieve import NOTHING, Found, Sieve
from memory_agent.records import Embedding, MemoryFilter
from memory_agent.storage.archive import Archive
from memory_agent.storage.changes import Rows, Scores


class Candidates(msgspec.Struct, frozen=True):
    """Rows (n,) ascending and their scores.

    `cosines` are those with the searched vector, NaN where there is none; `bm25` is 0 where no word is shared.
    `sieve` says what may be among them. `more`: a side has more than were asked for.
    """

    rows: Rows
    cosines: ranking.Scores
    bm25: ranking.Scores
    sieve: Sieve
    more: bool = False


def merge(one: Candidates, other: Candidates) -> Candidates:
    """Return the candidates of two searches by the same query; `one` says which rows pass."""
    rows = ranking.unite(one.rows, other.rows)
    cosines = ranking.spread(rows, one.rows, one.cosines, missing=np.nan)
    others = ranking.spread(rows, other.rows, other.cosines, missing=np.nan)
    bm25 = [ranking.spread(rows, side.rows, side.bm25, missing=0.0) for side in (one, other)]
    return Candidates(rows, np.where(np.isnan(cosines), others, cosines), np.maximum(*bm25), one.sieve, one.more)


def join(one: Candidates, other: Candidates, order: npt.NDArray[np.intp]) -> Candidates:
    """Return the candidates of both, whose rows are distinct, in `order`, which is that of the rows."""
    rows, cosines, bm25 = (
        np.concatenate((getattr(one, part), getattr(other, part)))[order] for part in ("rows", "cosines", "bm25")
    )
    return msgspec.structs.replace(one, rows=rows, cosines=cosines, bm25=bm25)


def keep(found: Candidates, kept: npt.NDArray[np.bool_]) -> Candidates:
    """Return the candidates that are marked in `kept` (n,)."""
    return msgspec.structs.replace(found, rows=found.rows[kept], cosines=found.cosines[kept], bm25=found.bm25[kept])


class CandidateSearch:
    """Finds the candidates of one recall."""

    def __init__(
        self, archive: Archive, inquiry: Inquiry, attempt: Attempt, limit: int, strategy: Strategy | None = None
    ) -> None:
        """Take at most `limit` candidates from each side; a `strategy` for filters is given to compare the two."""
        self._archive = archive
        self._sides = Sides(archive, attempt)
        self._inquiry = inquiry
        self._attempt = attempt
        self._limit = limit
        self._strategy = strategy

    def find(self, vector: QueryVector | None, filter: MemoryFilter | None = None) -> Candidates:
        """Return the candidates for the query, and for its vector where there is one; under `filter`, if given."""
        sieve = self._sieve(self._inquiry.filter if filter is None else filter, vector)
        by_vector = None
        if vector is not None and self._inquiry.mode != "lexical":
            by_vector = sieve.nearest(vector.centred, self._limit)
        by_words = self._by_words(sieve) if by_vector is None or self._inquiry.mode != "vector" else NOTHING
        rows = ranking.unite((by_vector or NOTHING)[0], by_words[0])
        cosines = ranking.spread(rows, *(by_vector or NOTHING), missing=np.nan)
        if vector is not None and by_vector is not None:
            unscored = np.isnan(cosines)
            cosines[unscored] = self.cosines(vector.centred, rows[unscored])
        bm25 = ranking.spread(rows, *by_words, missing=0.0)
        more = max(len((by_vector or NOTHING)[0]), len(by_words[0])) >= self._limit
        return Candidates(rows, cosines, bm25, sieve, more)

    def windows(self, centres: Iterable[int]) -> list[Window]:
        """Return each of `centres` among its neighbours in its session; alone, where it has none."""
        wanted = list(centres)
        nothing: list[tuple[int, ...]] = []
        around = self._sides.ask("lexicon", lambda: self._archive.lexicon.around(wanted, REACH), nothing)
        return [Window(centre, rows) for centre, rows in zip(wanted, around, strict=False)]

    def hits(self, rows: Rows) -> Hits:
        """Return (w, m) which of `rows` (m,) has which word of the query; none where the lexicon does not answer."""
        nothing = np.zeros((0, len(rows)), dtype=np.bool_)
        return self._sides.ask("lexicon", lambda: self._archive.lexicon.word_hits(self._inquiry.query, rows), nothing)

    def widen(self, found: Candidates, vector: QueryVector | None, rows: Iterable[int]) -> Candidates:
        """Return the candidates with those of `rows` among them that pass the filter."""
        new = found.sieve.passing(np.setdiff1d(np.fromiter(rows, dtype=np.int64), found.rows))
        if not new.size:
            return found
        united = ranking.unite(found.rows, new)
        cosines = ranking.spread(united, found.rows, found.cosines, missing=np.nan)
        if vector is not None and np.isfinite(found.cosines).any():
            cosines[np.isin(united, new)] = self.cosines(vector.centred, new)
        bm25 = ranking.spread(united, found.rows, found.bm25, missing=0.0)
        return Candidates(united, cosines, bm25, found.sieve, found.more)

    def cosines(self, vector: Embedding, rows: Rows) -> Scores:
        """Return (n,) the cosine of each row with `vector`; NaN where there is none."""
        nothing = np.full(len(rows), np.nan, dtype=np.float32)
        return self._sides.ask("index", lambda: self._archive.index.score_rows(vector, rows), nothing)

    def _sieve(self, filter: MemoryFilter | None, vector: QueryVector | None) -> Sieve:
        sieve = Sieve(self._sides, filter, self._limit, strategy=self._strategy)
        if self._inquiry.floor is not None:
            if vector is not None:
                sieve.raise_floor(vector.raw, self._inquiry.floor, insists=self._inquiry.insists)
            elif self._inquiry.insists:
                sieve.shut()
        return sieve

    def _by_words(self, sieve: Sieve) -> Found:
        if self._attempt.remaining_s <= 0:
            self._attempt.degrade("deadline")
            return NOTHING
        return sieve.sharing_words(self._inquiry.query, self._limit)
