"""What events report about runs, read with the default table and with a custom table."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from memory_agent.signals import RunSign, SignalTable, read_run_sign
from relay.event import Event

TABLE = SignalTable.load()
WHEN = datetime(2026, 2, 16, 10, tzinfo=UTC)


def sign(event_type: str, payload: Any, table: SignalTable = TABLE, **fields: Any) -> RunSign | None:
    event = Event(event_id="e-1", event_type=event_type, timestamp=WHEN, user_id="alice", payload=payload, **fields)
    return read_run_sign(event, table)


def said(event_type: str, payload: dict[str, Any], **fields: Any) -> RunSign:
    found = sign(event_type, payload, **fields)
    assert found is not None
    return found


def test_a_run_begins_with_its_objective_and_not_with_its_strategy() -> None:
    begun = said("conductor.run.started", {"run_id": "r", "objective": "Fix the race", "strategy": "Use a mutex"})
    assert (begun.role, begun.run_id, begun.words) == ("begin", "r", "Fix the race")


@pytest.mark.parametrize(
    ("event_type", "payload", "words"),
    [
        ("conductor.assignment.accepted", {"objective": "Add a lock", "worker_id": "w"}, "Add a lock"),
        ("conductor.assignment.completed", {"result": "Done", "objective": "Add a lock"}, "Done"),
        ("conductor.run.failed", {"error": "timeout", "objective": "Fix the race"}, "timeout"),
        ("terminal.command.completed", {"command": "pytest -q", "exit_code": 1}, "Command: pytest -q"),
        ("feedback.approved", {"comment": "Good"}, "Good"),
        ("feedback.approved", {}, ""),
        ("conductor.assignment.started", {"assignment_id": "a-1"}, ""),
    ],
)
def test_a_run_sign_has_the_text_of_its_event(event_type: str, payload: dict[str, Any], words: str) -> None:
    assert said(event_type, payload | {"run_id": "r"}).words == words


@pytest.mark.parametrize(
    ("event_type", "payload", "outcome", "verdict"),
    [
        ("conductor.run.completed", {"summary": "done"}, "completed", None),
        ("conductor.task.completed", {"status": "failed"}, "failed", None),
        ("conductor.run.completed", {"status": "success"}, "completed", None),
        ("conductor.run.completed", {"approved": True}, "completed", (1.0, "approved")),
        ("conductor.run.completed", {"approved": False}, "completed", (0.0, "rejected")),
        ("conductor.run.completed", {"report": {"quality": 0.7}}, "completed", (0.7, "rated")),
        ("conductor.run.failed", {"error": "timeout"}, "failed", None),
        ("conductor.run.cancelled", {"reason": "no longer needed"}, "cancelled", None),
        ("conductor.task.canceled", {"reason": "no longer needed", "status": "failed"}, "cancelled", None),
        ("conductor.run.failed", {"error": "timeout", "quality": 0.25}, "failed", (0.25, "rated")),
    ],
)
def test_an_end_event_gives_outcome_and_verdict(
    event_type: str, payload: dict[str, Any], outcome: str, verdict: tuple[float, str] | None
) -> None:
    ended = said(event_type, payload | {"run_id": "r"})
    assert (ended.role, ended.outcome) == ("end", outcome)
    assert (ended.verdict and ended.verdict[:2]) == verdict


@pytest.mark.parametrize(
    ("event_type", "payload", "verdict"),
    [
        ("feedback.approved", {}, (1.0, "approved")),
        ("feedback.rejected", {}, (0.0, "rejected")),
        ("feedback.retry", {}, (0.4, "retried")),
        ("feedback.retry", {"quality": 0.6}, (0.6, "rated")),
        ("feedback.rating", {"rating": 4}, (0.75, "rated")),
        ("feedback.given", {"approved": False}, (0.0, "rejected")),
        ("feedback.given", {"verdict": "thumbs_up"}, (1.0, "approved")),
        ("feedback.given", {"comment": "hm"}, None),
    ],
)
def test_feedback_judges_the_run_that_it_names(
    event_type: str, payload: dict[str, Any], verdict: tuple[float, str] | None
) -> None:
    judged = said(event_type, payload | {"trajectory_id": "r"})
    assert (judged.role, judged.run_id, judged.verdict and judged.verdict[:2]) == ("feedback", "r", verdict)


def test_feedback_on_a_recall_needs_no_run_and_anything_else_does() -> None:
    assert said("feedback.recall", {"recall_id": "x"}).run_id is None
    assert sign("feedback.recall", {"comment": "good"}) is None
    assert sign("worker.report.received", {"summary": "good", "recall_id": "x"}) is None


def test_the_actor_of_a_conductor_names_the_run() -> None:
    assert said("conductor.run.failed", {"error": "timeout"}, actor_id="conductor:run_7").run_id == "run_7"
    assert sign("conductor.run.failed", {"error": "timeout"}, actor_id="worker:run_7") is None


def test_ids_are_read_singly_or_in_a_list_also_inside_a_report() -> None:
    payload = {
        "run_id": "r",
        "memory_ids": ["m-1", "m-2", 3, "m-1"],
        "report": {"used_memory_ids": "m-3"},
        "data": {"recall_id": "x"},
        "recall_ids": ["y"],
        "parent_run_id": "p",
        "retry_of": "r",
    }
    read = said("worker.report.received", payload)
    assert read.memory_ids == ("m-1", "m-2", "m-3")
    assert (read.recall_ids, read.parents, read.retries) == (("x", "y"), ("p",), ())


def test_an_event_without_a_row_is_a_step_if_it_names_used_memories() -> None:
    assert sign("tool.called", {"run_id": "r", "tool": "grep"}) is None
    assert said("tool.called", {"run_id": "r", "memory_ids": "m-1"}).role == "step"


def test_rows_of_a_users_table_define_roles(tmp_path: Path) -> None:
    file = tmp_path / "signals.toml"
    row = '[signal.deploy]\nevents = ["deploy.done"]\nsource = "worker_result"\nkind = "episode"\nrun = "end"\n'
    file.write_text(row + 'quality = 0.0\n[signal.report]\nrun = "step"', encoding="utf-8")
    table = SignalTable.load(str(file))
    ended = sign("deploy.done", {"run_id": "r"}, table)
    assert ended is not None
    assert (ended.role, ended.outcome) == ("end", "failed")


def test_an_invalid_payload_or_text_gives_no_run_sign() -> None:
    assert sign("conductor.run.started", ["no object"]) is None
    assert sign("conductor.run.started", {"run_id": "lone \ud800"}) is None
