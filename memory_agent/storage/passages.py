"""Stores several items per slot: the vectors of a long text's passages, and the sign bits of a text's words.

`PassageVectors` has one `VectorTable` for the first passage of every slot and one for further passages. `WordBits`
holds, in memory only, the words that late interaction compares with those of a query.

Shapes: n = all slots, m = slots passed as an argument, k = items, p = further passages, d = dimensions, w = words, b =
bytes of a word, q = words of a query.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from memory_agent.errors import IndexDamagedError
from memory_agent.indexes import EVERYTHING, Where
from memory_agent.records.embedded import Embedding
from memory_agent.storage.changes import Words
from memory_agent.storage.column import (
    Arrays,
    Column,
    Cosines,
    GraphWriter,
    LoadedArrays,
    Mask,
    RowSlots,
    Scores,
    Slots,
)
from memory_agent.storage.vector_table import Bits, TableView, VectorTable, greatest_with_signs
from relay.crypto import Cipher

Items = npt.NDArray[np.int64]
Counts = npt.NDArray[np.int64]

ABSENT = -1  # the count of a slot whose items are unknown


class RangesView(NamedTuple):
    """The first item (n,) and the number of items (n,) of each slot."""

    starts: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int32]

    def items(self, slots: Slots) -> tuple[Items, Counts]:
        """Return the items (k,) of `slots`, slot by slot, and the number of items in each slot (m,)."""
        counts = np.maximum(self.counts[slots], 0, dtype=np.int64)
        ends = counts.cumsum()
        items: Items = (self.starts[slots] - (ends - counts)).repeat(counts)
        items += np.arange(len(items))
        return items, counts


class Ranges:
    """The items of each slot: a range of an append-only array, to which the caller appends the items range by range."""

    def __init__(self, slots: int = 0) -> None:
        self._starts = Column(np.zeros(slots, dtype=np.int64))
        self._counts = Column(np.full(slots, ABSENT, dtype=np.int32))
        self.size = 0

    @classmethod
    def from_arrays(cls, arrays: LoadedArrays, size: int) -> Self:
        """Restore the ranges of `size` items from saved `arrays`. Raises `IndexDamagedError` if they do not match."""
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
        raise IndexDamagedError("the ranges do not match their items")

    def __len__(self) -> int:
        return len(self._counts)

    def append(self, counts: npt.ArrayLike) -> None:
        added = np.asarray(counts, dtype=np.int32)
        self._starts.append(self._begins(added))
        self._counts.append(added)

    def set(self, slots: Slots, counts: npt.ArrayLike) -> None:
        """Replace the items of `slots` (m,) with `counts` (m,) new items each."""
        added = np.asarray(counts, dtype=np.int32)
        self._starts.set(slots, self._begins(added))
        self._counts.set(slots, added)

    def remove(self, slots: Slots) -> None:
        self._counts.set(slots, ABSENT)

    def keep(self, slots: Slots) -> tuple[Self, Items]:
        """Return the ranges of these slots (ascending) with slots and items renumbered from 0, and the kept items."""
        view = self.view()
        items = np.sort(view.items(slots)[0])
        counts = view.counts[slots]
        kept = type(self)()
        kept._starts = Column(np.where(counts > 0, np.searchsorted(items, view.starts[slots]), 0))
        kept._counts, kept.size = Column(counts), len(items)
        return kept, items

    def view(self) -> RangesView:
        return RangesView(self._starts.view(), self._counts.view())

    def arrays(self) -> LoadedArrays:
        return self.view()._asdict()

    def _begins(self, counts: npt.NDArray[np.int32]) -> Items:
        """Return the first item of each new range, and increase `size`."""
        ends = self.size + np.cumsum(np.maximum(counts, 0, dtype=np.int64))
        begins: Items = ends - np.maximum(counts, 0)
        self.size = int(ends[-1]) if len(ends) else self.size
        return begins


class PassageView:
    """The vectors of passages. The cosine of a slot is the cosine of its best passage."""

    def __init__(self, first: TableView, further: TableView, ranges: RangesView, owners: npt.NDArray[np.int32]) -> None:
        """`owners` (p,) are the slots of the further passages."""
        self._first, self._further = first, further
        self._ranges, self._owners = ranges, owners

    @property
    def ndim(self) -> int:
        return self._first.ndim

    @property
    def count(self) -> int:
        return self._first.count

    @property
    def is_approximate(self) -> bool:
        """Whether `scan` without a mask uses a graph, which may miss a vector."""
        return self._first.is_approximate or (self._further.count > 0 and self._further.is_approximate)

    def scan(
        self,
        query: Embedding,
        limit: int,
        mask: Mask | None = None,
        where: Where = EVERYTHING,
        timeout_s: float | None = None,
    ) -> Cosines:
        """Return approximate cosines of the best passages, at least for the best `limit` slots.

        With a `mask` (n,), only the slots that the mask selects are scanned. `where` and `timeout_s` are used only by
        other indexes (`IndexedView.scan`). If only one of the two graphs finds a slot, all passages of the slot are
        scanned again. Raises as `TableView.scan`.
        """
        first = self._first.scan(query, limit, mask)
        if not self._further.count:
            return first
        further = self._scan_further(query, limit, mask)
        unseen = max(first.unseen, further.unseen)
        if unseen > -inf:
            seen = ~np.isnan(first.values)
            seen[self._owners[~np.isnan(further.values)]] = True
            return self.scan(query, limit, seen)._replace(unseen=unseen)
        starts, owners = self._groups
        best = np.fmax.reduceat(further.values, starts)
        first.values[owners] = np.fmax(first.values[owners], best)
        return Cosines(first.values, max(first.error, further.error), unseen)

    def cosines(self, query: Embedding, slots: Slots) -> Scores:
        """Return the exact cosines (m,) of the best passages, or NaN where a slot has no vector."""
        return self.best_passages(query, slots)[0]

    def best_passages(self, query: Embedding, slots: Slots) -> tuple[Scores, npt.NDArray[np.int64]]:
        """Return the cosines (m,) and the zero-based numbers (m,) of the best passages; on a tie, the first passage."""
        best, places = self._first.cosines(query, slots), np.zeros(len(slots), dtype=np.int64)
        if not self._further.count:
            return best, places
        items, counts = self._ranges.items(slots)
        several = np.flatnonzero(counts)
        if not len(several):
            return best, places
        found = self._further.cosines(query, items)
        starts = (np.cumsum(counts) - counts)[several]
        highest = np.maximum.reduceat(found, starts)
        is_highest = np.flatnonzero(found == np.repeat(highest, counts[several]))
        is_better = highest > best[several]
        place = 1 + is_highest[np.searchsorted(is_highest, starts)] - starts
        best[several[is_better]] = highest[is_better]
        places[several[is_better]] = place[is_better]
        return best, places

    def vectors(self, slots: Slots) -> Embedding:
        """Return the vectors (m, d) of the first passages, or zeros where a slot has no vector."""
        return self._first.vectors(slots)

    def further(self, slot: int) -> Embedding:
        """Return the vectors of one slot's further passages, one row each."""
        return self._further.vectors(self._ranges.items(np.array([slot]))[0])

    def _scan_further(self, query: Embedding, limit: int, mask: Mask | None) -> Cosines:
        """Scan further passages until the best ones belong to `limit` slots, since they may all belong to one slot."""
        wanted = limit
        while mask is None and wanted < self._further.count:
            found = self._further.scan(query, wanted)
            if found.unseen == -inf or len(np.unique(self._owners[~np.isnan(found.values)])) >= limit:
                return found
            wanted *= 2
        is_asked = np.ones(len(self._owners), dtype=np.bool_) if mask is None else mask[self._owners]
        return self._further.scan(query, wanted, is_asked)

    @cached_property
    def _groups(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        """The first further passage of each slot that has further passages, and the numbers of these slots."""
        starts = np.flatnonzero(np.diff(self._owners, prepend=-1))
        return starts, self._owners[starts]


class PassageVectors:
    """The vectors of passages by slot. One thread changes them; any thread may use `view`."""

    source = None  # the built-in index has no external source

    def __init__(self, first: VectorTable, further: VectorTable) -> None:
        self._first, self._further = first, further
        self._ranges = Ranges()
        self._owners = Column(np.empty(0, dtype=np.int32))

    @classmethod
    def from_arrays(cls, arrays: LoadedArrays, first: VectorTable, further: VectorTable) -> Self:
        """Restore the passages from `arrays` and restored tables. Raises `IndexDamagedError`."""
        owners = arrays.get("owners")
        if owners is None or owners.dtype != np.int32:
            raise IndexDamagedError("the passages do not match their vectors")
        passages = cls(first, further)
        passages._ranges = Ranges.from_arrays(arrays, len(owners))
        passages._owners = Column(owners)
        return passages

    def append(self, vectors: Embedding, further: Sequence[Embedding | None] | None = None) -> None:
        """Add slots, like `VectorTable.append`, with each slot's further passages."""
        start = len(self._ranges)
        self._first.append(vectors)
        counts = [0 if one is None else len(one) for one in further or [None] * len(vectors)]
        self._ranges.append(counts)
        self._add(np.arange(start, start + len(counts)), counts, further or ())

    def set(self, slots: Slots, vectors: Embedding, further: Sequence[Embedding | None] | None = None) -> bool:
        """Set the vectors of `slots`, like `VectorTable.set`, with each slot's further passages."""
        if not self._first.set(slots, vectors):
            return False
        counts = [0 if one is None else len(one) for one in further or [None] * len(vectors)]
        if any(counts):
            self._ranges.set(slots, counts)
            self._add(slots, counts, further or ())
        return True

    def remove(self, slots: Slots) -> None:
        """Drop the vectors of `slots`, but keep the slots."""
        self._first.remove(slots)
        if self._ranges.size:
            self._further.remove(self._ranges.view().items(slots)[0])
            self._ranges.set(slots, np.zeros(len(slots)))

    def keep(self, slots: Slots) -> Self:
        """Return the passages of only these slots (ascending), renumbered from 0."""
        ranges, items = self._ranges.keep(slots)
        kept = type(self)(self._first.keep(slots), self._further.keep(items))
        kept._ranges = ranges
        kept._owners = Column(np.searchsorted(slots, self._owners.view()[items]).astype(np.int32))
        return kept

    def view(self, rows: RowSlots | None = None) -> PassageView:
        """Return the current vectors. `rows` is for other indexes (`IndexedVectors.view`)."""
        return PassageView(self._first.view(), self._further.view(), self._ranges.view(), self._owners.view())

    def arrays(self) -> Arrays:
        parts = {"first": self._first, "further": self._further}
        indexes = {f"{part}.{name}": array for part, index in parts.items() for name, array in index.arrays().items()}
        return {**indexes, **self._ranges.arrays(), "owners": self._owners.view()}

    def graph_writer(self) -> GraphWriter:
        writers = self._first.graph_writer(), self._further.graph_writer()

        def write(path: Path, cipher: Cipher | None) -> None:
            for writer, file in zip(writers, graph_files(path), strict=True):
                writer(file, cipher)

        return write

    def load_graph(self, path: Path, cipher: Cipher | None = None) -> None:
        for index, file in zip((self._first, self._further), graph_files(path), strict=True):
            index.load_graph(file, cipher)

    def close(self) -> None:
        self._first.close()
        self._further.close()

    def _add(self, slots: Slots, counts: Sequence[int], further: Sequence[Embedding | None]) -> None:
        if any(counts):
            self._further.append(np.concatenate([one for one in further if one is not None and len(one)]))
            self._owners.append(np.repeat(slots, counts))


def graph_files(path: Path) -> tuple[Path, Path]:
    """Return the files of the two graphs: one for first passages, and one for further passages."""
    return path, path.with_name(f"passages-{path.name}")


_STEPS = 127  # quantisation steps between zero and the largest component of a query word
_LEAST = 1e-6  # query words whose largest component is smaller are treated as zero
_AT_ONCE = 1_000  # slots compared together: 20 MB with 40 words per slot and 64 query words


class WordBitsView:
    """The words. `lengths` (n,) are token counts before truncation, or 0 if unknown."""

    def __init__(self, ranges: RangesView, bits: npt.NDArray[Any], lengths: npt.NDArray[np.int32], count: int) -> None:
        self.lengths = lengths
        self.count = count  # number of slots whose words are known, including slots without any words
        self._ranges = ranges
        self._bits = bits

    @property
    def known(self) -> npt.NDArray[np.bool_]:
        is_known: npt.NDArray[np.bool_] = self._ranges.counts != ABSENT
        return is_known

    def of(self, slots: Slots) -> tuple[Bits, Counts]:
        """Return the words (w, b) of `slots`, slot by slot, and the number of words in each slot (m,)."""
        words, counts = self._ranges.items(slots)
        taken = self._bits.take(words)  # one array element per word is 30 times as fast as one row of bytes per word
        return taken.view(np.uint8).reshape(len(words), self._bits.itemsize), counts

    def similarities(self, query_words: npt.NDArray[np.floating[Any]], slots: Slots) -> Scores:
        """Return the similarity of each of `query_words` (q, d) to the nearest word of each slot: (q, m), -1 to 1.

        The similarity is the inner product with the word's signs, divided by sqrt(d), with an error of at most 0.001.
        It is NaN for a slot whose words are unknown or have a different d.
        """
        found = np.full((len(query_words), len(slots)), np.nan)
        if not len(query_words) or 8 * self._bits.itemsize != query_words.shape[1]:
            return found
        wanted = query_words.astype(np.float32)  # numpy processes float16 values one by one
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
    """The words by slot. The first word determines b. One thread changes them; any thread may use `view`."""

    def __init__(self, slots: int = 0) -> None:
        self._ranges = Ranges(slots)
        self._lengths = Column(np.zeros(slots, dtype=np.int32))
        self._bits: Column[Any] | None = None
        self._count = 0

    def append(self, words: Sequence[Words | None]) -> None:
        """Add slots with their words (None: unknown). Raises `IndexDamagedError` for a width other than b."""
        known = [one.bits for one in words if one is not None]
        if known:
            self._add(np.concatenate(known))
        self._ranges.append([ABSENT if one is None else len(one.bits) for one in words])
        self._lengths.append([0 if one is None else one.length for one in words])
        self._count += sum(one is not None for one in words)

    def set(self, slots: Slots, lengths: npt.ArrayLike, counts: npt.ArrayLike, bits: Bits) -> None:
        """Replace the words of `slots` (m,) with the `bits` (w, b). Raises `IndexDamagedError` if b differs."""
        self._add(bits)
        self._count += len(slots) - self._known_among(slots)
        self._ranges.set(slots, counts)
        self._lengths.set(slots, lengths)

    def remove(self, slots: Slots) -> None:
        """Drop the words of `slots`; `keep` frees their memory. Idempotent."""
        self._count -= self._known_among(slots)
        self._ranges.remove(slots)
        self._lengths.set(slots, 0)

    def keep(self, slots: Slots) -> Self:
        """Return the words of only these slots (ascending), renumbered from 0, without the bits of other slots."""
        kept = type(self)()
        kept._ranges, items = self._ranges.keep(slots)
        kept._lengths = Column(self._lengths.view()[slots])
        kept._bits = None if self._bits is None else Column(self._bits.view().take(items))
        kept._count = self._known_among(slots)
        return kept

    def view(self) -> WordBitsView:
        bits = np.empty(0, dtype="V1") if self._bits is None else self._bits.view()
        return WordBitsView(self._ranges.view(), bits, self._lengths.view(), self._count)

    def _known_among(self, slots: Slots) -> int:
        return int(np.count_nonzero(self._ranges.view().counts[slots] != ABSENT))

    def _add(self, bits: Bits) -> None:
        if not len(bits):
            return
        width = bits.shape[1]
        if self._bits is None:
            self._bits = Column(np.empty(0, dtype=f"V{width}"))
        if self._bits.view().itemsize != width:
            raise IndexDamagedError(f"the words have {width} bytes each, expected {self._bits.view().itemsize}")
        self._bits.append(np.ascontiguousarray(bits).view(f"V{width}").ravel())
