"""Which items belong to which slot, where a slot may have any number of them, such as passages or words.

The items lie in arrays that only grow; those of a slot are neighbours there. This knows where they begin and how many
they are. One thread changes it; `view` is for all.

n = number of slots, m = number of slots given, k = number of items.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from memory_agent.errors import IndexDamagedError
from memory_agent.storage.column import Column
from memory_agent.storage.indexes import LoadedArrays, Slots

Items = npt.NDArray[np.int64]
Counts = npt.NDArray[np.int64]

ABSENT = -1
"""The count of a slot whose items are not known."""


class RangesView(NamedTuple):
    """Where the items of each slot begin (n,), and their numbers (n,), at one moment."""

    starts: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int32]

    def items(self, slots: Slots) -> tuple[Items, Counts]:
        """Return the items (k,) of `slots`, one slot after the other, and how many each slot has (m,)."""
        counts = np.maximum(self.counts[slots], 0, dtype=np.int64)
        ends = counts.cumsum()
        items: Items = (self.starts[slots] - (ends - counts)).repeat(counts)
        items += np.arange(len(items))
        return items, counts


class Ranges:
    """The items of each slot. New items are those from `size` on, in the order of the slots they are for."""

    def __init__(self, slots: int = 0) -> None:
        """Begin with this number of slots, whose items are not known."""
        self._starts = Column(np.zeros(slots, dtype=np.int64))
        self._counts = Column(np.full(slots, ABSENT, dtype=np.int32))
        self.size = 0

    @classmethod
    def from_arrays(cls, arrays: LoadedArrays, size: int) -> Self:
        """Return what `arrays` were taken of, with `size` items. Raises `IndexDamagedError` where they do not fit."""
        match arrays:
            case {"starts": np.ndarray() as starts, "counts": np.ndarray() as counts} if (
                starts.dtype == np.int64
                and counts.dtype == np.int32
                and starts.shape == counts.shape == (len(starts),)
                and (not len(starts) or (starts.min() >= 0 and (starts + counts).max() <= size))
            ):
                ranges = cls()
                ranges._starts, ranges._counts, ranges.size = Column(starts), Column(counts), size
                return ranges
        raise IndexDamagedError("the ranges do not fit their items")

    def __len__(self) -> int:
        return len(self._counts)

    def append(self, counts: npt.ArrayLike) -> None:
        """Add slots with `counts` (m,) new items each."""
        added = np.asarray(counts, dtype=np.int32)
        self._starts.append(self._begins(added))
        self._counts.append(added)

    def set(self, slots: Slots, counts: npt.ArrayLike) -> None:
        """Give `slots` (m,) that many new items (m,) instead of those they had."""
        added = np.asarray(counts, dtype=np.int32)
        self._starts.set(slots, self._begins(added))
        self._counts.set(slots, added)

    def remove(self, slots: Slots) -> None:
        """Let the items of `slots` not be known. Idempotent."""
        self._counts.set(slots, ABSENT)

    def keep(self, slots: Slots) -> tuple[Self, Items]:
        """Return the ranges of `slots` alone, ascending, numbered from 0, and the items to be kept, ascending."""
        view = self.view()
        items = np.sort(view.items(slots)[0])
        counts = view.counts[slots]
        kept = type(self)()
        kept._starts = Column(np.where(counts > 0, np.searchsorted(items, view.starts[slots]), 0))
        kept._counts, kept.size = Column(counts), len(items)
        return kept, items

    def view(self) -> RangesView:
        """Return the ranges as of now."""
        return RangesView(self._starts.view(), self._counts.view())

    def arrays(self) -> LoadedArrays:
        """Return the content, for `from_arrays`."""
        return self.view()._asdict()

    def _begins(self, counts: npt.NDArray[np.int32]) -> Items:
        """Return where the items of new ranges begin, and count them as there."""
        ends = self.size + np.cumsum(np.maximum(counts, 0, dtype=np.int64))
        begins: Items = ends - np.maximum(counts, 0)
        self.size = int(ends[-1]) if len(ends) else self.size
        return begins
