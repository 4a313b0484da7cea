"""Figures of retrieval; pure. `recall` is the verb of this project, so the metric is called `recall_at_k`."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np


def recall_at_k(ranked: Sequence[str], relevant: Collection[str], k: int) -> float:
    """Return which share of the `relevant` ids is among the first `k` of `ranked`. `relevant` is not empty."""
    return len(set(ranked[:k]) & set(relevant)) / len(set(relevant))


def mean(values: Sequence[float]) -> float | None:
    """Return the mean, or None of nothing."""
    return sum(values) / len(values) if values else None


def quantiles_ms(durations_ms: Sequence[float]) -> dict[str, float | None]:
    """Return `p50` and `p99`, None where nothing was measured."""
    if not durations_ms:
        return {"p50": None, "p99": None}
    p50, p99 = np.quantile(durations_ms, (0.5, 0.99))
    return {"p50": round(float(p50), 3), "p99": round(float(p99), 3)}
