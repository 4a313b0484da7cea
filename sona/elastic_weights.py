"""Springs on the parameters that earlier lessons needed: EWC++, against forgetting.

SONA.md 4; Kirkpatrick et al. 2017, running as in Chaudhry et al. 2018: penalty lam/2 sum F_i (theta_i - theta*_i)^2
with F <- .95 F + mean of the squared gradients of single samples. The square of a mean gradient would not do: where
samples disagree their mean is zero, and that is where the parameter matters. What this does not do: compute a gradient.

Shapes: p = parameters, s = samples.
"""

from __future__ import annotations

import numpy as np

from sona.errors import ShapeError
from sona.lesson import Array


class ElasticWeights:
    """How much each of p parameters matters, and where it is held. Not thread-safe."""

    def __init__(self, size: int, strength: float = 10.0, decay: float = 0.95) -> None:
        """Hold nothing yet: no parameter of `size` matters, so none is pulled until both verbs were used."""
        self._strength = strength
        self._decay = decay
        self._importance = np.zeros(size)
        self._held = np.zeros(size)

    @property
    def importance(self) -> Array:
        """F, (p,), zeros before the first `observe`."""
        return self._importance.copy()

    @property
    def held(self) -> Array:
        """theta*, (p,): where the parameters are pulled to."""
        return self._held.copy()

    def observe(self, gradients: Array) -> None:
        """Count what single samples ask for: their gradients, (s, p); those not finite are passed over.

        Raises `ShapeError`.
        """
        if gradients.ndim != 2 or gradients.shape[1] != len(self._held):
            raise ShapeError(len(self._held), gradients.shape)
        finite = gradients[np.isfinite(gradients).all(axis=1)]
        if len(finite):
            self._importance = self._decay * self._importance + (finite**2).mean(axis=0)

    def anchor(self, parameters: Array) -> None:
        """Hold the parameters, (p,), where they are now. Raises `ShapeError`."""
        self._check(parameters)
        self._held = parameters.copy()

    def penalty(self, parameters: Array) -> float:
        """Return what the loss gains for lying off the anchor."""
        self._check(parameters)
        return float(self._strength / 2 * (self._importance * (parameters - self._held) ** 2).sum())

    def gradient(self, parameters: Array) -> Array:
        """Return the gradient of `penalty`, (p,). Raises `ShapeError`."""
        self._check(parameters)
        return self._strength * self._importance * (parameters - self._held)

    def pull(self, parameters: Array, rate: float) -> Array:
        """Return what a step takes off the parameters, (p,): `rate` times `gradient`, but never past the anchor.

        A stiff spring (rate * lam * F > 1) would swing about it, and further each time from 2 on.
        """
        self._check(parameters)
        share = np.minimum(rate * self._strength * self._importance, 1.0)
        return share * (parameters - self._held)

    def restore(self, importance: Array, held: Array) -> None:
        """Take over what another one's `importance` and `held` were, (p,) each. Raises `ShapeError`."""
        self._check(importance)
        self._check(held)
        self._importance, self._held = importance.copy(), held.copy()

    def _check(self, parameters: Array) -> None:
        if parameters.shape != self._held.shape:
            raise ShapeError(len(self._held), parameters.shape)
