"""Several vectors for one slot: a long text has one for each of its passages, and the best one counts.

The first passage of every slot is in one `VectorIndex`, further ones are in another, where they are numbered for
themselves and next to each other. Without further passages the first index answers alone.

n = number of slots, m = number of slots given, p = number of further passages, d = dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from memory_agent.errors import IndexDamagedError
from memory_agent.records.embedded import Embedding
from memory_agent.storage.column import Column
from memory_agent.storage.indexes import (
    Arrays,
    Cosines,
    GraphWriter,
    LoadedArrays,
    Mask,
    Scores,
    Slots,
    VectorIndex,
    VectorView,
)
from memory_agent.storage.ranges import Ranges, RangesView
from relay.crypto import Cipher


class PassageView:
    """The passages at one moment, a `VectorView` whose cosine of a slot is that of its best passage."""

    def __init__(
        self, first: VectorView, further: VectorView, ranges: RangesView, owners: npt.NDArray[np.int32]
    ) -> None:
        """Take the views of both indexes; `owners` (p,) are the slots of the further passages."""
        self._first, self._further = first, further
        self._ranges, self._owners = ranges, owners

    @property
    def ndim(self) -> int:
        """d, 0 before the first vector."""
        return self._first.ndim

    @property
    def count(self) -> int:
        """Number of slots that have a vector."""
        return self._first.count

    @property
    def passage_count(self) -> int:
        """Number of vectors: a slot without further passages has one."""
        return self._first.count + self._further.count

    @property
    def is_approximate(self) -> bool:
        """As `VectorView.is_approximate`."""
        return self._first.is_approximate or (self._further.count > 0 and self._further.is_approximate)

    def scan(self, query: Embedding, limit: int, mask: Mask | None = None) -> Cosines:
        """Return approximate cosines of the best passages as `VectorView.scan` does.

        A slot that only one of two graphs found is looked at whole then, so that no value lacks a passage.
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
        """Return the exact cosines of the best passages as `VectorView.cosines` does."""
        return self.best_passages(query, slots)[0]

    def best_passages(self, query: Embedding, slots: Slots) -> tuple[Scores, npt.NDArray[np.int64]]:
        """Return the cosines of the best passages (m,), and which they are (m,), from 0; the earlier of equal ones."""
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
        """Return the vectors (m, d) of the first passages as `VectorView.vectors` does."""
        return self._first.vectors(slots)

    def further(self, slot: int) -> Embedding:
        """Return the vectors of the further passages of one slot, one row each."""
        return self._further.vectors(self._ranges.items(np.array([slot]))[0])

    def _scan_further(self, query: Embedding, limit: int, mask: Mask | None) -> Cosines:
        """Scan the further passages for those of the best `limit` slots: several of one slot may be among the best."""
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
        """Where the passages of each slot begin, and their slots. Those of removed slots have no vector any more."""
        starts = np.flatnonzero(np.diff(self._owners, prepend=-1))
        return starts, self._owners[starts]


class PassageVectors:
    """Passages by slot, a `VectorIndex` of first passages with the further ones beside them."""

    def __init__(self, first: VectorIndex, further: VectorIndex) -> None:
        """Begin with two empty indexes of the same engine."""
        self._first, self._further = first, further
        self._ranges = Ranges()
        self._owners = Column(np.empty(0, dtype=np.int32))

    @classmethod
    def from_arrays(cls, arrays: LoadedArrays, first: VectorIndex, further: VectorIndex) -> Self:
        """Return the index whose `arrays` were saved, with the indexes of their sections `first` and `further`.

        Raises `IndexDamagedError` where they do not fit each other.
        """
        owners = arrays.get("owners")
        if owners is None or owners.dtype != np.int32:
            raise IndexDamagedError("the passages do not fit their vectors")
        passages = cls(first, further)
        passages._ranges = Ranges.from_arrays(arrays, len(owners))
        passages._owners = Column(owners)
        return passages

    def append(self, vectors: Embedding, further: Sequence[Embedding | None] | None = None) -> None:
        """Add slots as `VectorIndex.append` does, with the further passages of each."""
        start = len(self._ranges)
        self._first.append(vectors)
        counts = [0 if one is None else len(one) for one in further or [None] * len(vectors)]
        self._ranges.append(counts)
        self._add(np.arange(start, start + len(counts)), counts, further or ())

    def set(self, slots: Slots, vectors: Embedding, further: Sequence[Embedding | None] | None = None) -> bool:
        """Give `slots` a vector as `VectorIndex.set` does, with the further passages of each."""
        if not self._first.set(slots, vectors):
            return False
        counts = [0 if one is None else len(one) for one in further or [None] * len(vectors)]
        if any(counts):
            self._ranges.set(slots, counts)
            self._add(slots, counts, further or ())
        return True

    def remove(self, slots: Slots) -> None:
        """Drop the vectors of `slots` as `VectorIndex.remove` does."""
        self._first.remove(slots)
        if self._ranges.size:
            self._further.remove(self._ranges.view().items(slots)[0])
            self._ranges.set(slots, np.zeros(len(slots)))

    def keep(self, slots: Slots) -> Self:
        """Return a new index of `slots` alone as `VectorIndex.keep` does."""
        ranges, items = self._ranges.keep(slots)
        kept = type(self)(self._first.keep(slots), self._further.keep(items))
        kept._ranges = ranges
        kept._owners = Column(np.searchsorted(slots, self._owners.view()[items]).astype(np.int32))
        return kept

    def view(self) -> PassageView:
        """Return the vectors as of now."""
        return PassageView(self._first.view(), self._further.view(), self._ranges.view(), self._owners.view())

    def arrays(self) -> Arrays:
        """Return the content, to be saved."""
        parts = {"first": self._first, "further": self._further}
        indexes = {f"{part}.{name}": array for part, index in parts.items() for name, array in index.arrays().items()}
        return {**indexes, **self._ranges.arrays(), "owners": self._owners.view()}

    def graph_writer(self) -> GraphWriter:
        """Return what writes both graphs, as `VectorIndex.graph_writer` does."""
        writers = self._first.graph_writer(), self._further.graph_writer()

        def write(path: Path, cipher: Cipher | None) -> None:
            for writer, file in zip(writers, graph_files(path), strict=True):
                writer(file, cipher)

        return write

    def load_graph(self, path: Path, cipher: Cipher | None = None) -> None:
        """Load both graphs, as `VectorIndex.load_graph` does."""
        for index, file in zip((self._first, self._further), graph_files(path), strict=True):
            index.load_graph(file, cipher)

    def close(self) -> None:
        """Stop work in the background. Idempotent."""
        self._first.close()
        self._further.close()

    def _add(self, slots: Slots, counts: Sequence[int], further: Sequence[Embedding | None]) -> None:
        if any(counts):
            self._further.append(np.concatenate([one for one in further if one is not None and len(one)]))
            self._owners.append(np.repeat(slots, counts))


def graph_files(path: Path) -> tuple[Path, Path]:
    """Return the files of the graph of the first passages, which is `path`, and of that of the further ones."""
    return path, path.with_name(f"passages-{path.name}")
