"""Training examples, negatives and the listwise loss of the adapter.

The loss is the cross-entropy of softmax(C u / tau) against a target distribution. Sampling is reproducible by seed.

Shapes: s = samples, c = candidates of one sample, n = memories, d = dimensions of an embedding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sona.errors import ShapeError
from sona.lesson import Array, Vector

Rows = npt.NDArray[np.int64]

TEMPERATURE = 0.1
NEIGHBOUR = 0.9  # a memory whose cosine similarity to a used memory exceeds this is not a negative
HARD, RANDOM = 32, 32  # negatives per example: the nearest memories, and randomly drawn memories


@dataclass(frozen=True)
class Example:
    """A request `x`, (d,) of unit length, its `candidates`, (c, d), and their `target`, (c,), which sums to 1."""

    x: Array | Vector
    candidates: Array | Vector
    target: Array
    weight: float = 1.0

    def __post_init__(self) -> None:
        if self.x.ndim != 1 or self.candidates.shape != (len(self.target), len(self.x)) or not len(self.target):
            raise ShapeError(len(self.x), self.candidates.shape)


def contrast(
    x: Array | Vector, used: Array | Vector, credits: Sequence[float], others: Array | Vector, weight: float = 1.0
) -> Example:
    """Return an example that prefers `used`, (k, d), weighted by `credits`, to the negatives, `others`."""
    shares = np.asarray(credits, dtype=np.float64)
    if used.ndim != 2 or others.ndim != 2 or len(used) != len(shares) or used.shape[1:] != others.shape[1:]:
        raise ShapeError(len(x), used.shape)
    target = np.concatenate([shares / shares.sum(), np.zeros(len(others))])
    return Example(x, np.concatenate([used, others]), target, weight)


def losses(moved: Array, examples: Sequence[Example]) -> tuple[Array, Array]:
    """Return each sample's loss, (s,), and the gradients of the losses with respect to the `moved` requests, (s, d)."""
    widest = max(len(example.target) for example in examples)
    scores = np.full((len(examples), widest), -np.inf)
    target = np.zeros_like(scores)
    for row, example in enumerate(examples):
        scores[row, : len(example.target)] = (
            example.candidates @ moved[row].astype(example.candidates.dtype) / TEMPERATURE
        )
        target[row, : len(example.target)] = example.target
    scores -= scores.max(axis=1, keepdims=True)
    likely = np.exp(scores)
    total = likely.sum(axis=1)
    loss = np.log(total) - np.where(target > 0.0, target * np.where(target > 0.0, scores, 0.0), 0.0).sum(axis=1)
    misses = (likely / total[:, None] - target) / TEMPERATURE
    pulls = np.empty_like(moved)
    for row, example in enumerate(examples):
        pulls[row] = misses[row, : len(example.target)].astype(example.candidates.dtype) @ example.candidates
    return loss, pulls


def negatives(
    x: Array | Vector,
    memories: Array | Vector,
    used: Sequence[int],
    excluded: Sequence[int],
    seed: int | Sequence[int],
) -> Rows:
    """Return rows of `memories`, (n, d), as negatives for `x`, (d,): the `HARD` nearest, then `RANDOM` random rows.

    Omits the rows in `used`, rows whose cosine similarity to a used row exceeds `NEIGHBOUR`, and the rows in `excluded`
    (memories of near-identical requests), so it may return fewer rows. The same seed gives the same rows.
    """
    if memories.ndim != 2 or memories.shape[1] != len(x):
        raise ShapeError(len(x), memories.shape)
    rows = np.arange(len(memories))
    is_used = np.isin(rows, used)
    near = (memories @ memories[is_used].T).max(axis=1, initial=-1.0) > NEIGHBOUR
    eligible = np.flatnonzero(~(is_used | near | np.isin(rows, excluded)))
    cosines = (memories @ x)[eligible]
    nearest = np.argsort(-cosines, kind="stable")[:HARD]
    rest = np.delete(eligible, nearest)
    drawn = np.random.default_rng(seed).choice(rest, min(RANDOM, len(rest)), replace=False)
    return np.concatenate([eligible[nearest], drawn]).astype(np.int64)


def replayed(count: int, seed: int | Sequence[int], size: int = 8) -> Rows:
    """Choose up to `size` of `count` earlier examples to replay; return their positions in ascending order."""
    return np.sort(np.random.default_rng(seed).choice(count, min(size, count), replace=False)).astype(np.int64)
