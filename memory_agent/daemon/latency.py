"""Request latencies: their number, a histogram, and quantiles of the last thousand."""

from __future__ import annotations

from collections import deque

import numpy as np

from relay import Histogram

_WINDOW = 1_000


class LatencyWindow:
    """The durations of the last thousand requests, in milliseconds."""

    def __init__(self) -> None:
        self._took_ms: deque[float] = deque(maxlen=_WINDOW)
        self.histogram = Histogram()

    def add(self, took_ms: float) -> None:
        self._took_ms.append(took_ms)
        self.histogram.add(took_ms / 1000)

    def summary(self) -> dict[str, float]:
        """Return the `count` of all requests and, after the first one, `p50_ms` and `p99_ms` of the window."""
        if not self._took_ms:
            return {"count": 0.0}
        p50_ms, p99_ms = np.quantile(np.fromiter(self._took_ms, float), (0.5, 0.99)).round(3).tolist()
        return {"count": float(sum(self.histogram.counts)), "p50_ms": p50_ms, "p99_ms": p99_ms}
