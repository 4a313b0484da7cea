"""Compares a shown ranking with one that is never shown, by which of the shown memories were used.

Each memory of the answer has odds: the factor by which a bet grows if the memory is used. The odds are the quotient of
the other ranking's prediction and the nearest prediction that does not rise along the answer:

    p_i = l_i^-s / sum_j l_j^-s         l_i: the rank of memory i in the other ranking
    q   = the non-increasing prediction that is nearest to p (Kullback and Leibler; pooling adjacent violators)
    odds_i = p_i / q_i

The null hypothesis is that use depends only on position: a memory is used no more often than the memories above it.
Under this hypothesis the expected odds are at most 1, because the mean of the first m odds is at most 1 for every m, so
their product is a test martingale. If p is right, no other bet that is safe under this hypothesis grows faster (reverse
information projection: Grünwald, de Heide, Koolen 2024). Rejected: stakes based on differences of ranks or of
reciprocal ranks, because the gate then opens for only half as many users within 50 runs (measured, decision 0020).

The share of used memories at rank r of the learned ranking is about r^-2 (measured), so s is 2, or 1 or 3 with lower
weight. A twentieth of each stake is held back, because no prediction is certain.

Shapes: k = memories of the answer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from sona.lesson import Array, Comparison

STEEPNESSES = (1.0, 2.0, 3.0)
PRIOR = (0.25, 0.5, 0.25)
"""Initial shares of the wealth, by steepness."""
_KEPT = 0.05


def odds_of(ranks: Sequence[int]) -> list[Comparison]:
    """Return, for each memory of the baseline's answer, (k,), the comparison that results if it is used.

    `ranks` are the memories' ranks in the learned ranking, from 1. Ranks beyond k count as k + 1.

    >>> [round(odds.learned[1], 2) for odds in odds_of([2, 1, 3])]
    [0.43, 1.57, 1.0]
    """
    learned = np.minimum(np.asarray(ranks, dtype=np.float64), len(ranks) + 1)
    own = np.arange(1.0, len(ranks) + 1)
    order = np.argsort(learned, kind="stable")
    back = np.argsort(order)
    on = [_kept(_quotient(learned**-steepness)) for steepness in STEEPNESSES]
    against = [_kept(_quotient(own[order] ** -steepness))[back] for steepness in STEEPNESSES]
    return [Comparison(*both) for both in zip(_by_memory(on), _by_memory(against), strict=True)]


def compare(ranks: Sequence[int], used: Collection[int]) -> Comparison | None:
    """Return the result, given each memory's rank in the learned ranking, (k,), and the positions of the `used`
    memories.

    Returns None if no memory was used, or if all of several were used, which shows no preference.

    >>> result = compare([3, 1, 2], used=[1])
    >>> result is not None and result.learned[1] > 1 > result.baseline[1]
    True
    """
    if not used or len(used) == len(ranks) > 1:
        return None
    odds = odds_of(ranks)
    return mean_of([odds[place] for place in used])


def mean_of(comparisons: Sequence[Comparison]) -> Comparison:
    """Return the mean factors, which result from dividing a stake among the comparisons."""
    learned, baseline = zip(*comparisons, strict=True)
    return Comparison(_mean(learned), _mean(baseline))


def sign_of(comparison: Comparison) -> int:
    """Return 1 if the learned ranking predicted the uses better than the baseline, -1 if worse, 0 if equally well."""
    learned, baseline = comparison.learned[1], comparison.baseline[1]
    return (learned > baseline) - (learned < baseline)


def _by_memory(odds: Sequence[Array]) -> Iterator[tuple[float, float, float]]:
    """Return the odds of each memory by steepness, given the odds of all memories, (k,), for each steepness."""
    one, two, three = [column.tolist() for column in odds]
    return zip(one, two, three, strict=True)


def _mean(factors: Sequence[tuple[float, float, float]]) -> tuple[float, float, float]:
    one, two, three = [sum(column) / len(column) for column in zip(*factors, strict=True)]
    return one, two, three


def _kept(odds: Array) -> Array:
    return _KEPT + (1.0 - _KEPT) * odds


def _quotient(shares: Array) -> Array:
    """Divide `shares`, (k,), by the nearest non-increasing shares, which are the means of the pooled blocks."""
    blocks: list[tuple[float, int]] = []
    for share in shares.tolist():
        total, size = share, 1
        while blocks and blocks[-1][0] * size < total * blocks[-1][1]:
            before = blocks.pop()
            total, size = total + before[0], size + before[1]
        blocks.append((total, size))
    nearest = np.repeat([total / size for total, size in blocks], [size for _, size in blocks])
    quotient: Array = shares / nearest
    return quotient
