"""A histogram of durations with fixed bounds."""

from __future__ import annotations

import math
from bisect import bisect_left
from itertools import accumulate

import msgspec

_BOUNDS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0),
)
"""The upper bounds of the buckets in seconds, inclusive. The last bucket has no upper bound."""


class Histogram(msgspec.Struct, kw_only=True):
    """The number of durations in each bucket, and their sum in seconds. Only one thread may change a histogram.

    >>> took = Histogram()
    >>> took.add(0.002), took.add(7200.0)
    (None, None)
    >>> took.buckets()[:2], took.buckets()[-2:], took.sum_s
    ([(0.001, 0), (0.0025, 1)], [(1800.0, 1), (inf, 2)], 7200.002)
    """

    counts: list[int] = msgspec.field(default_factory=lambda: [0] * (len(_BOUNDS_S) + 1))
    sum_s: float = 0.0

    def add(self, took_s: float) -> None:
        """Count one duration; a negative duration counts as 0."""
        took_s = max(0.0, took_s)
        self.counts[bisect_left(_BOUNDS_S, took_s)] += 1
        self.sum_s += took_s

    def buckets(self) -> list[tuple[float, int]]:
        """Return each upper bound in seconds, with the number of durations that do not exceed it."""
        return list(zip((*_BOUNDS_S, math.inf), accumulate(self.counts), strict=True))
