"""Test a missing or wrong keys folder: nothing is created, and the error suggests what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from memory_agent.cli.doctor import check_encryption
from memory_agent.layout import Layout
from memory_agent.settings import Settings
from memory_agent.storage.folders import user_folder
from relay import EncryptionSettings, Journal, journal_folder
from relay.crypto import KeyRing

Run = Callable[..., Result]


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return tmp_path / "keys"


@pytest.fixture
def locked(run: Run, keys: Path) -> Run:
    """Run a command with encryption.keys_folder set."""
    return lambda *words: run(*words, "--set", f"encryption.keys_folder={keys}")


@pytest.fixture(params=["library", "journal"])
def encrypted(request: pytest.FixtureRequest, data_dir: Path, keys: Path, locked: Run) -> Path:
    """A data folder with one encrypted user, with and without a journal."""
    assert locked("remember", "the spare key is under the stone", "--user", "alice").exit_code == 0
    if request.param == "journal":
        Journal.open(journal_folder(data_dir), keys=KeyRing(keys)).close()
    return data_dir


def away(keys: Path, data_dir: Path, how: str) -> None:
    keys.rename(keys.with_name("keys.away"))
    if how == "foreign":
        ring = KeyRing(keys)
        for user_id in ("system", "newcomer"):
            ring.cipher(user_id, "records", create=True)


def fault(result: Result) -> dict[str, Any]:
    assert result.exit_code == 1, result.output
    error: dict[str, Any] = json.loads(result.stderr.splitlines()[-1])["error"]
    return error


@pytest.mark.parametrize("how", ["missing", "foreign"])
def test_no_second_ring_of_keys_is_created(how: str, encrypted: Path, keys: Path, locked: Run) -> None:
    away(keys, encrypted, how)
    before = sorted(keys.glob("*"))
    for user_id in ("newcomer", "another"):
        error = fault(locked("remember", "x", "--user", user_id, "--json"))
        assert error["code"] == "encryption_key_missing"
        assert f"{keys} " in error["message"]
        assert "mounted" in error["message"]
        assert "forget" not in error["message"]
        assert not user_folder(encrypted, user_id).exists()
    assert sorted(keys.glob("*")) == before
    assert keys.exists() == (how == "foreign")


@pytest.mark.parametrize("how", ["missing", "foreign"])
def test_a_missing_folder_of_keys_is_reported_first(
    how: str, encrypted: Path, keys: Path, locked: Run, tmp_path: Path
) -> None:
    (user_folder(encrypted, "plain")).mkdir()
    away(keys, encrypted, how)
    shown = json.loads(locked("encryption", "status", "--json").stdout)
    assert shown["keys_away"] is True
    assert "is the right folder mounted there?" in locked("encryption", "status").stdout.splitlines()[0]
    settings = Settings(encryption=EncryptionSettings(keys_folder=str(keys)))
    found = check_encryption(settings, Layout(encrypted))
    assert (found.state, found.detail) == ("failed", f"{keys} does not contain the keys of {encrypted}")
    assert "encrypt," not in found.advice


def test_erasing_is_the_last_advice_and_the_command_works_as_printed(encrypted: Path, keys: Path, locked: Run) -> None:
    keys.rename(keys.with_name("keys.away"))
    message = fault(locked("stats", "--user", "alice", "--json"))["message"]
    assert message.index("mounted there?") < message.index("destroyed")
    assert message.endswith("memory-agent forget --user alice --user-all")


def test_everything_works_again_when_the_keys_are_back(encrypted: Path, keys: Path, locked: Run) -> None:
    keys.rename(keys.with_name("keys.away"))
    assert locked("remember", "x", "--user", "newcomer").exit_code == 1
    keys.with_name("keys.away").rename(keys)
    assert locked("remember", "x", "--user", "newcomer").exit_code == 0
    assert KeyRing(keys).users() == ["alice", "newcomer", "system"]


def test_no_key_is_created_until_a_damaged_ring_mark_is_removed(encrypted: Path, keys: Path, locked: Run) -> None:
    mark = encrypted / "encryption"
    whole = mark.read_bytes()
    for damaged in (b"", whole[:9], whole.replace(b"0", b"1").replace(b"a", b"b"), whole[::-1]):
        mark.write_bytes(damaged)
        assert "remove this file" in fault(locked("remember", "x", "--user", "newcomer", "--json"))["message"]
        assert not user_folder(encrypted, "newcomer").exists()
    mark.unlink()
    assert locked("remember", "x", "--user", "newcomer").exit_code == 0
    assert mark.read_bytes() == whole


def test_without_the_setting_no_plain_store_is_created_beside_encrypted_ones(encrypted: Path, run: Run) -> None:
    error = fault(run("remember", "x", "--user", "newcomer", "--json"))
    assert (error["code"], "encryption.keys_folder" in error["message"]) == ("store_encrypted", True)
    assert not user_folder(encrypted, "newcomer").exists()
    shown = run("encryption", "status").stdout.splitlines()[0]
    assert shown == "some stores are encrypted, but encryption.keys_folder is not set"


@pytest.mark.parametrize("is_named", [True, False])
def test_a_daemon_reports_key_problems_and_creates_nothing(
    is_named: bool, encrypted: Path, keys: Path, run: Run, locked: Run
) -> None:
    keys.rename(keys.with_name("keys.away"))
    before = {path.name for path in encrypted.iterdir()}
    error = fault((locked if is_named else run)("serve", "--json"))
    assert error["code"] == ("encryption_key_missing" if is_named else "store_encrypted")
    assert str(keys if is_named else encrypted) in error["message"]
    assert {path.name for path in encrypted.iterdir()} == before
    assert not keys.exists()
