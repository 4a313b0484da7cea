"""Inner products of int8 and of packed sign bits by numkong, the kernels that usearch brings. Exact, in one thread.

Shapes: q queries, m rows, d dimensions, b = d / 8 bytes of packed bits.
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


def products_with_signs(queries: Bytes, signs: Bits) -> npt.NDArray[np.int32]:
    """Return the inner products of `queries` (q, d) with rows of +1 and -1, given as bits (m, b): (m, q).

    With bits of 1 and 0 in their place, they are half of the product and the sum of the query.
    """
    if not len(signs) or not len(queries):
        return np.zeros((len(signs), len(queries)), dtype=np.int32)
    ones = np.unpackbits(signs, axis=1).view(np.int8)
    packed = numkong.dots_pack(queries, "int8")  # 7 times as fast as unpacked, for 8 queries
    halves: npt.NDArray[np.int32] = np.asarray(numkong.dots_packed(ones, packed))
    halves *= 2
    halves -= queries.sum(axis=1, dtype=np.int32)
    return halves
