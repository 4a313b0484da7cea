"""How near a memory is to the times that a query names: 1 within them, fading for what was told soon after. Pure.

What happened on a day is often told on the days that follow, and never before, so a memory gains from a span that lies
behind it and not from one ahead. What this does not do: understand dates (`dates`), or look for memories of that time
(`candidates`).

Shapes: n memories.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import numpy as np

from memory_agent.recall.ranking import Rows, Scores
from memory_agent.records import UnderstoodDate
from memory_agent.storage.codec import microseconds

_LEAST_FADING = timedelta(days=1)
_MOST_FADING = timedelta(days=7)


def nearness(times_us: Rows, dates: Iterable[UnderstoodDate]) -> Scores:
    """Return (n,) from 0 to 1: how near each time, in microseconds since 1970, is to the nearest of `dates`."""
    nearest = np.zeros(times_us.shape)
    for date in dates:
        nearest = np.maximum(nearest, _to_one(times_us, date))
    return nearest


def _to_one(times_us: Rows, date: UnderstoodDate) -> Scores:
    since_us = -np.inf if date.since is None else microseconds(date.since, "since")
    if date.until is None:
        return np.where(times_us >= since_us, 1.0, 0.0)
    late_us = np.maximum(times_us - microseconds(date.until, "until"), 0) / _fading(date).total_seconds() / 1e6
    told_later = date.since is not None
    fading = np.exp(-late_us) if told_later else np.where(late_us > 0, 0.0, 1.0)
    within = times_us < microseconds(date.until, "until")
    return np.where(times_us >= since_us, np.where(within, 1.0, fading), 0.0)


def _fading(date: UnderstoodDate) -> timedelta:
    """How long after a span what is told of it has faded to a third: as long as the span, within bounds."""
    if date.since is None or date.until is None:
        return _LEAST_FADING
    return min(max(date.until - date.since, _LEAST_FADING), _MOST_FADING)
