"""Inner products of integers and signs are those of numpy, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory_agent.storage.vector_table import greatest_with_signs, products, products_into

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
