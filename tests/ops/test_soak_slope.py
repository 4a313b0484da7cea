"""Test that growth is distinguished from noise by the confidence interval of the slope."""

from __future__ import annotations

import numpy as np
import pytest

from ops.soak.slope import slope_of

TIMES_S = np.arange(0.0, 600.0, 2.0)


def test_growth_is_found_in_noise() -> None:
    noise = np.random.default_rng(1).normal(0.0, 5.0, len(TIMES_S))
    slope = slope_of(TIMES_S.tolist(), (100.0 + 0.5 * TIMES_S + noise).tolist())
    assert slope.low < 0.5 < slope.high
    assert slope.low > 0.45


def test_noise_alone_is_not_growth() -> None:
    rng = np.random.default_rng(2)
    flat = [slope_of(TIMES_S.tolist(), rng.normal(100.0, 5.0, len(TIMES_S)).tolist()) for _ in range(200)]
    assert sum(slope.low <= 0.0 <= slope.high for slope in flat) >= 180


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="requires at least 24 samples"):
        slope_of([1.0, 2.0], [1.0, 2.0])
