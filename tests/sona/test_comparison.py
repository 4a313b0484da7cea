"""Test comparisons: a better ranking wins bets, but uses chosen by position alone do not."""

from __future__ import annotations

from itertools import chain, combinations, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sona.comparison import MOST_BOOST, compare, mean_of, sign_of
from sona.lesson import Comparison

ANSWERS = st.integers(2, 8).flatmap(
    lambda size: st.tuples(
        st.permutations(range(1, size + 4)).map(lambda ranks: list(ranks)[:size]),
        st.lists(st.integers(0, MOST_BOOST), min_size=size, max_size=size) | st.just([]),
    )
)


def result_of(ranks: list[int], boosts: list[int], used: list[int]) -> Comparison:
    result = compare(ranks, boosts, used)
    assert result is not None
    return result


def upper_sets(size: int, uses: int) -> list[list[tuple[int, ...]]]:
    """Return all collections of sets of positions in which moving a use up by one gives another set of the collection.

    Every distribution of use by position alone is a mixture of uniform distributions over these collections.
    """
    sets = list(combinations(range(size), uses))

    def is_closed(chosen: frozenset[tuple[int, ...]]) -> bool:
        moved = (
            tuple(sorted({*one, place - 1} - {place}))
            for one in chosen
            for place in one
            if place and place - 1 not in one
        )
        return all(one in chosen for one in moved)

    found = chain.from_iterable(combinations(sets, count) for count in range(1, len(sets) + 1))
    return [list(chosen) for chosen in found if is_closed(frozenset(chosen))]


@given(ANSWERS)
def test_no_use_by_position_alone_gains_by_the_bet(answer: tuple[list[int], list[int]]) -> None:
    ranks, boosts = answer
    factors = np.array([result_of(ranks, boosts, [place]).learned for place in range(len(ranks))])
    means = np.cumsum(factors) / np.arange(1, len(ranks) + 1)
    assert np.all(means <= 1 + 1e-9)  # uniform use of the first m; every other use by position is a mixture of these
    assert np.all(factors > 0.04)


@given(ANSWERS)
def test_no_use_by_learned_rank_alone_gains_by_the_opposite_bet(answer: tuple[list[int], list[int]]) -> None:
    ranks, boosts = answer
    order = np.argsort(np.minimum(ranks, len(ranks) + 1), kind="stable").tolist()
    factors = np.array([result_of(ranks, boosts, [place]).baseline for place in order])
    means = np.cumsum(factors) / np.arange(1, len(ranks) + 1)
    assert np.all(means <= 1 + 1e-9)
    assert np.all(factors > 0.04)


@pytest.mark.parametrize(("size", "uses"), [(5, 2), (4, 3), (5, 3)])
def test_no_law_of_several_uses_by_position_alone_gains_by_either_bet(size: int, uses: int) -> None:
    random, laws = np.random.default_rng(0), upper_sets(size, uses)
    assert len(laws) >= 4
    for ranks in permutations(range(1, size + 1)):
        boosts = random.integers(0, 100, size).tolist()
        factors = {used: result_of(list(ranks), boosts, list(used)) for used in combinations(range(size), uses)}
        by_rank = {tuple(sorted(ranks[place] - 1 for place in used)): one for used, one in factors.items()}
        for law in laws:
            assert np.mean([factors[used].learned for used in law]) <= 1 + 1e-9
            assert np.mean([by_rank[used].baseline for used in law]) <= 1 + 1e-9


@pytest.mark.parametrize("ranks", [[1], [1, 2, 3, 4], [1, 3, 9, 9], [2, 3, 5]])
def test_the_opposite_bet_gains_nothing_from_rankings_of_one_order(ranks: list[int]) -> None:
    for place in range(len(ranks)):
        assert result_of(ranks, [], [place]).baseline == pytest.approx(1.0)


def test_the_higher_a_used_memory_is_raised_the_more_is_won() -> None:
    second, fifth = result_of([2, 1, 3, 4, 5], [], [1]), result_of([2, 3, 4, 5, 1], [], [4])
    assert second.learned == pytest.approx(0.2 + 0.8 * 1.6)  # a fifth of the stake is held back
    assert second.learned < 2.0 < fifth.learned
    assert sign_of(second) == sign_of(fifth) == 1


def test_the_more_past_use_raises_a_used_memory_the_more_is_won() -> None:
    weak, strong = (result_of([2, 3, 4, 5, 1], [0, 0, 0, 0, boost], [4]) for boost in (20, 90))
    assert 1.0 < weak.learned < strong.learned
    assert strong.learned > 4.0
    assert strong.baseline == weak.baseline


def test_using_a_memory_above_a_raised_one_counts_against_the_learned_ranking() -> None:
    for boosts in ([], [0, 0, 0, 0, 50]):
        result = result_of([2, 3, 4, 5, 1], boosts, [0])
        assert result.learned < 1 < result.baseline
        assert sign_of(result) == -1


def test_two_predicted_uses_win_more_than_one() -> None:
    ranks, boosts = [3, 4, 5, 1, 2], [0, 0, 0, 60, 50]
    one, other, both = (result_of(ranks, boosts, used) for used in ([3], [4], [3, 4]))
    assert both.learned > 1.5 * max(one.learned, other.learned)
    assert both == result_of(ranks, boosts, [4, 3])


@given(ANSWERS, st.data())
def test_of_more_than_two_uses_all_pairs_count_equally(
    answer: tuple[list[int], list[int]], data: st.DataObject
) -> None:
    ranks, boosts = answer
    used = data.draw(st.sets(st.integers(0, len(ranks) - 1), min_size=2, max_size=max(len(ranks) - 1, 2)))
    if len(used) < len(ranks):
        pairs = [result_of(ranks, boosts, list(pair)) for pair in combinations(sorted(used), 2) if len(ranks) > 2]
        assert result_of(ranks, boosts, list(used)).learned == pytest.approx(np.mean([one.learned for one in pairs]))


def test_a_stake_is_divided_among_comparisons() -> None:
    assert mean_of([Comparison(3.0, 0.5), Comparison(1.0, 1.0)]) == Comparison(2.0, 0.75)


@pytest.mark.parametrize("used", [[], [0, 1, 2]])
def test_nothing_used_or_everything_used_compares_nothing(used: list[int]) -> None:
    assert compare([3, 1, 2], [0, 50, 0], used) is None
