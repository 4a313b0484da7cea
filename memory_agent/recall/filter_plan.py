"""The cheaper of two exact ways to apply a filter. Pure.

A wrong estimate costs time, never a memory; a search that finds too little gives up at `budget_us` and lists instead.

    filter first:  list the matching rows + the less of (read each vector listed, scan for enough of them)
    search first:  scan for enough of them + look up what was found

The fewer rows match, the longer the scan and the shorter the list, so a more selective filter is never pushed to search
first.
"""

from __future__ import annotations

from math import inf
from typing import Literal, get_args

import msgspec

from memory_agent.storage.nearest import reading_us, scanning_us

Strategy = Literal["filter_first", "search_first"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)

LISTED_WITHOUT_ASKING = 1_000
"""With so few memories listing takes .15 ms at most, as long as an estimate."""

# Microseconds, by `python -m ops.bench.filters --large --constants`: with 10,000 and with 100,000 memories.
_GO_THROUGH_US = 0.12  # check one memory in a scan: .12 and .12
_LIST_US = 0.19  # return one matching row: .16 and .23
_BY_INDEX_US = 0.7  # check one row from an index: .12 to .23 by time, .9 to 1.5 by tag
_LOOK_UP_US = 1.9  # look up one found row: .8 and 2.1

_WIDER = 2.5  # factor on `limit` for a scan, since the share is an estimate
_PATIENCE = 2.0  # multiple of the cost of listing at which a search gives up


class FilterPlan(msgspec.Struct, frozen=True):
    """The chosen strategy with its estimates. A scan that would cost more than `budget_us` is not made."""

    strategy: Strategy
    total: int
    estimated_matching: int
    costs_us: dict[Strategy, float]
    budget_us: float

    @property
    def share(self) -> float:
        """The estimated share of memories that match."""
        return self.estimated_matching / self.total if self.total else 1.0

    @property
    def costs_ms(self) -> dict[str, float]:
        """The estimated cost of each strategy."""
        return {strategy: round(cost / 1000, 3) for strategy, cost in self.costs_us.items()}


def choose(total: int, estimated_matching: int, indexed: int | None, limit: int) -> FilterPlan:
    """Return the plan for `limit` of about `estimated_matching` of `total` memories.

    `indexed` is the number of rows that an index leaves to check, None where none narrows.
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
    """Return the plan with a fixed strategy and no budget, for comparison."""
    return msgspec.structs.replace(plan, strategy=strategy, budget_us=inf)


def _filter_first_us(total: int, matching: int, limit: int, indexed: int | None) -> float:
    listing = total * _GO_THROUGH_US if indexed is None else indexed * _BY_INDEX_US
    scoring = min(reading_us(matching), scanning_us(total, _scanned(total, matching, limit)) + reading_us(limit))
    return listing + matching * _LIST_US + scoring


def _search_first_us(total: int, matching: int, limit: int) -> float:
    scanned = _scanned(total, matching, limit)
    return scanning_us(total, scanned) + scanned * _LOOK_UP_US + reading_us(min(limit, matching))


def _scanned(total: int, matching: int, limit: int) -> int:
    """Return how many of the nearest to scan for `limit` that match."""
    return min(total, round(_WIDER * limit * total / max(matching, 1)))
