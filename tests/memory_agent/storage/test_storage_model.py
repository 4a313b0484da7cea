"""Store, vector index and lexicon against plain dictionaries, through every operation on a user's folder."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from samples import SMALL, exact_ranking, memory, new_key, unit_vectors

from memory_agent.records import Embedding, MemoryFilter, MemoryRecord
from memory_agent.storage import derived
from memory_agent.storage.lexicon import Lexicon
from memory_agent.storage.store import Store
from memory_agent.storage.user_key import UserKey
from memory_agent.storage.vector_index import VectorIndex

SETTINGS = msgspec.structs.replace(SMALL, exact_search_limit=12)
WORDS = ("auth", "race", "mutex", "token", "retry")
VECTORS = unit_vectors(64, seed=11)
QUERY = unit_vectors(1, seed=12)[0]

words = st.lists(st.sampled_from(WORDS), min_size=1, max_size=3, unique=True).map(" ".join)
vectors = st.none() | st.integers(0, len(VECTORS) - 1)
sessions = st.none() | st.sampled_from(["s-1", "s-2"])


class StorageModel(RuleBasedStateMachine):
    """`records`, `vectors` and `events` are the expected content."""

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
        self.store = Store.open(folder, SETTINGS, key=self.key())
        self.index: VectorIndex = derived.open_index(self.store, SETTINGS)
        self.lexicon: Lexicon = derived.open_lexicon(self.store)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.both_indexes_answer_from_it_once_they_have_followed()
            self.lexicon.close()
            self.store.close()
            shutil.rmtree(self.root)

    def some_row(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.records)[-3:]))  # few, so that one is changed again and again

    @rule(text=words, session=sessions, vector=vectors, event=st.integers(0, 40))
    def put(self, text: str, session: str | None, vector: int | None, event: int) -> None:
        self.put_all([(text, session, vector, event)])

    @rule(
        batch=st.lists(st.tuples(words, sessions, vectors, st.integers(0, 200)), min_size=2, max_size=12),
        follow=st.booleans(),
    )
    def put_all(self, batch: list[tuple[str, str | None, int | None, int]], follow: bool = True) -> None:
        with self.store.batch() as opened:
            for text, session, vector, event in batch:
                self.put_one(opened, text, session, vector, f"e-{event}")
        if follow:
            derived.apply(self.store, self.index, self.lexicon, opened.changes)

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
        with self.store.batch() as batch:
            assert batch.delete(row)
        del self.records[row]
        self.vectors.pop(row, None)
        derived.apply(self.store, self.index, self.lexicon, batch.changes)

    @precondition(lambda self: self.records)
    @rule(data=st.data(), vector=st.integers(0, len(VECTORS) - 1), follow=st.booleans())
    def set_vector(self, data: st.DataObject, vector: int, follow: bool) -> None:
        row = self.some_row(data)
        with self.store.batch() as batch:
            batch.set_vector(row, VECTORS[vector])
        self.vectors[row] = VECTORS[vector]
        if follow:
            derived.apply(self.store, self.index, self.lexicon, batch.changes)

    @precondition(lambda self: self.records)
    @rule(data=st.data(), text=words, session=sessions, follow=st.booleans())
    def update(self, data: st.DataObject, text: str, session: str | None, follow: bool) -> None:
        row = self.some_row(data)
        changed = msgspec.structs.replace(self.records[row], text=text, session_id=session, times_recalled=3)
        with self.store.batch() as batch:
            batch.update(changed)
        self.records[row] = changed
        if follow:
            derived.apply(self.store, self.index, self.lexicon, batch.changes)

    @precondition(lambda self: self.records)
    @rule(data=st.data(), text=words)
    def fail_in_the_middle_of_a_batch(self, data: st.DataObject, text: str) -> None:
        row = self.some_row(data)
        with pytest.raises(ZeroDivisionError), self.store.batch() as batch:  # noqa: PT012
            batch.delete(row)
            batch.put(memory(text), VECTORS[0])
            1 / 0  # noqa: B018

    @rule()
    def save(self) -> None:
        derived.save(self.store, self.index, self.lexicon)

    @rule()
    def reopen(self) -> None:
        self.lexicon.close()
        self.store.close()
        self.open(self.store.folder)

    @rule()
    def crash(self) -> None:
        """Crash: continue from the files as they are, without closing or saving."""
        self.folders += 1
        copy = self.root / str(self.folders)
        shutil.copytree(self.store.folder, copy)
        self.lexicon._disconnect()
        self.store._environment.close()
        self.store._lock.release()
        self.open(copy)

    @rule(name=st.sampled_from(["index.usearch", "lexicon.sqlite"]), data=st.data())
    def damage(self, name: str, data: st.DataObject) -> None:
        derived.save(self.store, self.index, self.lexicon)
        self.lexicon.close()
        self.store.close()
        path = self.store.folder / name
        if path.exists():
            content = bytearray(path.read_bytes())
            content[data.draw(st.integers(0, len(content) - 1))] ^= 1
            path.write_bytes(content)
        self.open(self.store.folder)

    @invariant()
    def the_store_holds_what_the_model_holds(self) -> None:
        if not hasattr(self, "store"):
            return
        assert dict(self.store.scan()) == self.records
        assert self.store.pending_rows(1_000) == sorted(set(self.records) - set(self.vectors))
        assert all(self.store.row_of_event(event) == row for event, row in self.events.items())
        assert all(self.store.row_of_id(record.id) == row for row, record in self.records.items())
        assert self.store.verify() == len(self.records)

    @rule()  # no invariant: between two of these, changes pile up
    def both_indexes_answer_from_it_once_they_have_followed(self) -> None:
        derived.catch_up(self.store, self.index, self.lexicon)
        rows, scores = self.index.search(QUERY, 100)
        assert sorted(rows.tolist()) == sorted(self.vectors)
        assert (np.diff(scores) <= 0).all()
        expected = exact_ranking(self.vectors, QUERY)[:1]
        assert rows[:1].tolist() == expected or np.isclose(scores[0], self.vectors[expected[0]] @ QUERY, atol=1e-3)
        self.the_lexicon_answers_like_one_built_from_nothing()
        chosen = MemoryFilter(session_id="s-1")
        in_session = [row for row, record in self.records.items() if record.session_id == "s-1"]
        assert self.lexicon.matching_rows(chosen).tolist() == in_session

    def the_lexicon_answers_like_one_built_from_nothing(self) -> None:
        """Scores too, which would show leftover words."""
        with Lexicon.fresh(self.root / "built") as built:
            built.rebuild(self.records.items(), through=1, lineage="model")
            for word in WORDS:
                holders = [row for row, record in self.records.items() if word in record.text]
                (rows, scores), (_, expected) = self.lexicon.search(word, 1_000), built.search(word, 1_000)
                assert sorted(rows.tolist()) == holders
                assert np.allclose(scores, expected)


class EncryptedStorageModel(StorageModel):
    """The same, encrypted."""

    def key(self) -> UserKey | None:
        return new_key(self.root / "keys")


TestStorage = StorageModel.TestCase
TestEncryptedStorage = EncryptedStorageModel.TestCase
TestStorage.settings = settings(
    max_examples=50, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
TestEncryptedStorage.settings = settings(TestStorage.settings, max_examples=25)
