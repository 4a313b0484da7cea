"""Backups are made under load, restored to a different folder, and rejected if damaged."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from care_samples import NOW, run_events

from memory_agent.care import Restored, check_events, check_user, make_backup, replay_user, restore_all, restore_user
from memory_agent.embedders import Embedder
from memory_agent.errors import BackupDamagedError, DaemonRunningError, InvalidInputError, StoreOwnedElsewhereError
from memory_agent.layout import CONSUMER, Layout
from memory_agent.memory import Memory
from memory_agent.settings import EmbedderSettings, Settings
from memory_agent.storage.folders import user_folder
from relay import EventLimits, Journal, event_from_mapping, journal_folder

SETTINGS = Settings()
LATER = NOW + timedelta(days=1)
QUERIES = ("flaky login test", "the VPN and patience", "mutex 3", "nothing of this kind")


def quiet(*_: object) -> None:
    return None


@pytest.fixture
def data_dir(tmp_path: Path, filled: Path) -> Path:
    """A data folder with two users and a journal; all its events belong to alice and have been ingested."""
    data_dir = filled.parent.parent
    shutil.copytree(filled, user_folder(data_dir, "bob.x"))
    with Journal.open(journal_folder(data_dir)) as journal:
        for number in range(8):
            journal.append([event_from_mapping(one, EventLimits(), LATER) for one in run_events(number)], NOW)
        journal.commit(CONSUMER, 32)
    return data_dir


def answers(data_dir: Path, user_id: str, embedder: Embedder) -> list[object]:
    """Return answers of every kind that a user can get from a memory."""
    with Memory.open(user_folder(data_dir, user_id), user_id=user_id, embedder=embedder) as memory:
        recalls = [memory.recall(query, 10, now=NOW).memories for query in QUERIES]
        runs = memory.runs.list()
        stats = memory.stats()
        records = list(memory._archive.store.scan())
    return [
        [[(one.record.id, one.record.text, round(one.sona_score, 6)) for one in found] for found in recalls],
        runs,
        [(row, record.id, record.text, record.metadata, record.utility) for row, record in records],
        (stats.memories, stats.by_kind, stats.cursor, stats.events_kept, stats.without_vector),
    ]


def restored(backup: Path, data_dir: Path, *, replace: bool = False) -> Restored:
    return restore_all(backup, data_dir, SETTINGS, NOW, quiet, replace=replace)


def test_a_backup_restored_in_another_folder_gives_the_same_answers(
    data_dir: Path, tmp_path: Path, embedder: Embedder
) -> None:
    made = make_backup(data_dir, tmp_path / "backup", SETTINGS, NOW, quiet)
    assert {part.part for part in made.parts} == {"user alice", "user bob.x", "journal"}
    elsewhere = tmp_path / "elsewhere" / "data"
    restored(tmp_path / "backup", elsewhere)
    for user_id in ("alice", "bob.x"):
        assert answers(elsewhere, user_id, embedder) == answers(data_dir, user_id, embedder)
        assert check_user(user_folder(elsewhere, user_id), user_id, SETTINGS.store, quiet).findings == ()
    assert check_events(journal_folder(elsewhere), SETTINGS.relay.journal, quiet).findings == ()
    with Journal.open(journal_folder(elsewhere)) as copy, Journal.open(journal_folder(data_dir)) as first:
        assert copy.read(0, 100) == first.read(0, 100)
        assert copy.consumers() == first.consumers()


def test_a_restored_store_has_a_new_owner_epoch(data_dir: Path, tmp_path: Path) -> None:
    make_backup(data_dir, tmp_path / "backup", SETTINGS, NOW, quiet)
    with Memory.open(user_folder(data_dir, "alice")) as memory:
        before = memory._archive.store.epoch
    restored(tmp_path / "backup", tmp_path / "data2")
    with Memory.open(user_folder(tmp_path / "data2", "alice")) as memory:
        assert memory._archive.store.epoch >= before


_WRITER = """
import sys
from pathlib import Path
from datetime import UTC, datetime
from memory_agent.memory import Memory
from memory_agent.settings import EmbedderSettings
from relay import Journal, EventLimits, event_from_mapping, encode_event
data_dir = Path(sys.argv[1])
now = datetime(2026, 3, 1, tzinfo=UTC)
journal = Journal.open(data_dir / "journal")
no_model = EmbedderSettings(folder="/nowhere")
with Memory.open(data_dir / "users" / "alice", user_id="alice", embedder_settings=no_model) as memory:
    for number in range(100_000):
        event = {"event_id": f"w{number}", "event_type": "chat.user_msg", "user_id": "alice",
                 "payload": {"text": f"written while a backup is made, number {number}"}}
        made = event_from_mapping(event, EventLimits(), now)
        (appended,) = journal.append([made], now)
        memory.ingest_encoded([encode_event(made)], seqs=[appended.seq])
        journal.commit("memory", appended.seq)
        print(number, flush=True)
"""


@pytest.fixture
def writer(data_dir: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a process that continuously appends events, ingests them, and commits the journal's cursor."""
    process = subprocess.Popen([sys.executable, "-c", _WRITER, str(data_dir)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    with process:
        pass


def test_a_backup_made_under_load_has_every_event_of_its_journal(
    data_dir: Path, tmp_path: Path, writer: subprocess.Popen[str]
) -> None:
    """No store is ahead of the journal, and the journal redelivers the events missing from a store."""
    for number in range(3):
        backup, elsewhere = tmp_path / f"backup{number}", tmp_path / f"data{number}"
        make_backup(data_dir, backup, SETTINGS, NOW, quiet)
        restored(backup, elsewhere)
        assert check_events(journal_folder(elsewhere), SETTINGS.relay.journal, quiet).findings == ()
        with (
            Journal.open(journal_folder(elsewhere)) as journal,
            Memory.open(
                user_folder(elsewhere, "alice"), user_id="alice", embedder_settings=EmbedderSettings(folder="/nowhere")
            ) as memory,
        ):
            assert journal.cursor(CONSUMER) <= memory.stats().cursor <= journal.last_seq
            known = {record.event_id for _, record in memory._archive.store.scan()}
            missed = journal.read(journal.cursor(CONSUMER), 100_000, 1 << 30)
            memory.ingest_encoded([entry.data for entry in missed], seqs=[entry.seq for entry in missed])
            after = [record.event_id for _, record in memory._archive.store.scan()]
            wanted = {f"w{number}" for number in range(journal.last_seq - 32)}
            assert {event_id for event_id in after if event_id and event_id.startswith("w")} == wanted
            assert known <= set(after)
            assert len(set(after)) == len([one for one in after if one is not None]) + (None in after)
    assert writer.poll() is None


@pytest.mark.parametrize("how", ["flip", "cut", "missing", "manifest"])
def test_a_damaged_backup_is_refused_and_changes_nothing(data_dir: Path, tmp_path: Path, how: str) -> None:
    backup = tmp_path / "backup"
    make_backup(data_dir, backup, SETTINGS, NOW, quiet)
    file = backup / ("manifest.json" if how == "manifest" else "journal/data.mdb")
    content = bytearray(file.read_bytes())
    if how == "missing":
        file.unlink()
    elif how == "cut":
        file.write_bytes(content[:-4_096])
    elif how == "flip":
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    else:
        file.write_bytes(content[: len(content) // 2])
    with pytest.raises(BackupDamagedError) as refused:
        restored(backup, tmp_path / "new")
    assert how != "manifest" or str(refused.value) == f"{backup}: the backup is damaged: its manifest is truncated"
    before = {path: path.read_bytes() for path in data_dir.rglob("data.mdb")}
    with pytest.raises(BackupDamagedError):
        restored(backup, data_dir, replace=True)
    assert {path: path.read_bytes() for path in data_dir.rglob("data.mdb")} == before


def test_existing_memories_are_moved_aside_only_on_request(data_dir: Path, tmp_path: Path) -> None:
    make_backup(data_dir, tmp_path / "backup", SETTINGS, NOW, quiet)
    with Memory.open(user_folder(data_dir, "carol")) as memory:
        memory.remember("stored after the backup")
    with pytest.raises(InvalidInputError, match="--replace"):
        restored(tmp_path / "backup", data_dir)
    done = restored(tmp_path / "backup", data_dir, replace=True)
    assert not user_folder(data_dir, "carol").exists()
    assert done.aside is not None
    with Memory.open(user_folder(Path(done.aside), "carol")) as memory:
        assert memory.stats().memories == 1


def test_nothing_is_restored_into_a_folder_in_use(data_dir: Path, tmp_path: Path) -> None:
    make_backup(data_dir, tmp_path / "backup", SETTINGS, NOW, quiet)
    with Layout(data_dir).hold(), pytest.raises(DaemonRunningError):
        restored(tmp_path / "backup", data_dir, replace=True)
    with Memory.open(user_folder(data_dir, "alice")), pytest.raises(StoreOwnedElsewhereError):
        restored(tmp_path / "backup", data_dir, replace=True)


def test_a_damaged_user_is_left_out_by_name_and_the_others_are_copied(data_dir: Path, tmp_path: Path) -> None:
    file = user_folder(data_dir, "alice") / "records" / "data.mdb"
    file.write_bytes(file.read_bytes()[: -8 * 4_096] + bytes(8 * 4_096))
    made = make_backup(data_dir, tmp_path / "backup", SETTINGS, NOW, quiet)
    assert made.left_out == ("alice",)
    assert {part.part for part in made.parts} == {"user bob.x", "journal"}


def test_a_restored_user_receives_later_events_from_the_journal(
    data_dir: Path, tmp_path: Path, embedder: Embedder
) -> None:
    make_backup(data_dir, tmp_path / "backup", SETTINGS, NOW, quiet)
    with Journal.open(journal_folder(data_dir)) as journal:
        journal.append([event_from_mapping(one, EventLimits(), LATER) for one in run_events(8)], NOW)
        journal.commit(CONSUMER, 36)
    file = user_folder(data_dir, "alice") / "records" / "data.mdb"
    file.write_bytes(file.read_bytes()[: -8 * 4_096] + bytes(8 * 4_096))
    done = restore_user(tmp_path / "backup", data_dir, "alice", SETTINGS, NOW, quiet, replace=True)
    assert [part.part for part in done.parts] == ["user alice"]
    with Journal.open(journal_folder(data_dir)) as journal:
        assert journal.cursor(CONSUMER) == 32
        given = journal.read(journal.cursor(CONSUMER), 100)
    with Memory.open(user_folder(data_dir, "alice"), user_id="alice", embedder=embedder) as memory:
        assert memory.ingest_encoded([entry.data for entry in given], seqs=[entry.seq for entry in given]).kept > 0
        assert any("login test 8" in one.record.text for one in memory.recall("login test 8", 10, now=NOW).memories)


def test_a_user_without_a_backup_is_rebuilt_from_the_journal(
    data_dir: Path, tmp_path: Path, embedder: Embedder
) -> None:
    with Memory.open(tmp_path / "whole", user_id="alice", embedder=embedder) as memory:
        for number in range(8):
            memory.ingest(run_events(number), seqs=range(4 * number + 1, 4 * number + 5))
        whole = {record.event_id: record.text for _, record in memory._archive.store.scan()}
    with pytest.raises(InvalidInputError, match="memories created with remember"):
        replay_user(data_dir, "alice", SETTINGS, NOW, replace=False)
    assert user_folder(data_dir, "alice").exists()
    done = replay_user(data_dir, "alice", SETTINGS, NOW, replace=True)
    assert done.aside is not None
    with Journal.open(journal_folder(data_dir)) as journal:
        assert journal.cursor(CONSUMER) == 0
        given = journal.read(0, 100)
    with Memory.open(user_folder(data_dir, "alice"), user_id="alice", embedder=embedder) as memory:
        memory.ingest_encoded([entry.data for entry in given], seqs=[entry.seq for entry in given])
        assert {record.event_id: record.text for _, record in memory._archive.store.scan()} == whole
