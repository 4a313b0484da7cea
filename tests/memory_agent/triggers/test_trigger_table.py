"""The trigger table: event types, a user's own table, and errors with row, field and line."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from memory_agent.errors import SettingsError
from memory_agent.triggers.table import TriggerTable
from relay import Event

ROW = '[trigger.deploy]\nevents = ["deploy.*"]\nrole = "deployer"\nheading = "Past deploys"\n'


def own_table(tmp_path: Path, toml: str) -> TriggerTable:
    file = tmp_path / "triggers.toml"
    file.write_text(toml, encoding="utf-8")
    return TriggerTable.load(str(file))


def test_the_defaults_react_to_messages_runs_assignments_and_documents() -> None:
    table = TriggerTable.load()
    expected = {
        "chat.user_msg": "message",
        "user_input": "message",
        "conductor.run.started": "run-started",
        "conductor.assignment.dispatched": "assignment",
        "worker.task.document_update": "document",
        "writer.revision.created": "document",
        "worker.task.finding": None,
        "conductor.run.completed": None,
        "memory.recalled": None,
    }
    assert {event_type: table.name_of(event_type) for event_type in expected} == expected


def test_a_users_table_adds_changes_removes_and_disables_rows(tmp_path: Path) -> None:
    table = own_table(
        tmp_path,
        f'remove = ["document"]\n{ROW}[trigger.message]\ntop_k = 9\n[trigger.assignment]\nenabled = false\n',
    )
    assert table.name_of("deploy.eu.done") == "deploy"
    assert (table.rows["message"].top_k, table.rows["message"].role) == (9, "conductor")
    assert table.name_of("writer.revision.created") is None
    assert table.name_of("conductor.worker.call") is None


def test_the_table_of_the_reference_is_accepted(tmp_path: Path) -> None:
    reference = (Path(__file__).parents[3] / "ops" / "REFERENCE.md").read_text(encoding="utf-8")
    shown = re.findall(r'```toml title="triggers.toml"\n(.*?)```', reference, re.DOTALL)
    table = own_table(tmp_path, *shown)
    assert [table.name_of(one) for one in ("deploy.requested", "writer.revision.created")] == ["deploy", None]


@pytest.mark.parametrize(
    ("toml", "place", "line"),
    [
        (ROW + 'colour = "red"', "trigger.deploy", 5),
        (ROW + "top_k = 0", "trigger.deploy.top_k", 5),
        (ROW + "# a comment\n\ndeadline_ms = -1", "trigger.deploy.deadline_ms", 7),
        (ROW + 'kinds = ["novel"]', "trigger.deploy.kinds", 5),
        (ROW + 'query = "poem"', "trigger.deploy.query", 5),
        (ROW + 'debounce_by = "a | | b"', "trigger.deploy.debounce_by", 5),
        (ROW.replace("deploy.*", "*"), "trigger.deploy.events", 2),
        (ROW.replace("deploy.*", "memory.recalled"), "trigger.deploy.events", 2),
        (ROW.replace("deployer", "Deployer"), "trigger.deploy.role", 3),
        (ROW.replace('heading = "Past deploys"\n', ""), "trigger.deploy", 1),
        (ROW + ROW.replace("deploy]", "again]"), "trigger.again.events", 6),
        (ROW + "[trigger.message]\ntop_k = 'five'", "trigger.message.top_k", 6),
        ('heading = 1\n[colours]\nred = "1"', "(colours|heading)", None),
        ('remove = ["no-such-row"]', "remove", 1),
        ("\n[trigger.deploy", "triggers.table", None),
    ],
)
def test_a_table_with_errors_is_refused_by_row_field_and_line(
    tmp_path: Path, toml: str, place: str, line: int | None
) -> None:
    with pytest.raises(SettingsError, match=place) as refused:
        own_table(tmp_path, toml)
    assert f"{tmp_path}/" in str(refused.value)
    assert line is None or f".toml: line {line}:" in str(refused.value)


def test_a_users_row_takes_the_event_types_it_names_from_other_rows(tmp_path: Path) -> None:
    table = own_table(tmp_path, ROW.replace("deploy.*", "user_input"))
    assert table.name_of("user_input") == "deploy"
    assert table.name_of("chat.user_msg") == "message"


def revision(payload: dict[str, Any], session_id: str | None = None) -> Event:
    now = datetime.now(UTC)
    return Event(
        event_id="e",
        event_type="writer.revision.created",
        timestamp=now,
        user_id="alice",
        session_id=session_id,
        payload=payload,
    )


@pytest.mark.parametrize(
    ("payload", "document"),
    [
        ({"document_id": "d-1", "title": "Runbook"}, "d-1"),
        ({"title": "Runbook"}, "Runbook"),
        ({"document": {"path": "docs/a.md", "text": "x"}}, "docs/a.md"),
        ({"content": "no name"}, "s-1"),
        ({"document_id": "\ud800"}, "s-1"),
        ({"title": "x" * 10_000}, "x" * 256),
    ],
)
def test_a_document_is_identified_by_its_name_else_by_its_session(payload: dict[str, Any], document: str) -> None:
    assert TriggerTable.load().document_of(revision(payload, "s-1"), "document") == document


def test_events_without_a_document_have_no_pause() -> None:
    assert TriggerTable.load().document_of(revision({"title": "x"}), "message") is None
