"""The metrics agree with manual calculations, and their general properties hold for every ranking."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from math import log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_agent.evaluation import Place, distinct
from memory_agent.evaluation.metrics import mean, ndcg_at_k, quantiles_ms, recall_at_k, reciprocal_rank


def places(ids: Iterable[str]) -> list[Place]:
    """Return a ranking with one id at each rank."""
    return [(id_,) for id_ in ids]


ids = st.lists(st.sampled_from("abcdefghij"), unique=True)
grades = st.dictionaries(st.sampled_from("abcdefghij"), st.integers(1, 4), min_size=1)
cutoff = st.integers(1, 12)


def test_recall_is_the_share_of_the_relevant_among_the_first_k() -> None:
    ranked = places("caxb")
    assert recall_at_k(ranked, {"a", "b"}, 1) == 0
    assert recall_at_k(ranked, {"a", "b"}, 2) == 0.5
    assert recall_at_k(ranked, {"a", "b"}, 4) == 1
    assert recall_at_k(ranked, {"a", "b"}, 50) == 1


def test_a_repeated_id_counts_once() -> None:
    assert recall_at_k(places("aa"), {"a", "b"}, 2) == 0.5
    assert ndcg_at_k(places("aa"), {"a": 1, "b": 1}, 2) == pytest.approx(1 / (1 + 1 / log2(3)))


@given(ranked=ids, relevant=ids.filter(bool))
def test_recall_never_falls_with_k(ranked: list[str], relevant: list[str]) -> None:
    curve = [recall_at_k(places(ranked), relevant, k) for k in range(len(ranked) + 1)]
    assert curve == sorted(curve)
    assert curve[0] == 0
    assert curve[-1] == len(set(ranked) & set(relevant)) / len(relevant)


def test_ndcg_with_one_grade_is_the_sum_of_discounts_by_the_best_such_sum() -> None:
    # The two relevant items are at ranks 2 and 3 of 3: (1/log2 3 + 1/log2 4) / (1/log2 2 + 1/log2 3).
    gained, best = 1 / log2(3) + 1 / log2(4), 1 + 1 / log2(3)
    assert ndcg_at_k(places("xab"), {"a": 1, "b": 1}, 3) == pytest.approx(gained / best)
    assert ndcg_at_k(places("xab"), {"a": 1, "b": 1}, 2) == pytest.approx((1 / log2(3)) / best)
    assert ndcg_at_k(places("xab"), {"a": 1, "b": 1}, 1) == 0


def test_ndcg_with_grades_gains_two_to_the_grade_less_one() -> None:
    # Grades 3, 2, 3, 0, 1, 2: DCG = 7/1 + 3/1.585 + 7/2 + 0 + 1/2.585 + 3/2.807 = 13.848; the best order has 14.595.
    ranked, graded = places("abcdef"), {"a": 3, "b": 2, "c": 3, "e": 1, "f": 2}
    gained = 7 + 3 / log2(3) + 7 / log2(4) + 1 / log2(6) + 3 / log2(7)
    best = 7 + 7 / log2(3) + 3 / log2(4) + 3 / log2(5) + 1 / log2(6)
    assert gained == pytest.approx(13.848, abs=1e-3)
    assert ndcg_at_k(ranked, graded, 6) == pytest.approx(gained / best)


@given(ranked=ids, graded=grades, k=cutoff)
def test_ndcg_is_between_0_and_1(ranked: list[str], graded: dict[str, int], k: int) -> None:
    best = sorted(graded, key=lambda id_: -graded[id_])
    assert 0 <= ndcg_at_k(places(ranked), graded, k) <= 1 + 1e-12
    assert ndcg_at_k(places(best), graded, k) == pytest.approx(1)
    assert (ndcg_at_k(places(ranked), graded, k) == 0) == (not set(ranked[:k]) & graded.keys())


@given(ranked=ids.filter(lambda ranked: len(ranked) > 1), graded=grades, place=st.integers(0, 8))
def test_ndcg_never_falls_when_a_better_one_moves_up(ranked: list[str], graded: dict[str, int], place: int) -> None:
    place %= len(ranked) - 1
    one, next_ = ranked[place : place + 2]
    moved = [*ranked[:place], next_, one, *ranked[place + 2 :]]
    gain = ndcg_at_k(places(moved), graded, 20) - ndcg_at_k(places(ranked), graded, 20)
    assert gain * (graded.get(next_, 0) - graded.get(one, 0)) >= -1e-12


def test_reciprocal_rank_is_that_of_the_first_relevant() -> None:
    assert reciprocal_rank(places("xab"), {"a", "b"}) == 0.5
    assert reciprocal_rank(places("a"), {"a", "b"}) == 1
    assert reciprocal_rank(places("xy"), {"a"}) == 0
    assert reciprocal_rank([], {"a"}) == 0


@given(ranked=ids, relevant=ids.filter(bool))
def test_reciprocal_rank_agrees_with_recall_at_k(ranked: list[str], relevant: list[str]) -> None:
    rank, found = reciprocal_rank(places(ranked), relevant), partial(recall_at_k, places(ranked), relevant)
    if rank:
        assert found(round(1 / rank)) > 0 == found(round(1 / rank) - 1)
    else:
        assert found(len(ranked)) == 0


def test_a_place_of_several_ids_answers_for_each_and_gains_the_best_once() -> None:
    ranked = [("x",), ("a", "b"), ("c", "a")]
    assert [recall_at_k(ranked, {"a", "b", "c"}, k) for k in (1, 2, 3)] == [0, pytest.approx(2 / 3), 1]
    assert reciprocal_rank(ranked, {"b"}) == 0.5
    gained, best = 3 / log2(3) + 1 / log2(4), 3 + 1 / log2(3) + 1 / log2(4)
    assert ndcg_at_k(ranked, {"a": 1, "b": 2, "c": 1}, 3) == pytest.approx(gained / best)


@given(groups=st.lists(st.lists(st.sampled_from("abcdefghij"), min_size=1).map(tuple)), graded=grades, k=cutoff)
def test_ndcg_of_shared_places_stays_within_the_best_order(groups: list[Place], graded: dict[str, int], k: int) -> None:
    assert 0 <= ndcg_at_k(groups, graded, k) <= 1 + 1e-12


def test_distinct_keeps_first_places_and_leaves_the_missing_out() -> None:
    assert distinct(["b", None, "a", "b", "c", "a"]) == ["b", "a", "c"]


def test_without_measurements_the_result_is_none_and_not_zero() -> None:
    assert mean([]) is None
    assert quantiles_ms([]) == {"p50": None, "p99": None}


def test_quantiles_are_of_the_durations() -> None:
    assert mean([1.0, 2.0]) == 1.5
    assert quantiles_ms([float(value) for value in range(101)]) == {"p50": 50.0, "p99": pytest.approx(99.0)}
