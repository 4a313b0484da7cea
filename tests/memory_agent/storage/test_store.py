from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hammering import hammered
from samples import NDIM, NOW, SMALL, memory, unit_vectors
from store_checks import verified

from memory_agent.errors import InvalidInputError, StoreDamagedError, StoreError, StoreFullError
from memory_agent.settings import StoreSettings
from memory_agent.storage.changes import Changes
from memory_agent.storage.codec import row_key
from memory_agent.storage.environment import RECORDS_FOLDER, UserKey, records_at
from memory_agent.storage.snapshot import CHANGES, RECORDS, VECTORS
from memory_agent.storage.store import Store


@pytest.fixture
def store(tmp_path: Path, key: UserKey | None):  # type: ignore[no-untyped-def]
    with Store.open(tmp_path / "user", SMALL, key=key) as opened:
        yield opened


def reopened(store: Store) -> Store:
    store.close()
    return Store.open(store.folder, SMALL, key=store.key)


def test_a_batch_survives_reopening_with_records_vectors_events_and_cursor(store: Store) -> None:
    record, vector = memory(event_id="e-1", tags=("a",), metadata={"k": [1, None]}), unit_vectors(1, seed=1)[0]
    with store.batch() as batch:
        row = batch.put(record, vector)
        batch.set_stamp("minilm int8")
        batch.set_blob("mean", b"\x00\xff")
        batch.count("kept")
        batch.count("dropped.noise", 3)
        batch.state.cursor = 42
    with reopened(store) as again:
        assert again.record(row) == record
        assert again.row_of_id(record.id) == again.row_of_event("e-1") == row
        assert np.allclose(again.vectors([row])[0], vector, atol=1e-3)
        assert (
            again.state.cursor,
            again.state.stamp,
            again.state.ndim,
            again.counts().memories,
            again.counts().vectors,
        ) == (
            42,
            "minilm int8",
            NDIM,
            1,
            1,
        )
        assert again.state.counters == {"kept": 1, "dropped.noise": 3}
        assert again.blob("mean") == b"\x00\xff"
        assert verified(again) == 1


def test_blobs_are_listed_by_the_beginning_of_their_names(store: Store) -> None:
    with store.batch() as batch:
        for name in ("file:b", "file:a", "file", "filed:a", "file:" + "long" * 40):
            batch.set_blob(name, b"\x01")
        batch.set_blob("file:b", None)
        assert batch.blobs("file:") == ["file:a"]
    with store.snapshot() as snapshot:
        assert snapshot.blobs("file") == ["file", "file:a", "filed:a"]
        assert snapshot.blobs("other") == []


def test_a_batch_that_raises_leaves_nothing(store: Store) -> None:
    with pytest.raises(InvalidInputError), store.batch() as batch:  # noqa: PT012
        batch.put(memory(event_id="e-1"), None)
        batch.count("kept")
        batch.state.cursor = 9
        batch.put(memory(), np.full(NDIM, np.nan, dtype=np.float32))
    assert (store.counts().memories, store.state.cursor, store.state.counters, store.state.last_change) == (0, 0, {}, 0)
    assert store.row_of_event("e-1") is None


def test_a_known_event_is_stored_once_even_after_its_memory_was_deleted(store: Store) -> None:
    with store.batch() as batch:
        row = batch.put(memory(event_id="e-1"), None)
        assert batch.put(memory(event_id="e-1"), None) == row
        batch.link_event("e-2", row)
        assert batch.put(memory(event_id="e-2"), None) == row
    with store.batch() as batch:
        assert batch.delete(row)
        assert not batch.delete(row)
        assert batch.put(memory(event_id="e-1"), None) == row
    assert store.counts().memories == 0
    assert store.record(row) is None


def test_rows_are_never_used_again(store: Store) -> None:
    with store.batch() as batch:
        first = batch.put(memory(), None)
        batch.delete(first)
    with reopened(store) as again, again.batch() as batch:
        assert batch.put(memory(), None) > first


def test_the_same_id_for_another_event_is_refused(store: Store) -> None:
    record = memory(event_id="e-1")
    with store.batch() as batch:
        batch.put(record, None)
    with pytest.raises(InvalidInputError) as caught, store.batch() as batch:
        batch.put(msgspec.structs.replace(record, event_id="e-2"), None)
    assert caught.value.field == "id"


def test_memories_without_vector_wait_for_one_in_order(store: Store) -> None:
    vector = unit_vectors(1, seed=2)[0]
    with store.batch() as batch:
        rows = [batch.put(memory(), vector if number == 1 else None) for number in range(4)]
    assert store.pending_rows(2) == [rows[0], rows[2]]
    with store.batch() as batch:
        batch.set_vector(rows[0], vector)
        batch.delete(rows[2])
    assert store.pending_rows(9) == [rows[3]]
    assert (store.counts().pending, store.counts().vectors) == (1, 2)
    assert not store.vectors([rows[3]]).any()


def test_the_vector_of_a_row_without_memory_is_refused(store: Store) -> None:
    with pytest.raises(InvalidInputError) as caught, store.batch() as batch:
        batch.set_vector(77, unit_vectors(1, seed=2)[0])
    assert caught.value.field == "row"


def test_vectors_of_another_dimension_are_refused(store: Store) -> None:
    with store.batch() as batch:
        batch.put(memory(), unit_vectors(1, seed=2)[0])
    with pytest.raises(InvalidInputError), store.batch() as batch:
        batch.put(memory(), unit_vectors(1, seed=2, ndim=NDIM + 1)[0])


def test_another_stamp_drops_all_vectors_and_asks_for_new_ones(store: Store) -> None:
    with store.batch() as batch:
        batch.set_stamp("old")
        rows = [batch.put(memory(), vector) for vector in unit_vectors(3, seed=2)]
    applied = store.state.last_change
    with store.batch() as batch:
        batch.set_stamp("new")
    assert store.pending_rows(9) == rows
    assert store.state.stamp == "new"
    assert changes_after(store, applied) is None
    with store.batch() as batch:
        batch.set_vector(rows[0], unit_vectors(1, seed=2, ndim=8)[0])
    assert store.state.ndim == 8


def test_an_update_changes_the_memory_in_place(store: Store) -> None:
    with store.batch() as batch:
        row = batch.put(memory(quality_score=None), unit_vectors(1, seed=2)[0])
    record = store.record(row)
    assert record is not None
    better = msgspec.structs.replace(record, quality_score=0.9, title="Auth race", times_recalled=4)
    with store.batch() as batch:
        assert batch.update(better) == row
    assert store.record(row) == better
    assert store.vectors([row]).any()
    with pytest.raises(InvalidInputError), store.batch() as batch:
        batch.update(memory())


def test_recalls_are_counted_without_a_commit_and_kept_with_the_next_one(store: Store) -> None:
    with store.batch() as batch:
        row, other = batch.put(memory(), None), batch.put(memory(), None)
    change, later = store.state.last_change, NOW + timedelta(hours=1)
    store.touch([row, other], NOW)
    store.touch([row], later)
    record = store.record(row)
    assert record is not None
    assert (record.times_recalled, record.last_recalled_at) == (2, later)
    with store.batch() as batch:
        batch.delete(other)
    store.touch([row, other, 99], later)
    with reopened(store) as again:
        record = again.record(row)
        assert record is not None
        assert (record.times_recalled, record.last_recalled_at) == (3, later)
        assert again.record(other) is None
        assert again.state.last_change == change + 1  # recalls produce no changes for indexes to apply


def test_recalls_survive_a_batch_that_fails(store: Store) -> None:
    with store.batch() as batch:
        row = batch.put(memory(), None)
    store.touch([row], NOW)
    with pytest.raises(ZeroDivisionError), store.batch():
        1 / 0  # noqa: B018
    with reopened(store) as again:
        record = again.record(row)
        assert record is not None
        assert record.times_recalled == 1


def test_the_changes_of_a_batch_are_settled_per_row(store: Store) -> None:
    vectors = unit_vectors(2, seed=2)
    with store.batch() as batch:
        fresh = batch.put(memory("fresh"), None)
        batch.set_vector(fresh, vectors[0])
        gone = batch.put(memory("gone"), None)
        batch.delete(gone)
    changes = {change.row: change for change in batch.changes.rows}
    assert (changes[fresh].op, changes[fresh].new_vector) == ("put", True)
    assert (changes[gone].op, changes[gone].record) == ("delete", None)
    assert (batch.changes.after, batch.changes.through) == (0, 4)


def test_a_range_of_the_change_log_says_whether_the_words_changed(store: Store) -> None:
    with store.batch() as batch:
        row = batch.put(memory("first words"), None)
    start = store.state.last_change

    def settled(**changed: Any) -> tuple[str, bool]:
        with store.batch() as batch:
            record = batch.record(row)
            assert record is not None
            batch.update(msgspec.structs.replace(record, **changed))
        changes = changes_after(store, start)
        assert changes is not None
        (change,) = changes.rows
        assert change.record is not None
        return change.op, change.new_vector

    assert settled(quality_score=0.5, session_id="s") == ("update", False)
    assert settled(tags=("x",)) == ("reword", False)
    assert settled(quality_score=0.7) == ("reword", False)
    with store.batch() as batch:
        batch.set_vector(row, unit_vectors(1, seed=2)[0])
    assert settled(times_recalled=3) == ("reword", True)
    with store.batch() as batch:
        batch.delete(row)
    changes = changes_after(store, start)
    assert changes is not None
    assert [(change.row, change.op, change.vector) for change in changes.rows] == [(row, "delete", None)]


def test_the_change_log_holds_no_text(store: Store) -> None:
    with store.batch() as batch:
        row = batch.put(memory("secret words", tags=("secret",)), None)
    with store.batch() as batch:
        record = batch.record(row)
        assert record is not None
        batch.update(msgspec.structs.replace(record, text="others"))
        batch.delete(row)
    with store._environment.read() as transaction:
        assert all(len(value) < 20 for _, value in transaction.scan(CHANGES))


def test_the_change_log_says_when_it_does_not_reach_back(store: Store) -> None:
    for _ in range(3):
        with store.batch() as batch:
            batch.put(memory(), None)
    store.forget_changes_through(2)
    assert changes_after(store, 1) is None
    assert changes_after(store, 99) is None
    changes = changes_after(store, 2)
    assert changes is not None
    assert (changes.after, changes.through, len(tuple(changes.rows))) == (2, 3, 1)
    assert store.log_length == 1
    with reopened(store) as again:
        assert changes_after(again, 1) is None
        assert again.log_length == 1


def test_a_snapshot_does_not_see_later_commits(store: Store) -> None:
    with store.batch() as batch:
        batch.put(memory(), None)
    with store.snapshot() as snapshot:
        with store.batch() as batch:
            batch.put(memory(), None)
        assert snapshot.counts()[0] == 1
        assert snapshot.state.last_change == 1
        assert len(list(snapshot.scan())) == 1
    assert store.counts().memories == 2


@pytest.mark.parametrize("database", [RECORDS, VECTORS])
def test_a_flipped_bit_in_a_value_is_noticed_on_reading_and_by_verify(store: Store, database: str) -> None:
    with store.batch() as batch:
        row = batch.put(memory(), unit_vectors(1, seed=2)[0])
    store.close()
    tamper(store, database, row_key(row))
    with reopened(store) as damaged:
        with pytest.raises(StoreDamagedError):
            damaged.record(row, with_embedding=True)
        with pytest.raises(StoreDamagedError):
            verified(damaged)


def changes_after(store: Store, seq: int) -> Changes | None:
    """Return all changes after change `seq`."""
    with store.snapshot() as snapshot:
        changes = snapshot.changes_after(seq)
        return changes and msgspec.structs.replace(changes, rows=tuple(changes.rows))


def tamper(store: Store, database: str, key: bytes) -> None:
    """Flip one bit of a stored value in place."""
    environment = records_at(store.folder / RECORDS_FOLDER, SMALL, store.key)
    with environment.read() as transaction:
        value = dict(transaction.scan_stored(database))[key]
    environment.close()
    file = store.folder / "records" / "data.mdb"
    content = file.read_bytes()
    assert content.count(value) == 1
    file.write_bytes(content.replace(value, value[:-1] + bytes([value[-1] ^ 4])))


def test_a_full_map_stops_intake_and_deleting_still_works(tmp_path: Path, key: UserKey | None) -> None:
    settings = StoreSettings(map_size_bytes=1 << 20, reserve_bytes=256 << 10)
    rows: list[int] = []

    def fill(store: Store) -> None:
        for number in range(10_000):
            with store.batch() as batch:
                rows.append(batch.put(memory(f"{number} " * 200, event_id=f"e-{number}"), None))

    with Store.open(tmp_path, settings, key=key) as store:
        with pytest.raises(StoreFullError):
            fill(store)
        stored = store.counts().memories
        assert stored > 50
        for row in rows:
            with store.batch() as batch:
                batch.delete(row)
        assert store.counts().memories == 0
        store.forget_changes_through(store.state.last_change)
        with store.batch() as batch:
            batch.put(memory(), None)  # the store has room again


def test_a_closed_store_refuses_batches(store: Store) -> None:
    store.close()
    store.close()
    with pytest.raises(StoreError), store.batch():
        pass


def test_a_store_of_a_later_format_is_refused(store: Store) -> None:
    with store.batch() as batch:
        batch.state.format = 99
    store.close()
    with pytest.raises(StoreError, match="format 99"):
        reopened(store)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda batch: batch.put(memory(id=""), None), "id"),
        (lambda batch: batch.put(memory(event_id=""), None), "event_id"),
        (lambda batch: batch.put(memory(id="\ud800"), None), "id"),
        (lambda batch: batch.set_blob("", b""), "name"),
    ],
)
def test_unusable_names_are_refused_by_field(store: Store, call: Any, field: str) -> None:
    with pytest.raises(InvalidInputError) as caught, store.batch() as batch:
        call(batch)
    assert caught.value.field == field


def test_many_threads_may_read_while_one_writes(store: Store) -> None:
    def read() -> None:
        rows = [row for row, _ in store.scan()]
        assert all(record is not None for record in store.records(rows))
        store.touch(rows[:3], NOW)

    with hammered(read):
        for vector in unit_vectors(100, seed=3):
            with store.batch() as batch:
                batch.put(memory(), vector)
    assert store.counts().memories == 100


def test_an_event_id_of_any_length_leads_to_its_row(store: Store) -> None:
    with store.batch() as batch:
        row = batch.put(memory(event_id="e" * 600), None)
        other = batch.put(memory(event_id="e" * 601), None)
    assert (store.row_of_event("e" * 600), store.row_of_event("e" * 601)) == (row, other)


def test_the_disk_usage_is_counted_while_files_are_replaced(store: Store) -> None:
    def replace() -> None:
        temporary = store.folder / "derived.new"
        temporary.write_bytes(b"x")
        temporary.replace(store.folder / "derived")

    with hammered(replace, 1):
        assert all(store.disk_bytes for _ in range(2_000))
