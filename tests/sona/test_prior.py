"""Test the prior: shrunken mean, separate kinds, exact removal, and the prediction of real runs."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sona.errors import DamagedStateError
from sona.prior import MemoryPrior

AIRLINE = Path(__file__).parents[3] / "shared" / "data" / "airline_runs_dev.json"

Observation = tuple[int, str, float]
OBSERVATIONS = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from(["run", "deploy"]), st.floats(0.0, 1.0)), max_size=12
)


def after(observations: Sequence[Observation]) -> MemoryPrior:
    prior = MemoryPrior()
    for memory, kind, quality in observations:
        prior.add(memory, kind, quality)
    return prior


def test_theta_is_the_mean_of_the_runs_shrunk_towards_the_mean_of_the_kind() -> None:
    prior = after([(1, "run", 1.0), (1, "run", 1.0), (1, "run", 1.0), (2, "run", 0.2), (2, "run", 0.3)])
    theta_0 = 3.5 / 5
    assert prior.mean("run") == pytest.approx(theta_0)
    assert prior.theta(1, "run") == pytest.approx((3.0 + theta_0) / 4)
    assert prior.theta(2, "run") == pytest.approx((0.5 + theta_0) / 3)
    assert prior.theta(3, "run") == pytest.approx(theta_0)
    assert MemoryPrior().theta(1, "run") == pytest.approx(0.6)


def test_the_mean_counts_as_kappa_observations() -> None:
    prior = MemoryPrior(kappa=9.0)
    for memory, quality in ((1, 1.0), (2, 0.0)):
        prior.add(memory, "run", quality)
    assert prior.theta(1, "run") == pytest.approx((1.0 + 9 * 0.5) / 10)


def test_there_is_no_lift_before_three_runs() -> None:
    twice = [(1, "run", 1.0), (1, "run", 1.0), (2, "run", 0.0), (2, "run", 0.0)]
    prior = after(twice)
    assert prior.lift(1) == 0.0
    assert prior.lift(1, enough=2) == pytest.approx((2.0 + 0.5) / 3 - 0.5)
    prior.add(1, "run", 1.0)
    assert prior.lift(1) == pytest.approx(prior.theta(1, "run") - prior.mean("run"))
    assert prior.lift(1) > 0.0
    assert prior.lift(99) == 0.0


def test_a_hard_kind_of_run_does_not_lower_a_memory() -> None:
    hard = [(number, "deploy", 0.1) for number in (1, 1, 1, 2, 2, 2)]
    easy = [(number, "run", 0.9) for number in (3, 3, 3, 4, 4, 4)]
    prior = after(hard + easy)
    assert [prior.lift(memory) for memory in (1, 2, 3, 4)] == pytest.approx([0.0] * 4, abs=1e-12)
    prior.add(1, "deploy", 0.9)
    assert prior.lift(1) == pytest.approx((0.3 + 0.9 - 4 * 1.5 / 7) / 5)


@given(OBSERVATIONS)
def test_the_lifts_of_one_kind_are_theta_less_its_mean_and_stay_within_reach(observations: list[Observation]) -> None:
    prior = after([(memory, "run", quality) for memory, _, quality in observations])
    for memory in range(5):
        assert -1e-9 <= prior.theta(memory, "run") <= 1.0 + 1e-9
        assert prior.lift(memory, enough=0) == pytest.approx(prior.theta(memory, "run") - prior.mean("run"))


@given(OBSERVATIONS, OBSERVATIONS, st.randoms(use_true_random=False))
def test_observations_removed_again_leave_no_trace_in_whatever_order(
    kept: list[Observation], gone: list[Observation], chance: random.Random
) -> None:
    mixed = kept + gone
    chance.shuffle(mixed)
    prior = after(mixed)
    for observation in chance.sample(gone, len(gone)):
        prior.remove(*observation)
    clean = after(kept)
    assert prior.to_bytes() == clean.to_bytes()
    assert len(prior) == len(clean)
    assert [prior.theta(memory, "run") for memory in range(5)] == [clean.theta(memory, "run") for memory in range(5)]


@given(OBSERVATIONS, st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_a_revised_observation_counts_as_if_it_had_always_been_so(
    observations: list[Observation], old: float, new: float
) -> None:
    revised = after([*observations, (7, "run", old)])
    revised.revise(7, "run", old, new)
    assert revised.to_bytes() == after([*observations, (7, "run", new)]).to_bytes()


@given(OBSERVATIONS)
def test_the_state_round_trips_byte_for_byte(observations: list[Observation]) -> None:
    prior = after(observations)
    restored = MemoryPrior.from_bytes(prior.to_bytes())
    assert restored.to_bytes() == prior.to_bytes()
    assert [restored.theta(memory, "run") for memory in range(5)] == [prior.theta(m, "run") for m in range(5)]


def test_an_observation_that_was_never_made_cannot_be_removed() -> None:
    prior = after([(1, "run", 0.4), (2, "run", 1.0)])
    before = prior.to_bytes()
    with pytest.raises(ValueError):
        prior.remove(1, "run", 0.9)
    with pytest.raises(ValueError):
        prior.remove(3, "run", 0.4)
    assert prior.to_bytes() == before


@given(st.binary(max_size=100))
def test_arbitrary_bytes_are_refused_without_a_crash(data: bytes) -> None:
    with pytest.raises(DamagedStateError):
        MemoryPrior.from_bytes(data)


@pytest.mark.parametrize(
    "state",
    [[2, []], [1, [[5, "run", 1, 1001]]], [1, [[5, "run", -1, 0]]]],
    ids=["another version", "more than ones", "less than none"],
)
def test_an_impossible_state_is_refused(state: list[object]) -> None:
    with pytest.raises(DamagedStateError):
        MemoryPrior.from_bytes(msgspec.msgpack.encode(state))


@pytest.mark.skipif(not AIRLINE.exists(), reason=f"{AIRLINE.name} is not here")
def test_the_first_trials_of_a_task_predict_how_later_trials_end() -> None:
    runs = json.loads(AIRLINE.read_text(encoding="utf-8"))
    prior = after([(run["task_id"], "airline", run["reward"]) for run in runs if run["trial"] < 2])
    later = [run for run in runs if run["trial"] >= 2]
    ends = np.array([run["reward"] for run in later])
    expected = np.array([prior.theta(run["task_id"], "airline") for run in later])
    brier, of_the_mean = np.mean((expected - ends) ** 2), np.mean((prior.mean("airline") - ends) ** 2)
    print(f"Brier score of {len(later)} runs of {len(prior)} tasks: prior {brier:.3f}, mean {of_the_mean:.3f}")
    assert brier < of_the_mean - 0.02
    shuffled = np.mean((np.random.default_rng(0).permutation(expected) - ends) ** 2)
    assert shuffled > of_the_mean  # the predictions help only if each is paired with its own task
