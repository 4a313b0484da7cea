"""Properties of the fusion: a missing ranking is ignored, scores are monotonic, and the order is total."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from memory_agent.recall import candidates as formula
from memory_agent.recall.candidates import best_first, fuse, highest, lexical_share
from memory_agent.recall.evidence import places_of
from memory_agent.storage.column import Scores

cosine = st.floats(-1.0, 1.0, width=32)
words = st.floats(-0.5, 2.0, width=32)
bm25 = st.one_of(st.just(0.0), st.floats(0.0078125, 40.0, width=32))
alpha = st.floats(0.05, 0.95)
triples = st.lists(st.tuples(cosine, words, bm25), min_size=1, max_size=30)


def columns(candidates: list[tuple[float, float, float]]) -> tuple[Scores, Scores, Scores]:
    """Return cosines, late interaction scores and BM25 shares."""
    cosines, met, lexical = (np.array(part, dtype=np.float64) for part in zip(*candidates, strict=True))
    return cosines, met, lexical_share(lexical, float(lexical.max()))


def order(scores: Scores) -> list[int]:
    return best_first(scores, np.arange(scores.size), scores.size).tolist()


@given(triples, alpha)
def test_scores_are_the_weighted_sum_of_cosine_and_words(
    candidates: list[tuple[float, float, float]], weight: float
) -> None:
    cosines, met, shares = columns(candidates)
    by_words = (met + formula._BM25 * shares) / (1 + formula._BM25)
    assert np.allclose(fuse(cosines, met, shares, weight), weight * cosines + (1 - weight) * by_words)


@given(st.lists(bm25, min_size=1, max_size=30))
def test_shares_are_those_of_the_best_match(lexical: list[float]) -> None:
    shares = lexical_share(np.array(lexical), max(lexical))
    assert shares.max() == (1.0 if any(lexical) else 0.0)
    assert shares.min() >= 0.0
    assert order(shares) == order(np.array(lexical)) or len(set(lexical)) < len(lexical)


@given(triples, alpha)
def test_a_memory_without_vector_counts_as_an_average_one_and_not_as_the_worst(
    candidates: list[tuple[float, float, float]], weight: float
) -> None:
    cosines, met, shares = columns([*candidates, (0.0, 0.0, 0.0), (0.0, 0.0, 1.0)])
    cosines[-2] = np.nan
    scores = fuse(cosines, met, shares, weight)
    assert np.isfinite(scores).all()
    assert np.isclose(scores[-2], weight * np.nanmean(cosines))


@given(triples, alpha, st.sampled_from([0, 1, 2]), st.data())
def test_a_better_part_never_ranks_a_memory_lower(
    candidates: list[tuple[float, float, float]], weight: float, part: int, data: st.DataObject
) -> None:
    parts = columns(candidates)
    place = data.draw(st.integers(0, len(candidates) - 1))
    before = order(fuse(*parts, weight)).index(place)
    parts[part][place] += data.draw(st.floats(0.0, 1.0))
    assert order(fuse(*parts, weight)).index(place) <= before


@given(triples, alpha)
def test_the_order_does_not_depend_on_the_order_of_the_candidates(
    candidates: list[tuple[float, float, float]], weight: float
) -> None:
    parts = columns(candidates)
    rows = np.arange(len(candidates))
    shuffled = rows.copy()
    np.random.default_rng(len(candidates)).shuffle(shuffled)
    scores = fuse(*parts, weight)
    mixed_scores = fuse(*(part[shuffled] for part in parts), weight)
    if rows.size == np.unique(np.round(scores, 9)).size:
        mixed = shuffled[best_first(mixed_scores, shuffled, 10)]
        assert rows[best_first(scores, rows, 10)].tolist() == mixed.tolist()


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
    scores[rng.random(count) < rng.random()] = rng.choice([-np.inf, np.nan])
    above = rng.choice([-np.inf, 0.0, 2.0])
    present = np.sort(scores[scores > above])
    least = present[max(0, present.size - limit)] if present.size else np.inf
    assert np.array_equal(highest(scores, limit, above), np.flatnonzero(scores >= least))


def test_the_highest_are_found_where_only_the_sample_is_high() -> None:
    scores = np.zeros(20_000)
    scores[::16] = np.arange(1_250)
    assert highest(scores, 500, above=0.0).tolist() == list(range(16 * 750, 20_000, 16))
    assert highest(scores, 5_000).size == scores.size
