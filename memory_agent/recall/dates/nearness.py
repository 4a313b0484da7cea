"""How near the times of memories are to the times that a query names. Pure.

An event of a day is often told on the days after it and never before, so a memory inside a span scores 1, and fades
after its end.

Shapes: n memories.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import numpy as np
import numpy.typing as npt

from memory_agent.records.memories import UnderstoodDate, microseconds

_LEAST_FADING = timedelta(days=1)
_MOST_FADING = timedelta(days=7)


def nearness(times_us: npt.NDArray[np.int64], dates: Iterable[UnderstoodDate]) -> npt.NDArray[np.float64]:
    """Return (n,) from 0 to 1: how near each time, in microseconds since 1970, is to the nearest of `dates`."""
    nearest = np.zeros(times_us.shape)
    for date in dates:
        np.maximum(nearest, _to_one(times_us, date), out=nearest)
    return nearest


def _to_one(times_us: npt.NDArray[np.int64], date: UnderstoodDate) -> npt.NDArray[np.float64]:
    begun = np.ones(times_us.shape, dtype=np.bool_)
    if date.since is not None:
        begun = times_us >= microseconds(date.since, "since")
    near = begun.astype(np.float64)
    if date.until is not None:
        late_us = times_us - microseconds(date.until, "until")
        late = begun & (late_us >= 0)
        told_later = date.since is not None
        near[late] = np.exp(-late_us[late] / _fading(date).total_seconds() / 1e6) if told_later else late_us[late] <= 0
    return near


def _fading(date: UnderstoodDate) -> timedelta:
    """Return the time after a span in which its boost fades to 1/e: the length of the span, within bounds."""
    if date.since is None or date.until is None:
        return _LEAST_FADING
    return min(max(date.until - date.since, _LEAST_FADING), _MOST_FADING)
