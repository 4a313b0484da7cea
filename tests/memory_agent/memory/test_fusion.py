"""Laws of the fusion: an absent side does not count, scores are monotonic, the order is total."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from memory_agent.recall.fusion import best_first, effective_weight, fuse, highest, places_of
from memory_agent.storage.indexes import Scores

cosine = st.floats(-1.0, 1.0, width=32)
bm25 = st.one_of(st.just(0.0), st.floats(0.0078125, 40.0, width=32))
alpha = st.floats(0.05, 0.95)
pairs = st.lists(st.tuples(cosine, bm25), min_size=1, max_size=30)


def columns(candidates: list[tuple[float, float]]) -> tuple[Scores, Scores]:
    cosines, words = zip(*candidates, strict=True)
    return np.array(cosines, dtype=np.float64), np.array(words, dtype=np.float64)


def fused(cosines: Scores, words: Scores, weight: float) -> Scores:
    best = float(words.max())
    has_cosines = bool(np.isfinite(cosines).any())
    return fuse(cosines, words, effective_weight(weight, has_cosines, best), best)


def order(scores: Scores) -> list[int]:
    return best_first(scores, np.arange(scores.size), scores.size).tolist()


@given(pairs, alpha)
def test_scores_are_the_weighted_sum_of_cosine_and_share_of_the_best_match(
    candidates: list[tuple[float, float]], weight: float
) -> None:
    cosines, words = columns(candidates)
    scores = fused(cosines, words, weight)
    if words.any():
        assert np.allclose(scores, weight * cosines + (1 - weight) * words / words.max())
    else:
        assert np.array_equal(scores, cosines)


@given(st.lists(bm25, min_size=1, max_size=30), alpha)
def test_without_vectors_the_order_is_that_of_the_words(words: list[float], weight: float) -> None:
    values = np.array(words)
    assert order(fused(np.full(values.size, np.nan), values, weight)) == order(values)


@given(pairs, alpha)
def test_a_memory_without_vector_counts_as_an_average_one_and_not_as_the_worst(
    candidates: list[tuple[float, float]], weight: float
) -> None:
    cosines, words = columns([*candidates, (0.0, 0.0), (0.0, 1.0)])
    cosines[-2] = np.nan
    present = np.isfinite(cosines)
    scores = fused(cosines, words, weight)
    assert np.isfinite(scores).all()
    assert np.isclose(scores[-2], weight * cosines[present].mean())


@given(pairs, alpha, st.data())
def test_a_better_cosine_never_ranks_a_memory_lower(
    candidates: list[tuple[float, float]], weight: float, data: st.DataObject
) -> None:
    cosines, words = columns(candidates)
    place = data.draw(st.integers(0, cosines.size - 1))
    before = order(fused(cosines, words, weight)).index(place)
    cosines[place] += data.draw(st.floats(0.0, 1.0))
    assert order(fused(cosines, words, weight)).index(place) <= before


@given(pairs, alpha)
def test_the_order_does_not_depend_on_the_order_of_the_candidates(
    candidates: list[tuple[float, float]], weight: float
) -> None:
    cosines, words = columns(candidates)
    rows = np.arange(cosines.size)
    shuffled = rows.copy()
    np.random.default_rng(len(candidates)).shuffle(shuffled)
    straight = rows[best_first(fused(cosines, words, weight), rows, 10)]
    mixed_scores = fused(cosines[shuffled], words[shuffled], weight)
    mixed = shuffled[best_first(mixed_scores, shuffled, 10)]
    if cosines.size == np.unique(np.round(fused(cosines, words, weight), 9)).size:
        assert straight.tolist() == mixed.tolist()


def test_of_equal_scores_the_newer_memory_comes_first() -> None:
    scores, rows = np.array([0.5, 0.9, 0.5]), np.array([3, 4, 8])
    assert rows[best_first(scores, rows, 3)].tolist() == [4, 8, 3]


@given(st.sets(st.integers(0, 50)), st.lists(st.integers(0, 50)))
def test_wanted_slots_are_found_where_they_are(held: set[int], wanted: list[int]) -> None:
    slots = np.array(sorted(held), dtype=np.int64)
    places, known = places_of(slots, np.array(wanted, dtype=np.int64))
    assert known.tolist() == [slot in held for slot in wanted]
    assert slots[places[known]].tolist() == [slot for slot in wanted if slot in held]


@given(st.integers(0, 2**31), st.sampled_from([1, 10, 500]), st.sampled_from([30, 5_000, 20_000]), st.booleans())
def test_the_highest_are_those_of_a_sort_with_ties(seed: int, limit: int, count: int, are_tied: bool) -> None:
    rng = np.random.default_rng(seed)
    scores = np.round(rng.normal(size=count), 1) if are_tied else rng.normal(size=count)
    scores[rng.random(count) < rng.random()] = -np.inf
    present = np.sort(scores[scores > -np.inf])
    least = present[max(0, present.size - limit)] if present.size else np.inf
    assert np.array_equal(highest(scores, limit), np.flatnonzero(scores >= least))
