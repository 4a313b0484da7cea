"""Missing columns are rebuilt correctly while the store is open, without blocking the store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from samples import NDIM, SMALL, memory, unit_vectors

from memory_agent.errors import IndexDamagedError, StoreDamagedError
from memory_agent.storage import columns, derived
from memory_agent.storage.archive import Archive
from memory_agent.storage.changes import Change, Changes
from memory_agent.storage.codec import row_key
from memory_agent.storage.columns import Columns
from memory_agent.storage.snapshot import RECORDS, Snapshot
from memory_agent.storage.vector_graph import VectorGraph

COUNT = 200


@pytest.fixture(autouse=True)
def _small_is_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(derived, "AT_ONCE", 20)


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    archive = Archive.open(tmp_path / "user", SMALL, "library")
    add(archive, 0, COUNT)
    archive.close()
    return tmp_path / "user"


class Pause:
    """Pauses rebuilds after `rows` memories until `go_on` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rows: int = 0) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()
        contents = Snapshot.contents

        def paused(snapshot: Snapshot) -> Changes:
            changes = contents(snapshot)
            return msgspec.structs.replace(changes, rows=self._paused(changes, rows))

        monkeypatch.setattr(Snapshot, "contents", paused)

    def _paused(self, changes: Changes, rows: int) -> Iterator[Change]:
        for number, change in enumerate(changes.rows):
            if number == rows:
                self.reached.set()
                assert self.go_on.wait(60)
            yield change


def add(archive: Archive, start: int, count: int) -> None:
    vectors = unit_vectors(count, seed=start + 1, ndim=NDIM)
    for place in range(0, count, 10):
        with archive.batch() as batch:
            batch.set_stamp("model")
            for number in range(place, min(count, place + 10)):
                batch.put(memory(f"race number{start + number}"), vectors[number])


def assert_right(archive: Archive) -> None:
    view = archive.settled_view()
    rows = [row for row, _ in archive.store.scan()]
    assert sorted(view.rows[view.alive].tolist()) == rows
    assert sorted(view.rows[view.words.scores(["race"]) > 0].tolist()) == rows
    assert view.vectors.count == len(rows)
    assert view.applied == archive.store.state.last_change
    assert not archive.is_rebuilding


def test_missing_columns_are_built_while_the_store_is_in_use(closed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (closed / derived.COLUMNS_FILE).unlink()
    pause = Pause(monkeypatch)
    archive = Archive.open(closed, SMALL, "library")
    assert archive.is_rebuilding
    assert archive.store.counts().memories == COUNT
    pause.go_on.set()
    assert_right(archive)
    archive.close()


def test_the_view_shows_what_is_there_so_far(closed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "_STEP", 30)
    pause = Pause(monkeypatch, rows=100)
    (closed / derived.COLUMNS_FILE).unlink()
    archive = Archive.open(closed, SMALL, "library")
    assert pause.reached.wait(60)
    assert 30 <= archive.view.live <= 100
    assert np.count_nonzero(archive.view.words.scores(["race"])) == archive.view.live
    pause.go_on.set()
    assert_right(archive)
    archive.close()


def test_a_rebuild_of_columns_that_are_there_shows_them_until_it_is_done(
    closed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = Archive.open(closed, SMALL, "library")
    pause = Pause(monkeypatch)
    rebuilding = threading.Thread(target=archive.rebuild)
    rebuilding.start()
    assert pause.reached.wait(60)
    assert archive.is_rebuilding
    assert archive.view.live == COUNT
    pause.go_on.set()
    rebuilding.join()
    assert_right(archive)
    archive.close()


def test_batches_go_on_while_the_columns_are_built_and_are_in_them_afterwards(
    closed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pause = Pause(monkeypatch)
    (closed / derived.COLUMNS_FILE).unlink()
    archive = Archive.open(closed, SMALL, "library")
    assert pause.reached.wait(60)
    add(archive, COUNT, 40)
    with archive.batch() as batch:
        for row in range(1, 30):
            batch.delete(row)
        record = batch.record(50)
        assert record is not None
        batch.update(msgspec.structs.replace(record, text="race changed"))
    assert archive.store.counts().memories == COUNT + 40 - 29
    assert archive.is_rebuilding
    pause.go_on.set()
    assert_right(archive)
    assert archive.view.rows[archive.view.words.scores(["changed"]) > 0].tolist() == [50]
    archive.close()
    again = Archive.open(closed, SMALL, "library")
    assert not again.is_rebuilding
    assert_right(again)
    again.close()


def test_another_embedder_while_the_columns_are_built_ends_with_its_vectors(
    closed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pause = Pause(monkeypatch)
    (closed / derived.COLUMNS_FILE).unlink()
    archive = Archive.open(closed, SMALL, "library")
    assert pause.reached.wait(60)
    vectors = unit_vectors(COUNT, seed=77, ndim=8)
    with archive.batch() as batch:
        batch.set_stamp("another")
        for row in range(1, COUNT + 1):
            batch.set_vector(row, vectors[row - 1])
    pause.go_on.set()
    view = archive.settled_view()
    assert (view.vectors.ndim, view.vectors.count) == (8, COUNT)
    assert view.vectors.cosines(vectors[3], view.slots([4])).tolist() == pytest.approx([1.0], abs=1e-3)
    archive.close()


@pytest.mark.parametrize("error", [MemoryError("no memory"), None])
def test_a_batch_that_the_columns_cannot_apply_is_durable_and_found_after_a_rebuild(
    closed: Path, monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    """Simulates a failed allocation, or a mismatch between columns and store, during a batch."""
    archive = Archive.open(closed, SMALL, "library")
    apply: Callable[[Columns, Changes], None] = Columns.apply

    def failing(held: Columns, changes: Changes) -> None:
        if held is broken:
            if error is not None:
                raise error
            changes = msgspec.structs.replace(changes, after=changes.after - 1)
        apply(held, changes)

    broken = archive._columns
    monkeypatch.setattr(Columns, "apply", failing)
    add(archive, COUNT, 10)
    assert_right(archive)
    assert archive.store.counts().memories == COUNT + 10
    archive.close()


def test_a_bug_in_the_columns_is_reported_and_the_next_batch_is_applied(
    closed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = Archive.open(closed, SMALL, "library")
    monkeypatch.setattr(archive._columns, "apply", lambda changes: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        add(archive, COUNT, 10)
    assert archive.store.counts().memories == COUNT + 10
    add(archive, COUNT + 10, 10)
    assert_right(archive)
    archive.close()


def test_a_rebuild_from_damaged_records_fails_by_name_and_batches_go_on(closed: Path) -> None:
    archive = Archive.open(closed, SMALL, "library")
    with archive.store._environment.write() as transaction:
        transaction.put(RECORDS, row_key(7), b"damaged")
    for _ in range(2):
        with pytest.raises(StoreDamagedError):
            archive.rebuild()
        assert archive.is_rebuilding
        assert archive.view.live == COUNT
    with pytest.raises(StoreDamagedError):
        archive.purge()
    add(archive, COUNT, 10)
    assert archive.store.counts().memories == COUNT + 10
    archive.close()


def test_a_failed_open_or_rebuild_builds_no_graph_in_the_background(
    closed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = msgspec.structs.replace(SMALL, exact_search_limit=1)
    archive = Archive.open(closed, limited, "library")
    archive.rebuild()
    archive.close()

    def slowly(graph: VectorGraph, *_: object) -> None:
        until_s = time.monotonic() + 60
        while not graph._is_closing:
            assert time.monotonic() < until_s
            time.sleep(0.005)

    def damaged(*_: object) -> bool:
        raise StoreDamagedError("damaged")

    monkeypatch.setattr(VectorGraph, "_add", slowly)
    (closed / derived.GRAPH_FILE).unlink()
    with monkeypatch.context() as patched:
        patched.setattr(derived, "is_short", damaged)
        with pytest.raises(StoreDamagedError):
            Archive.open(closed, limited, "library")
    with monkeypatch.context() as patched:
        patched.setattr(Columns, "_take", lambda *_: [][0])
        with pytest.raises(IndexDamagedError):
            derived.read_columns(closed, limited, None)
    assert not [thread for thread in threading.enumerate() if thread.name == "vector-graph"]
