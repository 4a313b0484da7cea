"""Test that memories forgotten after a backup stay forgotten when the backup is restored."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from test_forget import NOW, SECRET, files_with, told

from memory_agent.erasure.logs import HISTORY_FOLDER, read_history
from memory_agent.layout import CONSUMER
from memory_agent.memory import Memory
from memory_agent.storage.folders import user_folder
from memory_agent.storage.owners import Owners
from relay import Event, Journal, journal_folder

Run = Callable[..., Result]
RunJson = Callable[..., Any]


def open_user(data_dir: Path, user_id: str) -> Memory:
    return Memory.open(user_folder(data_dir, user_id), user_id=user_id)


def take_in(data_dir: Path) -> None:
    """Ingest each user's journal events after the cursor, as a daemon does when it starts."""
    with Journal.open(journal_folder(data_dir)) as journal:
        for user_id in ("alice", "bob"):
            entries = journal.read(journal.cursor(CONSUMER), 100, user_id=user_id)
            if entries:
                with open_user(data_dir, user_id) as memory:
                    memory.ingest_encoded([one.data for one in entries], seqs=[one.seq for one in entries])
        journal.commit(CONSUMER, journal.last_seq)


def publish(data_dir: Path, *events: Event) -> None:
    with Journal.open(journal_folder(data_dir)) as journal:
        journal.append(events, NOW)
    take_in(data_dir)


def texts(data_dir: Path, user_id: str) -> list[str]:
    with open_user(data_dir, user_id) as memory:
        return sorted(record.text for _, record in memory._archive.store.scan())


def id_of(data_dir: Path, user_id: str, words: str) -> str:
    with open_user(data_dir, user_id) as memory:
        return next(record.id for _, record in memory._archive.store.scan() if words in record.text)


@pytest.fixture
def backup(data_dir: Path, tmp_path: Path, run: Run) -> Path:
    """A backup of two users. Alice's sessions contain secrets, and so does an event of `system` about a session."""
    secret = [told(number, "alice", f"{SECRET} in place {number}", f"s-{number % 2}") for number in range(4)]
    publish(data_dir, *secret, told(5, "alice", "harmless of alice", "s-9"), told(1, "bob", "harmless of bob", "s-bob"))
    with Journal.open(journal_folder(data_dir)) as journal:
        journal.append([told(7, "system", f"the {SECRET} of the conductor", "s-1")], NOW)
        journal.commit(CONSUMER, journal.last_seq)
    owners = Owners(data_dir / "owners")
    owners.learn(("run:run-alice", "session:s-1"), "alice")
    owners.close()
    result = run("backup", str(tmp_path / "backup"))
    assert result.exit_code == 0, result.output
    return tmp_path / "backup"


def restored(run: Run, data_dir: Path, backup: Path, *more: str) -> Any:
    """Restore the backup, delete the files that it moved aside, and ingest the journal."""
    result = run("restore", str(backup), "--replace", "--json", *more)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    if told["aside"]:
        shutil.rmtree(told["aside"])
    take_in(data_dir)
    return told


def test_a_memory_that_was_erased_after_the_backup_stays_erased(data_dir: Path, backup: Path, run: Run) -> None:
    one = id_of(data_dir, "alice", "place 2")
    assert run("forget", "--user", "alice", "--id", one, "--yes").exit_code == 0
    told = restored(run, data_dir, backup)
    assert (told["erased_again"], told["has_history"]) == ({"alice": 1}, True)
    assert len(texts(data_dir, "alice")) == 4
    assert files_with(f"{SECRET} in place 2", data_dir) == []
    assert files_with(f"{SECRET} in place 1", data_dir) != []
    assert restored(run, data_dir, backup)["erased_again"] == {"alice": 1}  # a second restore erases again


def test_an_erased_session_stays_erased_with_its_system_events(data_dir: Path, backup: Path, run: Run) -> None:
    for session_id in ("s-0", "s-1"):
        assert run("forget", "--user", "alice", "--session", session_id, "--yes").exit_code == 0
    assert restored(run, data_dir, backup)["erased_again"] == {"alice": 4}
    assert texts(data_dir, "alice") == ["harmless of alice"]
    assert texts(data_dir, "bob") == ["harmless of bob"]
    assert files_with(SECRET, data_dir) == []


def test_an_erased_user_is_not_restored(data_dir: Path, backup: Path, run: Run) -> None:
    assert run("forget", "--user", "alice", "--user-all", "--yes").exit_code == 0
    assert restored(run, data_dir, backup)["erased_again"] == {"alice": 5}
    assert files_with(SECRET, data_dir) == []
    assert files_with("run-alice", data_dir) == []
    assert [folder.name for folder in (data_dir / "users").iterdir()] == ["bob"]
    refused = run("restore", str(backup), "--user", "alice", "--replace")
    assert refused.exit_code == 1
    assert "was erased" in refused.stderr


def test_forgotten_memories_stay_forgotten_though_the_journal_has_their_events(
    data_dir: Path, backup: Path, run: Run
) -> None:
    publish(data_dir, told(8, "alice", f"{SECRET} came later", "s-9"))
    with open_user(data_dir, "alice") as memory:
        forgotten = [record.id for _, record in memory._archive.store.scan() if SECRET in record.text]
        assert memory.forget(forgotten[1:]) == 4
        assert memory.forget_session("s-9") == 1
        assert memory.forget([]) == 0
    assert len(texts(data_dir, "alice")) == 1
    restored(run, data_dir, backup, "--user", "alice")
    assert texts(data_dir, "alice") == [f"{SECRET} in place 0"]
    assert "--replace" in run("restore", "--from-journal", "--user", "alice").stderr
    anew = run("restore", "--from-journal", "--user", "alice", "--replace")
    assert (anew.exit_code, "does not contain memories created with remember" in anew.stdout) == (0, True)
    take_in(data_dir)
    assert texts(data_dir, "alice") == [f"{SECRET} in place 0"]


def test_an_erased_session_keeps_memories_from_after_the_erasure(
    data_dir: Path, backup: Path, run: Run, tmp_path: Path
) -> None:
    assert run("forget", "--user", "alice", "--session", "s-9", "--yes").exit_code == 0
    publish(data_dir, told(9, "alice", "harmless again", "s-9"))
    assert run("backup", str(tmp_path / "later")).exit_code == 0
    assert restored(run, data_dir, tmp_path / "later")["erased_again"] == {}
    assert "harmless again" in texts(data_dir, "alice")


def test_a_missing_history_of_erasures_is_reported(data_dir: Path, backup: Path, run: Run, tmp_path: Path) -> None:
    assert run("forget", "--user", "alice", "--user-all", "--yes").exit_code == 0
    shutil.rmtree(data_dir)
    result = run("restore", str(backup))
    assert result.exit_code == 0
    assert "has no erasure history" in result.stderr
    assert len(texts(data_dir, "alice")) == 5


def test_the_history_holds_no_ids_and_a_torn_line_loses_only_itself(data_dir: Path, backup: Path, run: Run) -> None:
    one = id_of(data_dir, "alice", "place 2")
    assert run("forget", "--user", "alice", "--id", one, "--session", "s-1", "--yes").exit_code == 0
    kept = data_dir / HISTORY_FOLDER
    for word in (one, "alice", "s-1", "run-alice", SECRET):
        assert files_with(word, kept) == []
        assert word not in "".join(file.name for file in kept.iterdir())
    (file,) = kept.iterdir()
    file.write_bytes(file.read_bytes()[:-9])
    other = id_of(data_dir, "alice", "place 0")
    assert run("forget", "--user", "alice", "--id", other, "--yes").exit_code == 0
    history = read_history(user_folder(data_dir, "alice"), "alice")
    assert (len(history.erasures), history.unread) == (1, 1)
    file.write_bytes(file.read_bytes().replace(history.erasures[0].memories[0].encode(), b"0" * 32))
    assert read_history(user_folder(data_dir, "alice"), "alice").unread == 2
    result = run("restore", str(backup), "--replace")
    assert "2 damaged erasure records of alice;" in result.stderr
    assert history.since(history.erasures[0].at + timedelta(seconds=1)).erasures == ()


def test_taking_users_of_another_cell_reports_a_torn_history(
    data_dir: Path, backup: Path, run: Run, tmp_path: Path
) -> None:
    one = id_of(data_dir, "alice", "place 2")
    assert run("forget", "--user", "alice", "--id", one, "--yes").exit_code == 0
    (file,) = (data_dir / HISTORY_FOLDER).iterdir()
    file.write_bytes(file.read_bytes()[:-9])
    shutil.rmtree(user_folder(data_dir, "alice"))
    cells = tmp_path / "cells.toml"
    cells.write_text('[cell-0]\ndata_dir = "data"\n')
    result = run("cells", "take", str(cells), "cell-0", str(backup))
    assert "1 damaged erasure records of alice;" in result.stderr
    assert len(texts(data_dir, "alice")) == 5


def test_memories_imported_after_being_forgotten_survive_a_restore(
    data_dir: Path, tmp_path: Path, run: Run, run_json: RunJson
) -> None:
    with open_user(data_dir, "alice") as memory:
        kept, gone = (memory.remember(text, now=NOW).id for text in ("kept", "gone for a while"))
    export = str(tmp_path / "alice.jsonl")
    assert run("export", export, "--user", "alice").exit_code == 0
    for one in (kept, gone):
        assert run("forget", "--id", one, "--user", "alice", "--yes").exit_code == 0
    assert run("import", export, "--user", "alice").exit_code == 0
    assert run("forget", "--id", gone, "--user", "alice", "--yes").exit_code == 0
    assert run("backup", str(tmp_path / "copy")).exit_code == 0
    assert run("import", export, "--user", "alice").exit_code == 0
    assert run("forget", "--id", gone, "--user", "alice", "--yes").exit_code == 0
    assert "erased_again" in run_json("restore", str(tmp_path / "copy"), "--replace")
    assert texts(data_dir, "alice") == ["kept"]


def test_a_forgotten_id_that_returned_is_restored_only_from_later_backups(
    data_dir: Path, tmp_path: Path, run: Run
) -> None:
    def remember(text: str) -> None:
        assert run("remember", text, "--id", "plan", "--user", "alice").exit_code == 0

    def restored_from(name: str) -> list[str]:
        assert run("restore", str(tmp_path / name), "--replace").exit_code == 0
        return texts(data_dir, "alice")

    remember(f"the {SECRET} plan")
    assert run("backup", str(tmp_path / "before")).exit_code == 0
    assert run("forget", "--id", "plan", "--user", "alice", "--yes").exit_code == 0
    remember("the new plan")
    assert run("backup", str(tmp_path / "after")).exit_code == 0
    remember("the newest plan")
    assert restored_from("after") == ["the new plan"]
    assert restored_from("before") == []
    remember("the last plan")
    run("forget", "--id", "plan", "--user", "alice", "--yes")  # exits with 1: the files moved aside still contain it
    assert texts(data_dir, "alice") == []
    assert restored_from("after") == []
