"""If a restore is killed at any of its file moves, the next process that locks the folder finishes the restore."""

from __future__ import annotations

import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from memory_agent.care import make_backup
from memory_agent.embedders import Embedder
from memory_agent.errors import StoreDamagedError
from memory_agent.layout import Layout
from memory_agent.memory import Memory
from memory_agent.settings import Settings
from memory_agent.storage.folder_moves import finish_moves, has_unfinished_moves, move_folders
from memory_agent.storage.folders import STAGE, user_folder
from relay import EventLimits, Journal, event_from_mapping, journal_folder
from relay.disk import add_checksum

NOW = datetime(2026, 3, 1, tzinfo=UTC)
EVENT = {"user_id": "alice", "event_type": "conductor.run.started", "payload": {"objective": "Find the spare key"}}
KILLED = """
import os, shutil, signal, sys, traceback
from datetime import UTC, datetime
from pathlib import Path
from memory_agent.care import restore_all, restore_user
from memory_agent.settings import Settings

really = Path.rename

def rename(self, target):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return really(self, target)

def restore(data_dir):
    Path.rename = rename
    backup, now = root / "backup", datetime(2026, 3, 2, tzinfo=UTC)
    if sys.argv[2] == "all":
        restore_all(backup, data_dir, Settings(), now, lambda *_: None, replace=True)
    else:
        restore_user(backup, data_dir, "alice", Settings(), now, lambda *_: None, replace=True)

root = Path(sys.argv[1])
for left in range(5):
    work = shutil.copytree(root / "data", root / f"work-{left}")
    child = os.fork()
    if not child:
        try:
            restore(work)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Restores in one process for each number of moves, and kills each process after its moves. The processes are forks,
because the imports take longer than a restore.
"""


@pytest.fixture
def data_dir(tmp_path: Path, embedder: Embedder) -> Path:
    """A data folder with two events and two of alice's memories, and an earlier backup with one of each."""
    folder = tmp_path / "data"
    for number, text in enumerate(("The spare key is under the stone", "The spare key was moved to the shed")):
        with Memory.open(user_folder(folder, "alice"), user_id="alice", embedder=embedder) as memory:
            memory.remember(text, now=NOW)
        with Journal.open(journal_folder(folder)) as journal:
            journal.append([event_from_mapping(EVENT | {"event_id": f"e-{number}"}, EventLimits(), NOW)], NOW)
        if number == 0:
            make_backup(folder, tmp_path / "backup", Settings(), NOW, lambda *_: None)
    return folder


@pytest.mark.parametrize("part", ["all", "alice"])
def test_a_restore_killed_at_any_move_is_finished_by_the_next_start(
    data_dir: Path, tmp_path: Path, embedder: Embedder, part: str
) -> None:
    killed = finished = 0
    words = [sys.executable, "-c", KILLED, str(data_dir.parent), part]
    done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=120)
    codes = [int(code) for code in done.stdout.split()]
    assert len(codes) == 5
    for moves, code in enumerate(codes):
        work = tmp_path / f"work-{moves}"
        assert code in (0, -signal.SIGKILL), done.stderr
        killed += code != 0
        finished += has_unfinished_moves(work)
        with Layout(work).hold():
            assert not has_unfinished_moves(work)
        with Memory.open(user_folder(work, "alice"), user_id="alice", embedder=embedder) as memory:
            assert memory.stats().memories == 1  # as in the backup
        with Journal.open(journal_folder(work)) as journal:
            assert journal.last_seq == (1 if part == "all" else 2)
        (aside,) = work.glob("replaced-*")
        with Memory.open(aside / "users" / "alice", user_id="alice", embedder=embedder) as memory:
            assert memory.stats().memories == 2  # as before the restore
        assert not list(work.glob(".restoring"))
    assert killed == finished >= 2


def test_folders_created_meanwhile_are_not_overwritten(tmp_path: Path) -> None:
    stage, place = tmp_path / ".restoring" / "users", tmp_path / "users"
    for folder in (stage, place):
        folder.mkdir(parents=True)
        (folder / "data").touch()
    with pytest.raises(StoreDamagedError, match=r"users: was created before a restore finished"):
        move_folders(tmp_path, [(stage, place)])
    with pytest.raises(StoreDamagedError), Layout(tmp_path).hold():
        pass
    assert (stage / "data").exists()
    assert (place / "data").exists()


def test_a_damaged_plan_is_named_and_nothing_is_moved(tmp_path: Path) -> None:
    stage = tmp_path / ".restoring"
    stage.mkdir()
    (stage / "plan").write_bytes(b'[{"source":"a"\n"0"\n')
    with pytest.raises(StoreDamagedError, match="plan"), Layout(tmp_path).hold():
        pass


@pytest.mark.parametrize("path", ["../outside", "/outside", "", ".", "users/../../outside", "a\0b"])
def test_a_plan_that_leads_out_of_the_data_folder_is_refused(tmp_path: Path, path: str) -> None:
    plan = tmp_path / "data" / STAGE / "plan"
    plan.parent.mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    for move in ({"source": path, "target": "users"}, {"source": "erasures", "target": path}):
        plan.write_bytes(add_checksum(msgspec.json.encode([move])))
        with pytest.raises(StoreDamagedError):
            finish_moves(tmp_path / "data")
        assert (tmp_path / "outside").exists()
        assert plan.exists()
