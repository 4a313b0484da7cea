"""Export and import as JSON Lines are bit-exact, atomic and idempotent."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from care_samples import GRAPH
from hypothesis import given, settings
from hypothesis import strategies as st

from memory_agent.care import Imported, check_user, export_lines, import_lines
from memory_agent.embedders import Embedder
from memory_agent.errors import InvalidInputError, StoreFullError
from memory_agent.memory import Memory
from memory_agent.records.memories import MemoryRecord, Utility
from memory_agent.settings import Settings, StoreSettings
from memory_agent.storage.archive import Archive
from memory_agent.storage.snapshot import EVENTS, OF_A_ROW

SMALL = StoreSettings(map_size_bytes=64 << 20, reserve_bytes=64 << 10)


def quiet(*_: object) -> None:
    return None


def exported(folder: Path) -> bytes:
    return b"\n".join(export_lines(folder, "alice", GRAPH, quiet)) + b"\n"


def imported(folder: Path, data: bytes, store: StoreSettings = GRAPH) -> Imported:
    archive = Archive.open(folder, store, "library")
    try:
        return import_lines(io.BytesIO(data), archive, quiet)
    finally:
        archive.close()


def stored(folder: Path) -> list[object]:
    """A store's content without row numbers: raw bytes, or decoded values if the bytes contain the row number."""
    archive = Archive.open(folder, GRAPH, "library")
    with archive.store.snapshot() as snapshot:
        rows = [row for row, _ in snapshot.scan()]
        place = {row: number for number, row in enumerate(rows)}
        records = [snapshot.record(row) for row in rows]
        values = [
            [(snapshot._transaction.get(name, row.to_bytes(8, "big")) or b"")[8:] for name in OF_A_ROW] for row in rows
        ]
        events = {key: place.get(int.from_bytes(row, "big")) for key, row in snapshot._transaction.scan(EVENTS)}
        known = snapshot.state
        state = (known.stamp, known.ndim, known.words_stamp, known.word_bytes)
    archive.close()
    return [records, values, events, state]


def test_a_store_round_trips_bit_for_bit(filled: Path, tmp_path: Path) -> None:
    data = exported(filled)
    done = imported(tmp_path / "other", data)
    assert (done.known, done.without_vector) == (0, 0)
    assert any(json.loads(line).get("passages") for line in data.splitlines()[1:])
    assert stored(tmp_path / "other") == stored(filled)
    assert exported(tmp_path / "other") == data
    assert check_user(tmp_path / "other", "alice", GRAPH, quiet).findings == ()


def test_importing_is_idempotent(filled: Path, tmp_path: Path) -> None:
    data = exported(filled)
    first = imported(tmp_path / "other", data)
    before = stored(tmp_path / "other")
    assert imported(tmp_path / "other", data) == Imported(taken=0, known=first.taken, without_vector=0)
    assert stored(tmp_path / "other") == before
    assert imported(filled, data).taken == 0


@pytest.mark.parametrize(
    "wrong",
    [
        b"not json",
        b"{}x",
        b'{"record": {"id": "x"}}',
        b'{"unknown": 1}',
        b'{"events": [""]}',
        b'{"event_digests": ["00"]}',
        b'{"vector": "AAAA"}',
        b"[" * 100_000,
        b"\xff\xfe",
    ],
)
def test_a_bad_line_is_named_by_number_and_nothing_is_imported(filled: Path, tmp_path: Path, wrong: bytes) -> None:
    lines = exported(filled).splitlines()
    lines[5] = wrong
    with pytest.raises(InvalidInputError, match=r"nothing was imported: line 6"):
        imported(tmp_path / "other", b"\n".join(lines))
    assert stored(tmp_path / "other") == [[], [], {}, (None, None, None, None)]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("quality_score", 1.5),
        ("timestamp", "2026-02-16T10:00:00"),
        ("kind", "rumour"),
        ("id", ""),
        ("times_recalled", -1),
        ("text", None),
    ],
)
def test_a_record_that_no_store_accepts_is_refused(filled: Path, tmp_path: Path, field: str, value: object) -> None:
    lines = exported(filled).splitlines()
    line = json.loads(lines[1])
    line["record"][field] = value
    lines[1] = json.dumps(line).encode()
    with pytest.raises(InvalidInputError, match="line 2"):
        imported(tmp_path / "other", b"\n".join(lines))


def test_a_truncated_file_is_refused(filled: Path, tmp_path: Path) -> None:
    lines = exported(filled).splitlines()
    with pytest.raises(InvalidInputError, match="contains 3 of"):
        imported(tmp_path / "other", b"\n".join(lines[:4]))
    with pytest.raises(InvalidInputError, match="line 1"):
        imported(tmp_path / "other", b"")


def test_an_import_without_room_is_undone(filled: Path, tmp_path: Path) -> None:
    lines = exported(filled).splitlines()
    head, one = json.loads(lines[0]), json.loads(lines[1])
    many = []
    for number in range(400):
        one["record"] |= {
            "id": f"m{number}",
            "event_id": None,
            "text": np.random.default_rng(number).bytes(9_000).hex(),
        }
        many.append(json.dumps(one | {"events": []}).encode())
    head["memories"] = len(many)
    tight = msgspec.structs.replace(SMALL, map_size_bytes=1 << 20)
    with pytest.raises(StoreFullError):
        imported(tmp_path / "other", b"\n".join([json.dumps(head).encode(), *many]), tight)
    archive = Archive.open(tmp_path / "other", tight, "library")
    assert archive.store.counts().memories == 0
    archive.close()


def test_vectors_of_another_embedder_are_dropped_and_recomputed(filled: Path, tmp_path: Path) -> None:
    archive = Archive.open(tmp_path / "other", GRAPH, "library")
    with archive.batch() as batch:
        batch.set_stamp("another model")
        batch.put(MemoryRecord(id="m", text="t", source="user_input", kind="episode", timestamp=NOW), np.ones(8))
    archive.close()
    done = imported(tmp_path / "other", exported(filled))
    assert done.without_vector == done.taken > 0
    assert check_user(tmp_path / "other", "alice", GRAPH, quiet).findings == ()


def test_a_store_that_waits_for_its_first_words_takes_those_of_an_export(
    filled: Path, tmp_path: Path, embedder: Embedder
) -> None:
    with Memory.open(tmp_path / "other", settings=Settings(store=GRAPH), embedder=embedder) as memory:
        memory.care.rebuild(vectors=True)
        state = memory._archive.store.state
        assert (state.words_stamp, state.word_bytes) == (embedder.info.words_stamp, None)
    data = exported(filled)
    assert imported(tmp_path / "other", data).without_vector == 0
    assert exported(tmp_path / "other") == data
    assert check_user(tmp_path / "other", "alice", GRAPH, quiet).findings == ()


NOW = datetime(2026, 2, 16, tzinfo=UTC)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300)
moments = st.datetimes(timezones=st.just(UTC))
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | texts | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@st.composite
def memories(draw: st.DrawFn) -> list[tuple[MemoryRecord, Any, list[str]]]:
    count = draw(st.integers(0, 6))
    ids = draw(st.lists(names, min_size=count, max_size=count, unique=True))
    events = draw(st.lists(names, min_size=2 * count, max_size=2 * count, unique=True))
    made = []
    for number in range(count):
        record = MemoryRecord(
            id=ids[number],
            text=draw(texts),
            source=draw(st.sampled_from(["user_input", "worker_result"])),
            kind=draw(st.sampled_from(["episode", "finding"])),
            timestamp=draw(moments),
            quality_score=draw(st.none() | st.floats(0, 1)),
            metadata=draw(st.dictionaries(texts, values, max_size=3)),
            title=draw(st.none() | texts),
            tags=tuple(draw(st.lists(texts, max_size=3))),
            event_id=draw(st.none() | st.just(events[2 * number])),
            last_recalled_at=draw(st.none() | moments),
            times_recalled=draw(st.integers(0, 1 << 40)),
            utility=Utility(used=draw(st.integers(0, 9)), reward_sum=draw(st.floats(0, 9))),
        )
        vector = draw(st.none() | st.lists(st.floats(-1, 1, width=32), min_size=4, max_size=4).filter(any))
        made.append((record, vector, [events[2 * number + 1]] if draw(st.booleans()) else []))
    return made


def _bits(folder: Path) -> Iterator[object]:
    found = stored(folder)
    yield from (repr(found[0]), found[1], found[2], found[3])  # NaN is not equal to itself


@settings(max_examples=25, deadline=None)
@given(made=memories(), gone=st.integers(0, 6))
def test_any_stored_memory_round_trips_bit_for_bit(made: list[Any], gone: int) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        first, second = Path(scratch) / "first", Path(scratch) / "second"
        archive = Archive.open(first, SMALL, "library")
        with archive.batch() as batch:
            batch.set_stamp("model")
            for record, vector, more in made:
                is_usable = vector is not None and max(map(abs, vector)) > 1e-3
                row = batch.put(record, np.array(vector, dtype=np.float32) if is_usable else None)
                for event_id in more:
                    batch.link_event(event_id, row)
            if gone:
                batch.delete(gone)
        archive.close()
        data = exported(first)
        imported(second, data)
        assert list(_bits(second)) == list(_bits(first))
        assert exported(second) == data
