"""A store, its columns and its graph stay usable after Ctrl-C at any point in the main thread."""

from __future__ import annotations

import contextlib
import time
from itertools import count
from pathlib import Path

from interrupting import interrupt_everywhere
from samples import SMALL, embedded, memory, unit_vectors

import relay.disk.environment
import relay.locks
from memory_agent.storage import archive as archive_module
from memory_agent.storage import vector_graph
from memory_agent.storage.archive import Archive
from memory_agent.storage.vector_table import VectorTable

LOCKS = (relay.locks, contextlib)
VECTORS = unit_vectors(400, seed=1)


def put(archive: Archive) -> None:
    with archive.batch() as batch:
        batch.put(memory(), embedded(1).vectors[0])


def test_writing_a_batch(tmp_path: Path) -> None:
    """After the interrupt, another thread can write and close."""
    folders = count()

    def put_another(archive: Archive) -> None:
        put(archive)
        assert archive.settled_view().live == archive.store.counts().memories in (1, 2)
        archive.close()

    places = interrupt_everywhere(
        (archive_module, relay.disk.environment, *LOCKS),
        lambda: Archive.open(tmp_path / str(next(folders)), SMALL, "library"),
        put,
        put_another,
    )
    assert len(places) > 30


def test_searching_a_graph() -> None:
    """After the interrupt, the graph can grow and the table can close."""

    def grown() -> VectorTable:
        table = VectorTable(50)
        table.append(VECTORS[:200])
        wait_for_the_graph(table)
        return table

    def grow(table: VectorTable) -> None:
        table.append(VECTORS[200:])
        wait_for_the_graph(table)
        table.close()

    def wait_for_the_graph(table: VectorTable) -> None:
        deadline = time.monotonic() + 20
        while not table.view().is_approximate or table._graph is None or table._graph._thread is not None:
            assert time.monotonic() < deadline
            time.sleep(0.001)

    places = interrupt_everywhere((vector_graph, *LOCKS), grown, lambda table: table.view().scan(VECTORS[0], 5), grow)
    assert len(places) > 15
