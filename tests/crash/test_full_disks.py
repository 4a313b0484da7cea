"""Test that every engine reports a disk or quota that fills up during a write, and recovers from it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from memory_agent.care import check_user
from memory_agent.daemon.host import MemoryHost
from memory_agent.errors import MemoryAgentError
from memory_agent.records.memories import IngestReport, RecallResult, RetrievedMemory
from memory_agent.settings import Settings
from memory_agent.storage.folders import user_folder
from memory_agent.verbs.params import RecallParams
from memory_agent.verbs.protocol import IngestBatch, decode_reply, encode
from relay import Event, EventLimits, Journal, JournalFullError, event_from_mapping
from relay.disk import has_room

from .conftest import skip
from .data_folder import NOW
from .disk import CannotMountError, fill, small_disk
from .faults import Order
from .owner_process import STORE
from .word_vectors import WordVectors
from .world import ROOT

PAGES, META_PAGE, FLUSH = "write 1", "write 2", "sync 1"
"""LMDB writes the pages of a commit, flushes them, and then writes the meta page that makes them valid."""


After = Callable[[str, str, Path], dict[str, Any]]


@pytest.fixture(scope="module")
def after(shim: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[After]:
    """Return the report of a process that wrote to an engine while a fault was injected."""
    command = [sys.executable, "-m", "tests.crash.full_disk_process"]
    environment = Order(shim, tmp_path_factory.mktemp("full") / "order").environment()
    with subprocess.Popen(
        command, env=environment, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:

        def report(fault: str, engine: str, folder: Path) -> dict[str, Any]:
            assert process.stdin is not None
            assert process.stdout is not None
            print(json.dumps([engine, str(folder), fault]), file=process.stdin, flush=True)
            found: dict[str, Any] = json.loads(process.stdout.readline())
            assert found.pop("hits") > 0
            return found

        yield report


@pytest.mark.parametrize("engine", ["journal", "records"])
@pytest.mark.parametrize(
    ("fault", "at"),
    [*((fault, at) for fault in ("enospc", "quota", "brim") for at in (PAGES, META_PAGE)), ("quota", FLUSH)],
)
def test_a_disk_without_room_is_full_and_the_environment_continues(
    engine: str, fault: str, at: str, after: After, tmp_path: Path
) -> None:
    code = {"journal": "journal_full", "records": "store_full"}[engine]
    assert after(f"{fault} {at}", engine, tmp_path) == {"code": code, "read": True, "wrote": True}


@pytest.mark.parametrize(("engine", "code"), [("journal", "journal"), ("records", "store")])
@pytest.mark.parametrize("fault", ["short", "eio"])
def test_a_write_that_fails_despite_room_is_a_failed_disk(
    engine: str, code: str, fault: str, after: After, tmp_path: Path
) -> None:
    assert after(f"{fault} {PAGES}", engine, tmp_path)["code"] == code


def test_a_disk_that_writes_only_a_part_is_full(tmp_path: Path) -> None:
    """Without a shim. If space runs short, part of an event is written, which LMDB reports as an I/O error."""
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


@pytest.mark.parametrize("is_asleep", [False, True], ids=["awake", "asleep"])
def test_a_user_on_a_full_disk_answers_recalls_and_continues_when_there_is_room(
    is_asleep: bool, tmp_path: Path
) -> None:
    try:
        with small_disk(tmp_path / "disk", 24 << 20) as disk:
            host = MemoryHost(disk, Settings(store=STORE), WordVectors())
            assert _ingest(host, 1, 40) == ""
            ballast = fill(disk)
            refused = [_ingest(host, number, number + 20) for number in range(40, 200, 20)]
            assert refused[-1] == "store_full"
            if is_asleep:
                host.sleep("alice")
            fill(disk)  # refill what closing released
            assert _found(host)
            ballast.unlink()
            assert _ingest(host, 1, 200) == ""
            assert _found(host)[0].record.text.startswith("look after lamp7 ")
            host.close()
            assert check_user(user_folder(disk, "alice"), "alice", STORE, lambda *_: None).findings == ()
    except CannotMountError as error:
        skip(str(error))


def _ingest(host: MemoryHost, first: int, end: int) -> str:
    """Ingest events, and return the error code, if any."""
    events = tuple((number, encode(_event(number, f"look after lamp{number} " * 20))) for number in range(first, end))
    try:
        decode_reply(host.ingest("alice", encode(IngestBatch(events=events))), IngestReport)
    except MemoryAgentError as error:
        return error.code
    return ""


def _found(host: MemoryHost) -> tuple[RetrievedMemory, ...]:
    """Return the answer once the columns are complete; waking may rebuild them in the background."""
    asked = encode(RecallParams(query="look after lamp7", top_k=3))
    while True:
        result = decode_reply(host.call("alice", "recall", asked, 30_000.0), RecallResult)
        if "index_rebuilding" not in result.degraded:
            return result.memories


def _event(number: int, text: str) -> Event:
    told = {"event_id": f"p-{number}", "event_type": "chat.user_msg", "user_id": "alice", "payload": {"text": text}}
    return event_from_mapping(told, EventLimits(), NOW)


def test_a_file_system_that_reports_no_size_has_room(tmp_path: Path) -> None:
    try:
        with small_disk(tmp_path / "disk", 0) as disk:  # 0 means no limit
            assert has_room(disk)
    except CannotMountError as error:
        skip(str(error))
