"""The arithmetic of nearest-neighbour search: quantization, the top k, how far to widen a scan, what each way costs.

Pure. Costs were measured by `python -m ops.bench.filters --constants` (2 cores, Zen4 class, 384 dimensions). They only
choose between ways with the same result, so a machine that is slower in all of them chooses the same.

n = number of rows, d = dimensions.
"""

from __future__ import annotations

from math import inf, log

import numpy as np
import numpy.typing as npt

from memory_agent.records import Embedding
from memory_agent.storage.changes import IndexScores, Rows

Quantized = npt.NDArray[np.int8]

SPARE = 1.4
"""Factor on the number of candidates, since the share that passes is an estimate."""

_WIDEN = 4  # most that one scan may grow over the last


def quantize(vectors: Embedding) -> Quantized:
    """Return `vectors` (..., d) as int8, each scaled to a largest component of 127.

    usearch would scale to length 127: a component is then about 6, and a cosine off by .0048 instead of .0005.
    """
    scaled: Quantized = np.rint(vectors * (127 / np.abs(vectors).max(axis=-1, keepdims=True))).astype(np.int8)
    return scaled


def widening(near: IndexScores, floor: float, lacking: float) -> float:
    """Return the factor by which the next scan grows, where `lacking` would yield enough passing rows.

    With enough passing rows, the scan has to reach `floor`; the slope of the last half of `near` estimates how far.
    """
    if floor > -inf:
        slope = float(near[len(near) // 2] - near[-1])  # by doubling
        lacking = 2 ** min(float(near[-1] - floor) / slope, 2.0) if slope > 0 else _WIDEN
    return min(SPARE * lacking, _WIDEN)


def least(scores: IndexScores, limit: int) -> float:
    """Return the least of `limit` scores, minus infinity while there are fewer."""
    present = scores[~np.isnan(scores)]
    return float(present.min()) if len(present) >= limit else -inf


def best(rows: Rows, scores: IndexScores, limit: int) -> tuple[Rows, IndexScores]:
    """Return the best `limit` rows and scores; NaN scores are left out, of equal scores the later row comes first."""
    present = ~np.isnan(scores)
    rows, scores = rows[present], scores[present]
    order = np.lexsort((-rows, -scores))[:limit]
    return rows[order], scores[order]


READ_US = 5.0
"""Reading and scoring one vector of the store in float32: 5.1 with 10,000 memories, 6.4 with 100,000; 3.0 and 4.5 on
the same machine when idle, where the other costs shrink by the same factor."""

SCAN_US = 0.08
"""One vector in an exact scan by usearch: .082 in int8 (100,000 memories), .12 in bfloat16 (10,000)."""

_INSERT_US = 0.25
_MOVE_US = 4.5e-5
"""usearch keeps the best in a sorted array: an insertion has a fixed cost and moves the entries behind it. Of 100,000
vectors the best 2,000 cost 3 ms over the bare scan, 8,000: 20 ms, 30,000: 137 ms, all: 460 ms; of 10,000 the best 2,000
1.1 ms, 8,000: 4.7 ms."""


def reading_us(rows: int) -> float:
    """Return the cost of reading and scoring `rows` rows one by one."""
    return rows * READ_US


def scanning_us(total: int, count: int) -> float:
    """Return the cost of an exact scan of `total` vectors for the best `count`."""
    if not total or not count:
        return 0.0
    count = min(count, total)
    inserted = count * (1 + log(total / count))
    return total * SCAN_US + inserted * (_INSERT_US + _MOVE_US * count)
