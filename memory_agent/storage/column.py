"""A growing array whose published parts never change.

The writer appends beyond what was published and copies before it overwrites, so that readers need no lock. Growing
doubles the capacity.

n = number of values.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

Number = TypeVar("Number", bound=np.generic)
Positions = npt.NDArray[np.int64]

_LEAST_CAPACITY = 256


class Column(Generic[Number]):
    """One column. One thread writes; any thread reads what `view` returned."""

    def __init__(self, values: npt.NDArray[Number]) -> None:
        """Begin with `values` (n,), which may be read-only or mapped and is not copied until a change."""
        self._values = values
        self._count = len(values)
        self._is_shared = True  # a view, or the caller, may hold the array

    def __len__(self) -> int:
        return self._count

    def view(self) -> npt.NDArray[Number]:
        """Return the values (n,) as of now, read-only. Later changes do not show in it."""
        self._is_shared = True
        values = self._values[: self._count].view()
        values.flags.writeable = False
        return values

    def append(self, values: npt.ArrayLike) -> None:
        """Append values (k,)."""
        added = np.asarray(values, dtype=self._values.dtype)
        end = self._count + len(added)
        if end == self._count:
            return  # even nothing cannot be assigned to a read-only array
        if end > len(self._values):
            self._move(max(end, 2 * self._count, _LEAST_CAPACITY))
        self._values[self._count : end] = added
        self._count = end

    def set(self, positions: Positions, values: npt.ArrayLike) -> None:
        """Overwrite the values at `positions` (k,), in a copy if a view may hold them."""
        if self._is_shared:
            self._move(len(self._values))
        self._values[positions] = values

    def _move(self, capacity: int) -> None:
        moved: npt.NDArray[Number] = np.zeros(capacity, dtype=self._values.dtype)
        moved[: self._count] = self._values[: self._count]
        self._values, self._is_shared = moved, False
