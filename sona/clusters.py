"""Clusters requests into a given number of clusters (`kmeans`) or by similarity (`average_linkage`).

`kmeans` runs spherical k-means, seeded by k-means++ (Arthur, Vassilvitskii 2007). `average_linkage` (Sokal, Michener
1958) merges clusters until no two clusters are similar enough. Clusters are numbered by their first member, so labels
depend only on the partition.

Shapes: n = points, k = clusters, d = dimensions of an embedding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sona.errors import ShapeError
from sona.lesson import Array, Vector

Rows = npt.NDArray[np.int64]

_ROUNDS = 50
_SAME = 1e-12  # the largest squared distance at which two points are treated as equal


@dataclass(frozen=True)
class Clusters:
    """A partition. `assignment`, (n,), is the cluster of each point, or -1 for points that have no weight or are not
    finite.

    `medoids`, (k,), holds, for each cluster, the row with the smallest mean distance to its members. `centres`, (k, d),
    are unit vectors.
    """

    assignment: Rows
    medoids: Rows
    centres: Array

    def members(self, label: int) -> Rows:
        return np.flatnonzero(self.assignment == label)


def kmeans(x: Array | Vector, k: int, seed: int, weights: Sequence[float] | Array | None = None) -> Clusters:
    """Group weighted points of unit length, (n, d), into at most `k` clusters. Bit-identical for equal seeds."""
    points, counted, rows = _points(x, weights)
    centres = _plus_plus(points, counted, k, np.random.default_rng(seed))
    labels = _nearest(points, centres)
    for _ in range(_ROUNDS):
        moved = _nearest(points, _centres(points, counted, labels))
        if (moved == labels).all():
            break
        labels = moved
    return _named(points, counted, labels, rows, len(x))


def average_linkage(x: Array | Vector, threshold: float, weights: Sequence[float] | Array | None = None) -> Clusters:
    """Merge points of unit length, (n, d), into clusters with a weighted mean cosine of at least `threshold`.

    Repeatedly merges the two most similar clusters, choosing the lowest rows on a tie. Takes O(n^2) memory and O(n^3)
    time, 0.3 s for 512 points. Raises `ShapeError`.
    """
    points, counted, rows = _points(x, weights)
    labels = np.arange(len(points))
    sums, mass = points * counted[:, None], counted.copy()
    similar = points @ points.T
    np.fill_diagonal(similar, -np.inf)
    while len(points) > 1:
        first, second = divmod(int(similar.argmax()), len(points))
        if similar[first, second] < threshold:
            break
        labels[labels == second] = first
        sums[first] += sums[second]
        mass[first] += mass[second]
        similar[second] = similar[:, second] = -np.inf
        alive = np.isfinite(similar[first])
        similar[first, alive] = similar[alive, first] = sums[alive] @ sums[first] / (mass[alive] * mass[first])
    return _named(points, counted, labels, rows, len(x))


def _points(x: Array | Vector, weights: Sequence[float] | Array | None) -> tuple[Array, Array, Rows]:
    """Return the usable points, (n, d), normalised, with their weights and their rows in `x`."""
    if x.ndim != 2 or (weights is not None and len(weights) != len(x)):
        raise ShapeError(len(x), x.shape if weights is None else (len(weights),))
    counted = np.ones(len(x)) if weights is None else np.asarray(weights, dtype=np.float64)
    points = x.astype(np.float64)
    with np.errstate(over="ignore"):
        lengths = np.linalg.norm(points, axis=1)
    rows = np.flatnonzero(np.isfinite(lengths) & (lengths > 0.0) & np.isfinite(counted) & (counted > 0.0))
    return points[rows] / lengths[rows, None], counted[rows], rows


def _plus_plus(points: Array, weights: Array, k: int, rng: np.random.Generator) -> Array:
    """Draw up to k points, (k, d). The probability is proportional to a point's weight times its squared distance to
    the nearest point already drawn.
    """
    chosen: list[int] = []
    squared = np.ones(len(points))
    while len(chosen) < k and squared.any():
        heap = np.cumsum(weights * squared)
        chosen.append(min(int(np.searchsorted(heap, rng.random() * heap[-1], side="right")), len(points) - 1))
        away = 2.0 - 2.0 * points @ points[chosen[-1]]
        squared = np.minimum(squared if len(chosen) > 1 else away, away)
        squared[squared < _SAME] = 0.0
    return points[chosen]


def _nearest(points: Array, centres: Array) -> Rows:
    """Return the centre nearest to each point, (n,). An empty cluster gets the point farthest from its own centre."""
    if not len(centres):
        return np.zeros(len(points), dtype=np.int64)
    cosines = points @ centres.T
    labels: Rows = cosines.argmax(axis=1)
    own = cosines.max(axis=1)
    for empty in np.flatnonzero(np.bincount(labels, minlength=len(centres)) == 0):
        alone = np.bincount(labels, minlength=len(centres))[labels] == 1
        worst = int(np.where(alone, np.inf, own).argmin())
        labels[worst], own[worst] = empty, np.inf
    return labels


def _sums(points: Array, weights: Array, labels: Rows) -> Array:
    sums = np.zeros((int(labels.max(initial=-1)) + 1, points.shape[1]))
    np.add.at(sums, labels, points * weights[:, None])
    return sums


def _centres(points: Array, weights: Array, labels: Rows) -> Array:
    """Return the unit centre of each cluster, (k, d), or its first member if its members sum to zero."""
    sums = _sums(points, weights, labels)
    lengths = np.linalg.norm(sums, axis=1)
    for label in np.flatnonzero(lengths < _SAME):
        sums[label] = points[labels.tolist().index(label)]
        lengths[label] = 1.0
    return np.asarray(sums / lengths[:, None])


def _named(points: Array, weights: Array, labels: Rows, rows: Rows, count: int) -> Clusters:
    """Return the clusters, numbered by their first member; members are rows of the input."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    names = np.empty(len(first), dtype=np.int64)
    names[np.argsort(first)] = np.arange(len(first))
    labels = names[inverse]
    centres = _centres(points, weights, labels)
    typical = (points * _sums(points, weights, labels)[labels]).sum(axis=1)
    medoids = [int(at[typical[at].argmax()]) for at in (np.flatnonzero(labels == name) for name in range(len(first)))]
    assignment = np.full(count, -1, dtype=np.int64)
    assignment[rows] = labels
    return Clusters(assignment, rows[np.array(medoids, dtype=np.int64)], centres)
