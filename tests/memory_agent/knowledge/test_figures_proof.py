"""The lower bound fails no more often than stated, even if checked repeatedly, and rises with each user's level."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_agent.knowledge.figures import lower_bound, mean, shrunk_mean

DOUBT = 0.1
PRIORS = (0.5, 0.6, 0.7, 0.8)
COUNTS = st.lists(st.integers(0, 30), min_size=5, max_size=5).filter(any)

Distribution = tuple[float, ...]  # probabilities of the five levels


def histograms(users: int, levels: int = 5) -> Iterator[tuple[int, ...]]:
    if levels == 1:
        yield (users,)
        return
    for count in range(users + 1):
        for rest in histograms(users - count, levels - 1):
            yield count, *rest


def nulls(prior: float) -> Iterator[Distribution]:
    """Yield distributions with the mean `prior`: on each pair of levels around this mean, and mixtures of two pairs."""
    pairs = []
    for low in range(5):
        for high in range(low + 1, 5):
            if low / 4 <= prior <= high / 4:
                share = (prior - low / 4) / (high / 4 - low / 4)
                pairs.append([(1.0 - share) * (at == low) + share * (at == high) for at in range(5)])
    for place, one in enumerate(pairs):
        for other in pairs[place:]:
            yield tuple((a + b) / 2 for a, b in zip(one, other, strict=True))


def probability(counts: Sequence[int], distribution: Distribution) -> float:
    ways = math.factorial(sum(counts)) / math.prod(math.factorial(count) for count in counts)
    return ways * math.prod(share**count for share, count in zip(distribution, counts, strict=True))


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("users", [5, 8, 12])
def test_a_version_no_better_than_the_prior_is_rarely_proven(users: int, prior: float) -> None:
    proving = [counts for counts in histograms(users) if lower_bound(counts, DOUBT) > prior]
    for null in nulls(prior):
        assert sum(probability(counts, null) for counts in proving) <= DOUBT


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize(("low", "high"), [(0, 4), (1, 4), (2, 4)])
def test_it_is_rarely_proven_even_at_any_of_many_looks(low: int, high: int, prior: float) -> None:
    """Compute the exact probability that the item is ever proven with 5 to 60 users, over all paths of two levels."""
    share = (prior - low / 4) / (high / 4 - low / 4)
    unproven, proven = {0: 1.0}, 0.0  # keys: the number of users at the high level
    for users in range(1, 61):
        after: dict[int, float] = {}
        for highs, chance in unproven.items():
            after[highs] = after.get(highs, 0.0) + chance * (1.0 - share)
            after[highs + 1] = after.get(highs + 1, 0.0) + chance * share
        unproven = {}
        for highs, chance in after.items():
            counts = [0] * 5
            counts[low], counts[high] = users - highs, highs
            if users >= 5 and lower_bound(tuple(counts), DOUBT) > prior:
                proven += chance
            else:
                unproven[highs] = chance
    assert proven <= DOUBT


@pytest.mark.parametrize(("prior", "users"), [(0.5, 4), (0.6, 6), (0.7, 8), (0.8, 13)])
def test_this_many_users_prove_a_perfect_version(prior: float, users: int) -> None:
    assert lower_bound((0, 0, 0, 0, users), DOUBT) > prior >= lower_bound((0, 0, 0, 0, users - 1), DOUBT)


def test_a_good_version_is_proven_by_a_dozen_and_an_average_one_by_nobody() -> None:
    assert lower_bound((0, 0, 1, 4, 7), DOUBT) > 0.65  # mean .875
    assert lower_bound((0, 0, 8, 6, 6), DOUBT) > 0.6  # mean .725
    assert lower_bound((20, 20, 50, 60, 50), DOUBT) < 0.6  # mean .625 of 200 users


@given(COUNTS)
def test_the_bound_is_where_the_wealth_is_ten(counts: list[int]) -> None:
    levels = [place / 4 for place, count in enumerate(counts) for _ in range(count)]
    low = lower_bound(tuple(counts), DOUBT)

    def wealth(claimed: float) -> float:
        bold = math.prod(level / claimed for level in levels)
        return bold / 2 + math.prod(0.4 + 0.6 * level / claimed for level in levels) / 2

    if low > 1e-9:
        assert wealth(low * 0.999) >= 1 / DOUBT >= wealth(min(low * 1.001, 1.0))
    assert 0.0 <= low <= mean(counts)


@given(COUNTS, st.integers(0, 3))
def test_the_bound_rises_with_each_level_and_each_perfect_user(counts: list[int], place: int) -> None:
    low = lower_bound(tuple(counts), DOUBT)
    if counts[place]:
        better = list(counts)
        better[place], better[place + 1] = better[place] - 1, better[place + 1] + 1
        assert lower_bound(tuple(better), DOUBT) >= low
    assert lower_bound((*counts[:4], counts[4] + 1), DOUBT) >= low


def test_no_users_and_no_quality_have_a_bound_of_0() -> None:
    assert lower_bound((0, 0, 0, 0, 0), DOUBT) == pytest.approx(0.0, abs=1e-9)
    assert lower_bound((50, 0, 0, 0, 0), DOUBT) == pytest.approx(0.0, abs=1e-9)


def test_more_doubt_gives_a_higher_bound() -> None:
    bounds = [lower_bound((0, 1, 2, 4, 6), doubt) for doubt in (0.01, 0.05, 0.1, 0.3)]
    assert all(one < other for one, other in pairwise(bounds))


def test_the_prior_counts_as_a_number_of_users_in_the_shrunk_mean() -> None:
    assert mean([1, 0, 0, 0, 3]) == 0.75
    assert shrunk_mean([0, 0, 0, 0, 5], 0.6, 5.0) == pytest.approx(0.8)
    assert shrunk_mean([5, 0, 0, 0, 0], 0.6, 5.0) == pytest.approx(0.3)
    assert shrunk_mean([0, 2, 0, 6, 0], 0.6, 0.0) == mean([0, 2, 0, 6, 0])
