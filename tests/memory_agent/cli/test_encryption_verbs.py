"""Test `encryption status` and `encryption destroy`."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from memory_agent.cli.doctor import check_encryption
from memory_agent.layout import Layout
from memory_agent.settings import Settings
from memory_agent.storage.environment import UserKey
from memory_agent.storage.folders import user_folder
from memory_agent.storage.owners import Owners
from relay import (
    SYSTEM_USER,
    EncryptionSettings,
    Event,
    EventLimits,
    Journal,
    event_from_mapping,
    journal_folder,
    read_event,
)
from relay.crypto import KeyRing

Run = Callable[..., Result]
RunJson = Callable[..., Any]
NOW = datetime(2026, 11, 20, tzinfo=UTC)


def told(number: int, user_id: str, run_id: str) -> Event:
    mapping = {
        "event_id": f"{user_id}-{number}",
        "event_type": "user_input",
        "user_id": user_id,
        "timestamp": NOW,
        "payload": {"text": "the spare key is under the stone", "run_id": run_id},
    }
    return event_from_mapping(mapping, EventLimits(), NOW)


@pytest.fixture
def keys(tmp_path: Path) -> KeyRing:
    return KeyRing(tmp_path / "keys")


@pytest.fixture
def on(keys: KeyRing) -> tuple[str, str]:
    """The options that enable encryption."""
    return "--set", f"encryption.keys_folder={keys.folder}"


@pytest.fixture
def filled(data_dir: Path, keys: KeyRing) -> Path:
    """An encrypted journal with two users' events and `system` events about their runs, and the map of run owners."""
    events = [
        told(1, "alice", "run-a"),
        told(2, "bob", "run-b"),
        told(3, "system", "run-a"),
        told(4, "system", "run-b"),
    ]
    with Journal.open(journal_folder(data_dir), keys=keys) as journal:
        journal.append(events, NOW)
        journal.quarantine(b"no event", "malformed_event", "is wrong", "memory:alice", NOW)
    with_owners(
        data_dir, keys, lambda owners: [owners.learn((f"run:run-{user[0]}",), user) for user in ("alice", "bob")]
    )
    return data_dir


def with_owners(data_dir: Path, keys: KeyRing, act: Callable[[Owners], Any]) -> Any:
    owners = Owners(data_dir / "owners", key=UserKey(keys, SYSTEM_USER))
    try:
        return act(owners)
    finally:
        owners.close()


def ids(data_dir: Path, keys: KeyRing) -> list[str]:
    with Journal.open(journal_folder(data_dir), keys=keys, readonly=True) as journal:
        return [read_event(entry.data).event_id for entry in journal.read(0, 100)]


def test_status_shows_encrypted_stores_and_users_with_keys(
    run: Run, run_json: RunJson, on: tuple[str, str], data_dir: Path, keys: KeyRing
) -> None:
    off = {"on": False, "keys_folder": None, "keys_away": False, "users_with_keys": [], "stores": []}
    assert run_json("encryption", "status") == off
    assert "encryption is off" in run("encryption", "status").stdout
    with Journal.open(journal_folder(data_dir)) as journal:
        journal.append([told(1, "alice", "run-a")], NOW)
    keys.cipher("alice", "journal", create=True)
    shown = run_json("encryption", "status", *on)
    assert shown["stores"] == [{"part": "journal", "state": "plain"}]
    assert (shown["on"], shown["keys_folder"], shown["users_with_keys"]) == (True, str(keys.folder), ["alice"])


def test_status_shows_a_missing_key_as_locked(
    run_json: RunJson, on: tuple[str, str], filled: Path, keys: KeyRing
) -> None:
    states = [{"part": "owners", "state": "encrypted"}, {"part": "journal", "state": "encrypted"}]
    assert run_json("encryption", "status", *on)["stores"] == states
    locked = [{"part": "owners", "state": "locked"}, {"part": "journal", "state": "locked"}]
    assert run_json("encryption", "status")["stores"] == locked
    keys.destroy(SYSTEM_USER)
    assert run_json("encryption", "status", *on)["stores"] == locked


def test_a_destroyed_key_makes_only_its_own_user_unreadable(
    run: Run, run_json: RunJson, on: tuple[str, str], filled: Path, keys: KeyRing
) -> None:
    user_folder(filled, "alice").mkdir(parents=True)
    document = run_json("encryption", "destroy", "--user", "alice", "--yes", *on)
    assert (document["destroyed"], document["events_of_system"]) == (True, 1)
    assert [str(user_folder(filled, "alice")) in left for left in document["left"]] == [True]
    assert keys.users() == ["bob", "system"]
    assert ids(filled, keys) == ["bob-2", "system-4"]
    assert with_owners(filled, keys, lambda owners: owners.owner(("run:run-a",))) is None
    assert with_owners(filled, keys, lambda owners: owners.owner(("run:run-b",))) == "bob"
    again = run("encryption", "destroy", "--user", "alice", "--yes", "--json", *on)
    assert again.exit_code == 1
    assert json.loads(again.stderr)["error"]["code"] == "encryption_key_missing"


def test_the_way_to_remove_the_rest_names_the_data_folder(run: Run, on: tuple[str, str], filled: Path) -> None:
    user_folder(filled, "bob").mkdir(parents=True)
    shown = run("encryption", "destroy", "--user", "bob", "--yes", *on).stdout
    assert f"remove it: memory-agent forget --user bob --user-all --data-dir {filled}" in shown


def test_the_rest_of_a_user_with_a_destroyed_key_can_be_forgotten(
    run_json: RunJson, on: tuple[str, str], filled: Path, keys: KeyRing
) -> None:
    run_json("encryption", "destroy", "--user", "alice", "--yes", *on)
    receipt = run_json("forget", "--user", "alice", "--user-all", "--yes", *on)
    assert (receipt["complete"], receipt["events"], receipt["quarantined"]) == (True, 1, 1)
    with Journal.open(journal_folder(filled), keys=keys) as journal:
        assert journal.stats().entries == 2
        assert journal.quarantined() == []
    assert keys.users() == ["bob", "system"]


def test_destroying_needs_a_single_user_and_confirmation(
    run: Run, on: tuple[str, str], filled: Path, keys: KeyRing
) -> None:
    before = keys.users()
    for words, told in (
        (("--yes", *on), "--user"),
        (("--user", "system", "--yes", *on), "several users"),
        (("--user", "alice", "--yes"), "encryption is off"),
        (("--user", "alice", *on), "--yes"),
    ):
        refused = run("encryption", "destroy", *words)
        assert refused.exit_code == 2
        assert told in refused.stderr
    assert keys.users() == before == ["alice", "bob", "system"]


def test_keys_inside_the_data_folder_are_refused(run: Run, data_dir: Path) -> None:
    refused = run("encryption", "status", "--json", "--set", f"encryption.keys_folder={data_dir / 'keys'}")
    assert refused.exit_code == 1
    assert json.loads(refused.stderr)["error"]["code"] == "relay_settings"


def test_the_doctor_finds_plain_and_locked_stores_and_open_permissions(
    filled: Path, keys: KeyRing, tmp_path: Path
) -> None:
    layout, on = Layout(filled), Settings(encryption=EncryptionSettings(keys_folder=str(keys.folder)))
    assert check_encryption(on, layout).state == "ok"
    assert check_encryption(Settings(), layout).advice == "set encryption.keys_folder to the keys folder"
    keys.folder.chmod(0o755)
    found = check_encryption(on, layout)
    assert (found.state, found.advice) == ("failed", f"chmod -R go-rwx {keys.folder}")
    keys.folder.chmod(0o700)
    elsewhere = Layout(tmp_path / "elsewhere")
    with Journal.open(elsewhere.journal) as journal:
        journal.append([told(1, "alice", "run-a")], NOW)
    found = check_encryption(on, elsewhere)
    assert (found.state, found.detail) == ("failed", "not encrypted: journal")
    assert check_encryption(Settings(), elsewhere).state == "ok"
    keys.destroy(SYSTEM_USER)
    assert check_encryption(on, layout).state == "warning"
