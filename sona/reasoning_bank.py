"""The reasoning bank: moves a request towards the answers of similar past requests, by kernel ridge regression.

The bank minimises sum_j w_j |y_j - x_j - f(x_j)|^2 + lam |f|_H^2 with k(a, b) = exp((a.b - 1) / h). The solution is
f(x) = k(x)' P (Y - X), where P = (K + lam diag(1/w))^-1. Adding, removing and reweighting an exemplar are exact
rank-one updates of P. `solve` computes P directly. Until the next update, it also keeps P (Y - X) in float32, so that a
request reads only a quarter as many bytes. The caller sets the weights and caps the shift.

Shapes: n = exemplars, d = dimensions of an embedding, m = capacity in exemplars.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
import numpy.typing as npt

from sona.errors import ShapeError
from sona.lesson import Array, Vector

Numbers = npt.NDArray[np.int64]

LEAST_WEIGHT = 1e-9  # an exemplar with a lower weight has no effect
_NEAR, _NEAR_WIDTH = 0.2, 0.4
_STRIP = 128  # rows updated at a time; the buffer is a quarter of P
_BY_HALVES = 32  # below this size, the plain solver is as fast


class ReasoningBank:
    """The exemplars of one user, by number. Not thread-safe.

    Requests and answers are unit vectors. Rows are in order of insertion, except that a removed row is replaced by the
    last row.
    """

    def __init__(self, ndim: int, bandwidth: float = 0.5, ridge: float = 1.0, reserve: int = 512) -> None:
        """Start empty, with room for `reserve` exemplars."""
        self._bandwidth = bandwidth
        self._ridge = ridge
        self._count = 0
        self._numbers = np.zeros(reserve, dtype=np.int64)
        self._weights = np.zeros(reserve)
        self._requests = np.zeros((reserve, ndim))
        self._moves = np.zeros((reserve, ndim))
        self._inverse = np.zeros((reserve, reserve))
        self._strip = np.empty((_STRIP, reserve))
        self._solved: Vector | None = None

    @classmethod
    def solve(
        cls,
        numbers: Sequence[int],
        x: Array | Vector,
        y: Array | Vector,
        weights: Sequence[float] | Array,
        *,
        bandwidth: float = 0.5,
        ridge: float = 1.0,
        reserve: int = 512,
    ) -> Self:
        """Return a bank of exemplars, x (n, d) and y (n, d). Their numbers are distinct, and may be in any order.

        The same input gives a bit-identical bank. Leaves out exemplars that `add` would reject.
        """
        bank = cls(x.shape[-1], bandwidth, ridge, reserve)
        if x.ndim != 2 or y.shape != x.shape or not len(numbers) == len(weights) == len(x):
            raise ShapeError(x.shape[-1], y.shape)
        weighed = np.asarray(weights, dtype=np.float64)
        order = np.argsort(np.asarray(numbers, dtype=np.int64), kind="stable")
        rows = order[_usable(x, y, weighed)[order]]
        if len(rows) > reserve:
            raise ShapeError(reserve, (len(rows),))
        bank._fill(np.asarray(numbers, dtype=np.int64)[rows], x[rows], y[rows], weighed[rows])
        return bank

    def __len__(self) -> int:
        return self._count

    @property
    def is_full(self) -> bool:
        return self._count == len(self._numbers)

    @property
    def numbers(self) -> Numbers:
        """The exemplars' numbers, (n,), in the row order of `similarities`."""
        return self._numbers[: self._count].copy()

    @property
    def weights(self) -> Array:
        return self._weights[: self._count].copy()

    def add(self, number: int, x: Array | Vector, y: Array | Vector, weight: float) -> bool:
        """Add or replace an exemplar: the request `x`, (d,), and its answer `y`, (d,). O(n^2 + n d).

        Returns False, and removes the exemplar, when the bank is full, the weight is below `LEAST_WEIGHT`, or a value
        is not finite.
        """
        self._check(x)
        self._check(y)
        self.forget(number)
        if self.is_full or not _usable(x[None], y[None], np.array([weight]))[0]:
            return False
        place = self._count
        self._numbers[place], self._weights[place] = number, weight
        self._requests[place] = x
        self._moves[place] = y - self._requests[place]
        kernel = self._kernel(self._requests[place], place + 1)
        column = np.append(self._inverse[:place, :place] @ kernel[:place], -1.0)
        self._count += 1
        self._turn(place, column, 0.0, self._pivot(place, kernel, column))
        return True

    def reweight(self, number: int, weight: float) -> bool:
        """Set the weight of an exemplar, as `add` would. Return False if the exemplar is unknown or the weight is
        infinite.
        """
        place = self._place(number)
        if place is None or not np.isfinite(weight):
            return False
        if weight < LEAST_WEIGHT:
            return self.forget(number)
        column, old = self._column(place)
        self._weights[place] = weight
        kernel = self._kernel(self._requests[place], self._count)
        self._turn(place, column, old, self._pivot(place, kernel, column))
        return True

    def forget(self, number: int) -> bool:
        """Remove an exemplar and its effect. Returns False if it is unknown. O(n^2)."""
        place = self._place(number)
        if place is None:
            return False
        column, old = self._column(place)
        self._turn(place, column, old, 0.0)
        self._close_gap(place)
        return True

    def similarities(self, x: Array | Vector) -> Array:
        """Return the cosine of `x`, (d,), to each exemplar's request, (n,)."""
        self._check(x)
        return self._requests[: self._count] @ x.astype(np.float64)

    def shift(self, x: Array | Vector) -> Array:
        """Return the uncapped shift of `x`, (d,): zero if the nearest cosine is at most .2, and full if at least .6."""
        self._check(x)
        return self.shift_by(self.similarities(x) if np.isfinite(x).all() else np.zeros(self._count))

    def shift_by(self, cosines: Array) -> Array:
        """Compute `shift` from the `similarities` of the request, (n,)."""
        nearest = float(cosines[cosines.argmax()]) if len(cosines) else -1.0
        share = (nearest - _NEAR) / _NEAR_WIDTH
        if share <= 0.0:
            return np.zeros(self._requests.shape[1])
        kernel = np.exp((cosines - 1.0) / self._bandwidth)
        if self._solved is not None:
            shift: Vector = kernel.astype(np.float32).dot(self._solved)
            return min(share, 1.0) * shift.astype(np.float64)
        return min(share, 1.0) * ((self._inverse[: self._count, : self._count] @ kernel) @ self._moves[: self._count])

    def _fill(self, numbers: Numbers, x: Array | Vector, y: Array | Vector, weights: Array) -> None:
        """Solve for P = S (S K S + lam I)^-1 S with S = diag(sqrt(w)), which is well conditioned even for tiny
        weights.
        """
        count = self._count = len(numbers)
        self._numbers[:count], self._weights[:count] = numbers, weights
        self._requests[:count] = x
        self._moves[:count] = y - self._requests[:count]
        requests, roots = self._requests[:count], np.sqrt(weights)
        kernel = np.exp((requests @ requests.T - 1.0) / self._bandwidth)
        factor = np.linalg.cholesky(roots[:, None] * kernel * roots + self._ridge * np.eye(count))
        whitened = _inverse_of_lower(np.asarray(factor, dtype=np.float64)) * roots
        self._inverse[:count, :count] = whitened.T @ whitened
        self._solved = (self._inverse[:count, :count] @ self._moves[:count]).astype(np.float32)

    def _kernel(self, x: Array, count: int) -> Array:
        kernel: Array = np.exp((self._requests[:count] @ x - 1.0) / self._bandwidth)
        return kernel

    def _pivot(self, place: int, kernel: Array, column: Array) -> float:
        """Return P[place, place] for the current weight: 1 / (lam/w + k(x, x) - k'v), where v = P k without `place`.

        `column` is v with -1 at `place`, so `kernel` times `column` is k'v - k(x, x).
        """
        return float(1.0 / (self._ridge / self._weights[place] - kernel @ column))

    def _column(self, place: int) -> tuple[Array, float]:
        """Return v with -1 at `place`, and the pivot. Both are read from P, whose column at `place` is -pivot v."""
        pivot = float(self._inverse[place, place])
        column: Array = self._inverse[: self._count, place] / -pivot
        column[place] = -1.0
        return column, pivot

    def _turn(self, place: int, column: Array, old: float, new: float) -> None:
        self._solved = None
        row = np.zeros(len(self._numbers))  # whole rows, zero past n: one flat loop is four times as fast (measured)
        row[: self._count] = (new - old) * column
        for start in range(0, self._count, _STRIP):
            part = column[start : start + _STRIP, None]
            strip = np.multiply(part, row, out=self._strip[: len(part)])
            self._inverse[start : start + len(part)] += strip
        self._inverse[place, : self._count] = self._inverse[: self._count, place] = -new * column

    def _close_gap(self, place: int) -> None:
        last = self._count = self._count - 1
        inverse = self._inverse
        inverse[place], inverse[:, place] = inverse[last].copy(), inverse[:, last].copy()
        inverse[place, place] = inverse[last, last]
        inverse[last] = inverse[:, last] = 0.0
        for kept in (self._numbers, self._weights, self._requests, self._moves):
            kept[place] = kept[last]
            kept[last] = 0

    def _place(self, number: int) -> int | None:
        places = np.flatnonzero(self._numbers[: self._count] == number)
        return int(places[0]) if len(places) else None

    def _check(self, vector: Array | Vector) -> None:
        if vector.shape != self._requests.shape[1:]:
            raise ShapeError(self._requests.shape[1], vector.shape)


def _usable(x: Array | Vector, y: Array | Vector, weights: Array) -> npt.NDArray[np.bool_]:
    finite = np.isfinite(x).all(axis=1) & np.isfinite(y).all(axis=1) & np.isfinite(weights)
    return np.asarray(finite & (weights >= LEAST_WEIGHT))


def _inverse_of_lower(lower: Array) -> Array:
    """Invert a lower triangular matrix by recursive halving, which is five times as fast as `solve` (measured)."""
    size = len(lower)
    if size <= _BY_HALVES:
        return np.asarray(np.linalg.solve(lower, np.eye(size)), dtype=np.float64)
    half = size // 2
    inverse = np.zeros_like(lower)
    inverse[:half, :half] = first = _inverse_of_lower(lower[:half, :half])
    inverse[half:, half:] = second = _inverse_of_lower(lower[half:, half:])
    inverse[half:, :half] = -second @ (lower[half:, :half] @ first)
    return inverse
