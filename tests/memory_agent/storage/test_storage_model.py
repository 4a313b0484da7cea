"""During every operation on a user's folder, an archive behaves like a set of plain dictionaries."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from brute_force import assert_filters, assert_holds, assert_searches
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from samples import SMALL, memory, new_key, unit_vectors
from store_checks import verified

from memory_agent.records.embedded import Embedding
from memory_agent.records.memories import MemoryFilter, MemoryRecord
from memory_agent.storage.archive import Archive
from memory_agent.storage.derived import COLUMNS_FILE, GRAPH_FILE
from memory_agent.storage.environment import UserKey
from memory_agent.storage.store import Store

SETTINGS = msgspec.structs.replace(SMALL, exact_search_limit=12)
WORDS = ("auth", "race", "mutex", "token", "retry")
VECTORS = unit_vectors(64, seed=11)
QUERY = unit_vectors(1, seed=12)[0]

words = st.lists(st.sampled_from(WORDS), min_size=1, max_size=3, unique=True).map(" ".join)
vectors = st.none() | st.integers(0, len(VECTORS) - 1)
sessions = st.none() | st.sampled_from(["s-1", "s-2"])


class StorageModel(RuleBasedStateMachine):
    """A model of an archive; `records`, `vectors` and `events` are its expected content."""

    @initialize()
    def create(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="storage-model-"))
        self.folders = 0
        self.records: dict[int, MemoryRecord] = {}
        self.vectors: dict[int, Embedding] = {}
        self.events: dict[str, int] = {}
        self.open(self.root / "0")

    def key(self) -> UserKey | None:
        return None

    def open(self, folder: Path) -> None:
        self.archive = Archive.open(folder, SETTINGS, "library", self.key())

    @property
    def store(self) -> Store:
        return self.archive.store

    def teardown(self) -> None:
        if hasattr(self, "archive"):
            self.the_view_answers_from_it()
            self.archive.close()
            shutil.rmtree(self.root)

    def some_row(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.records)[-3:]))  # only a few ids, so that rows change repeatedly

    @rule(text=words, session=sessions, vector=vectors, event=st.integers(0, 40))
    def put(self, text: str, session: str | None, vector: int | None, event: int) -> None:
        self.put_all([(text, session, vector, event)])

    @rule(batch=st.lists(st.tuples(words, sessions, vectors, st.integers(0, 200)), min_size=2, max_size=12))
    def put_all(self, batch: list[tuple[str, str | None, int | None, int]]) -> None:
        with self.archive.batch() as opened:
            for text, session, vector, event in batch:
                self.put_one(opened, text, session, vector, f"e-{event}")

    def put_one(self, batch: Any, text: str, session: str | None, vector: int | None, event: str) -> None:
        record = memory(text, session_id=session, event_id=event)
        row = batch.put(record, None if vector is None else VECTORS[vector])
        if event in self.events:
            assert row == self.events[event]
            return
        self.events[event] = row
        self.records[row] = record
        if vector is not None:
            self.vectors[row] = VECTORS[vector]

    @precondition(lambda self: self.records)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        row = self.some_row(data)
        with self.archive.batch() as batch:
            assert batch.delete(row)
        del self.records[row]
        self.vectors.pop(row, None)

    @precondition(lambda self: self.records)
    @rule(data=st.data(), vector=st.integers(0, len(VECTORS) - 1))
    def set_vector(self, data: st.DataObject, vector: int) -> None:
        row = self.some_row(data)
        with self.archive.batch() as batch:
            batch.set_vector(row, VECTORS[vector])
        self.vectors[row] = VECTORS[vector]

    @precondition(lambda self: self.records)
    @rule(data=st.data(), text=words, session=sessions)
    def update(self, data: st.DataObject, text: str, session: str | None) -> None:
        row = self.some_row(data)
        changed = msgspec.structs.replace(self.records[row], text=text, session_id=session, times_recalled=3)
        with self.archive.batch() as batch:
            batch.update(changed)
        self.records[row] = changed

    @precondition(lambda self: self.records)
    @rule(data=st.data(), text=words)
    def fail_in_the_middle_of_a_batch(self, data: st.DataObject, text: str) -> None:
        row = self.some_row(data)
        with pytest.raises(ZeroDivisionError), self.archive.batch() as batch:  # noqa: PT012
            batch.delete(row)
            batch.put(memory(text), VECTORS[0])
            1 / 0  # noqa: B018

    @precondition(lambda self: self.records)
    @rule(data=st.data())
    def delete_behind_the_columns(self, data: st.DataObject) -> None:
        """Simulate a crash between the commit and the columns' update; the columns catch up when reopened."""
        row = self.some_row(data)
        with self.store.batch() as batch:
            assert batch.delete(row)
        del self.records[row]
        self.vectors.pop(row, None)
        self.reopen()

    @rule()
    def save(self) -> None:
        self.archive._save()

    @rule()
    def purge(self) -> None:
        self.archive.purge()

    @rule()
    def rebuild(self) -> None:
        self.archive.rebuild()

    @rule()
    def reopen(self) -> None:
        self.archive.close()
        self.open(self.store.folder)

    @rule()
    def crash(self) -> None:
        """Simulate a crash: continue from the current files, without closing or saving."""
        self.folders += 1
        copy = self.root / str(self.folders)
        shutil.copytree(self.store.folder, copy)
        self.archive.abandon()
        self.open(copy)

    @rule(name=st.sampled_from([COLUMNS_FILE, GRAPH_FILE]), offset=st.integers(0, 100_000))
    def damage(self, name: str, offset: int) -> None:
        """Change one byte. The file's size varies between runs, because the graph is built in another thread."""
        self.archive._save()
        self.archive.close()
        path = self.store.folder / name
        if path.exists():
            content = bytearray(path.read_bytes())
            content[offset % len(content)] ^= 1
            path.write_bytes(content)
        self.open(self.store.folder)

    @invariant()
    def the_store_holds_what_the_model_holds(self) -> None:
        if not hasattr(self, "archive"):
            return
        assert dict(self.store.scan()) == self.records
        assert self.store.pending_rows(1_000) == sorted(set(self.records) - set(self.vectors))
        assert all(self.store.row_of_event(event) == row for event, row in self.events.items())
        assert all(self.store.row_of_id(record.id) == row for row, record in self.records.items())
        assert verified(self.store) == len(self.records)

    @rule()
    def the_view_answers_from_it(self) -> None:
        view = self.archive.view
        assert not self.archive.is_rebuilding
        assert view.applied == self.store.state.last_change
        assert_holds(view, self.records, self.vectors)
        assert_filters(view, self.records, MemoryFilter(session_id="s-1"))
        assert_searches(view, self.records, self.vectors, QUERY, list(WORDS))


class EncryptedStorageModel(StorageModel):
    """The same model with an encrypted archive."""

    def key(self) -> UserKey | None:
        return new_key(self.root / "keys")


TestStorage = StorageModel.TestCase
TestEncryptedStorage = EncryptedStorageModel.TestCase
TestStorage.settings = settings(
    max_examples=30, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
TestEncryptedStorage.settings = settings(TestStorage.settings, max_examples=15)
