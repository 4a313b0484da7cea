"""Search under a filter and a floor: exact, by whichever way `filter_plan` finds cheaper.

Filter first: the matching rows are listed and only they are scored. Search first: the nearest are found and looked up,
more of them until enough match; when that exceeds the cost of listing, they are listed after all. The floor, a least
cosine with the raw query, becomes a list where few reach it, and is otherwise checked for what was found.

Rejected: asking the graph for more and keeping the matches. Of the best 200 of 100,000 it returns .974, and a filter
must not miss a memory.

Shapes: n rows, d dimensions.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from memory_agent.recall.deadline import Indexes
from memory_agent.recall.filter_plan import LISTED_WITHOUT_ASKING, FilterPlan, Strategy, bound_to, choose
from memory_agent.records import Embedding, MemoryFilter
from memory_agent.storage.changes import IndexScores, Rows

Found = tuple[Rows, IndexScores]
Estimate = tuple[int, int | None]
Answer = TypeVar("Answer")

NOTHING: Found = (np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float32))
_NO_ROWS = NOTHING[0]

_FEW = 2_000  # rows passed to the full-text search one by one; more are left to the columns
_FURTHER = 8  # factor on the next search when too few reach the floor


class FilteredSearch:
    """The searches of one query under its filter and floor."""

    def __init__(
        self, indexes: Indexes, filter: MemoryFilter | None, limit: int, *, strategy: Strategy | None = None
    ) -> None:
        """Plan searches for `limit`; `strategy` forces one, for comparison."""
        self._indexes = indexes
        self._filter = filter
        self._limit = limit
        self._listed: Rows | None = None
        self._is_floored = False
        self._floor: tuple[Embedding, float] | None = None
        self._took_s = 0.0
        self._gave_up = False
        self.plan: FilterPlan | None = None
        if filter is not None:
            self.plan = self._make_plan(filter, strategy)
            if self.plan.strategy == "search_first":
                self._listed = None
            elif self._listed is None:
                self._listed = self._list(filter)

    @property
    def matching(self) -> int | None:
        """The number of matching memories, None where they were not listed."""
        return len(self._listed) if self._listed is not None and self._floor is None else None

    @property
    def explanation(self) -> dict[str, Any] | None:
        """The plan and its outcome as plain data, None without a filter. `filter_ms` is the time spent on columns."""
        if self.plan is None:
            return None
        return {
            "strategy": self.plan.strategy,
            "estimated_matching": self.plan.estimated_matching,
            "matching": self.matching,
            "cost_ms": self.plan.costs_ms,
            "filter_ms": round(self._took_s * 1000, 3),
            "gave_up": self._gave_up,
        }

    def reject_all(self) -> None:
        """Match nothing, since the floor cannot be checked."""
        self._listed = _NO_ROWS

    def apply_floor(self, raw: Embedding, floor: float, *, insists: bool) -> None:
        """Leave out memories with a cosine below `floor` with `raw` (d,), or without a vector.

        Without the vector index, nothing matches if the caller `insists`; otherwise the floor is ignored.
        """
        self._is_floored = True
        found = self.nearest(raw, self._limit)
        if found is None and not insists:
            self._is_floored = False
            return
        rows, scores = NOTHING if found is None else found
        if len(rows) < self._limit or scores[-1] < floor:
            self._listed = np.sort(rows[scores >= floor])
        else:
            self._floor = raw, floor

    def nearest(self, vector: Embedding, limit: int) -> Found | None:
        """Return the best `limit` by cosine with `vector` (d,), best first; None without the index."""
        return self._reaching(lambda count: self._nearest(vector, count), limit)

    def by_words(self, query: str, limit: int) -> Found:
        """Return the best `limit` by BM25, best first; nothing without the lexicon."""
        return self._reaching(lambda count: self._by_words(query, count), limit) or NOTHING

    def passing(self, rows: Rows) -> Rows:
        """Return those of `rows` (n,) that match, ascending."""
        passing = np.sort(rows)
        if self._listed is not None:
            passing = passing[np.isin(passing, self._listed)]
        elif self._filter is not None and len(passing):
            passing = self._look_up(passing, self._filter)
        return passing[self._reaches(passing)]

    def _make_plan(self, filter: MemoryFilter, strategy: Strategy | None) -> FilterPlan:
        total = self._indexes.archive.store.count
        plan = choose(total, *self._estimate(filter, total), self._limit)
        return plan if strategy is None else bound_to(plan, strategy)

    def _estimate(self, filter: MemoryFilter, total: int) -> Estimate:
        if total <= LISTED_WITHOUT_ASKING:
            self._listed = self._list(filter)
            return len(self._listed), None
        nothing: Estimate = (0, 0)
        return self._ask_columns(lambda: self._indexes.archive.lexicon.estimate_matching(filter, total), nothing)

    def _list(self, filter: MemoryFilter) -> Rows:
        return self._ask_columns(lambda: self._indexes.archive.lexicon.matching_rows(filter), _NO_ROWS)

    def _nearest(self, vector: Embedding, limit: int) -> Found | None:
        index, listed = self._indexes.archive.index, self._listed
        if listed is not None:
            return self._indexes.ask("index", lambda: index.search_within(vector, listed, limit), None)
        if self._filter is not None:
            return self._search_first(vector, limit, self._filter)
        if self._is_floored:  # a floor is a filter too: search exactly
            return self._indexes.ask("index", lambda: index.search_passing(vector, limit, lambda rows: rows), None)
        return self._indexes.ask("index", lambda: index.search(vector, limit), None)

    def _search_first(self, vector: Embedding, limit: int, filter: MemoryFilter) -> Found | None:
        index, plan = self._indexes.archive.index, self.plan
        assert plan is not None

        def search() -> Found:
            found = index.search_passing(
                vector, limit, lambda rows: self._look_up(rows, filter), plan.share, plan.budget_us
            )
            self._gave_up = found is None
            return found or NOTHING

        found = self._indexes.ask("index", search, None)
        if self._gave_up:
            self._listed = self._list(filter)
            return self._nearest(vector, limit)
        return found

    def _by_words(self, query: str, limit: int) -> Found:
        lexicon, listed = self._indexes.archive.lexicon, self._listed
        if listed is not None and (self._is_floored or len(listed) <= _FEW):
            return self._indexes.ask("lexicon", lambda: lexicon.search(query, limit, rows=listed), NOTHING)
        return self._indexes.ask("lexicon", lambda: lexicon.search(query, limit, self._filter), NOTHING)

    def _look_up(self, rows: Rows, filter: MemoryFilter) -> Rows:
        return self._ask_columns(lambda: self._indexes.archive.lexicon.passing(rows, filter), _NO_ROWS)

    def _reaching(self, find: Callable[[int], Found | None], limit: int) -> Found | None:
        """Return the best `limit` found by `find` that reach the floor, widening until there are enough."""
        wanted = limit
        while True:
            found = find(wanted)
            if found is None or self._floor is None:
                return found
            reached = self._reaches(found[0])
            if reached.sum() >= limit or len(found[0]) < wanted:
                return found[0][reached][:limit], found[1][reached][:limit]
            wanted *= _FURTHER

    def _reaches(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Return the mask (n,) of `rows` that reach the floor."""
        if self._floor is None or not len(rows):
            return np.ones(len(rows), dtype=np.bool_)
        raw, floor = self._floor
        nothing = np.full(len(rows), np.nan, dtype=np.float32)
        scores = self._indexes.ask("index", lambda: self._indexes.archive.index.score_rows(raw, rows), nothing)
        return scores >= floor

    def _ask_columns(self, question: Callable[[], Answer], otherwise: Answer) -> Answer:
        began_s = time.monotonic()
        try:
            return self._indexes.ask("lexicon", question, otherwise)
        finally:
            self._took_s += time.monotonic() - began_s
