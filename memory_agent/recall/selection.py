"""The best candidates without duplicates. Pure.

Memories with one fingerprint (`storage/terms`) are folded into the best of them. The rest are selected by maximal
marginal relevance (Carbonell and Goldstein, 1998) above a floor: only paraphrases are useless to a planner, and answers
to one question resemble each other too. Rejected by measurement (decision 0016): the penalty without a floor, which
costs recall; folding by closeness, which folds "succeeded" with "failed".

Shapes: p leaders, d dimensions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from memory_agent.recall.fusion import Scores
from memory_agent.records import Embedding

LIKE_COSINE = 0.8
"""Cosine from which two memories count as paraphrases."""


class Leader(msgspec.Struct, frozen=True):
    """The best candidate of a duplicate group: its position among all candidates, and those of the others.

    `echoes` are the positions of former requests folded into it (`query_echoes`).
    """

    place: int
    fingerprint: int
    folded: list[int]
    echoes: tuple[int, ...] = ()


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


def fold(places: Iterable[tuple[int, int]], most: int) -> list[Leader]:
    """Return at most `most` leaders of candidates given as (position, fingerprint), best first."""
    leaders: dict[int, Leader] = {}
    for place, fingerprint in places:
        leader = leaders.get(fingerprint)
        if leader is not None:
            leader.folded.append(place)
        elif len(leaders) < most:
            leaders[fingerprint] = Leader(place, fingerprint, [])
    return list(leaders.values())


def mmr(leaders: Sequence[Leader], vectors: Embedding, scores: Scores, top_k: int, diversity: float) -> list[Choice]:
    """Return at most `top_k` choices by maximal marginal relevance; `diversity` (0 to 1) is the weight of likeness.

    `vectors` (p, d), zeros without one, and `scores` (p,) are those of the leaders.
    """
    cosines = _cosines(vectors)
    rest, costs, likest = list(range(len(leaders))), np.zeros(len(leaders)), np.full(len(leaders), -1)
    chosen: list[Choice] = []
    while rest and len(chosen) < top_k:
        best = max(rest, key=lambda place: (scores[place] - costs[place], -place))
        rest.remove(best)
        like = leaders[likest[best]].place if likest[best] >= 0 else None
        chosen.append(Choice(leaders[best], float(scores[best] - costs[best]), float(costs[best]), like))
        cost = diversity * np.clip(cosines[best] - LIKE_COSINE, 0.0, None)
        likest[cost > costs] = best
        costs = np.maximum(costs, cost)
    return chosen


def _cosines(vectors: Embedding) -> Scores:
    """Return the cosines (p, p), 0 without a vector."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.where(lengths > 0, lengths, 1.0)
    return (unit @ unit.T).astype(np.float64)
