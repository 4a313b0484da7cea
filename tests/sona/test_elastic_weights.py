"""Test EWC: importance comes from single samples, the pull stops at the anchor, and free parameters do not move."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sona.elastic_weights import ElasticWeights
from sona.errors import ShapeError
from sona.lesson import Array

SIZE = 6


def drawn(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).normal(size=shape)


def taut(seed: int, strength: float = 10.0) -> ElasticWeights:
    springs = ElasticWeights(SIZE, strength)
    springs.observe(drawn(seed, 5, SIZE))
    springs.anchor(drawn(seed + 1, SIZE))
    return springs


def test_contradicting_samples_still_make_a_parameter_important() -> None:
    springs = ElasticWeights(2)
    springs.observe(np.array([[1.0, 0.0], [-1.0, 0.0]]))  # the mean gradient is zero
    assert springs.importance.tolist() == [1.0, 0.0]


def test_importance_is_a_fading_sum_of_mean_squared_gradients() -> None:
    first, second = drawn(1, 4, SIZE), drawn(2, 7, SIZE)
    springs = ElasticWeights(SIZE)
    springs.observe(first)
    springs.observe(second)
    assert np.allclose(springs.importance, 0.95 * (first**2).mean(axis=0) + (second**2).mean(axis=0))


def test_the_gradient_is_that_of_the_penalty() -> None:
    springs, at = taut(seed=3), drawn(9, SIZE)
    slopes = [(springs.penalty(at + 1e-6 * axis) - springs.penalty(at - 1e-6 * axis)) / 2e-6 for axis in np.eye(SIZE)]
    assert np.allclose(springs.gradient(at), slopes, rtol=1e-6, atol=1e-6)
    assert abs(springs.gradient(at)).min() > 0.01


def test_steps_along_the_pull_come_back_to_the_anchor() -> None:
    springs, at = taut(seed=4), drawn(8, SIZE)
    away = abs(at - springs.held)
    for _ in range(3000):
        at = at - springs.pull(at, rate=0.01)
    assert (abs(at - springs.held) < 0.01 * away).all()


@given(st.integers(0, 1000), st.floats(1e-3, 1e6), st.floats(1e-3, 1.0))
def test_no_pull_overshoots_the_anchor(seed: int, strength: float, rate: float) -> None:
    springs, at = taut(seed, strength), drawn(seed + 7, SIZE)
    after = at - springs.pull(at, rate)
    before, left = at - springs.held, after - springs.held
    assert (left * before >= -1e-12).all()  # never past the anchor
    assert (abs(left) < abs(before)).all()


def test_a_weak_pull_is_a_gradient_step() -> None:
    springs, at = taut(seed=5, strength=0.1), drawn(6, SIZE)
    assert np.allclose(springs.pull(at, 0.05), 0.05 * springs.gradient(at))


def test_only_parameters_that_some_sample_needed_are_pulled() -> None:
    springs = ElasticWeights(SIZE)
    springs.anchor(np.zeros(SIZE))
    assert not springs.gradient(np.ones(SIZE)).any()
    springs.observe(np.eye(SIZE)[:2])
    assert np.flatnonzero(springs.gradient(np.ones(SIZE))).tolist() == [0, 1]


def test_the_anchor_is_a_copy_of_the_parameters() -> None:
    springs, at = taut(seed=6), drawn(5, SIZE)
    springs.anchor(at)
    assert springs.penalty(at) == 0.0
    at += 1.0
    assert springs.penalty(at) > 0.0


def test_a_sample_that_is_not_finite_is_skipped() -> None:
    good = drawn(7, 3, SIZE)
    broken = np.vstack([good, np.full((1, SIZE), np.nan), np.full((1, SIZE), np.inf)])
    with_broken, without = ElasticWeights(SIZE), ElasticWeights(SIZE)
    with_broken.observe(broken)
    without.observe(good)
    assert (with_broken.importance == without.importance).all()
    with_broken.observe(broken[3:])
    assert (with_broken.importance == without.importance).all()


WRONG: dict[str, Callable[[ElasticWeights], object]] = {
    "observe": lambda springs: springs.observe(np.ones((2, SIZE + 1))),
    "observe one": lambda springs: springs.observe(np.ones(SIZE)),
    "anchor": lambda springs: springs.anchor(np.ones(SIZE - 1)),
    "gradient": lambda springs: springs.gradient(np.ones((1, SIZE))),
    "pull": lambda springs: springs.pull(np.ones(SIZE + 1), 0.1),
    "restore": lambda springs: springs.restore(np.ones(SIZE), np.ones(SIZE + 1)),
}


@pytest.mark.parametrize("case", WRONG)
def test_another_shape_is_refused(case: str) -> None:
    with pytest.raises(ShapeError):
        WRONG[case](ElasticWeights(SIZE))
