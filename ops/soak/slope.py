"""Computes the growth rate of a series, with its confidence interval, from the means of blocks of samples. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_BLOCKS = 12
_STUDENT_95 = 2.228  # two-sided, 10 degrees of freedom


class Slope(NamedTuple):
    """The growth per second, with its 95 % interval."""

    slope: float
    low: float
    high: float


def slope_of(times_s: Sequence[float], values: Sequence[float]) -> Slope:
    """Fit a line to the means of 12 blocks, since neighbouring samples are not independent.

    Raises `ValueError` for fewer than 24 samples.
    """
    if len(times_s) < 2 * _BLOCKS:
        raise ValueError(f"requires at least 24 samples, not {len(times_s)}")
    x = np.array([block.mean() for block in np.array_split(np.asarray(times_s, float), _BLOCKS)])
    y = np.array([block.mean() for block in np.array_split(np.asarray(values, float), _BLOCKS)])
    spread = float(((x - x.mean()) ** 2).sum())
    slope = float(((x - x.mean()) * (y - y.mean())).sum() / spread)
    rest = y - y.mean() - slope * (x - x.mean())
    error = float(np.sqrt((rest**2).sum() / (_BLOCKS - 2) / spread))
    return Slope(slope, slope - _STUDENT_95 * error, slope + _STUDENT_95 * error)
