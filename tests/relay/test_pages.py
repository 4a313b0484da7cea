"""Test that damaged pages are detected before LMDB reads them, because some make LMDB abort the process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import lmdb
import pytest
from damaged_journals import PAGE_BYTES
from relays import NOW, event

from relay import Journal, JournalDamagedError
from relay.disk import find_fault

TIMES = 40


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """A journal with many pages, including long values and freed pages."""
    folder = tmp_path / "journal"
    with Journal.open(folder) as journal:
        for start in range(0, 300, 30):
            journal.append(
                [event(number, text="w " * (number * 7 % 4_000)) for number in range(start, start + 30)], NOW
            )
        journal.commit("reader", 200)
        journal.discard(100, "reader", NOW)
        journal.quarantine(b"\xff" * 9_000, "malformed_event", "no event", "test", NOW)
    return folder


def test_a_sound_file_has_no_fault_whatever_was_written_and_freed(closed: Path) -> None:
    assert find_fault(closed) is None
    with Journal.open(closed) as journal:
        for number in range(700, 760):
            journal.append([event(number)], NOW)
            assert find_fault(closed) is None


def test_a_new_and_a_missing_file_have_no_fault(tmp_path: Path) -> None:
    assert find_fault(tmp_path) is None
    with Journal.open(tmp_path / "new"):
        assert find_fault(tmp_path / "new") is None


@pytest.mark.parametrize("seed", [1, 2])
def test_no_damaged_page_ends_the_process_that_opens_the_file(closed: Path, tmp_path: Path, seed: int) -> None:
    """Before the check was added, files with zeroed tails made 14 of 31 processes abort."""
    script = Path(__file__).with_name("damaged_journals.py")
    command = [sys.executable, str(script), str(closed), str(tmp_path / "scratch"), str(seed), str(TIMES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.returncode, done.stderr[-2_000:])
    ends = json.loads(done.stdout)
    assert len(ends) == TIMES
    assert {end for _, end in ends} <= {"read", "journal_damaged", "entry_damaged"}
    assert sum(end == "journal_damaged" for _, end in ends) > TIMES / 4


def test_every_zeroed_page_of_a_tree_is_detected(closed: Path) -> None:
    """Only zeroed free pages and pages of long values may go unnoticed; long values have checksums."""
    content = (closed / "data.mdb").read_bytes()
    noticed = 0
    for page in range(2, len(content) // PAGE_BYTES):
        damaged = content[: page * PAGE_BYTES] + bytes(PAGE_BYTES) + content[(page + 1) * PAGE_BYTES :]
        (closed / "data.mdb").write_bytes(damaged)
        noticed += find_fault(closed) is not None
    (closed / "data.mdb").write_bytes(content)
    assert noticed >= _tree_pages(closed)


def test_a_damaged_journal_is_refused_by_name_and_left_unchanged(closed: Path) -> None:
    content = bytearray((closed / "data.mdb").read_bytes())
    content[-16 * PAGE_BYTES :] = bytes(16 * PAGE_BYTES)
    (closed / "data.mdb").write_bytes(content)
    with pytest.raises(JournalDamagedError, match=r"page \d+.*nothing was changed.*restore"):
        Journal.open(closed)
    assert (closed / "data.mdb").read_bytes() == content


def _tree_pages(folder: Path) -> int:
    with lmdb.open(str(folder), readonly=True, max_dbs=16) as engine, engine.begin() as transaction:
        trees = [engine.open_db(name, transaction) for name, _ in transaction.cursor()]
        stats = [engine.stat(), *map(transaction.stat, trees)]
    return sum(stat["branch_pages"] + stat["leaf_pages"] for stat in stats)
