"""Test `verify`, `rebuild`, `compact`, `backup`, `restore`, `export` and `import` without a daemon."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result

from memory_agent.layout import CONSUMER, Layout
from memory_agent.memory import Memory
from memory_agent.storage.folders import user_folder
from memory_agent.storage.store import Store
from relay import Journal, event_from_mapping, journal_folder
from relay.config import EventLimits

Run = Callable[..., Result]
RunJson = Callable[..., Any]

NOW = datetime(2026, 2, 16, tzinfo=UTC)


@pytest.fixture
def two_users(data_dir: Path) -> Path:
    """Two users with a few memories, and a journal."""
    for user_id in ("alice", "bob"):
        with Memory.open(user_folder(data_dir, user_id), user_id=user_id) as memory:
            for number in range(4):
                memory.remember(f"the deploy {number} of {user_id} needs the VPN", now=NOW)
    with Journal.open(journal_folder(data_dir)) as journal:
        fields = {"event_id": "e1", "event_type": "chat.user_msg", "user_id": "alice", "payload": {"text": "hello"}}
        journal.append([event_from_mapping(fields, EventLimits(), NOW)], NOW)
    return data_dir


def test_verify_names_every_part_and_finds_nothing_in_a_sound_folder(two_users: Path, run_json: RunJson) -> None:
    document = run_json("verify")
    assert document["sound"] is True
    parts = {part["part"]: part["entries"] for part in document["parts"]}
    assert parts == {"user alice": 4, "user bob": 4, "journal": 1}


def test_verify_of_a_damaged_folder_names_the_place_and_exits_with_2(two_users: Path, run: Run) -> None:
    columns = user_folder(two_users, "bob") / "columns.arrays"
    columns.write_bytes(columns.read_bytes()[:-2_000])
    result = run("verify", "--json")
    assert result.exit_code == 3
    parts = {part["part"]: part["findings"] for part in json.loads(result.stdout)["parts"]}
    assert [finding["place"] for finding in parts["user bob"]] == ["columns.arrays"]
    assert parts["user alice"] == []
    assert run("verify", "--user", "alice").exit_code == 0
    words = run("verify", "--user", "bob")
    assert words.exit_code == 3
    assert "columns.arrays" in words.stdout
    assert "VPN" not in words.stdout


def test_a_backup_is_restored(two_users: Path, tmp_path: Path, run: Run, run_json: RunJson) -> None:
    made = run_json("backup", str(tmp_path / "monday"))
    assert {part["part"] for part in made["parts"]} == {"user alice", "user bob", "journal"}
    again = run("backup", str(tmp_path / "monday"))
    assert (again.exit_code, "already exists; choose a different" in again.output) == (1, True)
    refused = run("restore", str(tmp_path / "monday"))
    assert (refused.exit_code, "--replace" in refused.output) == (1, True)
    done = run_json("restore", str(tmp_path / "monday"), "--user", "bob", "--replace")
    assert [part["part"] for part in done["parts"]] == ["user bob"]
    shown = run("restore", str(tmp_path / "monday"), "--replace").stdout
    assert "restored user bob: 4 memories" in shown
    assert "restored journal: events up to number " in shown
    assert run_json("stats", "--user", "bob")["memories"] == 4
    assert run("restore", "--user", "bob").exit_code == 2
    assert run("restore", "--from-journal").exit_code == 2


def test_the_journal_is_restored_from_the_archive(two_users: Path, tmp_path: Path, run: Run, run_json: RunJson) -> None:
    archive = ("--set", "archive.journal=true", "--set", f"archive.url=file://{tmp_path}/archive")
    with Journal.open(journal_folder(two_users)) as journal:
        journal.commit(CONSUMER, 1)
    run_json("compact", *archive)
    assert run("restore", "--from-archive", *archive).exit_code == 1, "a journal is never replaced"
    journal_folder(two_users).rename(tmp_path / "lost")
    assert run("restore", "--from-archive", "--user", "bob", *archive).exit_code == 2
    last_seq = run_json("restore", "--from-archive", *archive)["last_seq"]
    with Journal.open(journal_folder(two_users), readonly=True) as journal:
        assert ([entry.seq for entry in journal.read(0, 10)], journal.last_seq) == ([1], last_seq)
        assert journal.cursor(CONSUMER) == 0, "the memories were lost, too"


def test_verify_passes_a_restored_folder_and_names_damage_in_a_backup(
    two_users: Path, tmp_path: Path, run: Run, run_json: RunJson
) -> None:
    monday = tmp_path / "monday"
    run_json("backup", str(monday))
    run_json("restore", str(monday), "--replace")
    fresh = run("verify")
    assert (fresh.exit_code, "user bob: missing columns.arrays" in fresh.stderr) == (0, True)
    assert {part["part"]: part["unbuilt"] for part in run_json("verify")["parts"]}["user bob"] == ["columns.arrays"]
    parts = {part["part"]: part["entries"] for part in run_json("verify", str(monday))["parts"]}
    assert parts == {"manifest": 3, "user alice": 4, "user bob": 4, "journal": 1}
    no_backup = run("verify", str(two_users))
    assert (no_backup.exit_code, "is not a backup" in no_backup.stderr) == (1, True)
    records = user_folder(monday, "bob") / "records" / "data.mdb"
    content = bytearray(records.read_bytes())
    content[-100] ^= 1
    records.write_bytes(content)
    damaged = run("verify", str(monday))
    assert (damaged.exit_code, "has changed since the backup" in " ".join(damaged.stdout.split())) == (3, True)
    assert "manifest: 0 entries, 1 finding\n" in damaged.stdout


def test_rebuild_and_compact_work_on_all_users_or_on_one(two_users: Path, run_json: RunJson, run: Run) -> None:
    (user_folder(two_users, "bob") / "lexicon.sqlite.damaged").write_bytes(b"words")
    assert run_json("rebuild") == {"users": {"alice": 4, "bob": 4}}
    assert not (user_folder(two_users, "bob") / "lexicon.sqlite.damaged").exists()
    degraded = run_json("recall", "VPN of the deploy", "--user", "bob")["degraded"]
    assert "index_rebuilding" not in degraded
    assert set(run_json("compact")["users"]) == {"alice", "bob"}
    sizes = run_json("compact", "--user", "alice")["users"]
    assert set(sizes) == {"alice"}
    assert 0 < sizes["alice"]["bytes_after"] <= sizes["alice"]["bytes_before"]
    assert run("verify").exit_code == 0


def test_all_memories_are_embedded_again_by_the_present_model_with_a_progress_bar(
    two_users: Path, run_json: RunJson, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_json("rebuild", "--vectors") == {"users": {"alice": 0, "bob": 0}}  # the model has not changed
    for user_id in ("alice", "bob"):
        with Store.open(user_folder(two_users, user_id)) as store, store.batch() as batch:
            batch.set_stamp("former|0000|int8|r|8")
            batch.set_vector(1, np.ones(8, dtype=np.float32))
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    done = run("rebuild", "--vectors", "--user", "alice")
    assert (done.exit_code, done.stdout) == (0, "user alice: embedded 4 memories\n")
    assert "embedding" in done.stderr
    monkeypatch.delenv("TTY_COMPATIBLE")
    assert run_json("rebuild", "--vectors") == {"users": {"alice": 0, "bob": 4}}
    stats = run_json("stats", "--user", "bob")
    assert (stats["memories"], stats["without_vector"], stats["waiting"]) == (4, 0, 0)
    assert run_json("recall", "VPN of the deploy", "--user", "bob")["degraded"] == []
    assert run("verify").exit_code == 0


def test_an_export_is_imported_for_another_user(two_users: Path, tmp_path: Path, run: Run, run_json: RunJson) -> None:
    lines = run("export", "-", "--user", "alice")
    assert (lines.exit_code, len(lines.stdout.splitlines())) == (0, 5)
    assert run_json("export", str(tmp_path / "a.jsonl"), "--user", "alice")["lines"] == 5
    refused = run("export", str(tmp_path / "a.jsonl"), "--user", "bob")
    assert (refused.exit_code, "use --replace" in refused.stderr) == (1, True)
    assert run_json("export", str(tmp_path / "a.jsonl"), "--user", "alice", "--replace")["lines"] == 5
    assert run_json("import", str(tmp_path / "a.jsonl"), "--user", "carol")["taken"] == 4
    assert run_json("import", "-", "--user", "carol", input=lines.stdout_bytes)["known"] == 4
    assert run_json("stats", "--user", "carol")["memories"] == 4
    broken = run("import", "-", "--user", "carol", input=b"{}\n")
    assert (broken.exit_code, "line 1" in broken.output) == (1, True)


def test_an_export_of_an_unknown_user_or_to_a_missing_folder_fails_and_creates_nothing(
    run: Run, data_dir: Path, tmp_path: Path
) -> None:
    mistyped = run("export", str(tmp_path / "x.jsonl"), "--user", "alcie")
    assert (mistyped.exit_code, mistyped.stderr) == (1, f"error: --user: alcie has no memories in {data_dir}\n")
    run("remember", "worth a note", "--user", "alice")
    nowhere = run("export", str(tmp_path / "none" / "x.jsonl"), "--user", "alice")
    assert (nowhere.exit_code, nowhere.stderr) == (1, f"error: FILE: {tmp_path / 'none'} is not a folder\n")
    assert not (tmp_path / "x.jsonl").exists()


@pytest.mark.parametrize("content", ["", "{}", '{"a": 1}', "a diary\n"])
def test_a_file_that_is_not_an_export_is_refused_and_creates_no_user(
    run: Run, data_dir: Path, tmp_path: Path, content: str
) -> None:
    (tmp_path / "x.jsonl").write_text(content)
    result = run("import", str(tmp_path / "x.jsonl"), "--user", "alice")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: line 1: the file was not written by `memory-agent export`")
    assert 'objects with a "text"' in result.stderr
    assert "`memory-agent index FILE`" in result.stderr
    assert not data_dir.exists()


def test_a_file_that_is_not_an_export_is_named_beside_a_daemon_too(run: Run, data_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "diary.txt").write_text("a diary\n")
    layout = Layout(data_dir)
    layout.create()
    with layout.hold():
        result = run("import", str(tmp_path / "diary.txt"), "--user", "alice")
    assert result.stderr.startswith("error: line 1: the file was not written by `memory-agent export`")
