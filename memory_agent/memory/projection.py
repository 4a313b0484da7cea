"""Arranges vectors in a plane so that near vectors stay near: a neighbour embedding. Pure.

Each point is attracted by its nearest neighbours and repelled by a sample of all points, as in UMAP (McInnes et al.
2018), for a fixed number of steps of decreasing length. The initial positions are the former positions or, if most
points are new, the first two principal components, which fix the orientation.

n = number of points, d = dimensions, k = number of neighbours, e = number of edges.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]

_NEIGHBOURS = 10
_STEPS = 200
_STEPS_FROM_FORMER = 50
_LENGTH = 0.5
_LENGTH_FROM_FORMER = 0.1
_SAMPLE = 48  # points that repel all others in a step; with 12, trustworthiness falls from .95 to .86
_REPULSION = 4.0  # relative to the attraction of an average point
_NEAREST = 1e-3  # bounds the repulsion of points that coincide
_LONGEST = 4.0  # limit of each coordinate of a step, and of the repulsion from one point
_MOMENTUM = 0.5
_EQUAL = 1e-6  # rounding noise in the variance of equal vectors
_BASIS = 8  # directions
_POWERS = 8  # iterations
_BLOCK = 256  # rows of cosines computed at a time


class _Edges(NamedTuple):
    """Weighted edges (e,) in both directions, ordered by source. The edges of point i begin at `starts[i]`."""

    sources: Integers
    targets: Integers
    weights: Floats
    starts: Integers


def arrange(vectors: Floats, former: Floats) -> Floats:
    """Return positions (n, 2) for unit vectors (n, d), with a standard deviation of about 1.

    `former` (n, 2) are the positions to stay close to, with NaN for a new point; they are ignored if most points are
    new. Equal arguments give equal results.
    """
    count = len(vectors)
    if count < 2:
        return np.zeros((count, 2), dtype=np.float32)
    nearest, cosines = _neighbours(vectors, min(_NEIGHBOURS, count - 1))
    is_known = ~np.isnan(former[:, 0])
    if 2 * np.count_nonzero(is_known) < count:
        return _settled(_components(vectors), _edges(nearest, cosines), _STEPS, _LENGTH)
    positions = np.where(is_known[:, None], former, 0.0).astype(np.float32)
    for point in np.flatnonzero(~is_known).tolist():
        positions[point] = positions[next((one for one in nearest[point].tolist() if is_known[one]), point)]
    return _settled(positions, _edges(nearest, cosines), _STEPS_FROM_FORMER, _LENGTH_FROM_FORMER)


def explained(vectors: Floats, positions: Floats) -> float:
    """Return the share, 0 to 1, of the variance of vectors (n, d) that positions (n, 2) explain linearly."""
    if len(vectors) < 2:
        return 0.0
    mean = vectors.mean(axis=0)
    total = sum(float(np.square(part - mean).sum()) for part in np.array_split(vectors, 1 + len(vectors) // _BLOCK))
    basis, _ = np.linalg.qr(positions - positions.mean(axis=0))
    linear = basis.T @ vectors - np.outer(basis.sum(axis=0), mean)
    return min(float(np.square(linear).sum()) / total, 1.0) if total > _EQUAL * len(vectors) else 0.0


def _neighbours(vectors: Floats, k: int) -> tuple[Integers, Floats]:
    """Return the points nearest to each point (n, k), nearest first, and their cosine similarities (n, k)."""
    count = len(vectors)
    nearest, cosines = np.empty((count, k), dtype=np.int64), np.empty((count, k), dtype=np.float32)
    for start in range(0, count, _BLOCK):
        part = slice(start, start + _BLOCK)
        found = vectors[part] @ vectors.T
        rows = np.arange(len(found))
        found[rows, rows + start] = -np.inf
        best = np.argpartition(found, count - k, axis=1)[:, count - k :]
        values = np.take_along_axis(found, best, axis=1)
        order = np.argsort(-values, axis=1, kind="stable")
        nearest[part] = np.take_along_axis(best, order, axis=1)
        cosines[part] = np.take_along_axis(values, order, axis=1)
    return nearest, cosines


def _edges(nearest: Integers, cosines: Floats) -> _Edges:
    """Connect each point to its neighbours. The weight decays exponentially with the distance beyond that of the
    nearest neighbour.
    """
    count, k = nearest.shape
    distances = np.sqrt(np.maximum(2.0 - 2.0 * cosines, 0.0))
    beyond = distances - distances[:, :1]
    weights = np.exp(-beyond / np.maximum(beyond.mean(axis=1, keepdims=True), 1e-6)).ravel() / 2.0
    ends = np.repeat(np.arange(count), k), nearest.ravel()
    sources, targets = np.concatenate(ends), np.concatenate(ends[::-1])
    order = np.argsort(sources, kind="stable")
    sources, targets = sources[order], targets[order]
    starts = np.searchsorted(sources, np.arange(count))
    return _Edges(sources, targets, np.tile(weights, 2)[order].astype(np.float32), starts)


def _components(vectors: Floats) -> Floats:
    """Return the first two principal components (n, 2), with a standard deviation of 1 and a fixed sign.

    The result is approximate: power iteration on `_BASIS` random directions (Halko et al. 2011) takes 1 % of the time
    needed to compute a covariance matrix.
    """
    mean, ndim = vectors.mean(axis=0), vectors.shape[1]
    basis = np.random.default_rng(0).standard_normal((ndim, min(ndim, _BASIS)), dtype=np.float32)
    for _ in range(_POWERS):
        parts = vectors @ basis - mean @ basis  # of the centred vectors, without a copy of them
        basis, _ = np.linalg.qr(vectors.T @ parts)
    parts = (vectors @ basis - mean @ basis).astype(np.float64)
    axes = basis @ np.linalg.eigh(parts.T @ parts)[1][:, :-3:-1].astype(np.float32)
    axes = axes * np.sign(np.take_along_axis(axes, np.abs(axes).argmax(axis=0)[None], axis=0))
    found: Floats = vectors @ axes - mean @ axes
    spread = float(found.std())
    if found.shape[1] < 2 or spread == 0.0:  # one dimension, or equal vectors
        found = np.pad(found, ((0, 0), (0, 2 - found.shape[1])))
    return found / np.float32(spread or 1.0)


def _settled(positions: Floats, edges: _Edges, steps: int, length: float) -> Floats:
    count = len(positions)
    random = np.random.default_rng(0)
    moved = np.zeros_like(positions)
    strength = np.float32(_REPULSION * edges.weights.sum() / count / min(_SAMPLE, count))
    for step in range(steps):
        sample = random.integers(0, count, min(_SAMPLE, count))
        forces = _attraction(positions, edges) + strength * _repulsion(positions, positions[sample])
        moved *= _MOMENTUM
        moved += np.float32(length * (1.0 - step / steps)) * forces
        positions = positions + moved.clip(-_LONGEST, _LONGEST)
    return positions


def _attraction(positions: Floats, edges: _Edges) -> Floats:
    """Return the attraction (n, 2) along the edges. Contiguous arrays are faster, so each coordinate is one array."""
    ways = [column[edges.targets] - column[edges.sources] for column in np.ascontiguousarray(positions.T)]
    pull = edges.weights / (1.0 + ways[0] ** 2 + ways[1] ** 2)
    return np.stack([np.add.reduceat(pull * way, edges.starts) for way in ways], axis=1)


def _repulsion(positions: Floats, sample: Floats) -> Floats:
    ways = [positions[:, place, None] - sample[:, place] for place in (0, 1)]
    squares = ways[0] ** 2 + ways[1] ** 2
    push = 1.0 / ((squares + np.float32(_NEAREST)) * (1.0 + squares))
    return np.stack([np.clip(push * way, -_LONGEST, _LONGEST).sum(axis=1) for way in ways], axis=1)
