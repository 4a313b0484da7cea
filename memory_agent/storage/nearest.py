"""The arithmetic of a search for the nearest: scores into the best, how much further to look, vectors made small. Pure.

n = number of rows, d = dimensions.
"""

from __future__ import annotations

from math import inf, log

import numpy as np
import numpy.typing as npt

from memory_agent.records import Embedding
from memory_agent.storage.changes import Rows, Scores

Small = npt.NDArray[np.int8]

SPARE = 1.4
"""Times as many as should do, since the share that passes is an estimate."""

_WIDEN = 4  # times as many in the next scan, at most


def small(vectors: Embedding) -> Small:
    """Return (..., d) int8, each vector scaled until its largest component is 127; its direction is what counts.

    The engine would make the length 127: a component is 6 or so then, and cut, and a cosine off by .0048, not .0005.
    """
    scaled: Small = np.rint(vectors * (127 / np.abs(vectors).max(axis=-1, keepdims=True))).astype(np.int8)
    return scaled


def growth(near: Scores, floor: float, lacking: float) -> float:
    """Return how many times as many to look at next, when `lacking` times as many would hold enough that pass.

    Where enough have passed the scan has to reach `floor`: how far away that is, the slope of the last half tells.
    """
    if floor > -inf:
        slope = float(near[len(near) // 2] - near[-1])  # by doubling
        lacking = 2 ** min(float(near[-1] - floor) / slope, 2.0) if slope > 0 else _WIDEN
    return min(SPARE * lacking, _WIDEN)


def least(scores: Scores, limit: int) -> float:
    """Return the least of `limit` scores; any will do while there are not as many."""
    present = scores[~np.isnan(scores)]
    return float(present.min()) if len(present) >= limit else -inf


def best(rows: Rows, scores: Scores, limit: int) -> tuple[Rows, Scores]:
    """Return the rows with the best scores; of equal ones the later row first, those without a score left out."""
    present = ~np.isnan(scores)
    rows, scores = rows[present], scores[present]
    order = np.lexsort((-rows, -scores))[:limit]
    return rows[order], scores[order]


READ_US = 5.0
"""One vector from the store, checked, and its cosine in float32: 5.1 with 10,000 memories, 6.4 with 100,000; 3.0 and
4.5 on the same machine when it did nothing else, and the others are less by the same part then."""

SCAN_US = 0.08
"""One vector in an exact scan of the engine: .082 in int8 (100,000 memories), .12 in bfloat16 (10,000)."""

_INSERT_US = 0.25
_MOVE_US = 4.5e-5
"""The engine keeps the best in a sorted array: an insertion costs something, and moves what lies behind its place.
Of 100,000, the best 2,000 cost 3 ms over the bare scan, 8,000: 20 ms, 30,000: 137 ms, all: 460 ms; of 10,000, the best
2,000 1.1 ms, 8,000: 4.7 ms."""


def reading_us(rows: int) -> float:
    """Return the cost of scoring so many rows one by one."""
    return rows * READ_US


def scanning_us(total: int, count: int) -> float:
    """Return the cost of a scan of `total` vectors for the best `count` of them."""
    if not total or not count:
        return 0.0
    count = min(count, total)
    inserted = count * (1 + log(total / count))
    return total * SCAN_US + inserted * (_INSERT_US + _MOVE_US * count)
