"""Stored runs and recalls are found by time and by memory, have checksums, and match their indexes."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import SMALL, memory, unit_vectors
from store_checks import verified

from memory_agent.errors import StoreDamagedError
from memory_agent.storage.environment import open_environment
from memory_agent.storage.snapshot import DATABASES, RECALL_INDEX, RECALLS, RUN_INDEX, RUNS
from memory_agent.storage.store import Store
from memory_agent.storage.stored_runs import (
    BEGUN,
    ENDED,
    Mark,
    RecallNote,
    Shown,
    StoredRevision,
    StoredTrajectory,
    StoredUse,
    index_entries,
    request_digest,
    vector_of_query,
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "alice", SMALL) as store:
        yield store


def run(run_id: str, began_us: int = 100, ended_us: int | None = None, **fields: Any) -> StoredTrajectory:
    last_us = began_us if ended_us is None else ended_us
    marks = tuple(
        Mark(at_us=at_us, event_id=f"{run_id}-{at_us}", event_type="x", role="step")
        for at_us in sorted({began_us, last_us})
    )
    revisions = () if ended_us is None else (StoredRevision(0.8, "completed", ended_us),)
    known = StoredTrajectory(run_id, marks=marks, began_us=began_us, ended_us=ended_us, revisions=revisions)
    return msgspec.structs.replace(known, **fields)


def put(store: Store, *runs: StoredTrajectory) -> None:
    with store.batch() as batch:
        for one in runs:
            batch.put_trajectory(one)


def allot_rows(store: Store, count: int) -> None:
    """Allocate rows that runs can refer to."""
    with store.batch() as batch:
        for _ in range(count):
            batch.allot_row()


def note(recall_id: str, at_us: int = 1, **fields: Any) -> RecallNote:
    return RecallNote(recall_id, at_us, **fields)


def test_runs_are_numbered_by_when_they_first_ended_and_keep_their_numbers(store: Store) -> None:
    put(store, run("a"), run("b"))
    put(store, run("b", ended_us=300), run("a", ended_us=200))
    with store.snapshot() as snapshot:
        assert [(one.id, one.number) for one in snapshot.trajectories()] == [("b", 1), ("a", 2)]
    put(store, run("b", number=1), run("c", ended_us=250))
    with store.snapshot() as snapshot:
        assert [(one.id, one.number) for one in snapshot.trajectories()] == [("a", 2), ("c", 3)]
        assert snapshot.trajectory("b").state == "open"  # type: ignore[union-attr]
    put(store, run("b", ended_us=400, number=1))
    with store.snapshot() as snapshot:
        assert [one.number for one in snapshot.trajectories()] == [1, 2, 3]


def test_runs_are_found_by_time_newest_first_and_by_their_latest_event(store: Store) -> None:
    put(store, run("a", -5, 90), run("b", 200), run("c", 100), run("d", 300, 310), run("e", 50, expired_us=999))
    with store.snapshot() as snapshot:
        assert [one.id for one in snapshot.newest_trajectories()] == ["d", "b", "c", "e", "a"]
        assert [one.id for one in snapshot.open_trajectories()] == ["c", "b"]
        assert [one.id for one in snapshot.open_trajectories(before_us=200)] == ["c"]
        assert list(snapshot.run_keys(BEGUN, 100, 300)) == [b"c", b"b"]
        assert list(snapshot.run_keys(ENDED, 90, 311, is_newest_first=True)) == [b"d", b"a"]
        assert list(snapshot.run_keys(ENDED, 91, 310)) == []
        assert list(snapshot.run_keys(BEGUN, until_us=51, is_newest_first=True)) == [b"e", b"a"]


def test_the_runs_that_used_a_memory_can_be_listed(store: Store) -> None:
    used = (StoredUse(7, "event", 1.0), StoredUse(9, "overlap", 0.5, "x"))
    put(store, run("a", 100, 200, used=used), run("b", 300, used=used[:1]))
    with store.snapshot() as snapshot:
        assert snapshot.uses(7) == [(b"a", 0.8, 100, 200), (b"b", None, 300, None)]
        assert [use.run_key for use in snapshot.uses(9)] == [b"a"]
        assert snapshot.uses(8) == []
    put(store, run("a", 100, 200))
    with store.snapshot() as snapshot:
        assert [use.run_key for use in snapshot.uses(7)] == [b"b"]


def test_the_lessons_version_changes_only_with_the_lessons(store: Store) -> None:
    versions = [store.state.lessons_version]
    ended = run("a", 100, 200)
    changes = [
        (run("a"), False),
        (ended, True),
        (ended, False),
        (msgspec.structs.replace(ended, number=1, session_id="s-1"), False),
        (msgspec.structs.replace(ended, number=1, used=(StoredUse(1, "event", 1.0),)), True),
        (msgspec.structs.replace(ended, number=1, recall_ids=("x",)), True),
        (msgspec.structs.replace(ended, number=1, revisions=(StoredRevision(0.4, "retried", 300),)), True),
        (run("a", number=1), True),
    ]
    for changed, _ in changes:
        put(store, changed)
        versions.append(store.state.lessons_version)
    assert [later > earlier for earlier, later in itertools.pairwise(versions)] == [is_news for _, is_news in changes]
    with store.batch() as batch:
        batch.delete_trajectory("a")
    assert store.state.lessons_version == versions[-1]
    put(store, msgspec.structs.replace(ended, number=1))
    with store.batch() as batch:
        batch.delete_trajectory("a")
    assert store.state.lessons_version == versions[-1] + 2


def test_a_late_vector_changes_the_lessons_once_a_run_has_ended(store: Store) -> None:
    with store.batch() as batch:
        rows = [batch.put(memory(), None) for _ in range(2)]
        batch.set_vector(rows[0], unit_vectors(1, seed=1)[0])
    assert store.state.lessons_version == 0
    put(store, run("a", 100, 200))
    version = store.state.lessons_version
    with store.batch() as batch:
        batch.set_vector(rows[1], unit_vectors(1, seed=1)[0])
    assert store.state.lessons_version > version


def test_a_forgotten_run_is_neither_listed_nor_returned(store: Store) -> None:
    put(store, run("a", 100, 200))
    put(store, StoredTrajectory("a", is_forgotten=True))
    with store.snapshot() as snapshot:
        assert snapshot.trajectory("a") is None
        assert snapshot.run_of_key(b"a").is_forgotten  # type: ignore[union-attr]
        assert list(snapshot.newest_trajectories()) == list(snapshot.trajectories()) == []


def test_a_recall_is_known_before_and_after_it_is_written(store: Store) -> None:
    vector = unit_vectors(1, seed=3)[0]
    kept = note("x", 5, shown=(Shown(3, 1), Shown(4, 2)), vector=vector_of_query(vector), size=2, session_id="s-1")
    store.note_recall(kept)
    assert store.has_waiting_notes
    assert store.recall_note("x") == kept
    with store.batch():
        pass
    assert not store.has_waiting_notes
    assert store.recall_note("x") == kept
    assert kept.rows == (3, 4)
    assert kept.query is not None
    np.testing.assert_allclose(kept.query, vector, atol=1e-3)
    assert store.recall_note("y") is None
    assert note("z").query is None


def test_waiting_recalls_survive_an_undone_batch_and_are_written_at_close(tmp_path: Path) -> None:
    with Store.open(tmp_path, SMALL) as store:
        store.note_recall(note("x"))
        with pytest.raises(RuntimeError), store.batch():
            raise RuntimeError
        assert store.recall_note("x") is not None
    with Store.open(tmp_path, SMALL) as store:
        assert store.recall_note("x") == note("x")


def test_waiting_recalls_are_bounded(store: Store) -> None:
    for number in range(2_010):
        store.note_recall(note(f"{number:05d}", number))
    assert store.recall_note("00009") is None
    assert store.recall_note("00010") is not None


def test_recalls_without_a_run_are_pruned_by_number_and_age_and_those_of_runs_never(store: Store) -> None:
    with store.batch() as batch:
        for number in range(10):
            batch.put_note(note(f"{number:02d}", number, run_id="r" if number == 1 else None, by_run="r"))
        assert batch.waiting_count == 9
        assert batch.prune_notes(keep=6, oldest_us=5) == 4
        assert [kept.recall_id for kept in batch.recall_notes()] == ["01", "05", "06", "07", "08", "09"]
        assert [kept.at_us for kept in batch.notes_between(5, 8)] == [5, 6, 7, 8]
        assert [kept.at_us for kept in batch.asked_notes()] == [5, 6, 7, 8, 9]
        batch.put_note(note("07", 7, run_id="r", by_run="r"))
        assert [kept.at_us for kept in batch.asked_notes()] == [5, 6, 8, 9]
    assert verified(store) == 0


def test_equal_requests_have_equal_digests_ignoring_white_space_and_case() -> None:
    assert request_digest(" Fix  the\nRace ") == request_digest("fix the race")
    assert request_digest("fix the race!") != request_digest("fix the race")


@pytest.mark.parametrize("database", [RUNS, RUN_INDEX, RECALLS, RECALL_INDEX])
def test_damage_and_a_missing_entry_are_noticed(tmp_path: Path, database: str) -> None:
    with Store.open(tmp_path, SMALL) as store:
        allot_rows(store, 7)
        put(store, run("a", 100, 200, used=(StoredUse(7, "event", 1.0),)))
        store.note_recall(note("x"))
    with Store.open(tmp_path, SMALL) as store:
        assert verified(store) == 0
    environment = open_environment(tmp_path / "records", SMALL.map_size_bytes, DATABASES)
    with environment.write() as transaction:
        key, value = next(transaction.scan(database))
        if value:
            transaction.put(database, key, value[:-1] + bytes([value[-1] ^ 1]))
        else:
            transaction.delete(database, key)
    environment.close()
    with Store.open(tmp_path, SMALL) as store, pytest.raises(StoreDamagedError):
        verified(store)


def test_a_store_of_a_version_without_runs_opens_and_stores_runs(tmp_path: Path) -> None:
    with Store.open(tmp_path / "new", SMALL) as store, store.batch() as batch:
        batch.put(memory(event_id="e-1"), None)
    old = tmp_path / "old" / "records"
    before = DATABASES[: DATABASES.index(RUNS)]
    source = open_environment(tmp_path / "new" / "records", SMALL.map_size_bytes, DATABASES)
    target = open_environment(old, SMALL.map_size_bytes, before)
    with source.read() as reading, target.write() as writing:
        for name in before:
            for key, value in reading.scan(name):
                writing.put(name, key, value)
    source.close()
    target.close()
    shutil.copy(tmp_path / "new" / "owner.lock", tmp_path / "old" / "owner.lock")
    with Store.open(tmp_path / "old", SMALL) as store:
        assert verified(store) == 1
        put(store, run("a", 100, 200))
        assert verified(store) == 1


ids = st.sampled_from(["a", "b", "c"])
lengths = st.none() | st.integers(0, 9)


def made(run_id: str, began_us: int, length: int | None, used: set[int]) -> StoredTrajectory:
    uses = tuple(StoredUse(row, "event", 1.0) for row in sorted(used))
    return run(run_id, began_us, None if length is None else began_us + length, used=uses)


runs = st.builds(made, ids, st.integers(-50, 50), lengths, st.sets(st.integers(1, 4)))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(runs | ids, max_size=4), max_size=8))
def test_the_index_follows_every_change_of_runs(steps: list[list[StoredTrajectory | str]]) -> None:
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder), SMALL) as store:
        known: dict[str, StoredTrajectory] = {}
        allot_rows(store, 4)
        for step in steps:
            with store.batch() as batch:
                for change in step:
                    if isinstance(change, str):
                        batch.delete_trajectory(change)
                        known.pop(change, None)
                    else:
                        known[change.id] = batch.put_trajectory(change)
            assert verified(store) == 0
        with store.snapshot() as snapshot:
            entries = {entry: value for one in known.values() for entry, value in index_entries(one).items()}
            assert dict(snapshot._transaction.scan(RUN_INDEX)) == entries
            assert {one.id for one in snapshot.newest_trajectories()} == set(known)
