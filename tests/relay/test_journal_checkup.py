"""Test that a check detects damage in a journal, and reports none in a sound one."""

from __future__ import annotations

from pathlib import Path

import lmdb
import pytest
from relays import NOW, event

from relay import Erasable, Journal, JournalSettings
from relay.disk import Findings
from relay.journal import check_journal


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """A journal with repeats, consumers, a quarantine, and deleted, erased and set-aside events."""
    folder = tmp_path / "journal"
    with Journal.open(folder) as journal:
        journal.append([event(number) for number in range(40)], NOW, source=("table", 7))
        journal.append([event(3)], NOW)
        journal.quarantine(b"\xff\xfe", "malformed_event", "no event", "test", NOW)
        journal.quarantine(b"x", "unhandled_event", "no", "memory:alice", NOW, seq=30)
        journal.discard(10, "reader", NOW)
        journal.set_aside(35, NOW)
        journal.erase(Erasable(user_id="alice", event_ids=frozenset({event(20).event_id})), NOW)
    return folder


def found(folder: Path) -> tuple[int, set[str]]:
    findings = Findings()
    entries = check_journal(folder, JournalSettings(), findings, lambda *_: None)
    return entries, {finding.place for finding in findings.listed()}


def change(folder: Path, database: str, key: bytes, value: bytes | None) -> None:
    with lmdb.open(str(folder), max_dbs=16) as engine, engine.begin(write=True) as transaction:
        handle = engine.open_db(database.encode(), transaction)
        transaction.delete(key, db=handle) if value is None else transaction.put(key, value, db=handle)


def first(folder: Path, database: str) -> tuple[bytes, bytes]:
    with lmdb.open(str(folder), max_dbs=16) as engine, engine.begin() as transaction:
        return next(iter(transaction.cursor(db=engine.open_db(database.encode(), transaction))))


def test_a_sound_journal_has_no_findings(closed: Path) -> None:
    assert found(closed) == (28, set())


@pytest.mark.parametrize("database", ["events", "quarantine"])
def test_a_flipped_bit_is_found(closed: Path, database: str) -> None:
    key, value = first(closed, database)
    change(closed, database, key, bytes([value[0] ^ 4]) + value[1:])
    assert database in found(closed)[1]


@pytest.mark.parametrize(
    ("database", "noticed"), [("ids", "ids"), ("users", "users"), ("events", "ids"), ("unread", "unread")]
)
def test_missing_entries_are_found(closed: Path, database: str, noticed: str) -> None:
    with lmdb.open(str(closed), max_dbs=16) as engine, engine.begin() as transaction:
        keys = list(transaction.cursor(db=engine.open_db(database.encode(), transaction)).iternext(values=False))
    change(closed, database, keys[-1], None)
    assert noticed in found(closed)[1]


@pytest.mark.parametrize("database", ["ids", "users", "consumers", "unread"])
def test_dangling_references_are_found(closed: Path, database: str) -> None:
    change(closed, database, b"nobody\0" + (999).to_bytes(8, "big"), (999).to_bytes(8, "big"))
    assert database in found(closed)[1]


def test_a_journal_can_be_checked_while_it_is_written(closed: Path) -> None:
    with Journal.open(closed) as journal:
        journal.append([event(100)], NOW)
        # LMDB can open a file only once per process; tests/end_to_end checks a journal that a relay has open
    assert found(closed) == (29, set())
