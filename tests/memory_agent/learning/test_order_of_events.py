"""Runs, and the revisions that they make to memories, do not depend on the order, batching or repetition of events."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from run_samples import LATER, approval, begin, end, event, failure, note, qualities, step, things_to_use, without_model
from store_checks import verified

from memory_agent.memory import Memory
from memory_agent.records.memories import Utility
from memory_agent.records.trajectories import Trajectory

RECALLS = ("01KHJY9080NWG22H9Q8BBD7B80", "01KHJY9080NWG22H9Q8BBD7B81")


def story(things: list[str]) -> list[dict[str, Any]]:
    """Events of related runs: a retry, a continuation, and a failure that is revised."""
    return [
        begin("one", 0, session_id="s-1"),
        begin("one", 3, "Something else altogether", session_id="s-2") | {"event_id": "one-begin-again"},
        step("one", 1, 1, memory_ids=things[:2]),
        step("one", 2, 2, quality=0.3),
        event("one-noise", "worker.heartbeat", 2.5, "one"),
        event("one-progress", "worker.task.progress", 2.6, "one", message="ok"),
        end("one", 5),
        begin("two", 8, "fix the race in the AUTH module!", recall_id=RECALLS[0]),
        step("two", 1, 9, used_memory_ids=things[1]),
        end("two", 12),
        begin("three", 40, "Rotate the keys of the payment provider", parent_run_id="two"),
        end("three", 45),
        approval("three", 50),
        begin("four", 60, "Bake bread", previous_run_id="three"),
        failure("four", 61),
        end("four", 65, memory_ids=things[2:4]),
        event("two-feedback", "feedback.recall", 70, recall_id=RECALLS[0], memory_ids=[things[4]], rating=4),
        event("loose-feedback", "feedback.recall", 71, recall_id=RECALLS[1], memory_ids=[things[0]]),
    ]


State = tuple[dict[str, Trajectory], dict[str, float | None], list[Utility]]


def state_of(memory: Memory, things: list[str]) -> State:
    assert verified(memory._archive.store)
    runs = {run.id: run for run in memory.runs.list()}
    utilities = [record.utility for record in memory.get(things)]
    return runs, qualities(memory), utilities


@pytest.fixture(scope="module")
def in_order() -> Iterator[State]:
    with tempfile.TemporaryDirectory() as folder, without_model(Path(folder) / "alice") as memory:
        things = prepared(memory)
        memory.ingest(story(things), now=LATER)
        yield state_of(memory, things)


def prepared(memory: Memory) -> list[str]:
    things = things_to_use(memory)
    for recall_id, minute in zip(RECALLS, (7, 69), strict=True):
        note(memory, recall_id, minute, things)
    return things


def test_the_runs_of_the_story_match_its_events(in_order: State) -> None:
    runs, records, utilities = in_order
    assert list(runs) == [RECALLS[1], "four", "three", "two", "one"]
    told = {name: [(revision.reason, round(revision.quality, 3)) for revision in run.revisions]
            for name, run in runs.items()}  # fmt: skip
    assert told["one"] == [("completed", 0.8), ("retried", 0.4)]
    assert told["two"] == [("completed", 0.8), ("later_success", 0.9), ("rated", 0.75)]
    assert told["three"] == [("completed", 0.8), ("approved", 1.0)]
    assert told["four"] == [("failed", 0.0), ("completed", 0.8)]
    assert told[RECALLS[1]] == [("completed", 0.8)]
    assert (runs["one"].objective, runs["one"].session_id) == ("Fix the race in the auth module", "s-1")
    assert [use.how for use in runs["two"].used] == ["event", "feedback"]
    assert runs["two"].used[1].recall_id == RECALLS[0]
    assert (records["one-begin"], records["one-step-1"], records["one-step-2"]) == (0.4, 0.4, 0.3)
    assert utilities[1] == Utility(used=2, reward_sum=0.4 + 0.75)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_order_with_any_repetition_gives_the_same_runs(in_order: State, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder, without_model(Path(folder) / "alice") as memory:
        things = prepared(memory)
        events = story(things)
        order = data.draw(st.permutations(range(len(events))))
        order = order + data.draw(st.lists(st.sampled_from(range(len(events))), max_size=6))
        while order:
            size = data.draw(st.integers(1, len(order)))
            memory.ingest([events[place] for place in order[:size]], now=LATER)
            order = order[size:]
        runs, records, utilities = state_of(memory, things)
        assert runs == in_order[0]
        assert records == in_order[1]
        assert utilities == in_order[2]
