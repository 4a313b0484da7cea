"""Searches of the columns match brute force over the records after every change, with threads, and after compaction."""

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
from brute_force import assert_filters, assert_holds, assert_searches, assert_words, built
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from samples import NOW, SMALL, embedded, memory, tables, unit_vectors

from memory_agent.errors import IndexDamagedError, InvalidInputError
from memory_agent.records.embedded import Embedded, Embedding
from memory_agent.records.memories import KINDS, PROVENANCES, SOURCES, Exclusion, MemoryFilter, MemoryRecord
from memory_agent.storage import columns as columns_module
from memory_agent.storage.batch import Batch
from memory_agent.storage.changes import Change, Changes, Words, texts_of
from memory_agent.storage.codec import row_key, with_checksum
from memory_agent.storage.column import section
from memory_agent.storage.columns import Columns
from memory_agent.storage.passages import PassageVectors
from memory_agent.storage.postings import Postings
from memory_agent.storage.snapshot import RECORDS
from memory_agent.storage.store import Store
from memory_agent.storage.terms import asks
from memory_agent.storage.vector_table import VectorTable
from relay.disk import CHECKSUM_BYTES

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
keys = st.sampled_from(["a", "b", "a.b", "", "s-1"])
leaves = st.sampled_from([None, True, False, 0, 1, 1.0, -0.0, 0.5, "1", "", "a", 2**63, 2.0**63])
metadata = st.dictionaries(
    keys, st.recursive(leaves, lambda below: st.lists(below, max_size=2) | st.dictionaries(keys, below, max_size=2))
)
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
        "type": names,
        "phase": names,
        "metadata": metadata,
        "tags": tags,
    }
)
made = st.builds(embedded, st.integers(0, 40), st.sampled_from([1, 1, 1, 2, 5]), st.sampled_from([3, 0, 1, 30]))
vectors = st.none() | made
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
    type=names | odd,
    phase=names,
    metadata=st.dictionaries(
        st.sampled_from(["a", "b", "a.b", "a.b.a", "", "a.", "\ud800"]),
        leaves | st.lists(leaves, min_size=1).map(tuple),
        max_size=2,
    ),
    tags=tags | st.lists(odd, max_size=2).map(tuple),
    min_quality=qualities | st.just(nan),
    min_score=st.none() | st.just(0.5),
    exclude=st.none()
    | st.builds(
        Exclusion,
        sessions=st.lists(names.filter(bool) | odd, max_size=2).map(tuple),
        runs=st.lists(names.filter(bool) | odd, max_size=2).map(tuple),
        since=st.none() | times,
    ),
)


class ColumnsModel(RuleBasedStateMachine):
    """Columns that apply a real store's changes."""

    @initialize()
    def create(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="columns-model-"))
        self.store = Store.open(self.folder, SMALL)
        self.columns = Columns(tables(), Postings())
        self.records: dict[int, MemoryRecord] = {}
        self.vectors: dict[int, Embedding] = {}  # the vectors of all passages, if stored
        self.words: dict[int, Words] = {}
        self.words_stamp = ""

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.answers_as_the_records_say(MemoryFilter(tags=("x",)))
            self.store.close()
            shutil.rmtree(self.folder)

    def some_row(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.records)[-4:]))

    def name_words(self, batch: Batch) -> None:
        if self.words_stamp:
            batch.set_words_stamp(self.words_stamp)

    def expect(self, row: int, found: Embedded | None) -> None:
        self.vectors.pop(row, None)
        self.words.pop(row, None)
        if found is not None:
            self.vectors[row] = found.vectors if self.words_stamp else found.vectors[:1]
            if self.words_stamp:
                self.words[row] = Words(found.word_bits, found.length)

    @rule(stamp=st.sampled_from(["words 1", "words 2"]), follow=st.booleans())
    def make_words_by(self, stamp: str, follow: bool) -> None:
        """Change `words_stamp`, the version of the words; this drops all existing words."""
        if stamp != self.store.state.words_stamp:
            self.words.clear()
        self.words_stamp = stamp
        with self.store.batch() as batch:
            self.name_words(batch)
        self.follow(batch.changes, follow)

    @rule()
    def make_no_words(self) -> None:
        """Store later memories with one vector and no words."""
        self.words_stamp = ""

    @rule(batch=st.lists(st.tuples(records, vectors), min_size=1, max_size=6), follow=st.booleans())
    def put(self, batch: list[tuple[dict[str, Any], Embedded | None]], follow: bool) -> None:
        with self.store.batch() as opened:
            self.name_words(opened)
            for fields, found in batch:
                record = memory(**fields)
                row = opened.put(record, found)
                self.records[row] = record
                self.expect(row, found)
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
    @rule(data=st.data(), changed=metadata, by_id=st.booleans(), follow=st.booleans())
    def change_metadata(self, data: st.DataObject, changed: dict[str, Any], by_id: bool, follow: bool) -> None:
        """Change only the metadata, and search for the old and the new values."""
        row = self.some_row(data)
        old = self.records[row].metadata
        self.records[row] = record = msgspec.structs.replace(self.records[row], metadata=changed)
        with self.store.batch() as batch:
            if by_id:
                batch.upsert(record, None)
            else:
                batch.update(record)
        self.follow(batch.changes, follow)
        for key, value in (*old.items(), *changed.items()):
            if not isinstance(value, list | dict):
                self.answers_as_the_records_say(MemoryFilter(metadata={key: value}))

    @rule(
        data=st.data(),
        fields=records,
        found=vectors,
        is_new=st.booleans(),
        keeps_words=st.booleans(),
        follow=st.booleans(),
    )
    def upsert(
        self,
        data: st.DataObject,
        fields: dict[str, Any],
        found: Embedded | None,
        is_new: bool,
        keeps_words: bool,
        follow: bool,
    ) -> None:
        """Replace a memory by id, or add it if it is new."""
        record = memory(**fields, event_id="e-9", times_recalled=3)
        row = None
        if self.records and not is_new:
            row = self.some_row(data)
            old = self.records[row]
            kept = {name: getattr(old, name) for name in ("text", "title", "tags") if keeps_words}
            record = msgspec.structs.replace(record, id=old.id, updated_at=NOW, **kept)
        else:
            record = msgspec.structs.replace(record, event_id=None)
        with self.store.batch() as batch:
            self.name_words(batch)
            stored = batch.upsert(record, found)
        if row is None:
            row = self.store.row_of_id(record.id)
            assert row is not None
            assert stored == record
            self.expect(row, found)
        else:
            usage = {name: getattr(old, name) for name in ("event_id", "times_recalled", "last_recalled_at", "utility")}
            assert stored == msgspec.structs.replace(record, **usage)
            if texts_of(old) != texts_of(record) or (found is not None and row not in self.vectors):
                self.expect(row, found)
        self.records[row] = stored
        self.follow(batch.changes, follow)

    @precondition(lambda self: self.records)
    @rule(data=st.data(), found=vectors, follow=st.booleans())
    def set_vector(self, data: st.DataObject, found: Embedded | None, follow: bool) -> None:
        row = self.some_row(data)
        with self.store.batch() as batch:
            self.name_words(batch)
            batch.set_vector(row, found)
        self.expect(row, found)
        self.follow(batch.changes, follow)

    @precondition(lambda self: self.records)
    @rule(data=st.data(), follow=st.booleans())
    def delete(self, data: st.DataObject, follow: bool) -> None:
        row = self.some_row(data)
        with self.store.batch() as batch:
            batch.delete(row)
        del self.records[row]
        self.expect(row, None)
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
        saved = section(arrays, "vectors")
        parts = (VectorTable.from_arrays(section(saved, part)) for part in ("first", "further"))
        vectors = PassageVectors.from_arrays(saved, *parts)
        words = Postings.from_arrays(section(arrays, "words"))
        self.columns = Columns.from_arrays(arrays, vectors, words, self.columns.applied, "")
        self.answers_as_the_records_say(MemoryFilter())

    @rule()
    def rebuild(self) -> None:
        self.columns = Columns(tables(), Postings())
        with self.store.snapshot() as snapshot:
            self.columns.apply(snapshot.contents())

    @rule(chosen=filters)
    def answers_as_the_records_say(self, chosen: MemoryFilter) -> None:
        with self.store.snapshot() as snapshot:
            changes = snapshot.changes_after(self.columns.applied)
            assert changes is not None
            self.columns.apply(changes)
            assert dict(snapshot.scan()) == self.records
            self.columns.take_words(snapshot.scan_words(0, 1_000))  # words are not saved in the file
            waiting = [row for row in self.records if row not in self.vectors or row not in self.words]
            is_worded = snapshot.state.words_stamp is not None
            assert snapshot.pending_rows(1_000) == sorted(
                waiting if is_worded else set(self.records) - set(self.vectors)
            )
        view = self.columns.view
        assert view.applied == self.store.state.last_change
        assert_holds(view, self.records, self.vectors)
        assert_filters(view, self.records, chosen)
        assert_searches(view, self.records, self.vectors, QUERY, list(WORDS))
        assert_words(view, self.words)


TestColumns = ColumnsModel.TestCase
TestColumns.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)


def puts(records: list[MemoryRecord], start: int = 1) -> list[Change]:
    return [Change(row, "put", record, None, True) for row, record in enumerate(records, start)]


def columns_of(*records: MemoryRecord) -> Columns:
    """Return columns built from these records, with rows and changes numbered from 1."""
    return built(dict(enumerate(records, 1)), {})


def test_a_view_does_not_change() -> None:
    columns = columns_of(memory(session_id="s", run_id="r"), memory(session_id="s"))
    before = columns.view
    changed = memory("race", session_id="s", run_id="q", timestamp=NOW)
    columns.apply(
        Changes(1, 2, [Change(1, "update", msgspec.structs.replace(changed, text=memory().text), None, False)])
    )
    columns.apply(Changes(2, 3, [Change(2, "delete", None, None, False), *puts([changed], 3)]))
    columns.compact()
    assert before.applied == 1
    assert_holds(before, {1: _record(before, 1), 2: _record(before, 2)}, {})


def test_a_part_of_the_memories_is_kept_until_they_change() -> None:
    columns = columns_of(*(memory(metadata={"of": "all" if number % 3 else "us"}) for number in range(9)))
    view, chosen = columns.view, MemoryFilter(metadata={"of": "all"})
    part, alive = view.among(chosen), [number % 3 > 0 for number in range(9)]
    assert view.among(None) is view.among(MemoryFilter(metadata={"of": ("all", "us")})) is view
    assert (view.among(chosen) is part, part.live, part.mask(None).tolist()) == (True, 6, alive)  # type: ignore[union-attr]
    us = MemoryFilter(metadata={"of": "us"})
    assert (view.matching(us).tolist(), view.matching(us) is view.matching(us)) == ([0, 3, 6], True)
    assert not part.matching(us).size
    for number in range(40):
        view.among(MemoryFilter(metadata={"of": number}))
    assert len(view._parts) <= 16
    columns.apply(Changes(1, 2, puts([memory(metadata={"of": "all"})], 10)))
    assert columns.view.among(chosen).alive.tolist() == [*alive, True]


def test_a_filter_of_nothing_has_no_mask_and_a_time_without_zone_is_refused() -> None:
    view = columns_of(memory()).view
    assert view.mask(None) is None
    assert view.mask(MemoryFilter(min_score=0.5)) is None
    for chosen in (MemoryFilter(since=datetime(2026, 1, 1)), MemoryFilter(until=datetime(2026, 1, 1))):  # noqa: DTZ001
        with pytest.raises(InvalidInputError):
            view.mask(chosen)
    with pytest.raises(InvalidInputError):
        view.count_by("row; DROP TABLE memories")  # type: ignore[arg-type]


def test_filters_by_many_tags_are_exact() -> None:
    records = {row: memory(tags=(f"t-{row % 40}",)) for row in range(1, 200)}
    view = built(records, {}).view
    for many in (1, 8, 9, 39):
        assert_filters(view, records, MemoryFilter(tags=tuple(f"t-{number}" for number in range(many))))


def test_filters_by_many_metadata_values_are_exact() -> None:
    records = {row: memory(metadata={"n": row % 700, "of": [row, str(row)]}) for row in range(1, 2_000)}
    view = built(records, {}).view
    for many in (1, 8, 9, 600):
        assert_filters(view, records, MemoryFilter(metadata={"n": tuple(range(many))}))
        assert_filters(view, records, MemoryFilter(metadata={"n": tuple(range(many)), "of": tuple(range(0, 900, 3))}))


@pytest.mark.parametrize(("before", "after"), [({"a": 1}, {"a": 2}), ({"a": 1}, {"a": True}), ({"a": [1]}, {})])
def test_metadata_that_changed_alone_is_found_as_it_is_now(
    tmp_path: Path, before: dict[str, Any], after: dict[str, Any]
) -> None:
    record, columns = memory(metadata=before), Columns(tables(), Postings())
    with Store.open(tmp_path, SMALL) as store:
        for metadata in (before, after):
            record = msgspec.structs.replace(record, metadata=metadata)
            with store.batch() as batch:
                batch.upsert(record, VECTORS[0])
            columns.apply(batch.changes)
            assert_holds(columns.view, {1: record}, {1: VECTORS[0]})
            for value in (1, 2, True):
                assert_filters(columns.view, {1: record}, MemoryFilter(metadata={"a": value}))


def test_metadata_of_a_former_store_is_found_and_its_event_type_is_the_type(tmp_path: Path) -> None:
    """In version 0.1.0, metadata was the last field of a record."""
    told = {"event_type": "chat.user_msg", "host": {"name": "staging"}}
    with Store.open(tmp_path, SMALL) as store:
        with store.batch() as batch:
            for record in (memory(metadata=told, event_id="e-1"), memory(metadata=told)):
                row = batch.put(record, None)
                value = batch._transaction.get(RECORDS, row_key(row))
                assert value is not None
                fields = msgspec.msgpack.decode(value[CHECKSUM_BYTES + 1 :])
                former = b"\x00" + msgspec.msgpack.encode(fields[:15])
                batch._transaction.put(RECORDS, row_key(row), with_checksum(row, former))
        with store.snapshot() as snapshot:
            of_event, by_hand = (record for _, record in snapshot.scan())
            assert (of_event.type, of_event.phase, of_event.updated_at) == ("chat.user_msg", None, None)
            assert by_hand.type is None
            columns = Columns(tables(), Postings())
            columns.apply(snapshot.contents())
    records = {1: of_event, 2: by_hand}
    for chosen in (MemoryFilter(type="chat.user_msg"), MemoryFilter(metadata={"host.name": "staging"})):
        assert_filters(columns.view, records, chosen)
    assert columns.view.mask(MemoryFilter(type="chat.user_msg")).tolist() == [True, False]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "changes",
    [
        Changes(0, 3, puts([memory()], 9)),
        Changes(2, 3, puts([memory()], 9)),
        Changes(1, 2, puts([memory()], 1)),
        Changes(1, 2, [Change(9, "update", memory(), None, False)]),
        Changes(1, 2, [Change(9, "vector", memory(), VECTORS[0], True)]),
        Changes(1, 2, [Change(9, "put", memory(), unit_vectors(1, 1, 8)[0], True)]),
    ],
    ids=["overlapping", "gap", "held already", "updated but not held", "vector but not held", "other dimensions"],
)
def test_changes_that_do_not_fit_are_refused_and_the_view_stays(changes: Changes) -> None:
    columns = built({1: memory(), 2: memory()}, {1: VECTORS[0]})
    view = columns.view
    with pytest.raises(IndexDamagedError):
        columns.apply(changes)
    assert columns.view is view
    assert (view.applied, view.live) == (1, 2)


def test_changes_that_were_applied_before_are_skipped() -> None:
    columns = columns_of(memory())
    columns.apply(Changes(0, 1, puts([memory()])))
    assert columns.view.live == 1


def test_an_event_that_was_put_and_deleted_within_a_range_leaves_nothing() -> None:
    columns = columns_of(memory())
    columns.apply(Changes(1, 3, [Change(2, "delete", None, None, True)]))
    assert (columns.view.count, columns.view.applied) == (1, 3)


def test_a_changed_quality_keeps_its_slot_and_changed_words_take_a_new_one() -> None:
    record = memory(quality_score=None, tags=("x",))
    columns = columns_of(record, memory())
    rated = msgspec.structs.replace(record, quality_score=0.8)
    columns.apply(Changes(1, 2, [Change(1, "update", rated, None, False)]))
    assert columns.view.slots([1]).tolist() == [0]
    assert columns.view.mask(MemoryFilter(min_quality=0.8)).tolist() == [True, False]  # type: ignore[union-attr]
    reworded = msgspec.structs.replace(rated, tags=("y",))
    columns.apply(Changes(2, 3, [Change(1, "reword", reworded, None, False)]))
    assert columns.view.slots([1]).tolist() == [2]
    assert columns.view.words.having(["x", "y"]) == {"x": 0, "y": 1}


def test_columns_with_many_dead_slots_are_compacted_and_nothing_deleted_is_left() -> None:
    secrets = [
        memory(f"secretword{row}", session_id=f"secret-session-{row}", tags=(f"secret-tag-{row}",))
        for row in range(800)
    ]
    rest = {row: memory(session_id=f"s-{row % 7}") for row in range(801, 2_001)}
    columns = built(dict(enumerate(secrets, 1)) | rest, {row: VECTORS[row % 64] for row in range(1, 2_001)})
    columns.apply(Changes(1, 2, [Change(row, "delete", None, None, False) for row in range(1, 801)]))
    assert (columns.view.count, columns.dead) == (1_200, 0)
    assert_holds(columns.view, rest, {row: VECTORS[row % 64] for row in rest})
    content = b"".join(_whole(array).tobytes() for array in columns.arrays().values())
    assert b"secret" not in content
    assert b"s-3" in content


def test_compaction_drops_the_names_of_updated_memories() -> None:
    record = memory(run_id="secret-run")
    columns = columns_of(record)
    columns.apply(Changes(1, 2, [Change(1, "update", msgspec.structs.replace(record, run_id=None), None, False)]))
    columns.compact()
    assert b"secret" not in columns.arrays()["names"].tobytes()  # type: ignore[union-attr]


def test_sessions_that_arrive_backwards_are_ordered() -> None:
    records = {
        row: memory(session_id=f"s-{row % 3}", timestamp=NOW - timedelta(seconds=row // 2)) for row in range(1, 300)
    }
    columns = Columns(tables(), Postings())
    for row, record in records.items():
        columns.apply(Changes(row - 1, row, [Change(row, "put", record, None, True)]))
    assert_holds(columns.view, records, {})


def test_a_memory_that_leaves_its_session_has_no_neighbours() -> None:
    records = {row: memory(text=f"turn {row}", session_id="s-1") for row in range(1, 6)}
    columns = built(records, {})
    records[3] = msgspec.structs.replace(records[3], session_id=None)
    columns.apply(Changes(1, 2, [Change(3, "update", records[3], None, False)]))
    assert_holds(columns.view, records, {})
    for row in (2, 4):
        records[row] = msgspec.structs.replace(records[row], session_id=None)
    columns.apply(Changes(2, 3, [Change(row, "update", records[row], None, False) for row in (2, 4)]))
    assert_holds(columns.view, records, {})


def test_equal_texts_are_found_before_and_after_they_are_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns_module, "_MOST_UNSORTED", 10)
    records = {row: memory(f"text {row % 5}") for row in range(1, 60)}
    columns = Columns(tables(), Postings())
    for row, record in records.items():
        columns.apply(Changes(row - 1, row, [Change(row, "put", record, None, True)]))
        view = columns.view
        (same,) = view.same(view.fingerprints[view.slots([row])])
        assert view.rows[same].tolist() == list(range(row % 5 or 5, row + 1, 5))


def test_arrays_that_do_not_fit_together_are_damage() -> None:
    columns = columns_of(memory(tags=("x",)), memory())
    good = {name: _whole(array) for name, array in columns.arrays().items()}
    for bad in (
        {name: array for name, array in good.items() if name != "kinds"},
        good | {"sessions": good["sessions"][:1]},
        good | {"tag_names": good["tag_names"][:0]},
        good | {"by_fingerprint": good["by_fingerprint"] + 9},
        good | {"names": good["names"][:-1]},
    ):
        with pytest.raises(IndexDamagedError):
            Columns.from_arrays(bad, tables(), Postings(), 1, "")


def test_readers_see_whole_batches_while_changes_are_applied() -> None:
    """Each batch adds a memory and deletes the previous memory, so every view has one memory without neighbours."""
    columns = columns_of(memory("a race", session_id="s"))
    is_over, wrong = threading.Event(), list[object]()

    def read() -> None:
        while not is_over.is_set():
            view = columns.view
            (slot,) = np.flatnonzero(view.alive)
            mask = view.mask(MemoryFilter(session_id="s"))
            seen = (
                view.live,
                [] if mask is None else np.flatnonzero(mask).tolist(),
                view.windows(np.array([slot]), 1).tolist(),
                np.flatnonzero(view.words.scores(["race"])).tolist(),
            )
            if seen != (1, [slot], [[-1, slot, -1]], [slot]):
                wrong.append(seen)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for change in range(1, 750):
        record = memory("a race", session_id="s", timestamp=datetime(2026, 1, 1, tzinfo=UTC))
        columns.apply(
            Changes(change, change + 1, [Change(change, "delete", None, None, False), *puts([record], change + 1)])
        )
    is_over.set()
    for reader in readers:
        reader.join()
    assert not wrong


def _record(view: Any, row: int) -> MemoryRecord:
    """Return a record with the fields that `assert_holds` reads, for a view of two memories in one session."""
    (slot,) = view.slots([row])
    return memory(
        session_id="s", timestamp=datetime.fromtimestamp(0, UTC) + timedelta(microseconds=int(view.times_us[slot]))
    )


def _whole(array: Any) -> npt.NDArray[Any]:
    """Return a new array from an array or from a list of its parts."""
    return np.concatenate(array) if isinstance(array, list) else array.copy()


def test_vectors_of_another_embedder_are_not_followed_and_the_view_names_its_own() -> None:
    columns = Columns(tables(), Postings())
    columns.apply(Changes(0, 1, [Change(1, "put", memory(), VECTORS[0], True)], "one"))
    assert columns.view.stamp == "one"
    with pytest.raises(IndexDamagedError):
        columns.apply(Changes(1, 2, puts([memory()], 2), "other"))
    assert (columns.view.stamp, columns.view.live) == ("one", 1)


def test_a_text_that_ends_with_a_question_asks() -> None:
    assert [asks(text) for text in ("why?", "why? " + 20 * "because ", "", "and so?x", "no")] == [
        True,
        False,
        False,
        True,
        False,
    ]
