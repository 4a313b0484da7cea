"""Medians with the range beside them, and percentiles: how every part of the bench says what it measured."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

Spread = dict[str, float]


def spread(values: Sequence[float], digits: int = 2) -> Spread:
    """Return the median of the values, the least and the most."""
    return {
        "median": round(statistics.median(values), digits),
        "least": round(min(values), digits),
        "most": round(max(values), digits),
    }


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value below which `percent` of the values lie; at least one value is needed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
