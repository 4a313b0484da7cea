"""Folders from versions with implicit feedback can be opened, and upkeep removes what those versions inferred."""

from __future__ import annotations

from pathlib import Path

import msgspec
from run_samples import LATER, OBJECTIVE, SMALL, note, things_to_use, whole
from store_checks import verified

from memory_agent.embedders import Embedder
from memory_agent.memory import Memory
from memory_agent.records.memories import MemoryFilter
from memory_agent.settings import Settings
from memory_agent.storage import codec
from memory_agent.storage.snapshot import RECORDS, RUN_INDEX, Snapshot
from memory_agent.storage.stored_runs import FORMER_ENTRIES

RECALL = "01KHJY9080NWG22H9Q8BBD7B80"


def former_entries(memory: Memory) -> int:
    with memory._archive.store.snapshot() as snapshot:
        return sum(key[:1] in FORMER_ENTRIES for key, _ in snapshot._transaction.scan(RUN_INDEX))


def infer_as_before(memory: Memory) -> None:
    """Store a sign and a watch for the run `one`, like the earlier versions that had implicit feedback."""
    with memory._archive.batch() as batch:
        run = batch.trajectory("one")
        assert run is not None
        row = run.begin_row
        assert row is not None
        signs = ((run.marks[-1].at_us + 60_000_000, "asked_again", row, 0.93, None),)
        batch.put_trajectory(msgspec.structs.replace(run, former_signs=signs, was_watched=True))
        batch._transaction.put(RECORDS, codec.row_key(row), with_inferred_quality(batch, row))


def with_inferred_quality(snapshot: Snapshot, row: int) -> bytes:
    """Return a record in the format of the versions that had implicit feedback, which stored an additional field."""
    value = snapshot._transaction.get(RECORDS, codec.row_key(row))
    assert value is not None
    stored = msgspec.msgpack.decode(codec._inflate(row, codec.without_checksum(row, value, "record")))
    return codec.with_checksum(row, codec._deflate(msgspec.msgpack.encode([*stored, 0.67])))


def fields_of_begin(memory: Memory) -> int:
    """Return the number of stored fields of the memory that began the run `one`."""
    with memory._archive.store.snapshot() as snapshot:
        run = snapshot.trajectory("one")
        assert run is not None
        row = run.begin_row
        assert row is not None
        value = snapshot._transaction.get(RECORDS, codec.row_key(row))
        assert value is not None
        return len(msgspec.msgpack.decode(codec._inflate(row, codec.without_checksum(row, value, "record"))))


def test_upkeep_removes_the_signs_of_a_former_version_and_the_learner_learns_their_runs_again(
    tmp_path: Path, embedder: Embedder
) -> None:
    with Memory.open(tmp_path / "alice", embedder=embedder, settings=Settings(store=SMALL)) as memory:
        (thing, *_) = things_to_use(memory)
        note(memory, RECALL, -2, [thing], OBJECTIVE)
        first, last = whole("one", 0, OBJECTIVE)
        assert not memory.ingest([first, last], now=LATER).rejected
        fields = fields_of_begin(memory)
        infer_as_before(memory)
        assert (former_entries(memory), fields_of_begin(memory)) == (2, fields + 1)
        assert verified(memory._archive.store)
    with Memory.open(tmp_path / "alice", embedder=embedder, settings=Settings(store=SMALL)) as memory:
        version = memory._archive.store.state.lessons_version
        memory.expire(LATER)
        assert (former_entries(memory), fields_of_begin(memory)) == (0, fields)
        assert memory._archive.store.state.lessons_version > version
        assert verified(memory._archive.store)
        run = memory.runs.get("one")
        assert run is not None
        assert run.quality == 0.8


def test_forgetting_a_memory_removes_the_signs_that_cite_it(tmp_path: Path, embedder: Embedder) -> None:
    with Memory.open(tmp_path / "alice", embedder=embedder, settings=Settings(store=SMALL)) as memory:
        (thing, *_) = things_to_use(memory)
        assert not memory.ingest(whole("one", 0, OBJECTIVE), now=LATER).rejected
        infer_as_before(memory)
        memory.forget([thing])
        assert former_entries(memory) == 2  # upkeep removes them
        cited = memory.list(MemoryFilter(run_id="one")).records
        memory.forget([record.id for record in cited])
        assert former_entries(memory) == 0
        assert verified(memory._archive.store)


def test_a_record_with_an_inferred_quality_is_read_without_it(tmp_path: Path, embedder: Embedder) -> None:
    with Memory.open(tmp_path / "alice", embedder=embedder, settings=Settings(store=SMALL)) as memory:
        things_to_use(memory)
        with memory._archive.store.snapshot() as snapshot:
            row, record = next(iter(snapshot.scan()))
            former = with_inferred_quality(snapshot, row)
        read = codec.decode_record(row, former, codec.usage_of(record))
        assert msgspec.structs.replace(read, embedding=None) == msgspec.structs.replace(record, embedding=None)
