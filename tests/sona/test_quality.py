"""Test the baselines: exact removal, independence of order, clipping and weighting."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sona.errors import DamagedStateError
from sona.quality import Baselines, weight

KINDS = st.sampled_from(["run", "deploy"])
QUALITIES = st.floats(0.0, 1.0)
RUNS = st.lists(st.tuples(KINDS, QUALITIES), max_size=12)


def after(runs: list[tuple[str, float]]) -> Baselines:
    baselines = Baselines()
    for kind, quality in runs:
        baselines.add(kind, quality)
    return baselines


@pytest.mark.parametrize(
    ("qualities", "baseline"),
    [
        ([], 0.6),
        ([0.9], (3.6 + 0.9) / 7),
        ([0.8, 0.4, 0.9], (3.6 + 2.1) / 9),
        ([0.0] * 10, 0.5),
        ([1.0] * 100, 0.8),
    ],
)
def test_a_baseline_starts_at_six_tenths_and_follows_the_mean_between_its_bounds(
    qualities: list[float], baseline: float
) -> None:
    assert after([("run", quality) for quality in qualities]).of("run") == pytest.approx(baseline, abs=1e-12)


def test_a_baseline_is_that_of_its_own_kind() -> None:
    baselines = after([("deploy", 1.0)] * 50)
    assert baselines.of("deploy") == 0.8
    assert baselines.of("run") == 0.6


@given(RUNS, RUNS, st.randoms(use_true_random=False))
def test_runs_removed_again_leave_no_trace_in_whatever_order(
    kept: list[tuple[str, float]], gone: list[tuple[str, float]], chance: random.Random
) -> None:
    mixed = kept + gone
    chance.shuffle(mixed)
    baselines = after(mixed)
    for kind, quality in chance.sample(gone, len(gone)):
        baselines.remove(kind, quality)
    assert baselines.to_bytes() == after(kept).to_bytes()
    assert baselines.of("run") == after(kept).of("run")


@given(RUNS, KINDS, QUALITIES, QUALITIES)
def test_a_revised_run_counts_as_if_it_had_always_ended_so(
    runs: list[tuple[str, float]], kind: str, old: float, new: float
) -> None:
    revised = after([*runs, (kind, old)])
    revised.revise(kind, old, new)
    assert revised.to_bytes() == after([*runs, (kind, new)]).to_bytes()


@given(RUNS)
def test_the_state_round_trips_byte_for_byte(runs: list[tuple[str, float]]) -> None:
    baselines = after(runs)
    restored = Baselines.from_bytes(baselines.to_bytes())
    assert restored.to_bytes() == baselines.to_bytes()
    assert [restored.of(kind) for kind in ("run", "deploy")] == [baselines.of(kind) for kind in ("run", "deploy")]


def test_a_run_that_was_never_added_cannot_be_removed_or_revised() -> None:
    baselines = after([("run", 0.4)])
    before = baselines.to_bytes()
    for refused in (
        lambda: baselines.remove("run", 0.9),
        lambda: baselines.remove("deploy", 0.0),
        lambda: baselines.revise("run", 0.9, 0.1),
    ):
        with pytest.raises(ValueError):
            refused()
    assert baselines.to_bytes() == before


@pytest.mark.parametrize("quality", [-0.001, 1.001, float("nan"), float("inf")])
def test_invalid_qualities_are_refused(quality: float) -> None:
    with pytest.raises(ValueError, match="a quality must be between 0 and 1"):
        Baselines().add("run", quality)


@given(st.binary(max_size=100))
def test_arbitrary_bytes_are_refused_without_a_crash(data: bytes) -> None:
    with pytest.raises(DamagedStateError):
        Baselines.from_bytes(data)


@pytest.mark.parametrize(
    "state",
    [[2, []], [1, [["run", 1, 1001]]], [1, [["run", -1, 0]]], [1, [["run", 1, -1]]]],
    ids=["another version", "more than ones", "less than none", "less than zeros"],
)
def test_an_impossible_state_is_refused(state: list[object]) -> None:
    with pytest.raises(DamagedStateError):
        Baselines.from_bytes(msgspec.msgpack.encode(state))


def test_the_weight_is_clipped_at_zero_and_scaled_by_credit() -> None:
    assert weight(0.4, 0.6, credit=1.0) == 0.0
    assert weight(0.8, 0.6, credit=1.0) == pytest.approx(0.5)
    assert weight(0.8, 0.6, credit=0.5) == pytest.approx(0.25)
    assert weight(1.0, 0.6, credit=1.0) == 1.0
    assert weight(1.0, 0.6, credit=0.0) == 0.0


@given(QUALITIES, QUALITIES, st.floats(0.5, 0.8))
def test_a_better_run_never_weighs_less(one: float, other: float, baseline: float) -> None:
    worse, better = sorted((one, other))
    assert 0.0 <= weight(worse, baseline, 1.0) <= weight(better, baseline, 1.0) <= 1.0
