"""Test comparisons: using memories by position alone does not win bets, but a better ranking does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sona.comparison import STEEPNESSES, compare, mean_of, odds_of, sign_of

RANKS = st.integers(1, 12).flatmap(
    lambda size: st.permutations(range(1, size + 4)).map(lambda ranks: list(ranks)[:size])
)


@given(RANKS)
def test_no_use_by_position_alone_gains_by_the_bet(ranks: list[int]) -> None:
    odds = np.array([one.learned for one in odds_of(ranks)])
    means = np.cumsum(odds, axis=0) / np.arange(1, len(ranks) + 1)[:, None]
    assert np.all(means <= 1 + 1e-9)  # one of the first m is used; every other use by position is a mixture of these
    assert np.all(odds > 0.04)


@given(RANKS)
def test_no_use_by_learned_rank_alone_gains_by_the_opposite_bet(ranks: list[int]) -> None:
    order = np.argsort(np.minimum(ranks, len(ranks) + 1), kind="stable")
    odds = np.array([one.baseline for one in odds_of(ranks)])[order]
    means = np.cumsum(odds, axis=0) / np.arange(1, len(ranks) + 1)[:, None]
    assert np.all(means <= 1 + 1e-9)
    assert np.all(odds > 0.04)


@given(st.permutations(range(1, 9)))
def test_the_opposite_bet_is_the_bet_with_exchanged_rankings(ranks: list[int]) -> None:
    exchanged = odds_of([ranks.index(rank) + 1 for rank in range(1, 9)])
    for place, one in enumerate(odds_of(ranks)):
        assert exchanged[ranks[place] - 1] == (one.baseline, one.learned)


@pytest.mark.parametrize("ranks", [[1], [1, 2, 3, 4], [1, 3, 9, 9], [2, 3, 5]])
def test_rankings_of_one_order_leave_the_wealth_as_it_is(ranks: list[int]) -> None:
    for one in odds_of(ranks):
        assert one.learned == pytest.approx([1.0] * len(STEEPNESSES))
        assert sign_of(one) == 0


def test_the_higher_a_used_memory_is_raised_the_more_is_won() -> None:
    second, fifth = compare([2, 1, 3, 4, 5], [1]), compare([2, 3, 4, 5, 1], [4])
    assert second is not None
    assert fifth is not None
    assert 1.5 < second.learned[1] < 2.0 < fifth.learned[1]
    assert sign_of(second) == sign_of(fifth) == 1


def test_using_a_memory_above_a_raised_one_counts_against_the_learned_ranking() -> None:
    result = compare([2, 3, 4, 5, 1], [0])
    assert result is not None
    assert result.learned[1] < 1 < result.baseline[1]
    assert sign_of(result) == -1


def test_several_uses_divide_the_stake() -> None:
    ranks = [3, 1, 2, 4]
    one, other, both = compare(ranks, [0]), compare(ranks, [1]), compare(ranks, [0, 1])
    assert one is not None
    assert other is not None
    assert both == mean_of([one, other])
    assert both is not None
    assert both.learned[1] == pytest.approx((one.learned[1] + other.learned[1]) / 2)


@pytest.mark.parametrize("used", [[], [0, 1, 2]])
def test_nothing_used_or_everything_used_compares_nothing(used: list[int]) -> None:
    assert compare([3, 1, 2], used) is None
