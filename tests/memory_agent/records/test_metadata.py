"""Metadata as values at paths: JSON equality at any depth, and no unexpected error for any input."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from memory_agent.errors import InvalidInputError
from memory_agent.records.memories import MetadataValue
from memory_agent.records.metadata import MOST_PATH_CHARS, check_conditions, matches, number_of, values_of

leaves = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text()
near = st.sampled_from([0, 1, -1, 2**53, 2**53 + 1, 2**63]).flatmap(
    lambda n: st.sampled_from([n, float(n), str(n), bool(n)])
)


@example(one=1, other=True)
@example(one=False, other=0.0)
@example(one=1, other=1.0)
@example(one="1", other=1)
@example(one=None, other="None")
@example(one=2**53 + 1, other=2.0**53)
@given(one=leaves | near, other=leaves | near)
def test_values_have_one_number_exactly_where_json_has_them_equal(one: MetadataValue, other: MetadataValue) -> None:
    same_kind = isinstance(one, bool) == isinstance(other, bool)
    assert (number_of("a", one) == number_of("a", other)) == (same_kind and one == other)


@given(path=st.text(), value=leaves, other=st.text())
def test_a_value_belongs_to_its_path(path: str, value: MetadataValue, other: str) -> None:
    assert (number_of(path, value) == number_of(other, value)) == (path == other)


@pytest.mark.parametrize(
    ("conditions", "is_match"),
    [
        ({}, True),
        ({"host": "staging"}, True),
        ({"host": ("production", "staging")}, True),
        ({"host": "production"}, False),
        ({"host": "staging", "floor": 3}, True),
        ({"host": "staging", "floor": 4}, False),
        ({"floor": 3.0}, True),
        ({"floor": True}, False),
        ({"floor": "3"}, False),
        ({"none": None}, True),
        ({"missing": None}, False),
        ({"labels": "b"}, True),
        ({"report.findings.claim": "y"}, True),
        ({"report.findings.deep.er": 0}, True),
        ({"report.findings": "y"}, False),
        ({"report": None}, False),
        ({"a.b": 1}, True),
        ({"": ""}, True),
        ({"nan": None}, False),
    ],
)
def test_values_that_match(conditions: dict[str, Any], is_match: bool) -> None:
    metadata = {
        "host": "staging",
        "floor": 3,
        "none": None,
        "labels": ["a", ["b"]],
        "report": {"findings": [{"claim": "x"}, {"claim": "y", "deep": {"er": False or 0}}]},
        "a.b": 1,
        "": "",
        "nan": float("nan"),
        "bytes": b"\xff",
    }
    assert matches(metadata, conditions) is is_match


def test_metadata_of_any_depth_has_values() -> None:
    value: Any = "bottom"
    for _ in range(50_000):
        value = [value]
    deep: Any = 1
    for _ in range(500):
        deep = {"k": deep}
    assert matches({"a": value}, {"a": "bottom"})
    assert matches(deep, {".".join(["k"] * 500): 1})
    assert list(values_of({"long": "x" * 100_000})) == [("long", "x" * 100_000)]


def test_lists_and_objects_beside_each_other_keep_their_paths() -> None:
    metadata = {"a": [1, {"b": [2, 3]}, 4], "c": {"d": [5], "e": 6}}
    assert sorted(values_of(metadata)) == [("a", 1), ("a", 4), ("a.b", 2), ("a.b", 3), ("c.d", 5), ("c.e", 6)]


def test_long_paths_cost_no_more_than_they_take_in_a_request() -> None:
    key, below = "k" * 200_000, {str(number): number for number in range(9_000)}
    tracemalloc.start()
    try:
        found = list(values_of({key: below, "short": 1, "nested": {"l" * MOST_PATH_CHARS: below}}))
        most_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found == [("short", 1)]
    assert most_bytes < 4 * len(key)
    longest = "p" * MOST_PATH_CHARS
    assert matches({longest: 1}, {longest: 1})
    with pytest.raises(InvalidInputError, match="the limit is 1000"):
        check_conditions("f", {longest + "p": 1})


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ((), "f.a"),
        (float("inf"), "f.a"),
        ((1, float("nan")), "f.a"),
        (1 << 64, "f.a"),
        ("\ud800", "f.a"),
        ({"b": 1}, "f.a"),
        ([1], "f.a"),
        (tuple(range(1_001)), "f"),
    ],
)
def test_invalid_conditions_are_refused_with_their_path(values: Any, field: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        check_conditions("f", {"a": values})
    assert caught.value.field == field
    json.dumps(str(caught.value)).encode()


def test_a_path_that_is_not_valid_unicode_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="not valid Unicode"):
        check_conditions("f", {"\ud800": 1})
