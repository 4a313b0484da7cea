"""Computes medians with ranges, percentiles and ratios, for all reported measurements."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import chain
from typing import Any

Spread = dict[str, float]
Block = list[float]
"""The values of one turn."""


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


def medians(blocks: Sequence[Sequence[float]]) -> list[float]:
    """Return the median of each turn."""
    return [statistics.median(block) for block in blocks]


def ratios(these: Sequence[float], those: Sequence[float]) -> list[float]:
    """Return the ratio of each pair."""
    return [one / other for one, other in zip(these, those, strict=True)]


def pooled(blocks: Sequence[Sequence[float]], percent: float) -> float:
    """Return a percentile of the values of all turns."""
    return percentile(list(chain.from_iterable(blocks)), percent)


def latencies(blocks: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Return the p50 of the turns with its range, and the p99 of all values."""
    return {
        "p50_ms": spread([percentile(block, 50) for block in blocks]),
        "p99_ms": round(pooled(blocks, 99), 2),
    }
