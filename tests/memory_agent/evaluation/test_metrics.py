"""The figures of an evaluation, by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_agent.evaluation.metrics import mean, quantiles_ms, recall_at_k

ids = st.lists(st.sampled_from("abcdefghij"), unique=True)


def test_recall_is_the_share_of_the_relevant_among_the_first_k() -> None:
    ranked = ["c", "a", "x", "b"]
    assert recall_at_k(ranked, {"a", "b"}, 1) == 0
    assert recall_at_k(ranked, {"a", "b"}, 2) == 0.5
    assert recall_at_k(ranked, {"a", "b"}, 4) == 1
    assert recall_at_k(ranked, {"a", "b"}, 50) == 1


def test_a_memory_that_comes_back_twice_counts_once() -> None:
    assert recall_at_k(["a", "a"], {"a", "b"}, 2) == 0.5


@given(ranked=ids, relevant=ids.filter(bool))
def test_recall_never_falls_with_k_and_ends_at_what_was_found(ranked: list[str], relevant: list[str]) -> None:
    curve = [recall_at_k(ranked, relevant, k) for k in range(len(ranked) + 1)]
    assert curve == sorted(curve)
    assert curve[0] == 0
    assert curve[-1] == len(set(ranked) & set(relevant)) / len(relevant)


def test_nothing_measured_is_none_and_not_zero() -> None:
    assert mean([]) is None
    assert quantiles_ms([]) == {"p50": None, "p99": None}


def test_quantiles_are_of_the_durations() -> None:
    assert mean([1.0, 2.0]) == 1.5
    assert quantiles_ms([float(value) for value in range(101)]) == {"p50": 50.0, "p99": pytest.approx(99.0)}
