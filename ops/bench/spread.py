"""Computes medians with ranges, and percentiles, for all reported measurements."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

Spread = dict[str, float]


def spread(values: Sequence[float], digits: int = 2) -> Spread:
    """Return the rounded median, minimum and maximum of the values."""
    return {
        "median": round(statistics.median(values), digits),
        "least": round(min(values), digits),
        "most": round(max(values), digits),
    }


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile of `values`, which must not be empty."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
