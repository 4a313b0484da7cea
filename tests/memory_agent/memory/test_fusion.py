"""Laws of the fusion: an absent side does not count, scores are monotonic, the order is total."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from memory_agent.recall import fusion

cosine = st.floats(-1.0, 1.0, width=32)
bm25 = st.one_of(st.just(0.0), st.floats(0.0078125, 40.0, width=32))
alpha = st.floats(0.05, 0.95)
pairs = st.lists(st.tuples(cosine, bm25), min_size=1, max_size=30)


def columns(candidates: list[tuple[float, float]]) -> tuple[fusion.Scores, fusion.Scores]:
    cosines, words = zip(*candidates, strict=True)
    return np.array(cosines, dtype=np.float64), np.array(words, dtype=np.float64)


def order(scores: fusion.Scores) -> list[int]:
    return fusion.best_first(scores, np.arange(scores.size), scores.size).tolist()


@given(pairs, alpha)
def test_scores_are_the_weighted_sum_of_cosine_and_share_of_the_best_match(
    candidates: list[tuple[float, float]], weight: float
) -> None:
    cosines, words = columns(candidates)
    scores = fusion.fuse(cosines, words, weight)
    if words.any():
        assert np.allclose(scores, weight * cosines + (1 - weight) * words / words.max())
    else:
        assert np.array_equal(scores, cosines)


@given(st.lists(bm25, min_size=1, max_size=30), alpha)
def test_without_vectors_the_order_is_that_of_the_words(words: list[float], weight: float) -> None:
    values = np.array(words)
    assert order(fusion.fuse(np.full(values.size, np.nan), values, weight)) == order(values)


@given(pairs, alpha)
def test_a_memory_without_vector_counts_as_an_average_one_and_not_as_the_worst(
    candidates: list[tuple[float, float]], weight: float
) -> None:
    cosines, words = columns([*candidates, (0.0, 0.0), (0.0, 1.0)])
    cosines[-2] = np.nan
    present = np.isfinite(cosines)
    scores = fusion.fuse(cosines, words, weight)
    assert np.isfinite(scores).all()
    assert np.isclose(scores[-2], weight * cosines[present].mean())


@given(pairs, alpha, st.data())
def test_a_better_cosine_never_ranks_a_memory_lower(
    candidates: list[tuple[float, float]], weight: float, data: st.DataObject
) -> None:
    cosines, words = columns(candidates)
    place = data.draw(st.integers(0, cosines.size - 1))
    before = order(fusion.fuse(cosines, words, weight)).index(place)
    cosines[place] += data.draw(st.floats(0.0, 1.0))
    assert order(fusion.fuse(cosines, words, weight)).index(place) <= before


@given(pairs, alpha)
def test_the_order_does_not_depend_on_the_order_of_the_candidates(
    candidates: list[tuple[float, float]], weight: float
) -> None:
    cosines, words = columns(candidates)
    rows = np.arange(cosines.size)
    shuffled = rows.copy()
    np.random.default_rng(len(candidates)).shuffle(shuffled)
    straight = rows[fusion.best_first(fusion.fuse(cosines, words, weight), rows, 10)]
    mixed_scores = fusion.fuse(cosines[shuffled], words[shuffled], weight)
    mixed = shuffled[fusion.best_first(mixed_scores, shuffled, 10)]
    if cosines.size == np.unique(np.round(fusion.fuse(cosines, words, weight), 9)).size:
        assert straight.tolist() == mixed.tolist()


def test_of_equal_scores_the_newer_memory_comes_first() -> None:
    scores, rows = np.array([0.5, 0.9, 0.5]), np.array([3, 4, 8])
    assert rows[fusion.best_first(scores, rows, 3)].tolist() == [4, 8, 3]


@given(st.lists(st.integers(1, 50)), st.lists(st.integers(1, 50)))
def test_uniting_keeps_each_row_once_ascending(left: list[int], right: list[int]) -> None:
    united = fusion.unite(np.array(left, dtype=np.int64), np.array(right, dtype=np.int64))
    assert united.tolist() == sorted({*left, *right})


@given(st.dictionaries(st.integers(1, 50), st.floats(0.1, 9.0)), st.sets(st.integers(1, 50)))
def test_scores_are_spread_over_the_rows_that_have_them(found: dict[int, float], others: set[int]) -> None:
    rows = np.array(sorted({*found, *others}), dtype=np.int64)
    scores = np.array(list(found.values()))
    spread = fusion.spread(rows, np.array(list(found), dtype=np.int64), scores, missing=-1.0)
    assert spread.tolist() == [found.get(row, -1.0) for row in rows.tolist()]
