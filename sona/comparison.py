"""Compares the shown ranking with a ranking that is never shown, based on which of the shown memories were used.

Each memory in the answer has odds: the factor by which a bet grows if the memory is used. The odds are the ratio of a
prediction of use to the nearest non-increasing prediction:

    p_i = sqrt(i / l_i) exp(4 b_i) / sum_j ...    l_i: the rank of memory i in the learned ranking
                                                  b_i: its boost: the similarity of past requests whose runs used it
    q   = the non-increasing prediction that is nearest to p (Kullback and Leibler; pooling adjacent violators)
    odds_i = p_i / q_i

The null hypothesis is that use depends only on position: if exactly one of two memories is used, it is at least as
likely to be the first one listed as the other. Suppose that the used memories are revealed in random order. Each used
memory is then drawn with probabilities that do not increase down the list of remaining memories. The expected odds of
the drawn memory are at most 1, because the mean of the first m odds is at most 1 for every m. Therefore, the product of
the odds of the first two memories drawn, averaged over all orders, is a factor of a test martingale. This holds for any
p that is fixed before the uses are seen. If p is right, no other bet that is safe under this hypothesis grows faster
(Grünwald, de Heide, Koolen 2024). A fifth of each stake is held back, because no prediction is certain.

Boosts include uses by failed runs. Such uses do not raise a memory's score in the learned ranking, but are equally
good evidence of whether uses recur (decision 0020).

Shapes: k = memories in the answer.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from sona.lesson import Array, Comparison

WHOLE_BOOST = 100  # the boost of a memory with a gain of 1 (`association.Reached.unweighted`)
MOST_BOOST = 1_000  # earlier versions stored the score added by past use, in hundredths of the spread of scores
_TRUST = 4.0
_KEPT = 0.2


def compare(ranks: Sequence[int], boosts: Sequence[int], used: Collection[int]) -> Comparison | None:
    """Compare both rankings, given the memories' learned ranks, (k,), from 1, and the positions of the `used` ones.

    Ranks beyond k count as k + 1. `boosts`, (k,), are hundredths, from 0 to `MOST_BOOST`; they are empty for recalls of
    earlier versions. Returns None if no memory was used, or if all of several memories were used, which shows no
    preference.

    >>> result = compare([3, 1, 2], [0, 40, 0], used=[1])
    >>> result is not None and result.learned > 1 > result.baseline
    True
    """
    if not used or len(used) == len(ranks) > 1:
        return None
    learned = np.minimum(np.asarray(ranks, dtype=np.float64), len(ranks) + 1)
    own = np.arange(1.0, len(ranks) + 1)
    order = np.argsort(learned, kind="stable")
    back = np.argsort(order)
    return Comparison(
        learned=_factor(_shares(own, learned, boosts), sorted(used)),
        baseline=_factor(own[order] ** -2, sorted(back[list(used)].tolist())),
    )


def mean_of(comparisons: Sequence[Comparison]) -> Comparison:
    """Return the mean factors: the result of dividing a stake equally among the comparisons."""
    learned, baseline = zip(*comparisons, strict=True)
    return Comparison(sum(learned) / len(learned), sum(baseline) / len(baseline))


def sign_of(comparison: Comparison) -> int:
    """Return 1 if the learned ranking predicted the uses better than the baseline, -1 if worse, 0 if equally well."""
    return (comparison.learned > comparison.baseline) - (comparison.learned < comparison.baseline)


def _shares(own: Array, learned: Array, boosts: Sequence[int]) -> Array:
    """Return the predicted shares of use, (k,), without their common factor."""
    if not boosts:
        rising: Array = learned**-2
        return rising
    shares: Array = np.sqrt(own / learned) * np.exp(_TRUST / WHOLE_BOOST * np.asarray(boosts, dtype=np.float64))
    return shares


def _factor(shares: Array, used: Sequence[int]) -> float:
    """Return the growth factor of a bet that predicts `shares`, (k,), if the memories at positions `used` are used."""
    odds = _quotient(shares)
    first = odds[list(used)]
    if len(used) > 1:
        first = first * [_mean_of_others(shares, place, used) for place in used]
    return _KEPT + (1.0 - _KEPT) * float(first.mean())


def _mean_of_others(shares: Array, first: int, used: Sequence[int]) -> float:
    """Return the mean odds of the `used` memories other than `first`, in the answer without `first`."""
    odds = _quotient(np.delete(shares, first))
    return float(np.mean(odds[[place - (place > first) for place in used if place != first]]))


def _quotient(shares: Array) -> Array:
    """Divide `shares`, (k,), by the nearest non-increasing sequence, made up of the means of the pooled blocks."""
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
