"""Hybrid fusion of the vector and the lexical side of a recall. Pure numpy.

    score = w * cosine + (1 - w) * bm25 / max(bm25)         w = recall.vector_weight

The cosine is used as it is, BM25, which has no fixed scale, as a share of the best match. A missing side is absent,
not zero: without one side the other ranks alone, and a memory without a vector gets the mean cosine. A memory that
shares no word with the query has BM25 0. Rejected by measurement (decision 0008): min-max over the candidates, which
makes a score depend on the other candidates and amplifies noise in small sets; z-scores; reciprocal ranks.

Shapes: n candidates.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float64]
AnyScores = npt.NDArray[np.float32] | npt.NDArray[np.float64]


def unite(*candidates: Rows) -> Rows:
    """Return the distinct rows of all sides, ascending."""
    return np.unique(np.concatenate([np.asarray(rows, dtype=np.int64) for rows in candidates]))


def places_of(rows: Rows, wanted: Sequence[int] | Rows) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
    """Return (m,) the positions of `wanted` (m,) in `rows` (ascending), and which of them are present."""
    sought = np.asarray(wanted, dtype=np.int64)
    if not rows.size:
        return np.zeros(sought.shape, dtype=np.intp), np.zeros(sought.shape, dtype=np.bool_)
    places = np.minimum(np.searchsorted(rows, sought), rows.size - 1)
    return places, rows[places] == sought


def spread(rows: Rows, found: Rows, scores: AnyScores, missing: float) -> Scores:
    """Return (n,) the score of each of `rows` (ascending), `missing` for rows not in `found`."""
    values = np.full(rows.shape, missing, dtype=np.float64)
    places, known = places_of(rows, found)
    values[places[known]] = scores[known]
    return values


def fuse(cosines: AnyScores, bm25: AnyScores, weight: float) -> Scores:
    """Return (n,) fused scores, higher is better; `weight` is that of the vector side.

    `cosines` is NaN for a memory without a vector, `bm25` 0 for one that shares no word with the query. A side of all
    NaN, or all 0, is absent.
    """
    cosines, bm25 = np.asarray(cosines, dtype=np.float64), np.asarray(bm25, dtype=np.float64)
    weight = effective_weight(cosines, bm25, weight)
    if weight == 0.0:
        return lexical_share(bm25)
    present = np.isfinite(cosines)
    filled = np.where(present, cosines, cosines[present].mean())
    return weight * filled + (1.0 - weight) * lexical_share(bm25)


def effective_weight(cosines: AnyScores, bm25: AnyScores, weight: float) -> float:
    """Return the weight of the vector side: `weight`, 0 without cosines, 1 without shared words."""
    if not np.isfinite(cosines).any():
        return 0.0
    return weight if np.any(np.greater(bm25, 0.0)) else 1.0


def lexical_share(bm25: AnyScores) -> Scores:
    """Return (n,) BM25 as shares of the best, 0 to 1."""
    best = float(np.max(bm25, initial=0.0))
    return np.asarray(bm25, dtype=np.float64) / best if best > 0 else np.zeros(np.shape(bm25))


def best_first(scores: Scores, rows: Rows, limit: int) -> npt.NDArray[np.intp]:
    """Return the positions of the best `limit` scores, best first; of equal scores the later row comes first."""
    return np.lexsort((-rows, -scores))[:limit]
