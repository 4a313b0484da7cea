"""Test restoring plain backups into encrypted folders and vice versa: the folder determines the result."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from memory_agent.cli.group import cli
from memory_agent.storage.environment import UserKey
from memory_agent.storage.owners import Owners
from relay import EventLimits, Journal, event_from_mapping, journal_folder
from relay.crypto import KeyRing

Verb = Callable[..., Result]
NOW = datetime(2026, 11, 20, tzinfo=UTC)
WORD = b"zanzibarquokka"


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return tmp_path / "keys"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    return tmp_path / "elsewhere"


@pytest.fixture
def on(keys: Path) -> tuple[str, ...]:
    return ("--set", f"encryption.keys_folder={keys}")


def run(data_dir: Path, *words: str) -> Result:
    return CliRunner().invoke(cli, [*words, "--data-dir", str(data_dir)])


def document(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def fault(result: Result) -> tuple[str, str]:
    assert result.exit_code == 1, result.output
    error = json.loads(result.stderr.splitlines()[-1])["error"]
    return error["code"], error["message"]


@pytest.fixture
def plain(data_dir: Path, tmp_path: Path) -> Path:
    """A plain backup of two users, the owners of their runs, and a journal."""
    for user_id in ("alice", "bob"):
        assert run(data_dir, "remember", f"the {WORD.decode()} of {user_id}", "--user", user_id).exit_code == 0
    with Journal.open(journal_folder(data_dir)) as journal:
        payload = {"text": WORD.decode(), "run_id": "run-a"}
        fields = {"event_id": "e-1", "event_type": "user_input", "user_id": "alice", "payload": payload}
        journal.append([event_from_mapping(fields, EventLimits(), NOW)], NOW)
    owners = Owners(data_dir / "owners")
    owners.learn(("run:run-a",), "alice")
    owners.close()
    assert run(data_dir, "backup", str(tmp_path / "copy")).exit_code == 0
    return tmp_path / "copy"


@pytest.fixture
def locked(data_dir: Path, tmp_path: Path, plain: Path, on: tuple[str, ...]) -> Path:
    """A backup of the encrypted folder."""
    assert run(data_dir, "encrypt", *on).exit_code == 0
    assert run(data_dir, "backup", str(tmp_path / "locked"), *on).exit_code == 0
    return tmp_path / "locked"


def readable(folder: Path) -> list[Path]:
    return [
        file
        for file in folder.rglob("*")
        if file.is_file() and (WORD in (data := file.read_bytes()) or b"run-a" in data)
    ]


def test_a_plain_backup_is_encrypted_before_it_is_put_in_place(
    plain: Path, elsewhere: Path, keys: Path, on: tuple[str, ...]
) -> None:
    assert readable(plain)
    assert run(elsewhere, "restore", str(plain), *on).exit_code == 0
    assert readable(elsewhere) == []
    assert KeyRing(keys).users() == ["alice", "bob", "system"]
    shown = document(run(elsewhere, "encryption", "status", "--json", *on))
    assert {store["part"]: store["state"] for store in shown["stores"]} == dict.fromkeys(
        ("user alice", "user bob", "owners", "journal"), "encrypted"
    )
    found = document(run(elsewhere, "recall", WORD.decode(), "--user", "bob", "--json", *on))
    assert [memory["record"]["text"] for memory in found["memories"]] == [f"the {WORD.decode()} of bob"]
    assert document(run(elsewhere, "verify", "--json", *on))["sound"] is True
    with Journal.open(journal_folder(elsewhere), keys=KeyRing(keys), readonly=True) as journal:
        assert [entry.user_id for entry in journal.read(0, 10)] == ["alice"]
    owners = Owners(elsewhere / "owners", key=UserKey(KeyRing(keys), "system"))
    assert owners.owner(("run:run-a",)) == "alice"
    owners.close()


def test_one_user_of_a_plain_backup_is_encrypted_too(
    plain: Path, locked: Path, data_dir: Path, on: tuple[str, ...]
) -> None:
    assert run(data_dir, "restore", str(plain), "--user", "bob", "--replace", *on).exit_code == 0
    assert readable(data_dir) == []
    assert document(run(data_dir, "stats", "--user", "bob", "--json", *on))["memories"] == 1


def test_an_encrypted_backup_without_the_setting_is_named_and_leaves_no_folder(locked: Path, elsewhere: Path) -> None:
    for named in ((), ("--user", "alice")):
        code, message = fault(run(elsewhere, "restore", str(locked), "--json", *named))
        assert code == "store_encrypted"
        assert message.startswith(f"{locked} is encrypted")
        assert not elsewhere.exists()


def test_an_encrypted_backup_without_its_keys_begins_no_others_and_leaves_no_folder(
    locked: Path, elsewhere: Path, keys: Path, on: tuple[str, ...]
) -> None:
    keys.rename(keys.with_name("away"))
    for named in ((), ("--user", "alice")):
        code, message = fault(run(elsewhere, "restore", str(locked), "--json", *named, *on))
        assert (code, "mounted there?" in message) == ("encryption_key_missing", True)
        assert not elsewhere.exists()
        assert not keys.exists()


def test_a_plain_backup_makes_no_encrypted_folder_plain(plain: Path, locked: Path, data_dir: Path) -> None:
    code, message = fault(run(data_dir, "restore", str(plain), "--replace", "--json"))
    assert (code, str(data_dir) in message) == ("store_encrypted", True)
    assert not list(data_dir.glob("replaced-*"))
    assert readable(data_dir) == []


def test_a_restored_encrypted_folder_notes_its_key_ring(
    locked: Path, elsewhere: Path, keys: Path, on: tuple[str, ...]
) -> None:
    assert run(elsewhere, "restore", str(locked), *on).exit_code == 0
    keys.rename(keys.with_name("away"))
    assert fault(run(elsewhere, "remember", "x", "--user", "newcomer", "--json", *on))[0] == "encryption_key_missing"
    assert not keys.exists()
