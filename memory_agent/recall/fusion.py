"""Scores into an order: how the vector side and the lexical side of a recall are weighed. Pure numpy.

    score = alpha * cosine + (1 - alpha) * bm25 / max(bm25)

The cosine is taken as it is and BM25, which has no fixed scale, in shares of the best match. A side that is missing is
absent, never a zero that drags the other down: without one side the other ranks alone, and a memory that has no vector
yet counts as an average one. A memory that shares no word with the query is no missing signal: its BM25 is 0.
What this does not do: find candidates (`recall`). Rejected by measurement (decision 0008): min-max over the candidates,
which makes a score depend on who else was found and blows up the noise in small sets; z-scores; reciprocal ranks.

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
    """Return each row that any side found, once, ascending."""
    return np.unique(np.concatenate([np.asarray(rows, dtype=np.int64) for rows in candidates]))


def places_of(rows: Rows, wanted: Sequence[int] | Rows) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
    """Return (m,) where `wanted` (m,) stand in `rows` (ascending), and which of them do stand there."""
    sought = np.asarray(wanted, dtype=np.int64)
    if not rows.size:
        return np.zeros(sought.shape, dtype=np.intp), np.zeros(sought.shape, dtype=np.bool_)
    places = np.minimum(np.searchsorted(rows, sought), rows.size - 1)
    return places, rows[places] == sought


def spread(rows: Rows, found: Rows, scores: AnyScores, missing: float) -> Scores:
    """Return (n,) the score of each of `rows` (ascending); `missing` where it was not `found`."""
    values = np.full(rows.shape, missing, dtype=np.float64)
    places, known = places_of(rows, found)
    values[places[known]] = scores[known]
    return values


def fuse(cosines: AnyScores, bm25: AnyScores, alpha: float) -> Scores:
    """Return (n,) fused scores, higher is better.

    `cosines` is NaN where a memory has no vector, `bm25` 0 where it shares no word with the query. All NaN, or all 0,
    is an absent side.
    """
    cosines, bm25 = np.asarray(cosines, dtype=np.float64), np.asarray(bm25, dtype=np.float64)
    weight = vector_weight(cosines, bm25, alpha)
    if weight == 0.0:
        return lexical_share(bm25)
    present = np.isfinite(cosines)
    filled = np.where(present, cosines, cosines[present].mean())
    return weight * filled + (1.0 - weight) * lexical_share(bm25)


def vector_weight(cosines: AnyScores, bm25: AnyScores, alpha: float) -> float:
    """Return the weight that the vector side gets: `alpha`, or all or nothing where a side is absent."""
    if not np.isfinite(cosines).any():
        return 0.0
    return alpha if np.any(np.greater(bm25, 0.0)) else 1.0


def lexical_share(bm25: AnyScores) -> Scores:
    """Return (n,) BM25 in shares of the best, 0 to 1."""
    best = float(np.max(bm25, initial=0.0))
    return np.asarray(bm25, dtype=np.float64) / best if best > 0 else np.zeros(np.shape(bm25))


def best_first(scores: Scores, rows: Rows, limit: int) -> npt.NDArray[np.intp]:
    """Return the places of the best `limit` scores, best first; of equals the later row (the newer memory) first."""
    return np.lexsort((-rows, -scores))[:limit]
