"""Test `encrypt`, and the other commands on an encrypted data folder."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner, Result

from memory_agent.care import encryption
from memory_agent.cli.group import cli
from memory_agent.erasure.request import Selection
from memory_agent.memory import Memory
from memory_agent.settings import StoreSettings
from memory_agent.storage.environment import UserKey, open_records
from memory_agent.storage.folders import user_folder
from memory_agent.storage.owners import Owners
from relay import Journal, event_from_mapping, journal_folder
from relay.config import EventLimits
from relay.crypto import KeyRing
from relay.disk import environment
from tests.memory_agent.forks import forking, serve

Run = Callable[..., Result]

NOW = datetime(2026, 2, 16, tzinfo=UTC)
MARKS = ("zanzibarquokk", "wombat-session", "wombat-event", "wombat-run", "wombat-title", "wombat-key", "wombat-gone")
ALICE, BOB = 15, 14  # number of memories; one of bob's is being erased
VERBS = [("recall", "x"), ("stats",), ("verify",), ("rebuild",), ("compact",), ("export", "unused")]
STORE = ("--set", "store.exact_search_limit=5")


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return tmp_path / "keys"


@pytest.fixture
def locked(data_dir: Path, keys: Path) -> Run:
    """Run a command with encryption.keys_folder set."""

    def run_verb(*words: str, input: str | bytes | None = None) -> Result:
        setting = ("--set", f"encryption.keys_folder={keys}", *STORE)
        return CliRunner().invoke(cli, [*words, *setting, "--data-dir", str(data_dir)], input=input)

    return run_verb


@pytest.fixture
def plain(data_dir: Path, template: Path) -> Path:
    """A copy of `template`."""
    shutil.copytree(template, data_dir, dirs_exist_ok=True)
    return data_dir


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two users with memories, a run and an unfinished erasure, plus a journal and the map of run owners."""
    data_dir = tmp_path_factory.mktemp("template")
    for user_id in ("alice", "bob"):
        folder = user_folder(data_dir, user_id)
        with Memory.open(folder, user_id=user_id, store_settings=StoreSettings(exact_search_limit=5)) as memory:
            for number in range(12):
                memory.remember(f"zanzibarquokka {number} of {user_id}", title="wombat-title", now=NOW)
            memory.runs.begin("find the zanzibarquokka", "wombat-run", "wombat-session", now=NOW)
            memory.runs.end("wombat-run", "completed", "found it", now=NOW)
            memory.remember("a quokka", session_id="wombat-gone", now=NOW, metadata={"wombat-key": 1})
            if user_id == "bob":
                memory.erasure.begin(memory.erasure.plan(Selection(session_id="wombat-gone"), NOW))
        (folder / "lexicon.sqlite.damaged").write_bytes(b"zanzibarquokka")
    with Journal.open(journal_folder(data_dir)) as journal:
        payload = {"text": "zanzibarquokka", "run_id": "wombat-run"}
        fields = {"event_id": "wombat-event", "event_type": "chat.user_msg", "user_id": "alice", "payload": payload}
        journal.append([event_from_mapping(fields, EventLimits(), NOW)], NOW)
    owners = Owners(data_dir / "owners")
    owners.learn(("run:wombat-run", "session:wombat-session"), "alice")
    owners.close()
    return data_dir


@pytest.fixture
def encrypted(plain: Path, locked: Run) -> Path:
    assert locked("encrypt").exit_code == 0
    return plain


def files_with_marks(folder: Path) -> set[str]:
    contents = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    return {file.name for file, data in contents.items() if any(mark.encode() in data for mark in MARKS)}


def document(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def fault(result: Result) -> str:
    assert result.exit_code != 0
    code: str = json.loads(result.stderr.splitlines()[-1])["error"]["code"]
    return code


def test_encrypt_leaves_nothing_readable_and_everything_usable(plain: Path, keys: Path, locked: Run) -> None:
    assert files_with_marks(plain) >= {"data.mdb", "columns.arrays", "lexicon.sqlite.damaged", "erasing.json"}
    told = document(locked("encrypt", "--json"))
    assert {user["user_id"]: user["memories"] for user in told["users"]} == {"alice": ALICE, "bob": ALICE}
    assert files_with_marks(plain) == set()
    assert sorted(KeyRing(keys).users()) == ["alice", "bob", "system"]
    found = document(locked("recall", "zanzibarquokka", "--top-k", "3", "--user", "alice", "--json"))
    assert len(found["memories"]) == 3
    assert document(locked("stats", "--user", "bob", "--json"))["memories"] == BOB  # the erasure was completed
    assert document(locked("verify", "--json"))["sound"] is True
    again = document(locked("encrypt", "--json"))
    assert all(user["was_encrypted"] for user in again["users"])
    assert files_with_marks(plain) == set()
    owners = Owners(plain / "owners", key=UserKey(KeyRing(keys), "system"))
    assert owners.owner(("run:wombat-run",)) == "alice"
    owners.close()


def test_encrypt_removes_the_leftovers_of_killed_processes(plain: Path, locked: Run) -> None:
    left = [
        plain / ".restoring" / "users" / "alice",  # left by a killed restore
        plain / "users" / f".erased-{'0' * 26}",  # left by a process that was killed while erasing a user
        plain / "users" / "carol",  # a user without records
    ]
    for folder in left:
        folder.mkdir(parents=True)
        (folder / "lexicon.sqlite.damaged").write_bytes(b"zanzibarquokka")
    told = document(locked("encrypt", "--json"))
    assert [user["user_id"] for user in told["users"]] == ["alice", "bob"]
    assert files_with_marks(plain) == set()


def test_encrypt_needs_the_setting_and_a_folder_that_is_not_in_use(plain: Path, run: Run, locked: Run) -> None:
    assert fault(run("encrypt", "--json")) == "settings"
    with Memory.open(user_folder(plain, "alice"), user_id="alice"):
        assert fault(locked("encrypt", "--json")) == "store_owned_elsewhere"
    before = files_with_marks(plain)
    assert "data.mdb" in before


def test_one_user_may_be_encrypted_alone(plain: Path, keys: Path, run: Run, locked: Run) -> None:
    assert locked("encrypt", "--user", "alice").exit_code == 0
    assert files_with_marks(user_folder(plain, "alice")) == set()
    assert KeyRing(keys).users() == ["alice", "system"]
    assert fault(locked("stats", "--user", "bob", "--json")) == "store_not_encrypted"
    assert document(run("stats", "--user", "bob", "--json"))["memories"] == BOB


@pytest.mark.parametrize("verb", VERBS)
def test_every_command_names_the_missing_setting(encrypted: Path, run: Run, verb: tuple[str, ...]) -> None:
    result = run(*verb, "--user", "alice")
    assert result.exit_code != 0
    assert "encryption.keys_folder" in result.stderr


@pytest.mark.parametrize("verb", VERBS)
def test_every_command_reports_a_destroyed_key_as_missing(
    encrypted: Path, keys: Path, locked: Run, verb: tuple[str, ...]
) -> None:
    KeyRing(keys).destroy("alice")
    assert fault(locked(*verb, "--user", "alice", "--json")) == "encryption_key_missing"
    assert document(locked("stats", "--user", "bob", "--json"))["memories"] == BOB
    assert not KeyRing(keys).has("alice")


def test_a_backup_stays_encrypted_holds_no_keys_and_is_restored_with_them(
    encrypted: Path, tmp_path: Path, keys: Path, run: Run, locked: Run
) -> None:
    made = document(locked("backup", str(tmp_path / "copy"), "--json"))
    assert {part["part"] for part in made["parts"]} == {"user alice", "user bob", "owners", "journal"}
    assert files_with_marks(tmp_path / "copy") == set()
    coded = [json.loads(file.read_bytes().splitlines()[0])["key"] for file in keys.iterdir()]
    secrets = [form for one in coded for form in (one.encode(), base64.b64decode(one))]
    copied = [file.read_bytes() for file in (tmp_path / "copy").rglob("*") if file.is_file()]
    assert len(secrets) == 6
    assert not any(secret in content for content in copied for secret in secrets)
    assert fault(run("restore", str(tmp_path / "copy"), "--replace", "--json")) == "store_encrypted"
    restored = locked("restore", str(tmp_path / "copy"), "--replace")
    assert restored.exit_code == 0
    assert re.search(r"^restored owners: [1-9.]+ KB$", restored.stdout, re.MULTILINE)
    assert document(locked("stats", "--user", "alice", "--json"))["memories"] == ALICE
    assert locked("restore", str(tmp_path / "copy"), "--user", "alice", "--replace").exit_code == 0
    assert locked("rebuild").exit_code == 0
    assert document(locked("verify", "--json"))["sound"] is True
    assert files_with_marks(encrypted) == set()


def test_a_backup_without_the_setting_names_the_folder_that_is_encrypted(
    encrypted: Path, tmp_path: Path, run: Run
) -> None:
    refused = run("backup", str(tmp_path / "copy"))
    assert refused.exit_code == 1
    assert refused.stderr.startswith(f"error: {encrypted} is encrypted: set encryption.keys_folder to")
    assert not list(tmp_path.glob("*copy*"))


def test_a_backup_leaves_out_users_without_a_key_and_restores_the_others(
    encrypted: Path, tmp_path: Path, keys: Path, locked: Run
) -> None:
    assert locked("backup", str(tmp_path / "first")).exit_code == 0
    KeyRing(keys).destroy("alice")
    result = locked("backup", str(tmp_path / "second"), "--json")
    assert result.exit_code == 3
    assert json.loads(result.stdout)["left_out"] == ["alice"]
    assert locked("restore", str(tmp_path / "first"), "--replace").exit_code == 0
    assert document(locked("stats", "--user", "bob", "--json"))["memories"] == ALICE  # backups omit unfinished erasures
    assert fault(locked("stats", "--user", "alice", "--json")) == "encryption_key_missing"


def test_memories_are_exported_from_an_encrypted_folder_and_imported_into_another(
    encrypted: Path, tmp_path: Path, keys: Path, locked: Run
) -> None:
    file = tmp_path / "alice.jsonl"
    assert locked("export", str(file), "--user", "alice").exit_code == 0
    assert b"zanzibarquokka" in file.read_bytes()
    assert document(locked("import", str(file), "--user", "carol", "--json"))["taken"] == ALICE
    assert KeyRing(keys).has("carol")
    assert files_with_marks(encrypted) == set()
    assert document(locked("stats", "--user", "carol", "--json"))["memories"] == ALICE


def test_forgotten_memories_leave_an_encrypted_folder(encrypted: Path, locked: Run) -> None:
    assert locked("rebuild", "--user", "alice").exit_code == 0
    assert document(locked("forget", "--user", "alice", "--kind", "finding", "--yes", "--json"))["complete"] is True
    assert locked("compact").exit_code == 0
    assert document(locked("verify", "--json"))["sound"] is True
    assert files_with_marks(encrypted) == set()


def test_verify_finds_a_flipped_bit_in_encrypted_data(encrypted: Path, keys: Path, locked: Run) -> None:
    folder = user_folder(encrypted, "alice")
    key = UserKey(KeyRing(keys), "alice")
    with closing(open_records(folder, StoreSettings(), key)) as environment, environment.read() as transaction:
        sealed = list(transaction.scan_stored("records"))[3][1]
    file = folder / "records" / "data.mdb"
    file.write_bytes(file.read_bytes().replace(sealed, sealed[:-1] + bytes([sealed[-1] ^ 1])))
    result = locked("verify", "--json")
    assert result.exit_code == 3
    parts = {part["part"]: part["findings"] for part in json.loads(result.stdout)["parts"]}
    assert [finding["place"] for finding in parts["user alice"]] == ["records/data.mdb"]
    assert parts["user bob"] == []


@pytest.mark.parametrize("verb", ["verify", "rebuild", "compact", "encrypt"])
def test_a_user_whose_key_was_destroyed_is_skipped_and_named(
    verb: str, encrypted: Path, keys: Path, locked: Run
) -> None:
    assert locked("stats", "--user", "bob").exit_code == 0
    KeyRing(keys).destroy("alice")
    result = locked(verb, "--json")
    assert result.exit_code == (3 if verb == "verify" else 0), result.output
    assert "skipping user alice" in result.stderr
    told = json.loads(result.stdout)
    if verb == "verify":
        assert (told["sound"], told.pop("unchecked")) == (False, ["user alice"])
    assert "bob" in json.dumps(told)
    assert "alice" not in json.dumps(told)


def test_an_unreadable_user_can_be_forgotten_and_created_again(encrypted: Path, keys: Path, locked: Run) -> None:
    KeyRing(keys).destroy("alice")
    result = locked("forget", "--user", "alice", "--user-all", "--yes", "--json")
    assert document(result)["complete"] is True
    assert "cannot be read" in result.stderr
    assert not user_folder(encrypted, "alice").exists()
    assert locked("remember", "a new beginning", "--user", "alice").exit_code == 0
    assert document(locked("stats", "--user", "alice", "--json"))["memories"] == 1


def encrypt_until(step: str, *words: str) -> None:
    """Run a command that is killed after a step of the encryption, or before it writes the intent."""
    places: dict[str, ModuleType] = {"room_for_copy": sys.modules["relay.crypto.encrypt_in_place"]}
    places |= dict.fromkeys(("flush_copy", "replace_by_copy"), environment)
    place = places.get(step, encryption)
    before = getattr(place, step)

    def dying(*arguments: Any, **more: Any) -> None:
        if step != "encrypt_intent":
            before(*arguments, **more)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(place, step, dying)
    cli(words)


@pytest.fixture(scope="module")
def fork() -> Iterator[Callable[..., int]]:
    with forking(__file__) as run:
        yield run


@pytest.mark.parametrize(
    "step", ["discard_learner", "room_for_copy", "flush_copy", "replace_by_copy", "encrypt_intent"]
)
def test_encryption_killed_at_any_step_continues(
    step: str, plain: Path, keys: Path, run: Run, locked: Run, fork: Callable[..., int]
) -> None:
    words = ["encrypt", "--user", "bob", "--data-dir", str(plain), "--set", f"encryption.keys_folder={keys}"]
    assert fork(step, *words) == -signal.SIGKILL
    is_plain = step in ("discard_learner", "room_for_copy", "flush_copy")
    if is_plain:
        assert run("stats", "--user", "bob").exit_code == 0
    assert locked("encrypt", "--user", "bob").exit_code == 0
    assert document(locked("stats", "--user", "bob", "--json"))["memories"] == BOB
    assert files_with_marks(user_folder(plain, "bob")) == set()


if __name__ == "__main__":
    serve(encrypt_until)
