"""A growing array behaves like a list, its views never change, and an append takes amortized constant time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from memory_agent.storage.column import Column

View = npt.NDArray[np.int64]

steps = st.lists(
    st.tuples(st.just("append"), st.integers(0, 90))
    | st.tuples(st.just("set"), st.integers(0, 3))
    | st.tuples(st.just("view"), st.just(0)),
    max_size=60,
)


@given(steps, st.integers(0, 300), st.integers(0, 2**32))
@settings(deadline=None)
def test_any_history_equals_that_of_a_list_and_no_view_changes(
    history: list[tuple[str, int]], first: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    held = rng.integers(0, 1_000, first).tolist()
    column = Column(np.array(held, dtype=np.int64))
    views: list[tuple[View, list[int]]] = []
    for step, count in history:
        added = rng.integers(0, 1_000, count)
        if step == "append":
            column.append(added)
            held += added.tolist()
        elif step == "set" and held:
            places = rng.integers(0, len(held), count)
            column.set(places, added)
            for place, value in zip(places.tolist(), added.tolist(), strict=True):
                held[place] = value
        else:
            views.append((column.view(), list(held)))
    assert column.view().tolist() == held
    assert len(column) == len(held)
    for view, then in views:
        assert view.tolist() == then


def test_an_array_that_is_full_has_been_copied_by_the_appends_before() -> None:
    column, step = Column(np.empty(0, dtype=np.int64)), 64
    left: list[int] = []
    for start in range(0, 200_000, step):
        before, uncopied = column._values, len(column) - column._copied
        column.append(np.arange(start, start + step))
        if column._values is not before and start > 16 * step:
            left.append(uncopied)
    assert len(left) > 4
    assert max(left) <= 16 * step
    assert np.array_equal(column.view(), np.arange(len(column)))


def test_values_overwritten_while_a_copy_is_made_are_in_the_copy() -> None:
    column = Column(np.empty(0, dtype=np.int64))
    column.append([0] * 1_000)
    column.append([0] * 950)
    assert 0 < column._copied <= len(column) < len(column._values)
    column.set(np.array([0, 1_949]), [7, 8])
    column.append([0] * 100)
    assert column.view()[[0, 1_949]].tolist() == [7, 8]
