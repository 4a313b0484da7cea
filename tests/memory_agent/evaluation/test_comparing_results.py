"""Test the comparison of two runs: the bootstrap agrees with an exact computation, and invalid inputs are rejected."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_agent.errors import InvalidInputError
from memory_agent.evaluation import Results, bootstrap, compare
from memory_agent.evaluation.results import FORMAT, Header, Line

differences = st.lists(st.floats(-1, 1, width=16), min_size=2, max_size=30)


def results(
    values: Sequence[float],
    *,
    digest: str = "d",
    users: Sequence[str] | None = None,
    groups: Sequence[str] | None = None,
    first: int = 0,
    top_k: int = 10,
) -> Results:
    """Return results with one metric, `recall@1`, for questions numbered from `first`."""
    header = Header(
        format=FORMAT,
        dataset="own",
        digest=digest,
        users=("0",),
        mode="hybrid",
        top_k=top_k,
        embedded=True,
        version="1",
        model="m",
        settings={"recall": {"vector_weight": 0.6}},
        left_out=(),
    )
    lines = tuple(
        Line(
            id=str(number + first),
            user=users[number] if users else "0",
            category="1",
            ranked=(("a", None),),
            relevant={"a": 1},
            metrics={"recall@1": value},
            took_ms=1.0,
            degraded=(),
            group=groups[number] if groups else "",
        )
        for number, value in enumerate(values)
    )
    return Results(Path("results"), header, lines)


def test_the_bootstrap_agrees_with_every_resample_there_is() -> None:
    values = [0.0, 0.25, 1.0, -0.5]
    every = np.array([np.mean(draw) for draw in itertools.product(values, repeat=4)])
    drawn = bootstrap(np.array([values]).T, np.arange(4), 40_000, seed=1)[:, 0]
    assert drawn.mean() == pytest.approx(every.mean(), abs=0.01)
    assert drawn.std() == pytest.approx(every.std(), abs=0.01)
    assert (drawn > 0).mean() == pytest.approx((every > 0).mean(), abs=0.01)
    assert set(np.round(drawn, 9)) <= set(np.round(every, 9))


def test_conversations_are_resampled_as_a_whole() -> None:
    values = np.array([[1.0], [1.0], [1.0], [0.0]])
    drawn = bootstrap(values, np.array([0, 0, 0, 1]), 20_000, seed=1)[:, 0]
    # Two draws from two conversations (with 3 questions and 1 question) yield one of three samples: the first
    # conversation twice, both conversations once, or the second conversation twice.
    assert set(drawn) == {1.0, 0.75, 0.0}
    assert (drawn == 0.75).mean() == pytest.approx(0.5, abs=0.02)


def test_a_question_without_the_metric_does_not_count() -> None:
    drawn = bootstrap(np.array([[1.0, np.nan], [1.0, 0.5]]), np.arange(2), 1_000, seed=1)
    assert set(drawn[:, 0]) == {1.0}
    assert set(drawn[~np.isnan(drawn[:, 1]), 1]) == {0.5}
    assert np.isnan(drawn[:, 1]).mean() == pytest.approx(0.25, abs=0.06)


@given(values=differences)
def test_resampled_means_stay_within_the_differences_and_repeat_with_the_seed(values: list[float]) -> None:
    column = np.array([values]).T
    drawn = bootstrap(column, np.arange(len(values)), 200, seed=0)
    assert np.array_equal(drawn, bootstrap(column, np.arange(len(values)), 200, seed=0))
    assert drawn.min() >= min(values) - 1e-9
    assert drawn.max() <= max(values) + 1e-9


@given(values=st.lists(st.tuples(st.floats(0, 1, width=16), st.floats(0, 1, width=16)), min_size=1, max_size=20))
def test_swapping_the_runs_swaps_the_signs(values: list[tuple[float, float]]) -> None:
    a, b = results([own for own, _ in values]), results([other for _, other in values])
    (there,), (back,) = compare(a, b, resamples=300).metrics, compare(b, a, resamples=300).metrics
    assert there.difference == pytest.approx(-back.difference)
    assert (there.low, there.high) == (pytest.approx(-back.high, nan_ok=True), pytest.approx(-back.low, nan_ok=True))
    assert (there.better, there.worse) == (back.worse, back.better)


def test_a_run_against_itself_has_no_difference_at_all() -> None:
    (metric,) = compare(results([0.0, 1.0, 0.5]), results([0.0, 1.0, 0.5])).metrics
    assert (metric.mean_a, metric.mean_b, metric.difference) == (0.5, 0.5, 0)
    assert (metric.low, metric.high, metric.share_above_0, metric.better, metric.worse) == (0, 0, 0, 0, 0)


def test_a_gain_in_every_question_is_certain_and_a_coin_toss_is_not() -> None:
    (sure,) = compare(results([0.0] * 50), results([0.5] * 50)).metrics
    assert (sure.low, sure.high, sure.share_above_0, sure.better) == (0.5, 0.5, 1.0, 50)
    (coin,) = compare(results([0.0, 1.0] * 25), results([1.0, 0.0] * 25)).metrics
    assert coin.low < 0 < coin.high
    assert (coin.better, coin.worse) == (25, 25)


def test_the_interval_is_wider_when_the_questions_of_a_conversation_go_together() -> None:
    users = [str(number // 20) for number in range(100)]
    other = [float(int(user) % 2) for user in users]
    a, b = results([0.0] * 100, users=users), results(other, users=users)
    (alone,), (whole,) = compare(a, b).metrics, compare(a, b, "conversation").metrics
    assert alone.difference == whole.difference == pytest.approx(0.4)
    assert whole.high - whole.low > 2 * (alone.high - alone.low)
    assert compare(a, b, "conversation").units == 5


def test_the_groups_of_a_dataset_are_resampled_as_conversations_are() -> None:
    values, letters = [0.0, 0.0, 1.0, 1.0, 1.0, 0.5], list("aabbcc")
    of_users = compare(results([0.0] * 6, users=letters), results(values, users=letters), "conversation")
    of_groups = compare(results([0.0] * 6, groups=letters), results(values, groups=letters), "conversation")
    assert of_groups.units == 3
    assert of_groups.metrics == of_users.metrics


@pytest.mark.parametrize("conversations", [1, 2, 3])
def test_fewer_than_three_conversations_give_no_interval(conversations: int) -> None:
    users = [str(number % conversations) for number in range(30)]
    a, b = results([0.0] * 30, users=users), results([0.5] * 30, users=users)
    (metric,) = compare(a, b, "conversation").metrics
    bounds = (metric.low, metric.high, metric.share_above_0)
    if conversations < 3:
        assert all(map(math.isnan, bounds))
        assert json.loads(msgspec.json.encode(metric))["low"] is None
    else:
        assert bounds == (0.5, 0.5, 1.0)
    assert (metric.difference, metric.better) == (0.5, 30)


def test_a_metric_of_only_two_conversations_has_no_interval() -> None:
    users = ["0", "1", "2", "3"]
    a, b = results([0.0] * 4, users=users), results([1.0] * 4, users=users)
    rare = [
        replace(run, lines=tuple(
            msgspec.structs.replace(line, metrics=line.metrics | ({"mrr": 1.0} if line.user < "2" else {}))
            for line in run.lines
        ))
        for run in (a, b)
    ]  # fmt: skip
    everywhere, in_two = compare(*rare, "conversation").metrics
    assert (everywhere.metric, everywhere.low, in_two.metric, in_two.questions) == ("recall@1", 1.0, "mrr", 2)
    assert math.isnan(in_two.low)


def test_only_questions_that_both_asked_are_compared() -> None:
    comparison = compare(results([0.0, 0.0, 0.0]), results([1.0, 1.0], first=2))
    assert (comparison.questions, comparison.only_a, comparison.only_b) == (1, 2, 1)
    assert comparison.metrics[0].difference == 1


def test_differences_between_the_settings_are_reported() -> None:
    a, b = results([0.0]), results([0.0], top_k=5)
    assert compare(a, b).changed == {"top_k": (10, 5)}
    assert compare(a, a).changed == {}


def test_runs_over_other_questions_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="covers different questions from results: digest is e, not d"):
        compare(results([0.0]), results([0.0], digest="e"))
    with pytest.raises(InvalidInputError, match="has no question in common"):
        compare(results([0.0]), results([0.0], first=1))
