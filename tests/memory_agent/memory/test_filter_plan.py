"""The filter plan: choices that hold on any machine, and laws of its costs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_agent.recall.filter_plan import LISTED_WITHOUT_ASKING, STRATEGIES, FilterPlan, bound_to, choose
from memory_agent.storage.nearest import reading_us, scanning_us

totals = st.integers(0, 200_000)
limits = st.integers(1, 1_000)
shares = st.floats(0, 1)


def plan(total: int, share: float, limit: int, indexed: int | None = None) -> FilterPlan:
    return choose(total, round(total * share), indexed, limit)


@given(totals, shares, shares, limits)
def test_a_filter_that_keeps_fewer_is_never_pushed_to_search_first(
    total: int, one: float, other: float, limit: int
) -> None:
    fewer, more = plan(total, min(one, other), limit), plan(total, max(one, other), limit)
    assert fewer.strategy == "filter_first" or more.strategy == "search_first"


@given(totals, shares, limits, st.none() | st.integers(0, 5_000))
def test_the_strategy_is_the_cheaper_one_and_its_costs_are_costs(
    total: int, share: float, limit: int, indexed: int | None
) -> None:
    chosen = plan(total, share, limit, indexed)
    assert min(chosen.costs_us.values()) >= 0
    assert chosen.strategy == min(STRATEGIES, key=lambda s: chosen.costs_us[s]) or total <= LISTED_WITHOUT_ASKING
    assert 0 <= chosen.share <= 1
    assert chosen.budget_us >= chosen.costs_us["filter_first"]


@pytest.mark.parametrize("limit", [10, 200])
@pytest.mark.parametrize("total", [10_000, 100_000])
def test_few_are_listed_and_everything_is_searched_first(total: int, limit: int) -> None:
    assert choose(total, 3, None, limit).strategy == "filter_first"
    assert choose(total, 0, None, limit).strategy == "filter_first"
    assert choose(total, total, None, limit).strategy == "search_first"


@given(st.integers(0, LISTED_WITHOUT_ASKING), shares, limits)
def test_where_listing_costs_next_to_nothing_everything_is_listed(total: int, share: float, limit: int) -> None:
    assert plan(total, share, limit).strategy == "filter_first"


@given(totals, st.integers(0, 4_000), limits)
def test_a_filter_narrowed_by_an_index_is_not_dearer_to_list(total: int, matching: int, limit: int) -> None:
    by_index = choose(total, matching, min(matching, total // 10), limit)
    assert by_index.costs_us["filter_first"] <= choose(total, matching, None, limit).costs_us["filter_first"]


@given(totals, st.integers(0, 300_000), st.integers(0, 300_000))
def test_looking_at_more_costs_more(total: int, one: int, other: int) -> None:
    less, more = sorted((one, other))
    assert scanning_us(total, less) <= scanning_us(total, more)
    assert reading_us(less) <= reading_us(more)


@given(totals, shares, limits, st.sampled_from(STRATEGIES))
def test_a_plan_that_is_bound_is_never_left(total: int, share: float, limit: int, strategy: str) -> None:
    bound = bound_to(plan(total, share, limit), strategy)  # type: ignore[arg-type]
    assert bound.strategy == strategy
    assert scanning_us(total, total) <= bound.budget_us
