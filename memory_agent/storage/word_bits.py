"""The words of one user's memories as packed sign bits, by slot: what late interaction compares a query's words with.

The store holds them, encrypted where it is; here they are in memory alone, 75 MB per 100,000 memories of 16 words. A
slot's words may be unknown: those of a memory that was stored without a model, or by a version without them.

n = number of slots, m = number of slots given, w = words, b = bytes of a word, q = words of a query, d = dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from memory_agent.errors import IndexDamagedError
from memory_agent.storage.changes import Words
from memory_agent.storage.column import Column
from memory_agent.storage.indexes import Scores, Slots
from memory_agent.storage.products import Bits, greatest_with_signs
from memory_agent.storage.ranges import ABSENT, Counts, Ranges, RangesView

_STEPS = 127  # of the largest component of a query's word
_LEAST = 1e-6  # of that component: below, a word has no direction
_AT_ONCE = 1_000  # slots: 20 MB for 40 words each and 64 of the query


class WordBitsView:
    """The words at one moment. Immutable and thread-safe. `lengths` (n,) are tokens before any cut, 0 if unknown."""

    def __init__(self, ranges: RangesView, bits: npt.NDArray[Any], lengths: npt.NDArray[np.int32], count: int) -> None:
        self.lengths = lengths
        self.count = count
        """Number of slots whose words are known, also of those without any."""
        self._ranges = ranges
        self._bits = bits

    @property
    def known(self) -> npt.NDArray[np.bool_]:
        """Whose words are known (n,)."""
        is_known: npt.NDArray[np.bool_] = self._ranges.counts != ABSENT
        return is_known

    def of(self, slots: Slots) -> tuple[Bits, Counts]:
        """Return the words (w, b) of `slots`, one slot after the other, and how many each slot has (m,)."""
        words, counts = self._ranges.items(slots)
        taken = self._bits.take(words)  # whole words: 30 times as fast as rows of bytes
        return taken.view(np.uint8).reshape(len(words), self._bits.itemsize), counts

    def similarities(self, query_words: npt.NDArray[np.floating[Any]], slots: Slots) -> Scores:
        """Return the similarity of each of `query_words` (q, d) to the nearest word of each slot: (q, m), -1 to 1.

        It is the inner product with the signs of that word, over sqrt(d), off by .001; NaN where no words are known, or
        none of d dimensions.
        """
        found = np.full((len(query_words), len(slots)), np.nan)
        if not len(query_words) or 8 * self._bits.itemsize != query_words.shape[1]:
            return found
        wanted = query_words.astype(np.float32)  # numpy computes with halves one by one
        largest = np.maximum(np.abs(wanted).max(axis=1, keepdims=True), _LEAST, dtype=np.float32)
        steps = np.rint(wanted * (_STEPS / largest)).astype(np.int8)
        scales = largest / (_STEPS * np.sqrt(query_words.shape[1]))
        for start in range(0, len(slots), _AT_ONCE):
            bits, counts = self.of(slots[start : start + _AT_ONCE])
            has_words = counts > 0
            if has_words.any():
                starts = counts[has_words].cumsum() - counts[has_words]
                best = greatest_with_signs(steps, bits, starts)
                found[:, start : start + _AT_ONCE][:, has_words] = best.T * scales
        return found


class WordBits:
    """Words by slot. b is that of the first; one thread changes them."""

    def __init__(self, slots: int = 0) -> None:
        """Begin with this number of slots whose words are not known."""
        self._ranges = Ranges(slots)
        self._lengths = Column(np.zeros(slots, dtype=np.int32))
        self._bits: Column[Any] | None = None
        self._count = 0

    def append(self, words: Sequence[Words | None]) -> None:
        """Add slots with their words, None where they are not known. Raises `IndexDamagedError` for another b."""
        known = [one.bits for one in words if one is not None]
        if known:
            self._add(np.concatenate(known))
        self._ranges.append([ABSENT if one is None else len(one.bits) for one in words])
        self._lengths.append([0 if one is None else one.length for one in words])
        self._count += sum(one is not None for one in words)

    def set(self, slots: Slots, lengths: npt.ArrayLike, counts: npt.ArrayLike, bits: Bits) -> None:
        """Give `slots` (m,) words instead of those they had: their `lengths`, their numbers, and all words (w, b).

        Raises `IndexDamagedError` for another b.
        """
        self._add(bits)
        self._count += len(slots) - self._known_among(slots)
        self._ranges.set(slots, counts)
        self._lengths.set(slots, lengths)

    def remove(self, slots: Slots) -> None:
        """Drop the words of `slots` from every answer at once, from memory with `keep`. Idempotent."""
        self._count -= self._known_among(slots)
        self._ranges.remove(slots)
        self._lengths.set(slots, 0)

    def keep(self, slots: Slots) -> Self:
        """Return the words of `slots` alone, ascending, numbered from 0, without the bits of others."""
        kept = type(self)()
        kept._ranges, items = self._ranges.keep(slots)
        kept._lengths = Column(self._lengths.view()[slots])
        kept._bits = None if self._bits is None else Column(self._bits.view().take(items))
        kept._count = self._known_among(slots)
        return kept

    def view(self) -> WordBitsView:
        """Return the words as of now."""
        bits = np.empty(0, dtype="V1") if self._bits is None else self._bits.view()
        return WordBitsView(self._ranges.view(), bits, self._lengths.view(), self._count)

    def _known_among(self, slots: Slots) -> int:
        return int(np.count_nonzero(self._ranges.view().counts[slots] != ABSENT))

    def _add(self, bits: Bits) -> None:
        """Add words at the end."""
        if not len(bits):
            return
        width = bits.shape[1]
        if self._bits is None:
            self._bits = Column(np.empty(0, dtype=f"V{width}"))
        if self._bits.view().itemsize != width:
            raise IndexDamagedError(f"words of {width} bytes, expected {self._bits.view().itemsize}")
        self._bits.append(np.ascontiguousarray(bits).view(f"V{width}").ravel())
