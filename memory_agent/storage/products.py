"""Inner products of int8 and of packed sign bits by numkong, the kernels that usearch brings. Exact, in one thread.

Shapes: q queries, m rows, g groups of rows, d dimensions, b = d / 8 bytes of packed bits.
"""

from __future__ import annotations

import numkong
import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.int8]
Bits = npt.NDArray[np.uint8]
Products = npt.NDArray[np.float64]


def products(queries: Bytes, rows: Bytes) -> Products:
    """Return the inner products of `queries` (q, d) with `rows` (m, d): (q, m)."""
    found = np.zeros((len(queries), len(rows)))
    if len(rows):  # numkong refuses none
        numkong.cdist(queries, rows, "inner", out=found)
    return found


def products_into(query: Bytes, rows: Bytes, out: npt.NDArray[np.float32]) -> None:
    """Write the inner products of `query` (1, d) with `rows` (m, d), one or more, into `out` (1, m)."""
    numkong.cdist(query, rows, "inner", out=out)


def greatest_with_signs(queries: Bytes, signs: Bits, starts: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """Return the greatest inner products of `queries` (q, d) with rows of +1 and -1, in each group of rows: (g, q).

    The rows are given as bits (m, b), one query and one row or more; the groups begin at `starts` (g,). With bits of 1
    and 0 in their place, the products are half of those and of the sum of the query.
    """
    ones = np.unpackbits(signs, axis=1).view(np.int8)
    packed = numkong.dots_pack(queries, "int8")  # 7 times as fast as unpacked, for 8 queries
    halves = np.asarray(numkong.dots_packed(ones, packed))
    greatest: npt.NDArray[np.int32] = np.maximum.reduceat(halves, starts, axis=0)
    greatest *= 2
    greatest -= queries.sum(axis=1, dtype=np.int32)
    return greatest
