"""Test the airline agent's runs: reading a file, its events, and the figures for recalled runs."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from memory_agent.errors import InvalidInputError
from memory_agent.settings import IngestSettings
from memory_agent.signals import EventReader, SignalTable
from ops.lab.airline import RecordedRun, events_of, read_airline
from ops.lab.planning import RunFigures, figures_of
from relay.config import EventLimits
from relay.event import event_from_mapping

DAY = datetime(2026, 1, 5, tzinfo=UTC)


def entry(task: int, trial: int, reward: float) -> dict[str, Any]:
    return {
        "task_id": task,
        "trial": trial,
        "reward": reward,
        "instruction": "never shown",
        "messages": [
            {"role": "user", "content": " I want to cancel my flight. "},
            {"role": "assistant", "content": "Which reservation is it?"},
            {"role": "user", "content": "NM1VX1"},
            {"role": "assistant", "content": None, "tool_calls": [{"name": "cancel", "arguments": '{"id": "NM1VX1"}'}]},
            {"role": "tool", "content": '{"status": "cancelled"}', "name": "cancel"},
            {"role": "assistant", "content": "It is cancelled."},
            {"role": "user", "content": "Thanks ###STOP###"},
        ],
    }


def write(folder: Path, *entries: object) -> Path:
    file = folder / "runs.json"
    file.write_text(json.dumps(entries))
    return file


def test_a_run_is_its_request_its_steps_and_its_end(tmp_path: Path) -> None:
    (run,) = read_airline(write(tmp_path, entry(3, 1, 1.0))).runs
    assert (run.request, run.ending, run.succeeded, run.run_id) == (
        "I want to cancel my flight.", "It is cancelled.", True, "task-3-trial-1",
    )  # fmt: skip
    assert [text for _, text in run.steps] == [
        "Which reservation is it?",
        'cancel {"id": "NM1VX1"}',
        "It is cancelled.",
    ]


@pytest.mark.parametrize(("reward", "last"), [(1.0, "conductor.run.completed"), (0.0, "conductor.run.failed")])
def test_its_events_are_memories_of_one_run_whose_end_is_the_reward(tmp_path: Path, reward: float, last: str) -> None:
    (run,) = read_airline(write(tmp_path, entry(3, 1, reward))).runs
    events = events_of(run, "ann", DAY, ["recall-1"])
    assert (events[0]["event_type"], events[-1]["event_type"]) == ("conductor.run.started", last)
    assert events[0]["payload"]["recall_ids"] == ["recall-1"]
    assert len({event["event_id"] for event in events}) == len(events)
    reader = EventReader(SignalTable.load(""), IngestSettings())
    records = [reader.read(event_from_mapping(event, EventLimits(), DAY)) for event in events]
    assert {getattr(record, "run_id", None) for record in records} == {run.run_id}


def test_a_file_that_is_none_of_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="is not a file of airline runs"):
        read_airline(write(tmp_path, {"task_id": 1}))
    with pytest.raises(InvalidInputError, match="contains a duplicate combination of task and trial"):
        read_airline(write(tmp_path, entry(1, 0, 0.0), entry(1, 0, 1.0)))
    with pytest.raises(InvalidInputError, match="cannot be read"):
        read_airline(tmp_path / "absent.json")


def made(task: int, succeeded: bool) -> RecordedRun:
    return RecordedRun(task=task, trial=0, succeeded=succeeded, request="?", steps=(), ending=".")


def test_the_first_result_is_judged_by_task_and_outcome() -> None:
    recalled = [made(1, True), made(2, False), made(1, False), made(1, True)]
    figures = figures_of(recalled, 1)
    assert (figures.same_task_1, figures.same_task_3) == (1.0, pytest.approx(2 / 3))
    assert (figures.succeeded_1, figures.succeeded_3, figures.worked_1) == (1.0, pytest.approx(1 / 3), 1.0)
    assert figures_of(recalled, 2).worked_1 == 0.0
    assert figures_of([], 1) == RunFigures(0, 0, 0, 0, 0)
