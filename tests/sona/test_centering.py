"""Test query centring: identity while cold, unit length, window, round trip, no noise for a constant query."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sona.centering import WARM_UP, WINDOW, QueryCentering, Vector
from sona.errors import DamagedStateError, ShapeError

NDIM = 16


def unit_vectors(count: int, seed: int) -> Vector:
    vectors = np.random.default_rng(seed).normal(size=(count, NDIM)).astype(np.float32)
    vectors[:, 0] += 2.0  # the common part
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def after(queries: Vector) -> QueryCentering:
    learner = QueryCentering(NDIM)
    for query in queries:
        learner.observe(query)
    return learner


@given(st.integers(0, WARM_UP - 1), st.integers(0, 1000))
def test_centring_is_the_identity_before_twenty_queries(count: int, seed: int) -> None:
    *seen, query = unit_vectors(count + 1, seed)
    learner = after(np.array(seen))
    assert learner.centre(query).tobytes() == query.tobytes()
    assert not learner.mean.any()


@given(st.integers(WARM_UP, 60), st.integers(0, 1000))
def test_from_the_twentieth_query_the_mean_of_all_is_subtracted(count: int, seed: int) -> None:
    *seen, query = unit_vectors(count + 1, seed)
    learner = after(np.array(seen))
    assert np.allclose(learner.mean, np.mean(seen, axis=0), atol=1e-6)
    distance = float(np.linalg.norm(query - learner.mean))
    if distance >= 0.6:
        assert np.allclose(learner.centre(query), (query - learner.mean) / distance, atol=1e-6)


@given(st.integers(0, 60), st.integers(0, 1000), st.floats(0.0, 0.9))
def test_a_centred_query_has_unit_length_however_close_it_is_to_the_mean(count: int, seed: int, pull: float) -> None:
    queries = unit_vectors(count + 1, seed)
    learner = after(queries[:-1])
    query = queries[-1] * (1 - pull) + learner.mean * pull
    query /= max(float(np.linalg.norm(query)), 1e-9)
    assert np.isclose(np.linalg.norm(learner.centre(query)), 1.0, atol=1e-5)


def test_a_constant_query_is_not_replaced_by_noise() -> None:
    query = unit_vectors(1, seed=1)[0]
    learner = after(np.tile(query, (500, 1)))
    assert float(learner.centre(query) @ query) > 0.9999


def test_old_queries_fade_once_the_window_is_full() -> None:
    early, late = np.eye(NDIM, dtype=np.float32)[:2]
    learner = after(np.tile(early, (WINDOW, 1)))
    for _ in range(3 * WINDOW):
        learner.observe(late)
    assert learner.mean @ late > 0.9
    assert learner.mean @ early < 0.1


def test_the_state_round_trips_bit_for_bit() -> None:
    *seen, query = unit_vectors(50, seed=3)
    learner = after(np.array(seen))
    restored = QueryCentering.from_bytes(learner.to_bytes(), NDIM)
    assert restored.count == learner.count
    assert restored.centre(query).tobytes() == learner.centre(query).tobytes()
    restored.observe(query)
    learner.observe(query)
    assert restored.to_bytes() == learner.to_bytes()


@pytest.mark.parametrize("ndim", [NDIM - 1, NDIM + 1])
def test_a_state_of_another_shape_is_refused(ndim: int) -> None:
    state = after(unit_vectors(30, seed=4)).to_bytes()
    with pytest.raises(DamagedStateError):
        QueryCentering.from_bytes(state, ndim)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_without_a_crash(data: bytes) -> None:
    with pytest.raises(DamagedStateError):
        QueryCentering.from_bytes(data, NDIM)


def test_a_mean_that_is_not_finite_is_refused() -> None:
    learner = QueryCentering(NDIM)
    state = learner.to_bytes().replace(bytes(8), np.float64(np.nan).tobytes(), 1)
    with pytest.raises(DamagedStateError):
        QueryCentering.from_bytes(state, NDIM)


def test_a_query_that_is_not_finite_is_skipped() -> None:
    learner = after(unit_vectors(30, seed=5))
    before = learner.to_bytes()
    learner.observe(np.full(NDIM, np.nan, dtype=np.float32))
    assert learner.to_bytes() == before


def test_a_query_of_another_shape_is_refused() -> None:
    learner = QueryCentering(NDIM)
    with pytest.raises(ShapeError, match=r"expected \(16,\), got \(8,\)"):
        learner.centre(np.zeros(8, dtype=np.float32))
    with pytest.raises(ShapeError):
        learner.observe(np.zeros(8, dtype=np.float32))
