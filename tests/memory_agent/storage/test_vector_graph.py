from __future__ import annotations

import gc
import threading
import time
import weakref
from math import inf
from pathlib import Path

import numpy as np
import pytest
from hammering import hammered
from samples import unit_vectors

from memory_agent.records.embedded import Embedding
from memory_agent.storage.array_file import read_arrays, write_arrays
from memory_agent.storage.column import Slots
from memory_agent.storage.vector_table import TableView, VectorTable
from relay.crypto import Cipher

D = 64
COUNT = 3_000
LIMIT = 1_000
K = 10
VECTORS = unit_vectors(COUNT, seed=1, ndim=D)
QUERIES = unit_vectors(50, seed=2, ndim=D)


def filled(vectors: Embedding = VECTORS, limit: int = LIMIT) -> VectorTable:
    table = VectorTable(limit)
    table.append(vectors)
    return table


def built(table: VectorTable) -> TableView:
    """Return a view of `table` once its graph is built."""
    view, deadline = table.view(), time.monotonic() + 60
    while not view.is_approximate:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return view


def best(view: TableView, query: Embedding, limit: int = K) -> Slots:
    """Return the best slots by exact cosine among a scan's candidates, as recall selects them."""
    scan = view.scan(query, limit)
    seen = np.flatnonzero(~np.isnan(scan.values))
    return seen[np.argsort(-view.cosines(query, seen), kind="stable")][:limit]


def recall(view: TableView, vectors: Embedding, gone: Slots | None = None) -> float:
    found = 0
    for query in QUERIES:
        cosines = vectors @ query
        if gone is not None:
            cosines[gone] = -inf
        found += len(set(np.argsort(-cosines)[:K]) & set(best(view, query)))
    return found / (K * len(QUERIES))


def looks_at_all(view: TableView) -> bool:
    return view.scan(QUERIES[0], K).unseen == -inf


def test_a_graph_finds_what_a_scan_finds() -> None:
    table = filled()
    view = built(table)
    scan = view.scan(QUERIES[0], K)
    assert np.count_nonzero(~np.isnan(scan.values)) < COUNT / 10
    seen = np.flatnonzero(~np.isnan(scan.values))
    assert (np.abs(scan.values[seen] - view.cosines(QUERIES[0], seen)) <= scan.error).all()
    assert recall(view, VECTORS) >= 0.98
    table.close()


def test_up_to_the_limit_and_with_a_mask_every_vector_is_looked_at() -> None:
    few = filled(VECTORS[:LIMIT])
    assert looks_at_all(few.view())
    table = filled()
    view = built(table)
    mask = np.arange(COUNT) % 2 == 0
    for chosen in (mask, np.arange(COUNT) < 20):
        masked = view.scan(QUERIES[0], K, chosen)
        assert np.array_equal(~np.isnan(masked.values), chosen)
        assert masked.unseen == -inf
    table.close()


def test_vectors_that_are_not_in_the_graph_yet_are_scanned() -> None:
    table = filled(np.concatenate([np.zeros((5, D), dtype=np.float32), VECTORS]))
    built(table)
    table.close()  # from here on, the graph does not grow
    table.append(QUERIES[:1])
    assert table.set(np.array([2]), QUERIES[1:2])
    view = table.view()
    assert view.is_approximate
    assert best(view, QUERIES[0])[0] == COUNT + 5
    assert best(view, QUERIES[1])[0] == 2


def test_the_graph_adds_later_vectors() -> None:
    table = filled(VECTORS[:2_000])
    built(table)
    for i in range(2_000, COUNT, 100):
        table.append(VECTORS[i : i + 100])
        table.view()
    view = table.view()
    graph = table._graph
    assert graph is not None
    while len(view.beyond(graph._held)) > COUNT / 32:
        time.sleep(0.005)
    assert recall(view, VECTORS) >= 0.98
    table.close()


def test_removed_vectors_are_not_found_whatever_their_number() -> None:
    table = filled(limit=100)
    built(table)
    gone = np.flatnonzero(np.random.default_rng(3).random(COUNT) < 0.9)
    before = table.view()
    table.remove(gone)
    view = table.view()
    assert view.is_approximate
    for query in QUERIES:
        assert np.isnan(view.scan(query, K).values[gone]).all()
        assert len(best(view, query)) == K
    assert recall(view, VECTORS, gone) >= 0.98
    assert recall(before, VECTORS) >= 0.98
    table.close()


def test_a_search_does_not_wait_for_a_graph_that_is_busy() -> None:
    table = filled()
    view = built(table)
    graph = table._graph
    assert graph is not None
    is_held, is_done = threading.Event(), threading.Event()

    def hold() -> None:
        with graph._using:
            is_held.set()
            assert is_done.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    assert is_held.wait(60)
    assert looks_at_all(view)
    is_done.set()
    holder.join()
    assert not looks_at_all(view)
    table.close()


def test_searches_while_the_graph_is_built_and_grows_are_right() -> None:
    table = filled(VECTORS[:1_200])
    views = [table.view()]

    def search() -> None:
        view = views[-1]
        for query in QUERIES[:3]:
            scan = view.scan(query, K)
            seen = np.flatnonzero(~np.isnan(scan.values))
            assert len(seen) >= K
            assert np.allclose(view.cosines(query, seen), VECTORS[seen] @ query, atol=1e-4)

    with hammered(search):
        for i in range(1_200, COUNT, 90):
            table.append(VECTORS[i : i + 90])
            views.append(table.view())
        built(table)
    table.close()


def test_closing_stops_a_build_and_views_answer_exactly() -> None:
    table = filled(unit_vectors(30_000, seed=4, ndim=D), limit=0)
    view = table.view()
    table.close()
    table.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "vector-graph"]
    assert looks_at_all(view)
    table.append(VECTORS[:1])
    assert looks_at_all(table.view())


def test_a_closed_table_is_freed_at_once() -> None:
    """Compaction replaces the table, which may occupy hundreds of megabytes."""
    table = filled()
    built(table)
    table.close()
    left = weakref.ref(table._planes.chunks[0].coarse)
    gc.disable()
    try:
        del table
        assert left() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("cipher", [None, Cipher(bytes(32), "index")], ids=["plain", "encrypted"])
def test_a_saved_graph_is_used_at_once_and_a_damaged_one_is_rebuilt(tmp_path: Path, cipher: Cipher | None) -> None:
    table = filled()
    built(table)
    save(table, tmp_path, cipher)
    table.close()
    again = load(tmp_path, cipher)
    assert again.view().is_approximate
    assert recall(again.view(), VECTORS) >= 0.98
    again.close()
    path = tmp_path / "graph"
    whole = path.read_bytes()
    for place in (0, 30, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        damaged = load(tmp_path, cipher)
        assert looks_at_all(damaged.view())
        damaged.close()
    path.write_bytes(whole[:-1])
    damaged = load(tmp_path, cipher)
    assert recall(built(damaged), VECTORS) >= 0.98
    damaged.close()


def test_building_continues_from_a_graph_saved_half_built(tmp_path: Path) -> None:
    table = filled(unit_vectors(20_000, seed=5, ndim=D), limit=0)
    table.view()
    graph = table._graph
    assert graph is not None
    while not graph._held.any():
        time.sleep(0.001)
    table.close()
    save(table, tmp_path, None)
    again = load(tmp_path, None, limit=0)
    assert again._graph is not None
    assert 0 < np.count_nonzero(again._graph._held) == np.count_nonzero(graph._held)
    assert looks_at_all(again.view())
    again.close()


def test_a_graph_of_other_slots_is_not_used(tmp_path: Path) -> None:
    table = filled()
    built(table)
    save(table, tmp_path, None)
    table.close()
    shorter = filled(VECTORS[:2_000])
    shorter._generation = table._generation  # as if the file were an older version
    shorter.load_graph(tmp_path / "graph")
    kept = table.keep(np.arange(COUNT))
    kept.load_graph(tmp_path / "graph")
    for other in (shorter, kept):
        assert other._graph is None
        assert looks_at_all(other.view())
        other.close()


def test_the_file_is_removed_with_the_graph(tmp_path: Path) -> None:
    table = filled()
    built(table)
    save(table, tmp_path, None)
    table.close()
    save(table.keep(np.arange(10)), tmp_path, None)
    assert not (tmp_path / "graph").exists()


def save(table: VectorTable, folder: Path, cipher: Cipher | None) -> None:
    write_arrays(folder / "vectors", {}, table.arrays(), cipher)
    table.graph_writer()(folder / "graph", cipher)


def load(folder: Path, cipher: Cipher | None, limit: int = LIMIT) -> VectorTable:
    table = VectorTable.from_arrays(read_arrays(folder / "vectors", dict, cipher)[1], limit)
    table.load_graph(folder / "graph", cipher)
    return table
