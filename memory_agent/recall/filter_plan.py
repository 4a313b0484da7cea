"""Which way a filter is applied: list the rows that pass and score them, or search and keep what passes. Pure.

Both ways are exact; this chooses the cheaper one by what they are estimated to cost. A wrong estimate costs time and
never a memory, and a search that finds too little gives up at `budget_us` and lists after all.

    filter first:  list what passes + the less of (read each vector listed, scan for enough of them)
    search first:  scan for enough of them + look up what was found

The fewer pass, the longer the scan and the shorter the list: a filter that keeps fewer is never pushed to search first.
"""

from __future__ import annotations

from math import inf
from typing import Literal, get_args

import msgspec

from memory_agent.storage.nearest import reading_us, scanning_us

Strategy = Literal["filter_first", "search_first"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)

LISTED_WITHOUT_ASKING = 1_000
"""With so few memories listing takes .15 ms at most, which is what an estimate takes."""

# Microseconds, by `python -m ops.bench.filters --large --constants`: with 10,000 and with 100,000 memories.
_GO_THROUGH_US = 0.12  # a memory against the conditions, in order: .12 and .12
_LIST_US = 0.19  # one that passes, handed over: .16 and .23
_BY_INDEX_US = 0.7  # one that an index leaves: .12 to .23 by time, .9 to 1.5 by tag
_LOOK_UP_US = 1.9  # one that was found, against the conditions: .8 and 2.1

_WIDER = 2.5  # of `limit`, scanned for: roundings and the share being an estimate
_PATIENCE = 2.0  # times what listing costs, that a search may cost before it gives up


class FilterPlan(msgspec.Struct, frozen=True):
    """The way that was chosen, and what it was chosen by. A scan that would cost more than `budget_us` is not made."""

    strategy: Strategy
    total: int
    estimated_matching: int
    costs_us: dict[Strategy, float]
    budget_us: float

    @property
    def share(self) -> float:
        """The part of the memories that is expected to pass."""
        return self.estimated_matching / self.total if self.total else 1.0

    @property
    def costs_ms(self) -> dict[str, float]:
        """The estimated cost of each way."""
        return {strategy: round(cost / 1000, 3) for strategy, cost in self.costs_us.items()}


def choose(total: int, estimated_matching: int, indexed: int | None, limit: int) -> FilterPlan:
    """Return the plan for `limit` of about `estimated_matching` of `total` memories.

    `indexed` is how many rows an index leaves to look at, None where none narrows.
    """
    matching = min(estimated_matching, total)
    costs: dict[Strategy, float] = {
        "filter_first": _filter_first_us(total, matching, limit, indexed),
        "search_first": _search_first_us(total, matching, limit),
    }
    searching = total > LISTED_WITHOUT_ASKING and costs["search_first"] < costs["filter_first"]
    budget_us = _PATIENCE * costs["filter_first"]
    return FilterPlan("search_first" if searching else "filter_first", total, matching, costs, budget_us)


def bound_to(plan: FilterPlan, strategy: Strategy) -> FilterPlan:
    """Return the plan with another strategy, which is not left whatever it costs: to compare the two."""
    return msgspec.structs.replace(plan, strategy=strategy, budget_us=inf)


def _filter_first_us(total: int, matching: int, limit: int, indexed: int | None) -> float:
    listing = total * _GO_THROUGH_US if indexed is None else indexed * _BY_INDEX_US
    scoring = min(reading_us(matching), scanning_us(total, _scanned(total, matching, limit)) + reading_us(limit))
    return listing + matching * _LIST_US + scoring


def _search_first_us(total: int, matching: int, limit: int) -> float:
    scanned = _scanned(total, matching, limit)
    return scanning_us(total, scanned) + scanned * _LOOK_UP_US + reading_us(min(limit, matching))


def _scanned(total: int, matching: int, limit: int) -> int:
    """How many of the nearest are needed for `limit` that pass."""
    return min(total, round(_WIDER * limit * total / max(matching, 1)))
