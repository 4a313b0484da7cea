"""Test the usage association: maximum over lessons, its cause, exact forgetting, ties."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sona.association import ALIKE, Reached, UsageAssociation
from sona.errors import ShapeError
from sona.lesson import Vector

NDIM = 8


class Use:
    """A lesson in plain Python, the reference for the vectorised implementation."""

    def __init__(self, number: int, sight: int, used: dict[int, float], weight: float) -> None:
        self.number, self.sight, self.used, self.weight = number, sight, used, weight


def units(count: int, seed: int) -> Vector:
    vectors = np.random.default_rng(seed).normal(size=(count, NDIM)).astype(np.float32)
    vectors[:, 0] += 1.0
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


SIGHTS = units(5, seed=1)


def tell(association: UsageAssociation, use: Use) -> bool:
    return association.add(use.number, SIGHTS[use.sight], list(use.used), list(use.used.values()), use.weight)


def by_definition(uses: list[Use], query: Vector, *, is_weighted: bool = True) -> dict[int, float]:
    gains: dict[int, float] = {}
    for use in uses:
        near = min(max(float(SIGHTS[use.sight] @ query) - 0.2, 0.0), 1.0)
        for memory, credit in use.used.items():
            gains[memory] = max(gains.get(memory, 0.0), credit * near * (use.weight if is_weighted else 1.0))
    return {memory: gain for memory, gain in gains.items() if gain > 0.0}


def bits(reached: Reached) -> tuple[bytes, ...]:
    found = [-1 if cause is None else cause for cause in causes(reached)]
    parts = (reached.memories, reached.amounts, reached.support, reached.unweighted, np.array(found, dtype=np.int64))
    return tuple(part.tobytes() for part in parts)


def causes(reached: Reached) -> list[int | None]:
    return [reached.cause(memory) for memory in reached.memories.tolist()]


used_memories = st.dictionaries(st.integers(0, 6), st.sampled_from([0.5, 1.0]), min_size=1, max_size=4)
some_uses = st.lists(
    st.builds(Use, st.integers(0, 50), st.integers(0, 4), used_memories, st.just(0.0) | st.floats(0.01, 1.0)),
    max_size=12,
    unique_by=lambda use: use.number,
)


@settings(max_examples=100, deadline=None)
@given(some_uses, st.integers(0, 100))
def test_a_memory_gains_the_maximum_over_lessons_and_its_cause_is_that_lesson(uses: list[Use], seed: int) -> None:
    association = UsageAssociation(NDIM)
    assert all(tell(association, use) for use in uses)
    query = units(1, seed)[0]
    reached = association.reach(query)
    assert reached.memories.tolist() == sorted(set(reached.memories.tolist()))
    for found, is_weighted in ((reached.amounts, True), (reached.unweighted, False)):
        expected = by_definition(uses, query, is_weighted=is_weighted)
        amounts = dict(zip(reached.memories.tolist(), found.tolist(), strict=True))
        assert {m: amounts.get(m, 0.0) for m in expected} == pytest.approx(expected, abs=1e-6)
        assert all(amounts[m] < 1e-6 for m in amounts.keys() - expected.keys())  # rounding errors at the floor
    told = {use.number: use for use in uses}
    assert reached.cause(7) is None
    for memory, amount, cause in zip(reached.memories.tolist(), reached.amounts.tolist(), causes(reached), strict=True):
        assert (cause is None) == (amount == 0.0)
        if cause is not None:
            assert by_definition([told[cause]], query)[memory] == pytest.approx(amount, abs=1e-6)


@settings(max_examples=60, deadline=None)
@given(some_uses, st.data())
def test_forgetting_restores_the_state_bit_for_bit(uses: list[Use], data: st.DataObject) -> None:
    gone = {use.number for use in uses if data.draw(st.booleans())}
    forgetful, innocent = UsageAssociation(NDIM), UsageAssociation(NDIM)
    for use in data.draw(st.permutations(uses)):
        tell(forgetful, use)
    for number in gone:
        assert forgetful.forget(number)
    for use in uses:
        assert use.number in gone or tell(innocent, use)
    assert len(forgetful) == len(innocent)
    assert all(bits(forgetful.reach(query)) == bits(innocent.reach(query)) for query in units(5, seed=3))


def test_of_two_equal_causes_the_earlier_lesson_counts() -> None:
    association = UsageAssociation(NDIM)
    for number in (9, 4, 7):
        association.add(number, SIGHTS[0], [1, 2], [1.0, 0.5], 1.0)
    reached = association.reach(SIGHTS[0])
    assert reached.memories.tolist() == [1, 2]
    assert causes(reached) == [4, 4]
    assert reached.amounts.tolist() == pytest.approx([0.8, 0.4], abs=1e-6)


def test_a_lesson_of_less_weight_reaches_less_and_another_becomes_the_cause() -> None:
    association = UsageAssociation(NDIM)
    association.add(1, SIGHTS[0], [5], [1.0], 1.0)
    association.add(2, SIGHTS[0], [5], [1.0], 0.5)
    assert association.reweight(1, 0.25)
    reached = association.reach(SIGHTS[0])
    assert causes(reached) == [2]
    assert reached.amounts.tolist() == pytest.approx([0.4], abs=1e-6)
    assert not association.reweight(3, 1.0)
    assert not association.reweight(2, float("nan"))
    assert not association.reweight(2, -1.0)
    assert association.reweight(2, 0.0)
    assert causes(association.reach(SIGHTS[0])) == [1]


def test_a_lesson_without_weight_reaches_memories_but_raises_none() -> None:
    association = UsageAssociation(NDIM)
    association.add(1, SIGHTS[0], [5, 6], [1.0, 1.0], 0.0)
    association.add(2, SIGHTS[0], [6], [0.5], 1.0)
    reached = association.reach(SIGHTS[0])
    assert (reached.memories.tolist(), causes(reached)) == ([5, 6], [None, 2])
    assert reached.amounts.tolist() == pytest.approx([0.0, 0.4], abs=1e-6)
    assert reached.unweighted.tolist() == pytest.approx([0.8, 0.8], abs=1e-6)
    assert reached.support.tolist() == pytest.approx([0.0, 0.5 * (1.0 - ALIKE)], abs=1e-6)


def test_adding_a_known_number_replaces_the_lesson() -> None:
    association = UsageAssociation(NDIM)
    association.add(1, SIGHTS[0], [5, 6], [1.0, 1.0], 1.0)
    association.add(1, SIGHTS[0], [7], [1.0], 1.0)
    assert association.reach(SIGHTS[0]).memories.tolist() == [7]
    assert len(association) == 1


def test_the_higher_credit_of_a_repeated_memory_counts() -> None:
    association = UsageAssociation(NDIM)
    association.add(1, SIGHTS[0], [5, 5, 5], [0.5, 1.0, 0.5], 1.0)
    assert association.reach(SIGHTS[0]).amounts.tolist() == pytest.approx([0.8], abs=1e-6)


def test_a_request_far_from_all_lessons_reaches_nothing() -> None:
    association = UsageAssociation(NDIM)
    association.add(1, np.eye(NDIM)[0], [5], [1.0], 1.0)
    assert not len(association.reach(np.eye(NDIM)[1]).memories)
    assert not len(UsageAssociation(NDIM).reach(np.eye(NDIM)[1]).memories)


def test_lessons_beyond_the_initial_capacity_all_count() -> None:
    association = UsageAssociation(NDIM)
    sights = units(200, seed=4)
    for number, sight in enumerate(sights):
        association.add(number, sight, [number], [1.0], 1.0)
    for number in range(0, 200, 17):
        reached = association.reach(sights[number])
        assert causes(reached)[int(reached.amounts.argmax())] == number


@pytest.mark.parametrize(
    ("used", "credits", "weight"),
    [([], [], 1.0), ([1], [0.0], 1.0), ([1], [1.0], -1.0), ([1], [1.0], float("nan")), ([1], [float("inf")], 1.0)],
)
def test_a_lesson_that_can_reach_nothing_is_not_held(used: list[int], credits: list[float], weight: float) -> None:
    association = UsageAssociation(NDIM)
    assert not association.add(1, SIGHTS[0], used, credits, weight)
    assert len(association) == 0


@pytest.mark.parametrize("hole", [np.nan, np.inf])
def test_a_request_that_is_not_finite_is_not_held_and_reaches_nothing(hole: float) -> None:
    broken = np.where(np.arange(NDIM) == 2, hole, SIGHTS[0])
    association = UsageAssociation(NDIM)
    assert not association.add(1, broken, [5], [1.0], 1.0)
    association.add(1, SIGHTS[0], [5], [1.0], 1.0)
    assert not len(association.reach(broken).memories)


WRONG: dict[str, Callable[[UsageAssociation], object]] = {
    "add": lambda association: association.add(1, SIGHTS[0][:-1], [1], [1.0], 1.0),
    "reach": lambda association: association.reach(SIGHTS),
    "credits": lambda association: association.add(1, SIGHTS[0], [1, 2], [1.0], 1.0),
}


@pytest.mark.parametrize("case", WRONG)
def test_another_shape_is_refused(case: str) -> None:
    with pytest.raises(ShapeError):
        WRONG[case](UsageAssociation(NDIM))


def test_support_sums_over_similar_lessons_only() -> None:
    association = UsageAssociation(NDIM)
    query, other = units(2, 4)
    for number in (1, 2, 3):
        association.add(number, query, (7,), (1.0,), 0.5)
    association.add(4, other, (7, 8), (1.0, 1.0), 1.0)
    reached = association.reach(query)
    support = dict(zip(reached.memories.tolist(), reached.support.tolist(), strict=True))
    cosine = float(query @ other)
    assert cosine < ALIKE
    assert support[7] == pytest.approx(3 * 0.5 * (1.0 - ALIKE), abs=1e-6)
    assert support.get(8, 0.0) == 0.0
