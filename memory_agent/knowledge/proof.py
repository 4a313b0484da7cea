"""Whether the runs of those who use a shared version go better than runs usually do.

The lower bound of their mean comes from betting (Waudby-Smith and Ramdas 2023). A wealth of 1 is divided in two.
Against the claim that the mean is m, one half is staked in full on each user in turn, of the other always three fifths:

    K(m) = 1/2 prod (x / m) + 1/2 prod (.4 + .6 x / m)        x = the level of each user, 0 to 1

If the mean is at most m, K(m) has an expectation of at most 1, and as users join it ever reaches 1/a with probability
at most a (Ville), whatever the distribution and however often one looks. (A level that moves with the user's later runs
is a new sample: then the bound holds at each look.) K falls as m rises; the bound is the m at which it is 1/a. It does
not depend on the order of the users, and rises with the level of each.

With a = .1, six users, all at level 1, prove a version above a prior of .6, and eight above .7. Decision 0054 compares
other bounds: those that prove more are false too often, or when looked at again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

_CAUTIOUS = 0.6  # proves more of weak effects at .5, and of versions that a few users find worthless at .7
_HALVINGS = 50


def shrunk_mean(counts: Sequence[int], prior: float, weight: float) -> float:
    """Return the mean level of `counts[i]` users at each level i, where the prior counts as `weight` users."""
    return (_total(counts) + weight * prior) / (sum(counts) + weight)


def mean(counts: Sequence[int]) -> float:
    """Return the mean level, 0 to 1, of `counts[i]` users at each level i. There is a user."""
    return _total(counts) / sum(counts)


def lower_bound(counts: Sequence[int], doubt: float) -> float:
    """Return a bound that the mean of all possible users exceeds, but for a probability of `doubt`.

    `counts[i]` users have level i of `len(counts)` equally spaced ones from 0 to 1.
    """
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _log_wealth(counts, middle) >= -math.log(doubt):
            low = middle
        else:
            high = middle
    return low


def _total(counts: Sequence[int]) -> float:
    return sum([place * count for place, count in enumerate(counts)]) / (len(counts) - 1)


def _log_wealth(counts: Sequence[int], claimed: float) -> float:
    """Return ln K(claimed)."""
    ratios = [(place / (len(counts) - 1) / claimed, count) for place, count in enumerate(counts) if count]
    cautious = sum([count * math.log(1.0 - _CAUTIOUS + _CAUTIOUS * ratio) for ratio, count in ratios])
    if counts[0]:
        return cautious - math.log(2.0)
    bold = sum([count * math.log(ratio) for ratio, count in ratios])
    larger, smaller = max(bold, cautious), min(bold, cautious)
    return larger + math.log1p(math.exp(smaller - larger)) - math.log(2.0)
