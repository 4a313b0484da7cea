"""Arrays of values by slot: types that the indexes share, a growing array, and its sorted copy.

A `Column` grows while other threads read it: the writer appends after the published values and copies before it
overwrites, so readers need no lock.

n = number of values, k = number of positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple, Self, TypeVar

import numpy as np
import numpy.typing as npt

from relay.crypto import Cipher

Slots = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Scores = npt.NDArray[np.float64]
Arrays = Mapping[str, npt.NDArray[Any] | Sequence[npt.NDArray[Any]]]
"""The content of an index as named arrays. A sequence of arrays represents one array, split along its first axis."""
LoadedArrays = Mapping[str, npt.NDArray[Any]]  # arrays as read from a file: writable, and possibly mapped
GraphWriter = Callable[[Path, Cipher | None], None]  # writes a file. On an `OSError` the old file remains valid


class Cosines(NamedTuple):
    """Approximate cosine similarities between a query and all memories.

    `values` (n,) are accurate to within `error`. They are NaN for slots that have no vector or were not scanned. The
    cosine of a slot that was not scanned is at most `unseen` (minus infinity if all were scanned), unless an
    approximate scan missed it.
    """

    values: npt.NDArray[np.float32]
    error: float
    unseen: float


class RowSlots(NamedTuple):
    """The row of each slot (n,), and the slot of each row from `first_row` on (-1 for none). Immutable."""

    rows: npt.NDArray[np.int64]
    first_row: int
    slot_of: npt.NDArray[np.int32]

    def slots(self, rows: npt.ArrayLike) -> Slots:
        """Return the slot (m,) of each row, or -1 for a row without a memory."""
        positions = np.asarray(rows, dtype=np.int64) - self.first_row
        is_known = (positions >= 0) & (positions < len(self.slot_of))
        if is_known.all():
            return self.slot_of[positions].astype(np.int64)
        found: Slots = np.full(positions.shape, -1, dtype=np.int64)
        found[is_known] = self.slot_of[positions[is_known]]
        return found


def section(arrays: LoadedArrays, part: str) -> LoadedArrays:
    """Return the arrays whose names start with `part` and a dot; this prefix is removed."""
    return {name.removeprefix(f"{part}."): array for name, array in arrays.items() if name.startswith(f"{part}.")}


Number = TypeVar("Number", bound=np.generic)
Positions = npt.NDArray[np.int64]

_LEAST_CAPACITY = 256
_STEPS = 16  # copying begins when 1/16 of the capacity is left; until it ends, the values take twice the memory
_FEW = 8  # comparing takes 0.3 us per value per 1,000 rows; a lookup table takes 3 us for any number of values


class Column(Generic[Number]):
    """One column. One thread writes; any thread may read a `view`."""

    def __init__(self, values: npt.NDArray[Number]) -> None:
        """Start with `values` (n,), which may be read-only or mapped."""
        self._values = values
        self._count = len(values)
        self._is_shared = True  # a view or the caller may still use the array
        self._larger: npt.NDArray[Number] | None = None  # the next array, while it is being filled
        self._copied = 0  # number of values copied into it

    def __len__(self) -> int:
        return self._count

    def view(self) -> npt.NDArray[Number]:
        """Return a read-only view of the current values (n,). Later changes do not affect it."""
        self._is_shared = True
        values = self._values[: self._count].view()
        values.flags.writeable = False
        return values

    def append(self, values: npt.ArrayLike) -> None:
        added = np.asarray(values, dtype=self._values.dtype)
        end = self._count + len(added)
        if end == self._count:
            return  # numpy rejects even an empty assignment to a read-only array
        if end > len(self._values):
            self._grow(max(end, 2 * self._count, _LEAST_CAPACITY))
        self._values[self._count : end] = added
        self._count = end
        if len(self._values) - end < len(self._values) // _STEPS:
            self._copy_part(_STEPS * len(added))

    def set(self, positions: Positions, values: npt.ArrayLike) -> None:
        """Overwrite the values at `positions` (k,), in a copy if a view may share the array."""
        if not len(positions):
            return
        self._larger = None  # the larger array may contain old values
        if self._is_shared:
            self._grow(len(self._values))
        self._values[positions] = values

    def _copy_part(self, count: int) -> None:
        """Copy the next `count` values into the larger array that will replace this one."""
        if self._larger is None:
            self._larger, self._copied = np.empty(2 * len(self._values), dtype=self._values.dtype), 0
        part = slice(self._copied, min(self._copied + count, self._count))
        self._larger[part] = self._values[part]
        self._copied = part.stop

    def _grow(self, capacity: int) -> None:
        """Move to an array of at least this capacity."""
        if self._larger is None or len(self._larger) < capacity:
            self._larger, self._copied = np.empty(capacity, dtype=self._values.dtype), 0
        rest = slice(self._copied, self._count)
        self._larger[rest] = self._values[rest]
        self._values, self._larger, self._is_shared = self._larger, None, False


class Sorted(NamedTuple):
    """The first k values of a column in ascending order, and their `positions` (k,) in it. Immutable."""

    values: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int32]

    @classmethod
    def of(cls, values: npt.NDArray[np.int64]) -> Self:
        order = np.argsort(values, kind="stable").astype(np.int32)
        return cls(values[order], order)

    def with_all(self, values: npt.NDArray[np.int64]) -> Sorted:
        """Return a copy with the rest of the column's values (n,) merged in."""
        added = Sorted.of(values[len(self.values) :])
        places = np.searchsorted(self.values, added.values, side="right")
        moved = added.positions + np.int32(len(self.values))
        return Sorted(np.insert(self.values, places, added.values), np.insert(self.positions, places, moved))

    def find(self, values: npt.NDArray[np.int64], wanted: npt.NDArray[np.int64]) -> list[Positions]:
        """Return, for each wanted value, its positions among all values (n,) of the column, in ascending order."""
        starts, ends = (np.searchsorted(self.values, wanted, side).tolist() for side in ("left", "right"))
        found = [self.positions[start:end].astype(np.int64) for start, end in zip(starts, ends, strict=True)]
        k = len(self.values)
        if k == len(values):
            return found
        later = values[k:] == wanted[:, None]
        if not later.any():
            return found
        return [np.concatenate((one, k + more.nonzero()[0])) for one, more in zip(found, later, strict=True)]


def are_any(values: npt.NDArray[Number], chosen: Sequence[int]) -> npt.NDArray[np.bool_]:
    """Return which of `values` (k,) are in `chosen`. If `chosen` is long, the last 16 bits are compared first."""
    found = np.zeros(len(values), dtype=np.bool_)
    for number in chosen if len(chosen) <= _FEW else ():
        found |= values == number
    if len(chosen) > _FEW:
        wanted = np.array(chosen, dtype=values.dtype)
        is_last = np.zeros(1 << 16, dtype=np.bool_)
        is_last[wanted.astype(np.uint16)] = True
        likely = np.flatnonzero(is_last[values.astype(np.uint16)])
        found[likely[np.isin(values[likely], wanted)]] = True
    return found
