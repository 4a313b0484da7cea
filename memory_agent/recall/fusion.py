"""What a memory scores by itself in a hybrid recall: its vector and its words. Pure numpy.

    fused = w * cosine + (1 - w) * (late interaction + .1 * bm25 / max(bm25)) / 1.1         w = recall.vector_weight

The cosine and the late interaction are used as they are, BM25, which has no fixed scale, as a share of the best match.
A missing side is absent, not zero: a memory without a vector gets the mean cosine. Rejected by measurement (decision
0008): min-max over the candidates, which makes a score depend on the other candidates and amplifies noise in small
sets; z-scores; reciprocal ranks.

Shapes: n memories.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from memory_agent.storage.indexes import Scores, Slots

AnyScores = npt.NDArray[np.float32] | npt.NDArray[np.float64]
_BM25 = 0.1
_SAMPLED_FROM = 4_096
_STRIDE = 16


def fuse(cosines: Scores, words: Scores, shares: Scores, weight: float) -> Scores:
    """Return (n,) fused scores, higher is better; `weight` is that of the vector side.

    `cosines` is NaN for a memory without a vector, `words` its late interaction, `shares` its BM25 as a share.
    """
    present = np.isfinite(cosines)
    filled = cosines if present.all() else np.where(present, cosines, cosines[present].mean())
    return weight * filled + (1.0 - weight) * (words + _BM25 * shares) / (1.0 + _BM25)


def lexical_share(bm25: Scores, best_bm25: float) -> Scores:
    """Return (n,) BM25 as shares of the best, 0 to 1."""
    return bm25 / best_bm25 if best_bm25 > 0 else np.zeros(bm25.shape)


def best_first(scores: Scores, rows: Slots, limit: int) -> npt.NDArray[np.intp]:
    """Return the positions of the best `limit` scores, best first; of equal scores the later row comes first."""
    return np.lexsort((-rows, -scores))[:limit]


def highest(scores: AnyScores, limit: int, above: float = -np.inf) -> npt.NDArray[np.intp]:
    """Return the positions of the highest `limit` scores that exceed `above`, ascending; all of a tie. NaN is left out.

    A sample of one score in 16 says below which nothing needs to be sorted: .1 ms instead of .9 for 100,000 scores.
    """
    floor = _floor_of(scores, limit, above)
    order = (scores > floor).nonzero()[0]
    if floor > above and order.size < limit:
        order = (scores > above).nonzero()[0]
    if order.size > limit:
        kept = scores[order]
        order = order[kept >= np.partition(kept, order.size - limit)[order.size - limit]]
    return order


def _floor_of(scores: AnyScores, limit: int, above: float) -> float:
    """Return a score that more than `limit` others probably exceed, going by a sample; else `above`."""
    sample = scores[::_STRIDE]
    sample = sample[sample > above]
    beyond = 2 * limit // _STRIDE + 8
    if scores.size < _SAMPLED_FROM or beyond >= sample.size:
        return above
    return float(np.partition(sample, sample.size - beyond)[sample.size - beyond])


def places_of(slots: Slots, wanted: Slots) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
    """Return (m,) the positions of `wanted` (m,) in `slots` (ascending), and which of them are present."""
    if not slots.size:
        return np.zeros(wanted.shape, dtype=np.intp), np.zeros(wanted.shape, dtype=np.bool_)
    places = np.minimum(slots.searchsorted(wanted), slots.size - 1)
    return places, slots[places] == wanted
