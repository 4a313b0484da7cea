"""Test the bank: updates equal a full solve, forgetting is exact, and distant requests are not shifted."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sona.errors import ShapeError
from sona.lesson import Array
from sona.reasoning_bank import LEAST_WEIGHT, ReasoningBank

NDIM = 12
RESERVE = 16
Exemplar = tuple[Array, Array, float]


def units(count: int, seed: int, ndim: int = NDIM) -> Array:
    vectors = np.random.default_rng(seed).normal(size=(count, ndim))
    vectors[:, 0] += 1.0  # so that most are near enough to affect each other
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def solved(exemplars: dict[int, Exemplar]) -> ReasoningBank:
    rows = list(exemplars.values())
    x, y = (np.array([row[side] for row in rows]).reshape(-1, NDIM) for side in (0, 1))
    return ReasoningBank.solve(list(exemplars), x, y, [row[2] for row in rows], reserve=RESERVE)


def same_shifts(bank: ReasoningBank, other: ReasoningBank, seed: int = 99) -> bool:
    return all(np.allclose(bank.shift(x), other.shift(x), rtol=0, atol=1e-6) for x in units(8, seed))


weights = st.one_of(st.floats(0.05, 1.0), st.sampled_from([LEAST_WEIGHT, 1e-6, 1e-3, 1.0]))
sights = st.integers(0, 5)  # so few that requests repeat
operations = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 20), sights, weights),
        st.tuples(st.just("reweight"), st.integers(0, 20), sights, weights),
        st.tuples(st.just("forget"), st.integers(0, 20), sights, weights),
    ),
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(operations)
def test_after_any_updates_the_bank_equals_one_solved_from_scratch(
    steps: list[tuple[str, int, int, float]],
) -> None:
    x, y = units(6, seed=1), units(6, seed=2)
    bank, held = ReasoningBank(NDIM, reserve=RESERVE), dict[int, Exemplar]()
    for verb, number, sight, weight in steps:
        if verb == "add":
            held.pop(number, None)
            if len(held) < RESERVE:
                held[number] = (x[sight], y[(sight + number) % 6], weight)
            assert bank.add(number, x[sight], y[(sight + number) % 6], weight) == (number in held)
        elif verb == "reweight":
            assert bank.reweight(number, weight) == (number in held)
            held.update({number: (*held[number][:2], weight)} if number in held else {})
        else:
            assert bank.forget(number) == (held.pop(number, None) is not None)
    assert sorted(bank.numbers) == sorted(held)
    assert same_shifts(bank, solved(held))


@pytest.mark.parametrize("count", [1, 9, 33, 150])
def test_a_solved_bank_obeys_the_equation_of_kernel_ridge(count: int) -> None:
    x, y, weight = units(count, seed=3), units(count, seed=4), np.linspace(0.1, 1.0, count)
    bank = ReasoningBank.solve(range(count), x, y, weight)
    alpha = np.linalg.solve(np.exp((x @ x.T - 1.0) / 0.5) + np.diag(1.0 / weight), y - x)
    query = x[count // 2]
    assert np.allclose(bank.shift(query), np.exp((x @ query - 1.0) / 0.5) @ alpha, atol=1e-12)


def test_the_shift_is_the_minimum_of_the_objective() -> None:
    x, y, weight = units(6, seed=5), units(6, seed=6), np.linspace(0.2, 1.0, 6)
    kernel = np.exp((x @ x.T - 1.0) / 0.5)
    bank = ReasoningBank.solve(range(6), x, y, weight)
    fitted = np.array([bank.shift(query) for query in x])  # at an exemplar, the shift is not scaled down
    best = np.linalg.solve(kernel, fitted)

    def objective(alpha: Array) -> float:
        misses = (weight[:, None] * (y - x - kernel @ alpha) ** 2).sum()
        return float(misses + (alpha * (kernel @ alpha)).sum())

    rng = np.random.default_rng(0)
    assert all(objective(best + 1e-3 * rng.normal(size=best.shape)) > objective(best) for _ in range(50))


def test_a_known_request_moves_towards_its_answer() -> None:
    x, y = units(2, seed=7)
    bank = ReasoningBank(NDIM)
    for number in range(5):
        bank.add(number, x, y, 1.0)
    moved = x + bank.shift(x)
    assert np.allclose(bank.shift(x), (y - x) * 5 / 6)  # a ridge of 1, and five exemplars with weight 1
    assert moved @ y / np.linalg.norm(moved) > x @ y


def test_an_empty_bank_moves_nothing() -> None:
    assert not ReasoningBank(NDIM).shift(units(1, seed=0)[0]).any()
    assert len(ReasoningBank.solve([], np.empty((0, NDIM)), np.empty((0, NDIM)), [])) == 0


def test_the_shift_fades_in_between_cosines_of_a_fifth_and_three_fifths() -> None:
    exemplar, answer, away = np.eye(NDIM)[:3]
    bank = ReasoningBank(NDIM)
    bank.add(1, exemplar, answer, 1.0)
    shifts = {c: bank.shift(c * exemplar + np.sqrt(1 - c * c) * away) for c in (-1.0, 0.0, 0.199, 0.4, 0.6, 1.0)}
    ungated = {c: np.exp((c - 1.0) / 0.5) * (answer - exemplar) / 2 for c in shifts}
    assert not any(shifts[c].any() for c in (-1.0, 0.0, 0.199))
    assert np.allclose(shifts[0.4], ungated[0.4] / 2)
    assert np.allclose(shifts[0.6], ungated[0.6])
    assert np.allclose(shifts[1.0], ungated[1.0])


def test_the_order_of_exemplars_does_not_change_a_bit() -> None:
    x, y, weight = units(40, seed=8), units(40, seed=9), np.linspace(0.1, 1.0, 40)
    order = np.random.default_rng(1).permutation(40)
    first = ReasoningBank.solve(range(40), x, y, weight)
    second = ReasoningBank.solve(order.tolist(), x[order], y[order], weight[order])
    assert first.shift(x[3]).tobytes() == second.shift(x[3]).tobytes()
    assert first.numbers.tobytes() == second.numbers.tobytes()


def test_a_thousand_updates_do_not_drift() -> None:
    x, y = units(30, seed=10), units(30, seed=11)
    bank, rng = ReasoningBank(NDIM, reserve=30), np.random.default_rng(2)
    weight = dict.fromkeys(range(30), 0.5)
    for number in weight:
        bank.add(number, x[number], y[number], 0.5)
    for number in rng.integers(0, 30, size=1000).tolist():
        weight[number] = float(10.0 ** rng.uniform(-8, 0))
        bank.reweight(number, weight[number])
    exact = ReasoningBank.solve(range(30), x, y, list(weight.values()))
    assert max(abs(bank.shift(query) - exact.shift(query)).max() for query in x) < 1e-7  # float32 after `solve`


def test_forgetting_leaves_nothing_in_any_array() -> None:
    x, y = units(3, seed=12), units(3, seed=13)
    bank = ReasoningBank(NDIM, reserve=RESERVE)
    for number in range(3):
        bank.add(number + 1, x[number], y[number], 0.7)
    for number in range(3):
        bank.forget(number + 1)
    arrays = (bank._numbers, bank._weights, bank._requests, bank._moves, bank._inverse)
    assert len(bank) == 0
    assert not any(array.any() for array in arrays)


def test_a_hundred_equal_requests_are_one_with_a_hundred_times_the_weight() -> None:
    x, y = units(2, seed=14)
    bank = ReasoningBank(NDIM)
    for number in range(100):
        bank.add(number, x, y, 0.01)
    heavy = ReasoningBank.solve([0], x[None], y[None], [1.0])
    assert np.allclose(bank.shift(x), heavy.shift(x), atol=1e-9)


def test_similarities_are_the_cosines_in_the_order_of_the_numbers() -> None:
    x, y = units(5, seed=15), units(5, seed=16)
    bank = ReasoningBank(NDIM)
    for number in (4, 2, 0, 3):
        bank.add(number, x[number], y[number], 1.0)
    bank.forget(2)
    assert np.allclose(bank.similarities(x[1]), [float(x[number] @ x[1]) for number in bank.numbers])


def test_a_full_bank_refuses_new_exemplars_and_still_replaces() -> None:
    x, y = units(4, seed=17), units(4, seed=18)
    bank = ReasoningBank(NDIM, reserve=3)
    assert [bank.add(number, x[number], y[number], 1.0) for number in range(4)] == [True, True, True, False]
    assert bank.is_full
    assert bank.add(1, x[3], y[3], 1.0)
    assert same_shifts(bank, ReasoningBank.solve([0, 2, 3], x[[0, 2, 3]], y[[0, 2, 3]], [1.0] * 3))
    with pytest.raises(ShapeError):
        ReasoningBank.solve(range(4), x, y, [1.0] * 4, reserve=3)


@pytest.mark.parametrize("weight", [0.0, -1.0, LEAST_WEIGHT / 2, float("nan"), float("inf")])
def test_an_exemplar_without_weight_is_not_held(weight: float) -> None:
    x, y = units(2, seed=19)
    bank = ReasoningBank(NDIM)
    assert not bank.add(1, x, y, weight)
    assert len(bank) == len(ReasoningBank.solve([1], x[None], y[None], [weight])) == 0


def test_a_weight_of_zero_forgets_and_one_not_finite_changes_nothing() -> None:
    x, y = units(2, seed=20)
    bank = ReasoningBank(NDIM)
    bank.add(1, x, y, 0.5)
    before = bank.shift(x)
    assert not bank.reweight(1, float("nan"))
    assert (bank.shift(x) == before).all()
    assert bank.reweight(1, 0.0)
    assert len(bank) == 0


@pytest.mark.parametrize("hole", [np.nan, np.inf, -np.inf])
def test_vectors_not_finite_are_neither_held_nor_moved(hole: float) -> None:
    x, y = units(2, seed=21)
    broken = np.where(np.arange(NDIM) == 3, hole, x)
    bank = ReasoningBank(NDIM)
    assert not bank.add(1, broken, y, 1.0)
    assert not bank.add(1, x, broken, 1.0)
    bank.add(1, x, y, 1.0)
    assert not bank.shift(broken).any()
    assert np.isfinite(bank.shift(x)).all()


WRONG: dict[str, Callable[[ReasoningBank, Array], object]] = {
    "x": lambda bank, v: bank.add(1, v[:-1], v, 1.0),
    "y": lambda bank, v: bank.add(1, v, v[None], 1.0),
    "shift": lambda bank, v: bank.shift(v[:-1]),
    "similarities": lambda bank, v: bank.similarities(v[None]),
    "solve": lambda bank, v: bank.solve([1], v[None], v[None, :-1], [1.0]),
    "solve without a weight": lambda bank, v: bank.solve([1], v[None], v[None], []),
}


@pytest.mark.parametrize("case", WRONG)
def test_another_shape_is_refused(case: str) -> None:
    with pytest.raises(ShapeError):
        WRONG[case](ReasoningBank(NDIM), units(1, seed=0)[0])
