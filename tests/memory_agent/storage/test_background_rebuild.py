"""A missing index is rebuilt while the store is open: nothing waits for it, and it ends up correct."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import numpy as np
import pytest
from samples import NDIM, SMALL, memory, unit_vectors

from memory_agent.records import MemoryFilter
from memory_agent.storage import derived
from memory_agent.storage.archive import Archive, Side

GRAPH = msgspec.structs.replace(SMALL, exact_search_limit=50)
COUNT = 200
FILES = {"index": "index.usearch", "lexicon": "lexicon.sqlite"}


@pytest.fixture(autouse=True)
def _small_is_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(derived, "_BUILT_AT_ONCE", 20)


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    archive = Archive.open(tmp_path / "user", GRAPH, "library")
    add(archive, 0, COUNT)
    archive.close()
    return tmp_path / "user"


def add(archive: Archive, start: int, count: int) -> None:
    vectors = unit_vectors(count, seed=start + 1, ndim=NDIM)
    for place in range(0, count, 10):
        with archive.batch() as batch:
            batch.set_stamp("model")
            for number in range(place, min(count, place + 10)):
                batch.put(memory(f"race number{start + number}"), vectors[number])


def assert_right(archive: Archive) -> None:
    rows = np.array(sorted(row for row, _ in archive.store.scan()), dtype=np.int64)
    assert archive.lexicon.matching_rows(MemoryFilter()).tolist() == rows.tolist()
    assert sorted(archive.lexicon.search("race", 10_000)[0].tolist()) == rows.tolist()
    assert sorted(row for part, _ in archive.index.held() for row in part.tolist()) == rows.tolist()
    assert archive.index.applied == archive.lexicon.applied == archive.store.last_change


@pytest.mark.parametrize("side", ["index", "lexicon"])
def test_missing_indexes_are_built_while_the_store_is_in_use(closed: Path, side: Side) -> None:
    (closed / FILES[side]).unlink()
    archive = Archive.open(closed, GRAPH, "library")
    with archive._writing:  # the builder cannot end, so that the state in between is seen
        assert archive.is_rebuilding(side)
        assert archive.store.count == COUNT
    archive._wait_for_rebuilds()
    assert not archive.is_rebuilding(side)
    assert_right(archive)
    archive.close()


@pytest.mark.parametrize("side", ["index", "lexicon"])
def test_batches_go_on_while_an_index_is_built_and_are_in_it_afterwards(
    closed: Path, side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rebuild is paused after taking its snapshot until the batches are committed."""
    reached, go_on = threading.Event(), threading.Event()
    build = getattr(derived, f"_rebuild_{side}")

    def held_build(snapshot: object, index: object) -> None:
        reached.set()
        assert go_on.wait(60)
        build(snapshot, index)

    monkeypatch.setattr(derived, f"_rebuild_{side}", held_build)
    (closed / FILES[side]).unlink()
    archive = Archive.open(closed, GRAPH, "library")
    assert reached.wait(60)
    add(archive, COUNT, 40)
    with archive.batch() as batch:
        for row in range(1, 30):
            batch.delete(row)
        batch.update(msgspec.structs.replace(batch.record(50), text="race changed"))
    assert archive.store.count == COUNT + 40 - 29
    assert archive.is_rebuilding(side)
    go_on.set()
    archive._wait_for_rebuilds()
    assert_right(archive)
    assert archive.lexicon.search("changed", 5)[0].tolist() == [50]
    archive.close()
    again = Archive.open(closed, GRAPH, "library")
    assert_right(again)
    again.close()


def test_another_embedder_while_the_index_is_built_ends_with_its_vectors(
    closed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, go_on = threading.Event(), threading.Event()
    build = derived._rebuild_index

    def held_build(snapshot: object, index: object) -> None:
        reached.set()
        assert go_on.wait(60)
        build(snapshot, index)  # type: ignore[arg-type]

    monkeypatch.setattr(derived, "_rebuild_index", held_build)
    (closed / "index.usearch").unlink()
    archive = Archive.open(closed, GRAPH, "library")
    assert reached.wait(60)
    vectors = unit_vectors(COUNT, seed=77, ndim=8)
    with archive.batch() as batch:
        batch.set_stamp("another")
        for row in range(1, COUNT + 1):
            batch.set_vector(row, vectors[row - 1])
    go_on.set()
    archive._wait_for_rebuilds()
    assert archive.index.ndim == 8
    assert archive.index.search(vectors[3], 1)[0].tolist() == [4]
    archive.close()
