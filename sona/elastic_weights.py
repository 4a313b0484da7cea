"""EWC++: penalises changes to parameters that earlier lessons depend on, to prevent forgetting.

This is the method of Kirkpatrick et al. 2017, with the running estimate of Chaudhry et al. 2018. The penalty is lam/2
sum F_i (theta_i - theta*_i)^2, where F <- .95 F + mean of the squared gradients of single samples.

Shapes: p = parameters, s = samples.
"""

from __future__ import annotations

import numpy as np

from sona.errors import ShapeError
from sona.lesson import Array


class ElasticWeights:
    """An EWC penalty over p parameters, with their importance and anchor. Not thread-safe."""

    def __init__(self, size: int, strength: float = 10.0, decay: float = 0.95) -> None:
        """Start with zero importance, so there is no penalty until the first `observe`."""
        self._strength = strength
        self._decay = decay
        self._importance = np.zeros(size)
        self._held = np.zeros(size)

    @property
    def importance(self) -> Array:
        """The importance F, (p,); zeros before the first `observe`."""
        return self._importance.copy()

    @property
    def held(self) -> Array:
        """The anchor theta*, (p,)."""
        return self._held.copy()

    def observe(self, gradients: Array) -> None:
        """Add the finite gradients of single samples, (s, p), to the importance."""
        if gradients.ndim != 2 or gradients.shape[1] != len(self._held):
            raise ShapeError(len(self._held), gradients.shape)
        finite = gradients[np.isfinite(gradients).all(axis=1)]
        if len(finite):
            self._importance = self._decay * self._importance + (finite**2).mean(axis=0)

    def anchor(self, parameters: Array) -> None:
        self._check(parameters)
        self._held = parameters.copy()

    def penalty(self, parameters: Array) -> float:
        self._check(parameters)
        return float(self._strength / 2 * (self._importance * (parameters - self._held) ** 2).sum())

    def gradient(self, parameters: Array) -> Array:
        self._check(parameters)
        return self._strength * self._importance * (parameters - self._held)

    def pull(self, parameters: Array, rate: float) -> Array:
        """Return the step to subtract, (p,): `rate` times `gradient`, limited so that it does not pass the anchor."""
        self._check(parameters)
        share = np.minimum(rate * self._strength * self._importance, 1.0)
        return share * (parameters - self._held)

    def restore(self, importance: Array, held: Array) -> None:
        self._check(importance)
        self._check(held)
        self._importance, self._held = importance.copy(), held.copy()

    def _check(self, parameters: Array) -> None:
        if parameters.shape != self._held.shape:
            raise ShapeError(len(self._held), parameters.shape)
