"""`verify` finds damage, and reports no fault in an intact store."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import lmdb
import msgspec
import numpy as np
import pytest
from care_samples import GRAPH

from memory_agent.care import PartReport, check_user, derived_checkup
from memory_agent.embedders import Embedder
from memory_agent.memory import Memory
from memory_agent.records.memories import MemoryRecord
from memory_agent.settings import StoreSettings
from memory_agent.storage.archive import Archive
from memory_agent.storage.changes import Change, Changes
from memory_agent.storage.derived import COLUMNS_FILE, GRAPH_FILE
from memory_agent.storage.store import Store
from memory_agent.storage.stored_runs import StoredUse


def check(folder: Path, settings: StoreSettings = GRAPH) -> PartReport:
    return check_user(folder, "alice", settings, lambda *_: None)


def places(report: PartReport) -> set[str]:
    return {finding.place for finding in report.findings}


def test_a_sound_store_has_no_findings_and_is_not_touched(filled: Path) -> None:
    before = {path: path.read_bytes() for path in filled.rglob("*") if path.is_file() and path.name != "lock.mdb"}
    report = check(filled)
    assert report.findings == ()
    assert report.entries > 10
    after = {path: path.read_bytes() for path in filled.rglob("*") if path.is_file() and path.name != "lock.mdb"}
    assert after == before


def test_a_store_in_use_has_no_findings_with_a_graph_that_is_behind(filled: Path, embedder: Embedder) -> None:
    """The owner's unsaved changes are not faults, because they are in the change log."""
    with Memory.open(filled, embedder=embedder, store_settings=GRAPH) as memory:
        memory.remember("later than the saved graph")
        process = subprocess.run(
            [sys.executable, "-c", _CHECKING, str(filled)], capture_output=True, text=True, check=True
        )
    assert process.stdout.strip() == "()"


def test_columns_that_are_saved_while_they_are_checked_are_no_finding(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = derived_checkup._columns
    saves = [_SAVING]

    def overtaken(*arguments: Any) -> object:
        columns = read(*arguments)
        if saves:
            subprocess.run([sys.executable, "-c", saves.pop(), str(filled)], check=True)
        return columns

    monkeypatch.setattr(derived_checkup, "_columns", overtaken)
    assert check(filled).findings == ()
    assert not saves


_SAVING = """
import sys
from pathlib import Path
from memory_agent.settings import StoreSettings
from memory_agent.storage.archive import Archive
archive = Archive.open(Path(sys.argv[1]), StoreSettings(exact_search_limit=10), "library")
with archive.batch() as batch:
    batch.delete(1)
archive.purge()
archive.close()
"""

_CHECKING = """
import sys
from pathlib import Path
from memory_agent.care import check_user
from memory_agent.settings import StoreSettings
print(check_user(Path(sys.argv[1]), "alice", StoreSettings(exact_search_limit=10), lambda *_: None).findings)
"""

_PLANTED = {
    "records": b"\x00" * 8,
    "vectors": b"\x00" * 8,
    "usage": b"\x00" * 8,
    "next_vectors": b"\x00" * 8,
    "changes": b"\x00" * 8,
    "ids": b"\x00" * 8,
    "events": b"\x00" * 8,
    "pending": b"\x00" * 8,
    "runs": b"no such run",
    "run_recalls": b"no such recall",
    "run_index": b"b" + bytes(8) + b"nobody",
    "recall_index": b"r" + bytes(8) + b"nobody",
}


@pytest.mark.parametrize("database", _PLANTED)
def test_foreign_entries_are_named_by_their_class(filled: Path, database: str) -> None:
    with lmdb.open(str(filled / "records"), max_dbs=20) as engine, engine.begin(write=True) as transaction:
        transaction.put(_PLANTED[database], b"\xff" * 12, db=engine.open_db(database.encode(), transaction))
    assert database in places(check(filled))


@pytest.mark.parametrize("database", ["ids", "vectors", "run_index", "recall_index", "events"])
def test_missing_entries_are_named(filled: Path, database: str) -> None:
    with lmdb.open(str(filled / "records"), max_dbs=20) as engine, engine.begin(write=True) as transaction:
        handle = engine.open_db(database.encode(), transaction)
        key = next(transaction.cursor(db=handle).iternext(values=False))
        transaction.delete(key, db=handle)
    assert places(check(filled))


@pytest.mark.parametrize("seed", range(4))
def test_a_flipped_bit_in_a_record_a_vector_or_a_use_is_found(filled: Path, seed: int) -> None:
    rng = random.Random(seed)
    with lmdb.open(str(filled / "records"), max_dbs=20) as engine, engine.begin(write=True) as transaction:
        name = rng.choice(["records", "vectors", "usage", "runs"])
        handle = engine.open_db(name.encode(), transaction)
        key, value = rng.choice(list(transaction.cursor(db=handle)))
        flipped = bytearray(value)
        flipped[rng.randrange(len(value))] ^= 1 << rng.randrange(8)
        transaction.put(key, bytes(flipped), db=handle)
    assert name in places(check(filled))


def test_columns_of_other_memories_are_found(filled: Path) -> None:
    archive = Archive.open(filled, GRAPH, "library")
    columns = archive._columns
    rows = archive.view.rows[archive.view.alive][:3]
    columns.vectors.remove(archive.view.slots(rows[:1]))
    columns._columns["fingerprints"].set(archive.view.slots(rows[1:2]), 1)
    columns._columns["sessions"].set(archive.view.slots(rows[2:3]), -1)
    columns._columns["types"].set(archive.view.slots(rows[1:2]), -1)
    columns._columns["updated_us"].set(archive.view.slots(rows[1:3]), 0)
    columns._columns["metadata_values"].set(np.array([0]), 7)
    columns._words.remove(archive.view.slots(rows[2:3]))
    columns._publish()
    archive._save()
    archive.close()
    report = check(filled)
    assert places(report) == {COLUMNS_FILE}
    assert {finding.fault: finding.count for finding in report.findings} == {
        "differ in vectors from the records": 1,
        "differ in words from the records": 1,
        "differ in names from the records": 2,
        "differ in updates from the records": 2,
        "differ in metadata from the records": 1,
        "differ in indexed words from the records": 1,
    }


def test_columns_that_lack_rows_or_hold_others_are_found(filled: Path) -> None:
    archive = Archive.open(filled, GRAPH, "library")
    row, record = next(archive.store.scan())
    strange = Change(10_000, "put", msgspec.structs.replace(record, id="strange"), None, False)
    missing = Change(row, "delete", None, None, False)
    applied = archive.view.applied
    archive._columns.apply(Changes(applied, applied + 1, [strange, missing], archive.view.stamp))
    archive._columns.applied = applied
    archive._save()
    archive.close()
    assert {(finding.fault, finding.count) for finding in check(filled).findings} == {
        ("are missing a row", 1),
        ("contain a row without a record", 1),
    }


def test_columns_of_another_store_or_too_far_behind_are_found(filled: Path, tmp_path: Path) -> None:
    other = Archive.open(tmp_path / "other", GRAPH, "library")
    with other.batch() as batch:
        batch.put(next(iter(dict(_scan(filled)).values())), None)
    other.close()
    kept = (filled / COLUMNS_FILE).read_bytes()
    (filled / COLUMNS_FILE).write_bytes((tmp_path / "other" / COLUMNS_FILE).read_bytes())
    assert [(one.place, one.fault) for one in check(filled).findings] == [(COLUMNS_FILE, "belongs to another store")]
    (filled / COLUMNS_FILE).write_bytes(kept)
    with Store.open(filled, GRAPH) as store:
        with store.batch() as batch:
            batch.put(msgspec.structs.replace(next(store.scan())[1], id="later", event_id=None), None)
        store.forget_changes_through(store.state.last_change)
    assert [one.fault for one in check(filled).findings] == ["are too old for the change log"]


def _scan(folder: Path) -> list[tuple[int, MemoryRecord]]:
    with Store.open(folder, GRAPH) as store:
        return list(store.scan())


def test_damaged_files_are_named_without_their_content(filled: Path) -> None:
    columns = filled / COLUMNS_FILE
    columns.write_bytes(columns.read_bytes()[:-4_096] + bytes(4_096))
    (filled / GRAPH_FILE).write_bytes(b"memory-agent arrays 1\nnonsense")
    assert places(check(filled)) == {COLUMNS_FILE, GRAPH_FILE}
    pages = filled / "records" / "data.mdb"
    pages.write_bytes(pages.read_bytes()[: -8 * 4_096] + bytes(8 * 4_096))
    report = check(filled)
    assert "records/data.mdb" in places(report)
    assert "mutex" not in str(report)


@pytest.mark.parametrize("row", [0, -1, 1 << 40])
def test_a_run_that_names_a_row_that_never_was_is_found(filled: Path, row: int) -> None:
    """The run matches its indexes, so only this check can find the fault."""
    archive = Archive.open(filled, GRAPH, "library")
    with archive.batch() as batch:
        run = next(iter(batch.newest_trajectories()))
        batch.put_trajectory(msgspec.structs.replace(run, used=(*run.used, StoredUse(row, "feedback", 1.0))))
    archive.close()
    assert [(one.place, one.fault) for one in check(filled).findings] == [("runs", "refers to an unallocated row")]


def test_a_run_whose_memories_were_forgotten_has_no_findings(filled: Path, embedder: Embedder) -> None:
    with Memory.open(filled, embedder=embedder, store_settings=GRAPH) as memory:
        used = [use.record_id for run in memory.runs.list() for use in run.used]
        assert used
        memory.forget(used)
    assert check(filled).findings == ()


def test_a_saved_learner_that_is_damaged_or_of_another_store_is_found(filled: Path, embedder: Embedder) -> None:
    with Memory.open(filled, embedder=embedder, store_settings=GRAPH) as memory:
        memory.sona.consolidate()
    state = filled / "sona.state"
    kept = state.read_bytes()
    assert check(filled).findings == ()
    for damaged in (kept[:-20] + bytes([kept[-20] ^ 1]) + kept[-19:], kept[: len(kept) // 2], b""):
        state.write_bytes(damaged)
        assert places(check(filled)) == {"sona.state"}
        assert state.read_bytes() == damaged
    moment, learner = msgspec.msgpack.decode(kept)
    state.write_bytes(msgspec.msgpack.encode((["another", *moment[1:]], learner)))
    assert [(one.place, one.fault) for one in check(filled).findings] == [("sona.state", "belongs to another store")]
