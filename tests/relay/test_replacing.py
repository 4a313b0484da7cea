"""Test replacing a journal's file while other processes, such as `backup` and `verify`, open it."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb
import pytest
from relays import NOW, event

import relay.disk.environment
from relay import Journal, JournalError
from relay.disk import DATA_FILE
from relay.disk.files import LOCK_FILE

_READER = """
import sys
from pathlib import Path
from relay.config import JournalSettings
from relay.journal.file import open_file

print("opening", flush=True)
environment = open_file(Path(sys.argv[1]), JournalSettings(), readonly=True)
with environment.read() as transaction:
    print(transaction.count("events"), flush=True)
sys.stdin.read()
environment.close()
"""


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal.open(tmp_path / "journal") as opened:
        for number in range(30):
            opened.append([event(number)], NOW)
        yield opened


@contextmanager
def reader(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that opens the journal and keeps it open until the block ends."""
    command = [sys.executable, "-c", _READER, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"opening\n"
        yield process


def test_opening_a_journal_during_a_replacement_waits_for_the_new_file(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: list[subprocess.Popen[bytes]] = []
    folder = tmp_path / "journal"

    def replace_with_a_reader_in_between(copy: Path) -> None:
        """Run the two steps of `replace_by_copy` with a reader between them."""
        (folder / LOCK_FILE).unlink()
        process = stack.__enter__()
        readers.append(process)
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], 1.0)[0] == [], "it opened the old file"
        (copy / DATA_FILE).replace(folder / DATA_FILE)

    stack = reader(folder)
    monkeypatch.setattr(relay.disk.environment, "replace_by_copy", replace_with_a_reader_in_between)
    try:
        journal.compact()
        assert readers[0].stdout is not None
        assert readers[0].stdout.readline() == b"30\n"
        journal.append([event(100)], NOW)
        assert [stored.seq for stored in journal.read(0, 100)] == list(range(1, 32))
    finally:
        stack.__exit__(None, None, None)


def test_a_journal_replaced_by_another_program_is_refused_instead_of_retried_for_ever(
    journal: Journal, tmp_path: Path
) -> None:
    """The reader keeps the lock file open. It contains the number of a commit that is missing from the new file."""
    folder, copy = tmp_path / "journal", tmp_path / "copy"
    journal.close()
    copy.mkdir()
    with lmdb.open(str(folder), readonly=True) as engine:
        engine.copy(str(copy), compact=True)
    with reader(folder) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"30\n"
        os.replace(copy / "data.mdb", folder / "data.mdb")
        with pytest.raises(JournalError, match="replaced while it was being opened") as caught:
            Journal.open(folder)
        assert caught.value.retryable
        process.communicate(b"")
    with Journal.open(folder) as reopened:
        assert reopened.last_seq == 30
