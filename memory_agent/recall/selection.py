"""The best candidates, none of which says what another one says.

Records that say the same are folded into the best of them, which stands for all (`likeness` says when). Of what is
left each next one is the best after it has paid for being like a better one: maximal marginal relevance (Carbonell and
Goldstein, 1998) above a floor, since only paraphrases are of no use to a planner, and a question's answers resemble
each other too. Pure. Rejected by measurement (decision 0016): the penalty without a floor, which costs recall.

Shapes: n candidates, p of them looked at, d dimensions.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from memory_agent.recall.likeness import SAME_COSINE, adds_only_filler, gist
from memory_agent.recall.ranking import Rows, Scores
from memory_agent.records import Embedding, MemoryRecord

LIKE_COSINE = 0.8
"""From there on two memories are taken to be paraphrases."""

_Flags = npt.NDArray[np.bool_]


class Contenders(msgspec.Struct, frozen=True, kw_only=True):
    """The candidates that are looked at, best first.

    `places` are theirs among all candidates; `records`, `fingerprints` (p,), `vectors` (p, d), zeros where there is
    none, and `scores` (p,) belong to them.
    """

    places: tuple[int, ...]
    records: tuple[MemoryRecord, ...]
    fingerprints: Rows
    vectors: Embedding
    scores: Scores


class Choice(msgspec.Struct, frozen=True):
    """A memory of the answer: its place among all candidates, what is left of its score after `likeness` to the one at
    place `like`, the places of those it stands for, and all their fingerprints."""

    place: int
    score: float
    likeness: float = 0.0
    like: int | None = None
    folded: tuple[int, ...] = ()
    fingerprints: frozenset[int] = frozenset()


def choose(contenders: Contenders, top_k: int, diversity: float) -> list[Choice]:
    """Return at most `top_k` choices, best first; `diversity` from 0 to 1 is what likeness costs."""
    cosines = _cosines(contenders.vectors)
    folded = fold(contenders, cosines)
    return [_named(choice, contenders) for choice in _spread(folded, cosines, contenders.scores, top_k, diversity)]


def fold(contenders: Contenders, cosines: Scores) -> dict[int, list[int]]:
    """Return, by the place of the best of those that say the same, the places of the others; places among `p`."""
    same = _says_the_same(contenders, cosines)
    folded: dict[int, list[int]] = {}
    for place in range(len(contenders.places)):
        leader = next((first for first in folded if same[first, place]), None)
        if leader is None:
            folded[place] = []
        else:
            folded[leader].append(place)
    return folded


def _spread(
    folded: dict[int, list[int]], cosines: Scores, scores: Scores, top_k: int, diversity: float
) -> list[Choice]:
    """Choose one after the other; places among `p`."""
    rest = list(folded)
    costs, likest = np.zeros(len(scores)), np.full(len(scores), -1)
    chosen: list[Choice] = []
    while rest and len(chosen) < top_k:
        best = max(rest, key=lambda place: (scores[place] - costs[place], -place))
        rest.remove(best)
        like = int(likest[best]) if likest[best] >= 0 else None
        left = float(scores[best] - costs[best])
        chosen.append(Choice(best, left, float(costs[best]), like, tuple(folded[best])))
        cost = diversity * np.clip(cosines[best] - LIKE_COSINE, 0.0, None)
        likest[cost > costs] = best
        costs = np.maximum(costs, cost)
    return chosen


def _named(choice: Choice, contenders: Contenders) -> Choice:
    """Return a choice with places among all candidates."""
    said = frozenset(int(contenders.fingerprints[place]) for place in (choice.place, *choice.folded))
    return msgspec.structs.replace(
        choice,
        place=contenders.places[choice.place],
        like=None if choice.like is None else contenders.places[choice.like],
        folded=tuple(contenders.places[place] for place in choice.folded),
        fingerprints=said,
    )


def _cosines(vectors: Embedding) -> Scores:
    """Return (p, p); 0 where there is no vector."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.where(lengths > 0, lengths, 1.0)
    return (unit @ unit.T).astype(np.float64)


def _says_the_same(contenders: Contenders, cosines: Scores) -> _Flags:
    """Return (p, p): which say the same. Texts are compared only where the vectors agree, or all words do."""
    prints = contenders.fingerprints
    same: _Flags = prints[:, None] == prints[None, :]
    gists = {}
    for one, other in np.argwhere(np.triu((cosines >= SAME_COSINE) & ~same, 1)).tolist():
        for place in (one, other):
            if place not in gists:
                gists[place] = gist(contenders.records[place].text)
        same[one, other] = same[other, one] = adds_only_filler(gists[one], gists[other])
    return same
