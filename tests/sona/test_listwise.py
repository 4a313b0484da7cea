"""Test the examples: cross-entropy loss, exact gradients, and reproducible near negatives."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sona import listwise
from sona.errors import ShapeError
from sona.lesson import Array
from sona.listwise import NEIGHBOUR, TEMPERATURE, Example, contrast, losses, negatives, replayed

NDIM = 8


def units(count: int, seed: int) -> Array:
    vectors = np.random.default_rng(seed).normal(size=(count, NDIM))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def example(seed: int, width: int) -> Example:
    x, *used = units(3, seed)
    return contrast(x, np.array(used), [1.0, 0.5], units(width, seed + 1))


def test_the_loss_is_the_cross_entropy_of_the_choice() -> None:
    one = example(seed=1, width=5)
    scores = one.candidates @ one.x / TEMPERATURE
    chance = np.exp(scores) / np.exp(scores).sum()
    loss, _ = losses(one.x[None].astype(np.float64), [one])
    assert loss[0] == pytest.approx(-(one.target * np.log(chance)).sum())


def test_the_gradient_of_the_loss_is_its_slope_for_lists_of_different_length() -> None:
    examples = [example(seed, width) for seed, width in ((1, 3), (5, 9), (9, 1))]
    at = units(3, seed=20)
    _, pulls = losses(at, examples)
    for axis in np.eye(NDIM):
        slope = (losses(at + 1e-6 * axis, examples)[0] - losses(at - 1e-6 * axis, examples)[0]) / 2e-6
        assert np.allclose(pulls @ axis, slope, rtol=1e-5, atol=1e-6)


def test_a_certain_right_choice_costs_nothing_and_a_hopeless_one_stays_finite() -> None:
    right, wrong = np.eye(NDIM)[0] * 1e5, np.eye(NDIM)[1]
    sure = Example(wrong, np.array([right, wrong]), np.array([1.0, 0.0]))
    loss, pulls = losses(np.array([right, -right]) / 1e5, [sure, sure])
    assert loss[0] == 0.0
    assert loss[1] == pytest.approx(1e6, rel=1e-3)
    assert np.isfinite(pulls).all()


def test_each_used_memory_is_wanted_by_its_share_of_the_credit() -> None:
    one = contrast(units(1, 1)[0], units(2, 2), [1.0, 0.5], units(3, 3))
    assert one.target.tolist() == pytest.approx([2 / 3, 1 / 3, 0.0, 0.0, 0.0])


def reference(x: Array, memories: Array, used: set[int], excluded: set[int]) -> tuple[list[int], set[int]]:
    """Return the eligible rows, as a list with the nearest first and as a set, computed in plain Python."""
    of_used = [memories[row] for row in range(len(memories)) if row in used]
    may = {
        row
        for row in range(len(memories))
        if row not in used | excluded and all(float(memories[row] @ other) <= NEIGHBOUR for other in of_used)
    }
    return sorted(may, key=lambda row: -float(memories[row] @ x)), may


@settings(max_examples=80, deadline=None)
@given(
    st.integers(0, 40),
    st.integers(0, 100),
    st.sets(st.integers(0, 45), max_size=4),
    st.sets(st.integers(0, 45), max_size=4),
    st.integers(0, 8),
    st.integers(0, 8),
)
def test_negatives_are_the_nearest_eligible_and_random_others(
    count: int, seed: int, used: set[int], excluded: set[int], hard: int, random: int
) -> None:
    memories, x = units(count, seed), units(1, seed + 1)[0]
    if count > 3:
        memories[1] = memories[0]  # equal memories are never negatives of each other
    ranked, may = reference(x, memories, used, excluded)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(listwise, "HARD", hard)
        patched.setattr(listwise, "RANDOM", random)
        rows = negatives(x, memories, [*used], [*excluded], seed)
    cosines = memories @ x
    assert np.allclose(cosines[rows[:hard]], cosines[np.array(ranked[:hard], dtype=int)])
    assert set(rows.tolist()) <= may
    assert len(set(rows.tolist())) == len(rows) == min(len(may), hard + random)


def test_the_seed_determines_the_negatives() -> None:
    memories, x = units(300, 1), units(1, 2)[0]
    first, again, other = (negatives(x, memories, [3], [], seed) for seed in ((7, 1), (7, 1), (7, 2)))
    assert first.tobytes() == again.tobytes()
    assert first[:32].tolist() == other[:32].tolist()
    assert first[32:].tolist() != other[32:].tolist()


def test_the_replay_is_determined_by_the_seed_and_has_no_repeats() -> None:
    assert replayed(100, 1).tolist() == replayed(100, 1).tolist()
    assert replayed(100, 1).tolist() != replayed(100, 2).tolist()
    assert replayed(5, 1).tolist() == [0, 1, 2, 3, 4]
    assert replayed(0, 1).tolist() == []
    assert {row for seed in range(60) for row in replayed(20, seed).tolist()} == set(range(20))
    assert all(len(set(replayed(20, seed).tolist())) == 8 for seed in range(60))


WRONG: dict[str, Callable[[], object]] = {
    "candidates": lambda: Example(units(1, 1)[0], units(3, 1)[:, :-1], np.ones(3) / 3),
    "target": lambda: Example(units(1, 1)[0], units(3, 1), np.ones(2) / 2),
    "no candidates": lambda: Example(units(1, 1)[0], np.empty((0, NDIM)), np.empty(0)),
    "credits": lambda: contrast(units(1, 1)[0], units(2, 1), [1.0], units(3, 1)),
    "others": lambda: contrast(units(1, 1)[0], units(2, 1), [1.0, 1.0], units(3, 1)[:, :-1]),
    "memories": lambda: negatives(units(1, 1)[0], units(3, 1)[:, :-1], [], [], 0),
}


@pytest.mark.parametrize("case", WRONG)
def test_another_shape_is_refused(case: str) -> None:
    with pytest.raises(ShapeError):
        WRONG[case]()
