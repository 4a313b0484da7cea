"""Events nested like those of real emitters become memories with the right text, kind and source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from event_samples import OBJECTIVE, READER, WHEN, kept, make_event
from hypothesis import given
from hypothesis import strategies as st
from ulid import ULID

from memory_agent.records.memories import MemoryRecord
from memory_agent.settings import IngestSettings
from memory_agent.signals import EventReader, SignalTable

REPORT = {
    "report": {
        "summary": "The session map was shared",
        "findings": [{"claim": "Two threads write it", "evidence": ["a.rs:4"]}, {"claim": "No lock is held"}],
        "status": "complete",
    },
    "worker_id": "w-1",
}
FEEDBACK = {"run_id": "run_7", "comment": "Exactly what I wanted"}
ROWS: list[tuple[str, dict[str, Any], str, str, float | None, str]] = [
    ("chat.user_msg", {"message": OBJECTIVE}, "user_input", "episode", None, OBJECTIVE),
    ("user_input", {"payload": {"text": OBJECTIVE}}, "user_input", "episode", None, OBJECTIVE),
    ("chat.assistant_msg", {"message": OBJECTIVE}, "worker_result", "episode", None, OBJECTIVE),
    ("chat.agent_msg", {"content": OBJECTIVE}, "worker_result", "episode", None, OBJECTIVE),
    ("assistant_output", {"response": OBJECTIVE}, "worker_result", "episode", None, OBJECTIVE),
    (
        "conductor.run.started",
        {"objective": OBJECTIVE, "strategy": "Reproduce first"},
        "conductor_plan",
        "strategy",
        None,
        f"{OBJECTIVE}\nStrategy: Reproduce first",
    ),
    ("conductor.task.started", {"data": {"goal": OBJECTIVE}}, "conductor_plan", "strategy", None, OBJECTIVE),
    (
        "conductor.assignment.dispatched",
        {"assignment": {"description": OBJECTIVE}, "worker_id": "w-1"},
        "conductor_plan",
        "strategy",
        None,
        f"{OBJECTIVE}\nAssigned to: w-1",
    ),
    (
        "conductor.assignment.accepted",
        {"message": "On it", "assignment": {"description": OBJECTIVE}, "worker_id": "w-1"},
        "conductor_plan",
        "strategy",
        None,
        f"On it\nAssignment: {OBJECTIVE}\nAssigned to: w-1",
    ),
    (
        "conductor.assignment.completed",
        {"result": {"summary": "A mutex guards it"}, "status": "done"},
        "worker_result",
        "finding",
        0.8,
        "A mutex guards it",
    ),
    (
        "conductor.assignment.failed",
        {"error": "Disk full", "objective": OBJECTIVE},
        "worker_result",
        "episode",
        0.0,
        f"Assignment failed: Disk full\nAssignment: {OBJECTIVE}",
    ),
    (
        "conductor.assignment.cancelled",
        {"reason": "The user closed the window"},
        "conductor_plan",
        "episode",
        None,
        "Assignment cancelled: The user closed the window",
    ),
    (
        "conductor.run.cancelled",
        {"reason": "The user changed the task", "objective": OBJECTIVE},
        "conductor_plan",
        "strategy",
        None,
        f"Run cancelled: The user changed the task\nObjective: {OBJECTIVE}",
    ),
    ("conductor.worker.call", {"task": OBJECTIVE}, "conductor_plan", "strategy", None, OBJECTIVE),
    (
        "conductor.run.completed",
        {"summary": "A mutex now guards it", "objective": OBJECTIVE},
        "conductor_plan",
        "strategy",
        0.8,
        f"A mutex now guards it\nObjective: {OBJECTIVE}",
    ),
    (
        "conductor.task.completed",
        {"result": {"message": "Done and tested"}},
        "conductor_plan",
        "strategy",
        0.8,
        "Done and tested",
    ),
    (
        "conductor.run.failed",
        {"error": {"message": "Timed out"}},
        "conductor_plan",
        "strategy",
        0.0,
        "Run failed: Timed out",
    ),
    (
        "conductor.task.failed",
        {"reason": "No such file"},
        "conductor_plan",
        "strategy",
        0.0,
        "Run failed: No such file",
    ),
    (
        "worker.report.received",
        REPORT,
        "worker_result",
        "finding",
        0.8,
        "The session map was shared\nTwo threads write it\nNo lock is held",
    ),
    (
        "conductor.worker.result",
        {"report": {"error": "It crashed"}},
        "worker_result",
        "finding",
        None,
        "Error: It crashed",
    ),
    ("worker.task.progress", {"message": "Reading the tests"}, "worker_result", "episode", None, "Reading the tests"),
    ("worker.task.completed", {"output": "All tests pass"}, "worker_result", "episode", 0.8, "All tests pass"),
    ("worker.task.failed", {"error": "Disk full"}, "worker_result", "episode", 0.0, "Task failed: Disk full"),
    ("worker.task.finding", {"claim": "The map is shared"}, "worker_result", "finding", None, "The map is shared"),
    (
        "worker.task.learning",
        {"insight": "Lock before reading"},
        "worker_result",
        "finding",
        None,
        "Lock before reading",
    ),
    (
        "worker.finding.created",
        {"finding": {"claim": "It is shared"}},
        "worker_result",
        "finding",
        None,
        "It is shared",
    ),
    ("worker.learning.created", {"learning": "Lock it first"}, "worker_result", "finding", None, "Lock it first"),
    ("research.finding.created", {"claim": "RFC 6749 says so"}, "worker_result", "finding", None, "RFC 6749 says so"),
    ("research.learning.created", {"insight": "Tokens expire"}, "worker_result", "finding", None, "Tokens expire"),
    (
        "worker.task.document_update",
        {"change": "Added a section"},
        "writer_revision",
        "finding",
        None,
        "Added a section",
    ),
    (
        "researcher.search.completed",
        {"query": "rust mutex", "results": [{"title": "Mutex", "url": "https://x", "snippet": "A lock"}]},
        "worker_result",
        "finding",
        None,
        "Searched for: rust mutex\nMutex: A lock",
    ),
    ("research.task.completed", {"summary": "Three ways exist"}, "worker_result", "finding", None, "Three ways exist"),
    (
        "terminal.command.completed",
        {"command": "pytest -q", "exit_code": 1, "stderr": "\x1b[31m2 failed\x1b[0m"},
        "worker_result",
        "episode",
        0.0,
        "Command: pytest -q\nExit code: 1\n2 failed",
    ),
    ("writer.revision.created", {"summary": "Second draft"}, "writer_revision", "finding", None, "Second draft"),
    (
        "feedback.approved",
        FEEDBACK,
        "trajectory_outcome",
        "pattern",
        1.0,
        "Approved: Exactly what I wanted\nRun: run_7",
    ),
    ("feedback.retry", {"run_id": "run_7"}, "trajectory_outcome", "pattern", 0.4, "Retried: Run: run_7"),
    (
        "feedback.rejected",
        FEEDBACK,
        "trajectory_outcome",
        "pattern",
        0.0,
        "Rejected: Exactly what I wanted\nRun: run_7",
    ),
    (
        "feedback.given",
        FEEDBACK | {"rating": 4},
        "trajectory_outcome",
        "pattern",
        0.75,
        "Feedback: Exactly what I wanted\nRating: 4\nRun: run_7",
    ),
]


@pytest.mark.parametrize(
    ("event_type", "payload", "source", "kind", "quality", "text"), ROWS, ids=[row[0] for row in ROWS]
)
def test_each_event_type_of_the_design_becomes_its_memory(
    event_type: str, payload: dict[str, Any], source: str, kind: str, quality: float | None, text: str
) -> None:
    record = kept(event_type, payload)
    assert (record.source, record.kind, record.quality_score, record.text) == (source, kind, quality, text)


def test_the_rows_of_this_test_are_all_rows_of_the_table() -> None:
    table = Path(__file__).parents[3] / "memory_agent" / "signals" / "signals.toml"
    rows = msgspec.toml.decode(table.read_bytes())["signal"].values()
    signals = {READER.table.match(event_type) for event_type, *_ in ROWS}
    assert signals == {READER.table.match(event.replace("*", "anything")) for row in rows for event in row["events"]}
    assert len(signals) == len(rows)


def test_a_memory_keeps_the_origin_of_its_event() -> None:
    payload = {
        "message": OBJECTIVE,
        "title": "Auth\nrace",
        "tags": ["auth", "auth", 3, ""],
        "provenance": "verified",
        "dia_id": "D1:3",
        "attempt": 2,
        "urgent": True,
        "files": ["a.rs", "b.rs"],
        "big": "x" * 300,
        "nested": {"a": 1},
        "ratio": float("inf"),
        "huge": 1 << 70,
    }
    ids = {"session_id": "s", "channel_id": "c", "agent_id": "a", "thread_id": "t", "correlation_id": "k"}
    record = kept("chat.user_msg", payload, actor_id="conductor:run_7", **ids)
    assert (record.session_id, record.channel_id, record.agent_id, record.run_id) == ("s", "c", "a", "run_7")
    assert (record.title, record.tags, record.provenance, record.event_id) == (
        "Auth race",
        ("auth",),
        "verified",
        "e-1",
    )
    assert record.metadata == {
        "title": "Auth\nrace",
        "provenance": "verified",
        "dia_id": "D1:3",
        "attempt": 2,
        "urgent": True,
        "files": ["a.rs", "b.rs"],
        "event_type": "chat.user_msg",
        "actor_id": "conductor:run_7",
        "thread_id": "t",
        "correlation_id": "k",
    }


@pytest.mark.parametrize(
    ("stated", "provenance"),
    [("cached:verified", ("cached", "verified")), ("CACHED:CITED", ("cached", "cited")), ("Cited", ("cited", None))]
    + [(stated, (None, None)) for stated in ("verified:cached", "cached:", "cached:cached", ["cached"], 7)],
)
def test_a_memory_keeps_the_provenance_of_what_is_cached(stated: object, provenance: tuple[str | None, ...]) -> None:
    record = kept("chat.user_msg", {"message": OBJECTIVE, "provenance": stated})
    assert (record.provenance, record.cached_from) == provenance


def test_the_run_of_the_payload_precedes_that_of_the_actor() -> None:
    assert kept("chat.user_msg", {"text": OBJECTIVE, "run_id": 9}, actor_id="conductor:run_7").run_id == "9"
    assert kept("chat.user_msg", {"text": OBJECTIVE}, actor_id="worker:w-1").run_id is None


def test_the_id_depends_only_on_the_event_and_sorts_by_its_time() -> None:
    first, again = kept("user_input", {"text": OBJECTIVE}), kept("user_input", {"text": "Other words"})
    other = kept("user_input", {"text": OBJECTIVE}, event_id="e-2")
    assert first.id == again.id != other.id
    assert ULID.from_str(first.id).datetime == WHEN


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        ({"message": '{"type": "report", "summary": "It works"}'}, "It works"),
        ({"content": [{"type": "text", "text": "First"}, {"type": "text", "text": "Second"}]}, "First\nSecond"),
        ({"details": {"description": "Somewhere deep"}}, "Somewhere deep"),
        ({"message": "[shares a photo] look"}, "[shares a photo] look"),
        ({"data": '{"message": "Wrapped as text"}'}, "Wrapped as text"),
        ({"message": "one\r\ntwo\x00\x07 three"}, "one\ntwo three"),
    ],
)
def test_readable_text_is_found_at_any_depth(payload: dict[str, Any], text: str) -> None:
    assert kept("chat.user_msg", payload).text == text


@pytest.mark.parametrize(
    ("event_type", "payload", "text"),
    [
        ("conductor.run.started", {"run": {"run_id": "r", "objective": OBJECTIVE}}, OBJECTIVE),
        ("conductor.task.started", {"task": {"objective": OBJECTIVE, "id": "t"}}, OBJECTIVE),
        (
            "conductor.run.started",
            {
                "objective": OBJECTIVE,
                "plan": {"steps": [{"title": "Look", "description": "read it"}, {"title": "Fix"}]},
            },
            f"{OBJECTIVE}\nStrategy: Look: read it\nFix",
        ),
        (
            "conductor.assignment.dispatched",
            {"assignment": {"worker_id": "w-1", "objective": OBJECTIVE}},
            f"{OBJECTIVE}\nAssigned to: w-1",
        ),
        (
            "conductor.worker.call",
            {"worker_type": "terminal", "worker_objective": OBJECTIVE},
            f"{OBJECTIVE}\nAssigned to: terminal",
        ),
        ("conductor.worker.result", {"result": {"worker_type": "terminal", "output": "All passed"}}, "All passed"),
        ("conductor.task.failed", {"error_code": "E7", "error_message": "It broke"}, "Run failed: It broke"),
        ("worker.task.completed", {"result": {"output": "All passed", "exit_code": 0}}, "All passed"),
        ("worker.task.document_update", {"document_path": "a.md", "content_excerpt": "The plan"}, "The plan"),
        ("worker.task.document_update", {"document": {"title": "A", "content": "The plan"}}, "The plan"),
        ("writer.revision.created", {"patch": [{"op": "insert", "text": "The plan"}]}, "The plan"),
    ],
)
def test_text_that_emitters_nest_in_their_own_objects_is_found(
    event_type: str, payload: dict[str, Any], text: str
) -> None:
    assert kept(event_type, payload).text == text


def test_metadata_does_not_repeat_the_text_with_its_escapes() -> None:
    record = kept("terminal.command.completed", {"command": "make", "stdout": "\x1b[31mred\x1b[0m"})
    assert record.text == "Command: make\nred"
    assert "stdout" not in record.metadata


@pytest.mark.parametrize(
    ("payload", "quality"),
    [
        ({}, 0.8),
        ({"approved": True}, 1.0),
        ({"approved": False}, 0.0),
        ({"quality": 0.65}, 0.65),
        ({"quality": 7}, 0.8),
        ({"rating": 5}, 1.0),
        ({"rating": 0.3}, 0.3),
        ({"rating": 8, "max_rating": 11}, 0.7),
        ({"rating": "thumbs_down"}, 0.0),
        ({"success": False}, 0.0),
        ({"status": "Failed"}, 0.0),
        ({"status": "retried"}, 0.4),
        ({"report": {"status": "error"}}, 0.0),
        ({"result": {"exit_code": 1}}, 0.0),
        ({"output": {"success": False}}, 0.0),
        ({"status": "unheard of"}, 0.8),
    ],
)
def test_the_outcome_comes_from_the_event(payload: dict[str, Any], quality: float) -> None:
    assert kept("conductor.run.completed", {"summary": "It is done"} | payload).quality_score == pytest.approx(quality)


def test_a_failed_run_stays_failed_despite_other_fields() -> None:
    assert kept("conductor.run.failed", {"error": "Timed out", "status": "ok", "success": True}).quality_score == 0.0


@given(st.text("aé\u0301👩\u200d💻", min_size=30, max_size=60), st.integers(5, 29))
def test_a_long_text_is_truncated_between_characters_and_marked(text: str, limit: int) -> None:
    reader = EventReader(SignalTable.load(), IngestSettings(max_text_chars=limit))
    record = reader.read(make_event("user_input", {"text": "x" + text + "x"}))
    assert isinstance(record, MemoryRecord)
    whole = "x" + text + "x"
    assert whole.startswith(record.text)
    assert len(record.text) <= limit
    assert record.metadata["truncated_from_chars"] == len(whole)
    assert whole[len(record.text)] not in "\u0301\u200d" or not record.text


def test_a_text_within_the_limit_is_not_marked_as_truncated() -> None:
    assert "truncated_from_chars" not in kept("user_input", {"text": OBJECTIVE}).metadata
