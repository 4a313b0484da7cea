"""Medians with ranges, and percentiles: the form in which all measurements are reported."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

Spread = dict[str, float]


def spread(values: Sequence[float], digits: int = 2) -> Spread:
    """Return the median, minimum and maximum of the values."""
    return {
        "median": round(statistics.median(values), digits),
        "least": round(min(values), digits),
        "most": round(max(values), digits),
    }


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the given percentile of at least one value."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
