"""A disk or a quota that is full in the middle of a write, whatever the engine says: no room, and it passes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from relay import Event, EventLimits, Journal, JournalFullError, event_from_mapping
from relay.disk_room import has_room

from .conftest import skip
from .data_folder import NOW
from .disk import CannotMountError, fill, small_disk
from .faults import Order
from .world import ROOT

PAGES, META_PAGE = 1, 2
"""LMDB writes the pages of a commit and then the one that makes them count."""


def after(fault: str, engine: str, shim: Path, folder: Path) -> dict[str, Any]:
    """What a process says whose engine meets `fault`, which did come."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "tests.crash.full_disk_process", engine, str(folder), fault]
    environment = Order(shim, folder / "order").environment()
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found.pop("hits") > 0
    return found


@pytest.mark.parametrize("engine", ["journal", "records"])
@pytest.mark.parametrize("fault", ["enospc", "quota", "brim"])
@pytest.mark.parametrize("at", [PAGES, META_PAGE], ids=["pages", "meta page"])
def test_a_disk_without_room_is_full_and_the_environment_goes_on(
    engine: str, fault: str, at: int, shim: Path, tmp_path: Path
) -> None:
    code = {"journal": "journal_full", "records": "store_full"}[engine]
    assert after(f"{fault} {at}", engine, shim, tmp_path) == {"code": code, "read": True, "wrote": True}


@pytest.mark.parametrize(("engine", "code"), [("journal", "journal"), ("records", "store")])
@pytest.mark.parametrize("fault", ["short", "eio"])
def test_a_write_that_fails_though_there_is_room_is_a_failed_disk(
    engine: str, code: str, fault: str, shim: Path, tmp_path: Path
) -> None:
    assert after(f"{fault} {PAGES}", engine, shim, tmp_path)["code"] == code


def test_a_lexicon_whose_quota_is_used_up_is_full_and_not_damaged(shim: Path, tmp_path: Path) -> None:
    assert after("quota 1", "lexicon", shim, tmp_path) == {"code": "store_full", "read": True, "wrote": True}
    assert after("eio 1", "lexicon", shim, tmp_path / "other")["code"] == "index_damaged"


def test_a_disk_that_takes_part_of_a_write_is_full(tmp_path: Path) -> None:
    """No shim: a file system with room for less than one event takes what it can, and LMDB calls that an I/O error."""
    try:
        with small_disk(tmp_path / "disk", 4 << 20) as disk, Journal.open(disk / "journal") as journal:
            journal.append([_event(1, "small")], NOW)
            ballast = fill(disk, keep_bytes=40 << 10)
            assert not has_room(disk)
            for _ in range(3):
                with pytest.raises(JournalFullError):
                    journal.append([_event(2, "large " * 20_000)], NOW)
            assert [entry.seq for entry in journal.read(0, 10)] == [1]
            ballast.unlink()
            assert journal.append([_event(2, "large " * 20_000)], NOW)[0].seq == 2
    except CannotMountError as error:
        skip(str(error))


def _event(number: int, text: str) -> Event:
    told = {"event_id": f"p-{number}", "event_type": "chat.user_msg", "user_id": "alice", "payload": {"text": text}}
    return event_from_mapping(told, EventLimits(), NOW)


def test_a_file_system_that_tells_no_size_has_room(tmp_path: Path) -> None:
    try:
        with small_disk(tmp_path / "disk", 0) as disk:  # 0: without a limit
            assert has_room(disk)
    except CannotMountError as error:
        skip(str(error))
