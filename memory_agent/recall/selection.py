"""The best candidates that say different things, by maximal marginal relevance. Pure.

Maximal marginal relevance (Carbonell and Goldstein, 1998) above a floor: only paraphrases are useless to a planner, and
answers to one question resemble each other too. Rejected by measurement (decision 0016): the penalty without a floor,
which costs recall.

Shapes: p leaders, d dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from memory_agent.recall.duplicates import Leader
from memory_agent.records.embedded import Embedding
from memory_agent.storage.indexes import Scores

LIKE_COSINE = 0.8
"""Cosine from which two memories count as paraphrases."""
_ONE_THREAD = 1 << 18  # products of a matrix multiplication, up to which OpenBLAS keeps to one thread


class Choice(msgspec.Struct, frozen=True):
    """A leader in the answer; `score` is after the penalty `likeness` for the candidate at position `like`."""

    leader: Leader
    score: float
    likeness: float = 0.0
    like: int | None = None

    @property
    def place(self) -> int:
        """Its position among all candidates."""
        return self.leader.place


def mmr(leaders: Sequence[Leader], vectors: Embedding, scores: Scores, top_k: int, diversity: float) -> list[Choice]:
    """Return at most `top_k` choices by maximal marginal relevance; `diversity` (0 to 1) is the weight of likeness.

    `vectors` (p, d), zeros without one, and `scores` (p,) are those of the leaders.
    """
    penalties = diversity * np.maximum(_cosines(vectors) - LIKE_COSINE, 0.0)
    np.fill_diagonal(penalties, 0.0)
    has_paraphrase = np.any(penalties, axis=1)
    left = scores.copy()
    costs, likest = np.zeros(len(leaders)), np.full(len(leaders), -1)
    chosen: list[Choice] = []
    for _ in range(min(top_k, len(leaders))):
        best = int((left - costs).argmax())
        left[best] = -np.inf
        like = leaders[likest[best]].place if likest[best] >= 0 else None
        chosen.append(Choice(leaders[best], float(scores[best] - costs[best]), float(costs[best]), like))
        if has_paraphrase[best]:
            likest[penalties[best] > costs] = best
            np.maximum(costs, penalties[best], out=costs)
    return chosen


def _cosines(vectors: Embedding) -> Scores:
    """Return the cosines (p, p), 0 without a vector.

    Up to p = 300 or so they are multiplied in parts that BLAS does not share among threads: on two busy cores a shared
    product of p = 35 takes 3 to 13 ms instead of .06, since it waits for the other thread, which then spins on.
    """
    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))[:, None]
    unit = vectors / np.where(lengths > 0, lengths, 1.0)
    cosines = np.empty((len(unit), len(unit)))
    rows = _ONE_THREAD // max(unit.size, 1)
    step = rows if rows > 1 else max(len(unit), 1)
    for start in range(0, len(unit), step):
        cosines[start : start + step] = unit[start : start + step] @ unit.T
    return cosines
