"""The arithmetic of a search for the nearest: scores into the best, how much further to look, vectors made small. Pure.

n = number of rows, d = dimensions.
"""

from __future__ import annotations

from math import inf

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
