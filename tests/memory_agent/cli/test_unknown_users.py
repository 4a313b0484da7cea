"""Test that commands without a daemon find and create nothing for users without a store, but erase their events."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from memory_agent.erasure.logs import read_history
from memory_agent.storage.folders import user_folder
from relay import EventLimits, Journal, event_from_mapping, journal_folder
from relay.crypto import KeyRing

Run = Callable[..., Result]
NOW = datetime(2026, 11, 20, tzinfo=UTC)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return tmp_path / "keys"


@pytest.mark.parametrize(
    "verb",
    [
        ("sona", "status"),
        ("sona", "export", "FILE"),
        ("forget", "--yes", "--session", "s-1"),
        ("forget", "--yes", "--id", "01KHJY9080NWG22H9Q8BBD7B80"),
        ("forget", "--dry-run", "--kind", "episode"),
    ],
)
def test_reading_and_forgetting_create_no_user_and_no_key(
    verb: tuple[str, ...], run: Run, data_dir: Path, keys: Path, tmp_path: Path
) -> None:
    on = ("--set", f"encryption.keys_folder={keys}")
    assert run("remember", "the spare key is under the stone", "--user", "alice", *on).exit_code == 0
    words = [str(tmp_path / "out.sona") if word == "FILE" else word for word in verb]
    result = run(*words, "--user", "alcie", *on)
    assert result.exit_code == 0, result.output
    assert not user_folder(data_dir, "alcie").exists()
    assert not (data_dir / "erasures").exists()
    assert KeyRing(keys).users() == ["alice", "system"]
    if verb != ("sona", "status"):
        assert "users here: alice" in result.stderr


def test_a_sessions_events_in_the_journal_are_erased_without_a_store(run: Run, data_dir: Path) -> None:
    fields: dict[str, Any] = {"event_type": "user_input", "user_id": "alice", "payload": {"text": "under the stone"}}
    events = [
        event_from_mapping(fields | {"event_id": f"e-{session}", "session_id": session}, EventLimits(), NOW)
        for session in ("s-1", "s-2")
    ]
    with Journal.open(journal_folder(data_dir)) as journal:
        journal.append(events, NOW)
    receipt = json.loads(run("forget", "--session", "s-1", "--user", "alice", "--yes", "--json").stdout)
    assert (receipt["complete"], receipt["memories"], receipt["events"]) == (True, 0, 1)
    with Journal.open(journal_folder(data_dir), readonly=True) as journal:
        assert len(journal.read(0, 10)) == 1
    assert not user_folder(data_dir, "alice").exists()
    assert len(read_history(user_folder(data_dir, "alice"), "alice").sessions) == 1
