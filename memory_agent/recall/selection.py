"""The best candidates, none of which says what another one says.

Records that say the same have one fingerprint and are folded into the best of them, which stands for all
(`storage/terms`). Of what is left each next one is the best after it has paid for being like a better one: maximal
marginal relevance (Carbonell and Goldstein, 1998) above a floor, since only paraphrases are of no use to a planner, and
a question's answers resemble each other too. Pure. Rejected by measurement (decision 0016): the penalty without a
floor, which costs recall; folding what merely lies close, which folds "succeeded" and "failed".

Shapes: p leaders looked at, d dimensions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from memory_agent.recall.fusion import Scores
from memory_agent.records import Embedding

LIKE_COSINE = 0.8
"""From there on two memories are taken to be paraphrases."""


class Leader(msgspec.Struct, frozen=True):
    """The best candidate of those with one fingerprint: its place among all candidates, and those of the others.

    `repeats` are the places of former requests for which it stands besides (`repeats`).
    """

    place: int
    fingerprint: int
    folded: list[int]
    repeats: tuple[int, ...] = ()


class Choice(msgspec.Struct, frozen=True):
    """A leader in the answer, with what is left of its score after `likeness` to the candidate at place `like`."""

    leader: Leader
    score: float
    likeness: float = 0.0
    like: int | None = None

    @property
    def place(self) -> int:
        """Its place among all candidates."""
        return self.leader.place


def fold(places: Iterable[tuple[int, int]], most: int) -> list[Leader]:
    """Return at most `most` leaders of the candidates given as (place, fingerprint), best first."""
    leaders: dict[int, Leader] = {}
    for place, fingerprint in places:
        leader = leaders.get(fingerprint)
        if leader is not None:
            leader.folded.append(place)
        elif len(leaders) < most:
            leaders[fingerprint] = Leader(place, fingerprint, [])
    return list(leaders.values())


def choose(leaders: Sequence[Leader], vectors: Embedding, scores: Scores, top_k: int, diversity: float) -> list[Choice]:
    """Return at most `top_k` choices, best first; `diversity` from 0 to 1 is what likeness costs.

    `vectors` (p, d), zeros where there is none, and `scores` (p,) are those of the leaders.
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
    """Return (p, p); 0 where there is no vector."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.where(lengths > 0, lengths, 1.0)
    return (unit @ unit.T).astype(np.float64)
