"""A run id that is reused after its run ended names a new run, regardless of the order of events."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from run_samples import (
    LATER,
    OBJECTIVE,
    at,
    begin,
    end,
    event,
    failure,
    note,
    qualities,
    step,
    things_to_use,
    without_model,
)
from store_checks import verified

from memory_agent.errors import RunEndedError
from memory_agent.memory import Memory
from memory_agent.records.trajectories import Trajectory

BREAD = "Bake bread"
RECALLS = ("01KHJY9080NWG22H9Q8BBD7B80", "01KHJY9080NWG22H9Q8BBD7B81", "01KHJY9080NWG22H9Q8BBD7B82")


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    with without_model(tmp_path / "alice") as memory:
        yield memory


def named(made: dict[str, Any], event_id: str) -> dict[str, Any]:
    return made | {"event_id": event_id}


def again(run_id: str, minute: float) -> str:
    return f"{run_id}@{at(minute):%Y-%m-%dT%H:%M:%S}Z"


def story(things: list[str]) -> list[dict[str, Any]]:
    """Return events of three runs with one id and of another run, with repeats, late reports, recalls and feedback."""
    return [
        begin("one", 0, recall_id=RECALLS[0], session_id="s-1"),
        step("one", 1, 2, memory_ids=things[:1]),
        failure("one", 5),
        step("one", 2, 6),
        named(begin("one", 20, BREAD, session_id="s-2"), "two-begin"),
        named(begin("one", 22, "Bake more bread"), "two-begin-again"),
        named(step("one", 3, 24, memory_ids=things[1:2]), "two-step"),
        named(end("one", 30), "two-end"),
        event("two-approval", "feedback.approved", 31, "one", comment="That is what I wanted"),
        named(begin("one", 40, "Water the plants"), "three-begin"),
        event("late-feedback", "feedback.recall", 44, recall_id=RECALLS[0], memory_ids=[things[2]], rating=1),
        named(failure("one", 45), "three-failure"),
        begin("other", 41, "Paint the fence"),
        end("other", 47),
    ]


def prepared(memory: Memory) -> list[str]:
    things = things_to_use(memory)
    note(memory, RECALLS[0], -1, things)
    note(memory, RECALLS[1], 23, things, by_run="one")
    note(memory, RECALLS[2], 42, things, by_run="one")
    return things


State = tuple[dict[str, Trajectory], dict[str, float | None], dict[str, str | None]]


def state_of(memory: Memory) -> State:
    assert verified(memory._archive.store)
    owners = {name: memory._archive.store.recall_note(name) for name in RECALLS}
    runs = {run.id: run for run in memory.runs.list()}
    return runs, qualities(memory), {name: None if found is None else found.run_id for name, found in owners.items()}


@pytest.fixture(scope="module")
def in_order() -> Iterator[State]:
    with tempfile.TemporaryDirectory() as folder, without_model(Path(folder) / "alice") as memory:
        for told in story(prepared(memory)):
            memory.ingest([told], now=LATER)
        yield state_of(memory)


def test_a_begin_after_the_end_starts_another_run_and_leaves_the_former_unchanged(in_order: State) -> None:
    runs, records, owners = in_order
    two, three = again("one", 20), again("one", 40)
    assert list(runs) == ["other", three, two, "one"]
    assert [runs[name].objective for name in ("one", two, three)] == [OBJECTIVE, BREAD, "Water the plants"]
    assert [runs[name].outcome for name in ("one", two, three)] == ["failed", "completed", "failed"]
    assert [runs[name].session_id for name in ("one", two, three)] == ["s-1", "s-2", None]
    assert [[step.event_id for step in runs[name].steps] for name in ("one", two)] == [
        ["one-step-1", "one-step-2"],
        ["two-step"],
    ]
    assert (records["one-step-1"], records["two-step"], records["three-begin"]) == (0.0, 1.0, 0.0)
    assert owners == {RECALLS[0]: "one", RECALLS[1]: two, RECALLS[2]: three}
    assert len(runs["one"].used) == 2, "feedback on a recall belongs to its run, even if another began since"


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_order_with_any_repetition_gives_the_same_runs(in_order: State, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder, without_model(Path(folder) / "alice") as memory:
        events = story(prepared(memory))
        order = data.draw(st.permutations(range(len(events))))
        order = order + data.draw(st.lists(st.sampled_from(range(len(events))), max_size=6))
        while order:
            size = data.draw(st.integers(1, len(order)))
            memory.ingest([events[place] for place in order[:size]], now=LATER)
            order = order[size:]
        assert state_of(memory) == in_order


def test_a_repeated_begin_starts_no_run(memory: Memory) -> None:
    told = [begin("one", 0), end("one", 5)]
    memory.ingest(told, now=LATER)
    memory.ingest(told[:1], now=LATER)
    memory.ingest([named(told[0], "another-id-of-the-same-start")], now=LATER)
    assert [run.id for run in memory.runs.list()] == ["one"]


def test_an_event_with_the_full_id_belongs_to_that_run(memory: Memory) -> None:
    memory.ingest(story(prepared(memory)), now=LATER)
    two = again("one", 20)
    memory.ingest([named(step(two, 9, 60), "two-later")], now=LATER)
    run = memory.runs.get(two)
    assert run is not None
    assert (run.id, [step.event_id for step in run.steps][:1], len(run.steps)) == (two, ["two-step"], 2)
    memory.ingest([named(begin("one", 19, BREAD), "two-earlier")], now=LATER)
    assert [len(run.steps) for run in memory.runs.list() if run.id == again("one", 19)] == [2]


def test_forgetting_a_session_forgets_one_run_of_an_id_for_good(memory: Memory) -> None:
    told = story(prepared(memory))
    memory.ingest(told, now=LATER)
    two, three = again("one", 20), again("one", 40)
    memory.forget_session("s-2")
    assert [run.id for run in memory.runs.list()] == ["other", three, "one"]
    memory.ingest([named(event, f"{event['event_id']}-repeated") for event in told], now=LATER)
    runs = {run.id: run for run in memory.runs.list()}
    assert two not in runs
    assert [len(run.steps) for name, run in runs.items() if name in ("one", three)] == [0, 4]
    memory.ingest([named(begin("one", 90, "Mow the lawn"), "four-begin")], now=LATER)
    assert memory.runs.list()[0].objective == "Mow the lawn"


def test_memories_of_a_former_run_with_the_same_id_are_recalled(tmp_path: Path) -> None:
    with without_model(tmp_path / "alice") as memory:
        memory.ingest([begin("one", 0), step("one", 1, 2), failure("one", 5)], now=at(6))
        memory.ingest([named(begin("one", 200), "two-begin"), named(step("one", 2, 202), "two-step")], now=at(203))
        found = memory.recall("token refresh report", by_run="one", min_relevance=0, now=at(204)).memories
        assert [memory.record.event_id for memory in found] == ["one-step-1"]


def test_beginning_a_run_that_ended_is_refused_with_the_time_of_its_end(memory: Memory) -> None:
    memory.runs.begin(OBJECTIVE, "one", event_id="the-begin", now=at(0))
    memory.runs.end("one", now=at(5))
    with pytest.raises(RunEndedError, match="run one ended at 2026-02-16T10:05:00"):
        memory.runs.begin(BREAD, "one", now=at(9))
    assert memory.runs.begin(OBJECTIVE, "one", event_id="the-begin", now=at(9)).state == "ended"
    assert [(run.id, run.objective) for run in memory.runs.list()] == [("one", OBJECTIVE)]


def test_one_id_used_for_ever_leaves_each_run_small(memory: Memory) -> None:
    for number in range(40):
        told = [begin("main", number * 10, f"Task {number}"), end("main", number * 10 + 5)]
        memory.ingest([named(one, f"{one['event_id']}-{number}") for one in told], now=LATER)
    runs = memory.runs.list()
    assert [run.objective for run in runs] == [f"Task {number}" for number in reversed(range(40))]
    assert all(run.state == "ended" for run in runs)
