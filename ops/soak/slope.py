"""Fits lines to series of samples, with 95 % confidence intervals. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_BLOCKS = 12
_STUDENT_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


class Slope(NamedTuple):
    """The growth per unit of time, with its 95 % interval."""

    slope: float
    low: float
    high: float


def slope_of(times: Sequence[float], values: Sequence[float]) -> Slope:
    """Fit a line to the means of 12 blocks, since neighbouring samples are not independent.

    Raises `ValueError` for fewer than 24 samples.
    """
    if len(times) < 2 * _BLOCKS:
        raise ValueError(f"requires at least 24 samples, not {len(times)}")
    means = [[block.mean() for block in np.array_split(np.asarray(one, float), _BLOCKS)] for one in (times, values)]
    return line(*means)


def line(times: Sequence[float], values: Sequence[float]) -> Slope:
    """Fit a line to independent points by least squares. Raises `ValueError` for fewer than 3 points."""
    if len(times) < 3:
        raise ValueError(f"requires at least 3 points, not {len(times)}")
    x, y = np.asarray(times, float), np.asarray(values, float)
    spread = float(((x - x.mean()) ** 2).sum())
    slope = float(((x - x.mean()) * (y - y.mean())).sum() / spread)
    rest = y - y.mean() - slope * (x - x.mean())
    error = float(np.sqrt((rest**2).sum() / (len(x) - 2) / spread))
    reach = student_95(len(x) - 2) * error
    return Slope(slope, slope - reach, slope + reach)


def mean_slope(slopes: Sequence[float]) -> Slope:
    """Return the mean of independent slopes. Raises `ValueError` for fewer than 2 slopes."""
    if len(slopes) < 2:
        raise ValueError(f"requires at least 2 slopes, not {len(slopes)}")
    mean, error = float(np.mean(slopes)), float(np.std(slopes, ddof=1) / np.sqrt(len(slopes)))
    reach = student_95(len(slopes) - 1) * error
    return Slope(mean, mean - reach, mean + reach)


def student_95(freedom: int) -> float:
    """Return the two-sided 95 % quantile of Student's t-distribution, accurate to 0.2 %."""
    if freedom <= len(_STUDENT_95):
        return _STUDENT_95[freedom - 1]
    return 1.95996 + 2.3722 / freedom + 2.8225 / freedom**2
