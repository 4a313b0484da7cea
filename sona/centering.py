"""Subtracts the running mean of a user's queries from each query, so that their common part does not dominate the
scores.

mu <- mu + (q - mu) / min(n, 2000), zero until n >= 20; x = unit(q - mu). Memories are not centred: doing so reduces
recall (measured). The caller is responsible for saving and locking.

Shapes: d = dimensions of an embedding.
"""

from __future__ import annotations

import math
from typing import Self

import msgspec
import numpy as np
import numpy.typing as npt

from sona.errors import DamagedStateError, ShapeError

Vector = npt.NDArray[np.float32]

WARM_UP = 20
WINDOW = 2_000
_NEAR, _FAR = 0.2, 0.5
_VERSION = 1


class _State(msgspec.Struct, frozen=True, array_like=True):
    version: int
    count: int
    mean: bytes


_decoder = msgspec.msgpack.Decoder(_State)


class QueryCentering:
    """The running mean of one user's queries. Not thread-safe."""

    def __init__(self, ndim: int) -> None:
        self._mean = np.zeros(ndim, dtype=np.float64)
        self._count = 0

    @property
    def count(self) -> int:
        return self._count

    @property
    def mean(self) -> Vector:
        """The mean to subtract, (d,); zeros until `WARM_UP` queries have been observed."""
        warm = self._count >= WARM_UP
        return (self._mean if warm else np.zeros_like(self._mean)).astype(np.float32)

    def observe(self, query: Vector) -> None:
        """Add `query`, a unit vector (d,), to the mean; skip it if it is not finite. Raises `ShapeError`."""
        self._check(query)
        if not np.isfinite(query).all():
            return
        self._count += 1
        self._mean += (query - self._mean) / min(self._count, WINDOW)

    def centre(self, query: Vector) -> Vector:
        """Return unit(query - mean), (d,). Returns `query` unchanged until `WARM_UP` queries have been observed.

        If a user repeats nearly the same query, the mean approaches the query, and the difference is noise. Therefore,
        only part of the mean is subtracted at a distance below .5, and nothing below .2 (decision 0020). Raises
        `ShapeError`.
        """
        self._check(query)
        if self._count < WARM_UP:
            return query
        centred = query - self._mean
        length = math.sqrt(centred.dot(centred))
        if length < _FAR:
            centred = query - max((length - _NEAR) / (_FAR - _NEAR), 0.0) * self._mean
            length = math.sqrt(centred.dot(centred))
        return (centred / length).astype(np.float32)

    def to_bytes(self) -> bytes:
        return msgspec.msgpack.encode(_State(_VERSION, self._count, self._mean.tobytes()))

    @classmethod
    def from_bytes(cls, data: bytes, ndim: int) -> Self:
        """Restore an object from the output of `to_bytes`. Raises `DamagedStateError` if the state is damaged, or if
        `ndim` or the version differs.
        """
        try:
            state = _decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise DamagedStateError(f"centering: {error}") from error
        learner = cls(ndim)
        if state.version != _VERSION or state.count < 0 or len(state.mean) != learner._mean.nbytes:
            raise DamagedStateError("centering: different version or shape")
        mean = np.frombuffer(state.mean, dtype=np.float64)
        if not np.isfinite(mean).all():
            raise DamagedStateError("centering: the mean is not finite")
        learner._count, learner._mean = state.count, mean.copy()
        return learner

    def _check(self, query: Vector) -> None:
        if query.shape != self._mean.shape:
            raise ShapeError(self._mean.size, query.shape)
