"""The columns against brute force over the records, through every change; threads; compaction; what is left."""

from __future__ import annotations

import shutil
import tempfile
import threading
from datetime import UTC, datetime, timedelta, timezone
from math import nan
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from brute_force import assert_filters, assert_holds, assert_searches, built
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from samples import NOW, SMALL, memory, unit_vectors

from memory_agent.errors import IndexDamagedError, InvalidInputError
from memory_agent.records import KINDS, PROVENANCES, SOURCES, Embedding, MemoryFilter, MemoryRecord
from memory_agent.storage import columns as columns_module
from memory_agent.storage.changes import Change, Changes
from memory_agent.storage.columns import Columns, record_fingerprint, section
from memory_agent.storage.postings import Postings
from memory_agent.storage.store import Store
from memory_agent.storage.vector_table import VectorTable

WORDS = ("auth", "race", "mutex", "token", "retry")
VECTORS = unit_vectors(64, seed=11)
QUERY = unit_vectors(1, seed=12)[0]

words = st.lists(st.sampled_from(WORDS), min_size=1, max_size=3, unique=True).map(" ".join)
names = st.none() | st.sampled_from(["s-1", "s-2", "x", ""])
qualities = st.none() | st.sampled_from([0.0, 0.1, 0.8, 1.0])
minutes = st.integers(-3, 3).map(lambda number: NOW + timedelta(minutes=number))
microseconds = st.sampled_from([-1, 0, 1]).map(lambda number: timedelta(microseconds=number))
times = st.builds(lambda time, off: time + off, minutes, microseconds)
tags = st.lists(st.sampled_from(["x", "y", "s-1"]), max_size=3).map(tuple)
records = st.fixed_dictionaries(
    {
        "text": words,
        "title": st.none() | st.sampled_from(["A title", ""]),
        "kind": st.sampled_from(KINDS),
        "source": st.sampled_from(SOURCES),
        "provenance": st.none() | st.sampled_from(PROVENANCES),
        "quality_score": qualities,
        "timestamp": times,
        "session_id": names,
        "run_id": names,
        "channel_id": names,
        "agent_id": names,
        "tags": tags,
    }
)
vectors = st.none() | st.integers(0, len(VECTORS) - 1)
odd = st.sampled_from(["no such name", "\ud800", "A\0B"])
filters = st.builds(
    MemoryFilter,
    kinds=st.lists(st.sampled_from(KINDS), max_size=2).map(tuple),
    sources=st.lists(st.sampled_from(SOURCES), max_size=2).map(tuple),
    provenance=st.lists(st.sampled_from(PROVENANCES), max_size=2).map(tuple),
    since=st.none() | times,
    until=st.none() | times.map(lambda time: time.astimezone(timezone(timedelta(hours=5)))),
    session_id=names | odd,
    run_id=names | odd,
    channel_id=names,
    agent_id=names,
    tags=tags | st.lists(odd, max_size=2).map(tuple),
    min_quality=qualities | st.just(nan),
    min_score=st.none() | st.just(0.5),
)


class ColumnsModel(RuleBasedStateMachine):
    """Columns that follow a real store."""

    @initialize()
    def create(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="columns-model-"))
        self.store = Store.open(self.folder, SMALL)
        self.columns = Columns(VectorTable(), Postings())
        self.records: dict[int, MemoryRecord] = {}
        self.vectors: dict[int, Embedding] = {}

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.answers_as_the_records_say(MemoryFilter(tags=("x",)))
            self.store.close()
            shutil.rmtree(self.folder)

    def some_row(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.records)[-4:]))

    @rule(batch=st.lists(st.tuples(records, vectors), min_size=1, max_size=6), follow=st.booleans())
    def put(self, batch: list[tuple[dict[str, Any], int | None]], follow: bool) -> None:
        with self.store.batch() as opened:
            for fields, vector in batch:
                record = memory(**fields)
                row = opened.put(record, None if vector is None else VECTORS[vector])
                self.records[row] = record
                if vector is not None:
                    self.vectors[row] = VECTORS[vector]
        self.follow(opened.changes, follow)

    @precondition(lambda self: self.records)
    @rule(
        data=st.data(), fields=records, chosen=st.sets(st.sampled_from(["text", "tags", "rest"])), follow=st.booleans()
    )
    def update(self, data: st.DataObject, fields: dict[str, Any], chosen: set[str], follow: bool) -> None:
        """Change the words, the other fields, or both."""
        row = self.some_row(data)
        worded = {"text", "title", "tags"}
        taken = {
            name: value for name, value in fields.items() if name in chosen or ("rest" in chosen) > (name in worded)
        }
        self.records[row] = msgspec.structs.replace(self.records[row], **taken)
        with self.store.batch() as batch:
            assert batch.update(self.records[row]) == row
        self.follow(batch.changes, follow)

    @precondition(lambda self: self.records)
    @rule(data=st.data(), vector=st.integers(0, len(VECTORS) - 1), follow=st.booleans())
    def set_vector(self, data: st.DataObject, vector: int, follow: bool) -> None:
        row = self.some_row(data)
        with self.store.batch() as batch:
            batch.set_vector(row, VECTORS[vector])
        self.vectors[row] = VECTORS[vector]
        self.follow(batch.changes, follow)

    @precondition(lambda self: self.records)
    @rule(data=st.data(), follow=st.booleans())
    def delete(self, data: st.DataObject, follow: bool) -> None:
        row = self.some_row(data)
        with self.store.batch() as batch:
            batch.delete(row)
        del self.records[row]
        self.vectors.pop(row, None)
        self.follow(batch.changes, follow)

    def follow(self, changes: Changes, now: bool) -> None:
        if now and changes.after == self.columns.applied:
            self.columns.apply(changes)

    @rule()
    def compact(self) -> None:
        self.columns.compact()
        assert self.columns.dead == 0
        assert self.columns.view.count == self.columns.view.live

    @rule()
    def save_and_load(self) -> None:
        arrays = {name: _whole(array) for name, array in self.columns.arrays().items()}
        vectors = VectorTable.from_arrays(section(arrays, "vectors"))
        self.columns = Columns.from_arrays(
            arrays, vectors, Postings.from_arrays(section(arrays, "words")), self.columns.applied
        )

    @rule()
    def rebuild(self) -> None:
        self.columns = Columns(VectorTable(), Postings())
        with self.store.snapshot() as snapshot:
            self.columns.apply(snapshot.contents())

    @rule(chosen=filters)
    def answers_as_the_records_say(self, chosen: MemoryFilter) -> None:
        with self.store.snapshot() as snapshot:
            changes = snapshot.changes_after(self.columns.applied)
            assert changes is not None
            self.columns.apply(changes)
            assert dict(snapshot.scan()) == self.records
        view = self.columns.view
        assert view.applied == self.store.last_change
        assert_holds(view, self.records, self.vectors)
        assert_filters(view, self.records, chosen)
        assert_searches(view, self.records, self.vectors, QUERY, list(WORDS))


TestColumns = ColumnsModel.TestCase
TestColumns.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)


def _whole(array: Any) -> npt.NDArray[Any]:
    """One array, that nothing else holds, of one or of parts."""
    return np.concatenate(array) if isinstance(array, list) else array.copy()
