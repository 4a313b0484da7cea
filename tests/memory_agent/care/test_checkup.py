"""`verify` finds damage and reports none in a sound store."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import lmdb
import msgspec
import numpy as np
import pytest
from care_samples import GRAPH

from memory_agent.care.checkup import PartReport, check_user
from memory_agent.embedders import Embedder
from memory_agent.memory import Memory
from memory_agent.settings import StoreSettings
from memory_agent.storage.archive import Archive
from memory_agent.storage.sqlite_file import write_clean_mark
from memory_agent.storage.trajectories import StoredUse


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
    """Unsaved changes of the owner are not faults: the change log has them."""
    with Memory.open(filled, embedder=embedder, store_settings=GRAPH) as memory:
        memory.remember("later than the saved graph")
        process = subprocess.run(
            [sys.executable, "-c", _CHECKING, str(filled)], capture_output=True, text=True, check=True
        )
    assert process.stdout.strip() == "()"


_CHECKING = """
import sys
from pathlib import Path
from memory_agent.care.checkup import check_user
from memory_agent.settings import StoreSettings
print(check_user(Path(sys.argv[1]), "alice", StoreSettings(exact_search_limit=10), lambda *_: None).findings)
"""

_PLANTED = {
    "records": b"\x00" * 8,
    "vectors": b"\x00" * 8,
    "usage": b"\x00" * 8,
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


def test_an_index_of_other_vectors_and_a_lexicon_of_other_words_are_found(filled: Path) -> None:
    archive = Archive.open(filled, GRAPH, "library")
    rows = next(iter(archive.index.held()))[0][:3]
    archive.index._engine.remove(rows.astype(np.uint64))
    other = np.eye(384, dtype=np.float32)[:3]
    archive.index._add(rows, other)
    assert archive.lexicon._writer is not None
    archive.lexicon._writer.execute("UPDATE memories SET fingerprint = 1 WHERE row = ?", (int(rows[0]),))
    archive.close()
    report = check(filled)
    assert places(report) == {"index.usearch", "lexicon.sqlite"}
    assert sum(finding.count for finding in report.findings) == 4


def test_damaged_files_are_named_without_their_content(filled: Path) -> None:
    lexicon = filled / "lexicon.sqlite"
    lexicon.write_bytes(lexicon.read_bytes()[:-4_096] + bytes(4_096))
    (filled / "index.usearch").write_bytes(b"memory-agent index 2\nnonsense")
    assert places(check(filled)) == {"index.usearch", "lexicon.sqlite"}
    pages = filled / "records" / "data.mdb"
    pages.write_bytes(pages.read_bytes()[: -8 * 4_096] + bytes(8 * 4_096))
    report = check(filled)
    assert "records/data.mdb" in places(report)
    assert "mutex" not in str(report)


@pytest.mark.parametrize("applied", ["q", "9" * 5_000, b"1\xff"])
def test_a_lexicon_with_a_damaged_position_is_found_and_rebuilt(filled: Path, applied: str | bytes) -> None:
    with closing(sqlite3.connect(filled / "lexicon.sqlite", isolation_level=None)) as connection:
        connection.execute("UPDATE state SET value = CAST(? AS TEXT) WHERE name = 'applied'", (applied,))
    write_clean_mark(filled / "lexicon.sqlite")
    assert places(check(filled)) == {"lexicon.sqlite"}
    archive = Archive.open(filled, GRAPH, "library")
    assert len(archive.lexicon) == len(list(archive.store.scan()))
    archive.close()


@pytest.mark.parametrize("row", [0, -1, 1 << 40])
def test_a_run_that_names_a_row_that_never_was_is_found(filled: Path, row: int) -> None:
    """Its indexes agree with it, so nothing else tells."""
    archive = Archive.open(filled, GRAPH, "library")
    with archive.batch() as batch:
        run = next(iter(batch.newest_trajectories()))
        batch.put_trajectory(msgspec.structs.replace(run, used=(*run.used, StoredUse(row, "feedback", 1.0))))
    archive.close()
    assert [(one.place, one.fault) for one in check(filled).findings] == [("runs", "names a row that never was")]


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
    assert [(one.place, one.fault) for one in check(filled).findings] == [("sona.state", "is of another store")]
