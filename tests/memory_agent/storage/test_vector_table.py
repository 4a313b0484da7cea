from __future__ import annotations

from math import inf

import numpy as np
import numpy.typing as npt
import pytest
from hammering import hammered
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from samples import unit_vectors

from memory_agent.errors import IndexDamagedError
from memory_agent.records.embedded import Embedding
from memory_agent.storage.vector_table import VectorTable, greatest_with_signs, products, products_into

D = 384


def filled(vectors: Embedding, batch: int = 1_000) -> VectorTable:
    table = VectorTable()
    for i in range(0, len(vectors), batch):
        table.append(vectors[i : i + batch])
    return table


def exact(vectors: Embedding, query: Embedding) -> npt.NDArray[np.float64]:
    unit = vectors.astype(np.float64)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    cosines: npt.NDArray[np.float64] = unit @ query.astype(np.float64) / np.linalg.norm(query.astype(np.float64))
    return cosines


def test_cosines_are_finer_than_those_of_the_stored_float16() -> None:
    vectors, queries = unit_vectors(2_000, seed=1, ndim=D), unit_vectors(20, seed=2, ndim=D)
    view, slots = filled(vectors).view(), np.arange(2_000)
    for query in queries:
        wanted = exact(vectors, query)
        error = np.abs(view.cosines(query, slots) - wanted)
        rounded = np.abs(exact(vectors.astype(np.float16).astype(np.float32), query) - wanted)
        assert error.max() < 1.5e-5
        assert error.mean() < rounded.mean()
    assert np.abs(np.linalg.norm(view.vectors(slots), axis=1) - 1).max() < 1e-6


def test_a_scan_is_within_a_narrow_error_and_misses_none_of_the_best() -> None:
    vectors = unit_vectors(5_000, seed=3, ndim=D)
    view = filled(vectors).view()
    for query in unit_vectors(20, seed=4, ndim=D):
        wanted, scan = exact(vectors, query), view.scan(query, 10)
        assert scan.error < 0.03
        assert scan.unseen == -inf
        assert np.abs(scan.values - wanted).max() < scan.error
        best = np.argsort(-wanted)[:10]
        assert (scan.values[best] >= wanted[best[-1]] - scan.error).all()


@settings(deadline=None)
@given(
    vectors=hnp.arrays(
        np.float32, st.tuples(st.integers(2, 12), st.integers(1, 9)), elements=st.floats(-1, 1, width=32)
    )
)
def test_no_vector_exceeds_the_error_of_a_scan(vectors: Embedding) -> None:
    query = vectors[-1]
    table = filled(vectors[:-1])
    if not query.any():
        return
    slots = np.flatnonzero(vectors[:-1].any(axis=1))
    scan = table.view().scan(query, 5)
    cosines = table.view().cosines(query, np.arange(len(vectors) - 1))
    assert np.array_equal(np.flatnonzero(~np.isnan(scan.values)), slots)
    assert (np.abs(scan.values[slots] - cosines[slots]) <= scan.error).all()
    assert np.allclose(cosines[slots], exact(vectors[slots], query), atol=2e-4)


@pytest.mark.parametrize("ndim", [1, 2, 3, 15, 31, 33, 63, 65, 127, 129, 384, 769, 1024, 4096])
def test_products_of_the_largest_integers_are_exact_in_any_d(ndim: int) -> None:
    signs = np.where(np.random.default_rng(ndim).random((50, ndim)) < 0.5, -1, 1).astype(np.float32)
    signs[0], signs[1] = 1, -1
    view, query = filled(signs).view(), np.ones(ndim, dtype=np.float32)
    wanted = signs.sum(axis=1, dtype=np.float64) / ndim
    assert np.allclose(view.cosines(query, np.arange(50)), wanted, atol=3e-7)
    assert np.allclose(view.scan(query, 5).values, wanted, atol=1e-6)


def test_a_table_of_many_chunks_answers_as_one_of_one_chunk() -> None:
    vectors = unit_vectors(100_000, seed=5, ndim=8)
    grown, loaded = filled(vectors, batch=3_000), filled(vectors, batch=100_000)
    query = unit_vectors(1, seed=6, ndim=8)[0]
    slots = np.random.default_rng(7).permutation(100_000)[:500]
    mask = np.zeros(100_000, dtype=bool)
    mask[slots] = True
    one, many = loaded.view(), grown.view()
    assert np.array_equal(one.scan(query, 10).values, many.scan(query, 10).values)
    assert np.array_equal(one.scan(query, 10, mask).values, many.scan(query, 10, mask).values, equal_nan=True)
    assert np.array_equal(one.scan(query, 10, mask).values[slots], one.scan(query, 10, ~mask | mask).values[slots])
    assert np.array_equal(one.cosines(query, slots), many.cosines(query, slots))
    assert np.array_equal(one.vectors(slots), many.vectors(slots))
    assert np.array_equal(grown.keep(slots).view().vectors(np.arange(500)), many.vectors(slots))


def test_growing_moves_no_vector() -> None:
    table = VectorTable()
    table.append(unit_vectors(1, seed=1, ndim=8))
    first = table.arrays()["coarse"][0]
    table.append(unit_vectors(200_000, seed=2, ndim=8))
    assert np.shares_memory(first, table.arrays()["coarse"][0])


def test_a_removed_vector_leaves_no_bytes_after_keep() -> None:
    vectors = unit_vectors(20, seed=8, ndim=16)
    table = filled(vectors)
    table.remove(np.array([3, 4]))
    table.remove(np.array([3]))
    kept = table.keep(np.arange(1, 20))
    assert kept.view().count == 17
    for name in ("coarse", "fine"):
        plane = np.concatenate(kept.arrays()[name])
        assert not plane[[2, 3]].any()
        assert np.array_equal(
            np.delete(plane, [2, 3], 0), np.delete(np.concatenate(table.arrays()[name]), [0, 3, 4], 0)
        )


def test_searches_see_whole_vectors_while_vectors_are_set_late_and_removed() -> None:
    vectors = unit_vectors(4_000, seed=9, ndim=64)
    table, query = VectorTable(), unit_vectors(1, seed=10, ndim=64)[0]
    wanted = exact(vectors, query)
    views = [table.view()]

    def search() -> None:
        view = views[-1]
        values = view.scan(query, 10)
        seen = np.flatnonzero(~np.isnan(values.values))
        assert len(seen) == view.count
        assert (np.abs(values.values[seen] - wanted[seen]) <= values.error + 1e-4).all()
        assert np.allclose(view.cosines(query, seen), wanted[seen], atol=1e-4)

    with hammered(search):
        for i in range(0, 4_000, 50):
            block = vectors[i : i + 50].copy()
            block[::2] = 0
            table.append(block)
            views.append(table.view())
            assert table.set(np.arange(i, i + 50, 2), vectors[i : i + 50 : 2])
            views.append(table.view())
            table.remove(np.array([i, i + 1]))
            views.append(table.view())
    assert views[-1].count == 4_000 - 160


@pytest.mark.parametrize("name", ["coarse", "fine", "scales", "rest"])
def test_arrays_that_do_not_fit_are_refused(name: str) -> None:
    saved = {
        key: np.concatenate(part) if isinstance(part, list) else part
        for key, part in (filled(unit_vectors(5, seed=1, ndim=8)).arrays().items())
    }
    assert VectorTable.from_arrays(saved).view().count == 5
    with pytest.raises(IndexDamagedError):
        VectorTable.from_arrays({key: array for key, array in saved.items() if key != name})
    with pytest.raises(IndexDamagedError):
        VectorTable.from_arrays(saved | {name: saved[name][:0]})


sizes = st.tuples(st.integers(0, 7), st.integers(0, 40), st.integers(1, 50))


def integers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(-127, 128, shape).astype(np.int8)


@given(sizes, st.integers(0, 2**32))
@settings(deadline=None)
def test_the_greatest_products_with_signs_are_exact(size: tuple[int, int, int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    queries, rows, width = size[0] + 1, size[1] + 1, size[2]
    given_queries = integers(rng, queries, 8 * width)
    signs = rng.integers(0, 256, (rows, width), dtype=np.uint8)
    starts = np.flatnonzero(np.append(True, rng.random(rows - 1) < 0.3))
    every = np.where(np.unpackbits(signs, axis=1), 1, -1) @ given_queries.astype(np.int64).T
    found = greatest_with_signs(given_queries, signs, starts)
    assert found.dtype == np.int32
    assert np.array_equal(found, [group.max(axis=0) for group in np.split(every, starts[1:])])


@given(sizes, st.integers(0, 2**32))
@settings(deadline=None)
def test_products_of_integers_are_exact(size: tuple[int, int, int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    queries, rows, ndim = size
    left, right = integers(rng, queries + 1, ndim), integers(rng, rows, ndim)
    expected = left.astype(np.int64) @ right.astype(np.int64).T
    assert np.array_equal(products(left, right), expected)
    if rows:
        out = np.zeros((1, rows), dtype=np.float32)
        products_into(left[:1], right, out)
        assert np.array_equal(out, expected[:1])


@pytest.mark.parametrize("ndim", [8, 384, 1024, 4096])
@pytest.mark.parametrize("value", [-128, -127, 127])
@pytest.mark.parametrize("bits", [0, 255])
def test_the_largest_products_do_not_overflow(ndim: int, value: int, bits: int) -> None:
    queries = np.full((2, ndim), value, dtype=np.int8)
    signs = np.full((3, ndim // 8), bits, dtype=np.uint8)
    assert (greatest_with_signs(queries, signs, np.arange(3)) == (1 if bits else -1) * value * ndim).all()
