"""Steps that runs share, in order, and steps that occur only in failed runs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_agent.embedders import Embedder
from memory_agent.learning.patterns import MOST_RUNS, RunSteps, shared_steps, steps_of_failed_alone

Embed = Callable[..., RunSteps]

SCAFFOLD = ("Create the project structure", "Add the dependencies", "Write the tests")
OTHER = ("Scaffold the project structure", "Add the dependencies to Cargo.toml", "Write integration tests")
THIRD = ("Read the docs", "Create the structure", "Add dependencies", "Write tests for the module")


def told(run_id: str, *steps: str) -> RunSteps:
    return RunSteps(run_id, steps)


@pytest.fixture
def embedded(embedder: Embedder) -> Embed:
    def embed(run_id: str, *steps: str) -> RunSteps:
        return RunSteps(run_id, steps, np.stack(embedder.embed_texts(list(steps))))

    return embed


def said(runs: list[RunSteps]) -> list[tuple[str, tuple[str, ...]]]:
    return [tuple(step) for step in shared_steps(runs)]


def test_steps_in_other_words_are_shared_in_their_order_with_the_runs_that_took_them(embedded: Embed) -> None:
    runs = [embedded("one", *SCAFFOLD, "Ask for a review"), embedded("two", *OTHER), embedded("three", *THIRD)]
    shared = shared_steps(runs)
    assert [step.text for step in shared] == list(SCAFFOLD)
    assert shared[1].runs == ("one", "two", "three")
    assert all("Ask" not in step.text for step in shared)


def test_steps_in_opposite_order_are_not_shared() -> None:
    (step,) = shared_steps([told("one", "lint", "deploy"), told("two", "deploy", "lint")])
    assert step.runs == ("one", "two")


def test_half_of_the_runs_and_at_least_two_must_share_a_step() -> None:
    runs = [told(f"run-{number}", "lint", f"own {number}") for number in range(4)]
    assert said([*runs, told("last", "deploy")]) == [("lint", ("run-0", "run-1", "run-2", "run-3"))]
    assert said([told("one", "lint", "deploy"), told("two", "deploy"), *(told(f"r-{n}", "x") for n in range(3))]) == [
        ("x", ("r-0", "r-1", "r-2"))
    ]
    assert said([told("one", "lint")]) == said([]) == said([told("one"), told("two")]) == []


def test_the_order_of_runs_changes_only_which_run_is_quoted() -> None:
    runs = [told("one", "a1 begin", "check", "b1 end"), told("two", "a1 begin", "b1 end"), told("three", "a1 begin")]
    shared = {step.text: set(step.runs) for step in shared_steps(runs)}
    assert shared == {step.text: set(step.runs) for step in shared_steps(runs[::-1])}


def test_steps_without_vectors_are_compared_by_their_words_beside_others_that_have_them(embedded: Embed) -> None:
    bare = told("two", "Add the dependencies", "Write tests")
    assert [step.runs for step in shared_steps([embedded("one", *SCAFFOLD), bare])] == [("one", "two")] * 2


def test_a_step_that_only_failed_runs_took_is_named_and_one_that_any_other_took_is_not(embedded: Embed) -> None:
    failed = [
        embedded("f-1", "Generate everything with a template", "Write the tests"),
        embedded("f-2", "Generate the code from a template", "Write tests"),
    ]
    worked = [embedded("w-1", *SCAFFOLD)]
    assert [tuple(step) for step in steps_of_failed_alone(failed, worked)] == [
        ("Generate everything with a template", ("f-1", "f-2"))
    ]
    assert steps_of_failed_alone(failed, [*worked, embedded("w-2", "Generate all with a template")]) == []
    assert steps_of_failed_alone(failed, []) == []
    assert steps_of_failed_alone(failed[:1], worked) == []


steps = st.lists(st.sampled_from(["lint", "deploy", "test it", "review", "measure", ""]), max_size=8)


@given(st.lists(steps, max_size=MOST_RUNS + 2))
def test_shared_steps_are_a_subsequence_of_one_run_and_each_run_named_took_them(runs: list[list[str]]) -> None:
    whole = [told(f"run-{number}", *steps) for number, steps in enumerate(runs)]
    shared = shared_steps(whole)
    by_id = {run.id: run.steps for run in whole}
    for step in shared:
        assert len(step.runs) >= 2
        assert all(step.text in by_id[run_id] for run_id in step.runs)
    if shared:
        assert any(_is_within([step.text for step in shared], list(run.steps)) for run in whole)


def _is_within(part: list[str], whole: list[str]) -> bool:
    rest = iter(whole)
    return all(step in rest for step in part)
