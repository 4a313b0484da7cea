"""Exemplars, the stored form of lessons: a centred request, its answer, and a weight.

If there are too many exemplars, the newest stay unchanged. Older exemplars are clustered by request, and each cluster
is merged into one exemplar.

Shapes: d = dimensions, k = memories used.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from sona.centering import QueryCentering
from sona.clusters import kmeans
from sona.lesson import Array, Lesson, Vector

NEWEST_SHARE = 0.75
_SEED = 0
_USUAL, _FULL = 0.5, 0.8
MOST_USED = 64  # maximum number of memories in a condensed exemplar; the highest credits are kept
HEAVIEST = 4.0  # maximum weight of a condensed exemplar, so that it does not outweigh similar lessons


class Exemplar(msgspec.Struct, frozen=True, array_like=True):
    """One credited lesson, or several condensed lessons under the number of their medoid.

    `request` and `answer` are (d,), of unit length. The bank uses `weight`, and the association uses `worth`. `others`
    holds the numbers of the other lessons condensed into this exemplar.
    """

    number: int
    request: Vector
    answer: Vector
    used: tuple[int, ...]
    credits: tuple[float, ...]
    weight: float
    worth: float
    others: tuple[int, ...] = ()


def worth(quality: float) -> float:
    """Return the weight, 0 to 1, of a memory's use by a run of this quality.

    The weight is 0 up to a quality of .5, and 1 from .8 on (the quality of a completed run that was not retried). It is
    not relative to a baseline, because it would then be 0 whenever all runs have the same outcome.
    """
    return min(max((quality - _USUAL) / (_FULL - _USUAL), 0.0), 1.0)


def exemplar(lesson: Lesson, weight: float, queries: QueryCentering, targets: QueryCentering) -> Exemplar:
    """Return a credited lesson as an exemplar, centred by `queries` and `targets`.

    The answer is y = unit(mean of unit(m - mu_m)), where the mean over the used memories m is weighted by credit.
    """
    centred = np.array([targets.centre(vector) for vector in lesson.vectors], dtype=np.float64)
    mean = np.asarray(lesson.credits, dtype=np.float64) @ centred
    request = queries.centre(lesson.query)
    length = float(np.linalg.norm(mean))
    answer = (mean / length).astype(np.float32) if length > 0 else request
    return Exemplar(lesson.number, request, answer, lesson.used, lesson.credits, weight, worth(lesson.quality))


def condense(exemplars: Sequence[Exemplar], capacity: int) -> list[Exemplar]:
    """Return at most `capacity` exemplars, ascending by number, with older exemplars merged by cluster."""
    ordered = sorted(exemplars, key=lambda one: one.number)
    if len(ordered) <= capacity:
        return ordered
    kept = int(capacity * NEWEST_SHARE)
    older, newest = ordered[: len(ordered) - kept], ordered[len(ordered) - kept :]
    requests = np.array([one.request for one in older], dtype=np.float64)
    weights = np.array([max(one.weight, 1e-3) for one in older])
    found = kmeans(requests, capacity - kept, _SEED, weights)
    groups = [[older[place] for place in found.members(label)] for label in range(len(found.medoids))]
    merged = [_merged(group, older[int(medoid)]) for group, medoid in zip(groups, found.medoids, strict=True)]
    return sorted([*merged, *newest], key=lambda one: one.number)


def _merged(group: Sequence[Exemplar], typical: Exemplar) -> Exemplar:
    weights = np.array([one.weight for one in group])
    credits: dict[int, float] = {}
    for one in group:
        for memory, credit in zip(one.used, one.credits, strict=True):
            credits[memory] = max(credits.get(memory, 0.0), credit * one.worth)
    credits = dict(sorted(credits.items(), key=lambda pair: (-pair[1], pair[0]))[:MOST_USED])
    return Exemplar(
        number=typical.number,
        request=_direction([one.request for one in group], weights, typical.request),
        answer=_direction([one.answer for one in group], weights, typical.answer),
        used=tuple(sorted(credits)),
        credits=tuple(credits[memory] for memory in sorted(credits)),
        weight=float(min(weights.sum(), HEAVIEST)),
        worth=1.0,
        others=tuple(sorted(one.number for one in group if one.number != typical.number)),
    )


def _direction(vectors: Sequence[Vector], weights: Array, otherwise: Vector) -> Vector:
    mean = weights @ np.array(vectors, dtype=np.float64)
    length = float(np.linalg.norm(mean))
    return (mean / length).astype(np.float32) if length > 0 else otherwise
