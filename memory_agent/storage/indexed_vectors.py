"""Records which slots have a vector, and finds the slots nearest to a query, for a user whose index is in another
engine.

Replaces `passages.PassageVectors`. The engine finds candidates, and their exact cosines are computed from the vectors
in the store. If few slots pass the filter, all their vectors are read from the store instead, so the search is exact.

Shapes: n = all slots, k and m = slots passed as an argument, d = dimensions, p = passages of a memory.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from math import inf, nan
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt

from memory_agent.errors import IndexDamagedError, InvalidInputError
from memory_agent.indexes import EVERYTHING, Hits, Where
from memory_agent.records.embedded import Embedding
from memory_agent.storage.changes import Rows
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

_NONE, _ONE, _SEVERAL = 0, 1, 2  # passages with a vector
_READ_AT_MOST = 1_000  # up to this many vectors are read from the store (5 ms), without a search in the engine
_SPARE = 16  # extra candidates, because an engine may round vectors
_FURTHER = 4  # factor by which the limit grows after a search that found too few slots
_ERROR = 1e-6  # rounding error of a cosine in float32
_KEPT = 4  # number of queries for which a view caches cosines

Places = npt.NDArray[np.int64]


class Source(Protocol):
    """The engine for candidates, and the store for the vectors themselves (`IndexFollower`)."""

    @property
    def is_approximate(self) -> bool: ...

    def nearest(self, query: Embedding, limit: int, where: Where, timeout_s: float | None) -> Hits: ...

    def vectors(self, rows: Rows) -> Embedding: ...

    def further(self, rows: Rows) -> list[Embedding]: ...


class IndexedView:
    """A snapshot of the slots with vectors, like `PassageView`. Rows changed since then have their current vectors."""

    def __init__(self, source: Source, held: npt.NDArray[np.uint8], rows: RowSlots, ndim: int, count: int) -> None:
        self.ndim = ndim
        self.count = count
        self._source, self._held, self._rows = source, held, rows
        self._known: dict[bytes, dict[int, tuple[float, int]]] = {}

    @property
    def is_approximate(self) -> bool:
        return self._source.is_approximate

    def scan(
        self,
        query: Embedding,
        limit: int,
        mask: Mask | None = None,
        where: Where = EVERYTHING,
        timeout_s: float | None = None,
    ) -> Cosines:
        """Return cosines of the best passages for the best `limit` slots, among those in `mask` (n,).

        The engine applies `where`, a filter that all slots in `mask` pass. Raises `InvalidInputError` like
        `TableView.scan`. If the engine is needed, raises `IndexUnavailableError` or `IndexUnusableError` when it fails
        or takes longer than `timeout_s`.
        """
        self._check(query)
        asked = self._held > _NONE if mask is None else mask & (self._held > _NONE)
        total = int(np.count_nonzero(asked))
        is_all = total <= max(_READ_AT_MOST, limit)
        if is_all:
            slots = np.flatnonzero(asked)
        else:
            slots, is_all = self._nearest(query, limit, asked, where, timeout_s)
        values = np.full(len(self._held), nan, dtype=np.float32)
        values[slots] = self.cosines(query, slots)
        return Cosines(values, _ERROR, -inf if is_all else float(np.fmin.reduce(values[slots], initial=1.0)))

    def cosines(self, query: Embedding, slots: Slots) -> Scores:
        return self.best_passages(query, slots)[0]

    def best_passages(self, query: Embedding, slots: Slots) -> tuple[Scores, Places]:
        """Return the cosines (m,) and the zero-based numbers (m,) of the best passages; on a tie, the first passage."""
        self._check(query)
        known = self._known_of(query)
        missing = np.array([slot for slot in slots.tolist() if slot not in known], dtype=np.int64)
        if len(missing):
            known |= zip(missing.tolist(), self._read(query, missing), strict=True)
        found = [known[slot] for slot in slots.tolist()]
        return np.array([cosine for cosine, _ in found]), np.array([place for _, place in found], dtype=np.int64)

    def vectors(self, slots: Slots) -> Embedding:
        if not self.ndim:
            return np.zeros((len(slots), 0), dtype=np.float32)
        found = self._source.vectors(self._rows.rows[slots])
        if found.shape[1] != self.ndim:  # the model has changed since this view was created
            return np.zeros((len(slots), self.ndim), dtype=np.float32)
        found[self._held[slots] == _NONE] = 0
        return found

    def further(self, slot: int) -> Embedding:
        if self._held[slot] != _SEVERAL:
            return np.zeros((0, self.ndim), dtype=np.float32)
        return self._source.further(self._rows.rows[[slot]])[0]

    def _check(self, query: Embedding) -> None:
        if query.ndim != 1 or (self.ndim and query.size != self.ndim):
            raise InvalidInputError("vector", f"has shape {query.shape}, expected ({self.ndim or 'd'},)")
        if not np.isfinite(query).all():
            raise InvalidInputError("vector", "is not finite")
        if not query.any():
            raise InvalidInputError("vector", "has length zero")

    def _known_of(self, query: Embedding) -> dict[int, tuple[float, int]]:
        """Return the cache of this query's cosines, which a recall reads repeatedly."""
        key = query.tobytes()
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _KEPT:
                self._known.clear()
            known = self._known[key] = {}
        return known

    def _read(self, query: Embedding, slots: Slots) -> list[tuple[float, int]]:
        unit = query.astype(np.float64) / np.linalg.norm(query)
        best = _cosines(self.vectors(slots), unit).tolist()
        places = [0] * len(slots)
        several = np.flatnonzero(self._held[slots] == _SEVERAL)
        for place, vectors in zip(several.tolist(), self._source.further(self._rows.rows[slots[several]]), strict=True):
            further = _cosines(vectors, unit)
            if len(further) and further.max() > best[place]:
                best[place], places[place] = float(further.max()), 1 + int(further.argmax())
        return list(zip(best, places, strict=True))

    def _nearest(
        self, query: Embedding, limit: int, asked: Mask, where: Where, timeout_s: float | None
    ) -> tuple[Slots, bool]:
        """Return the nearest slots in `asked`, at least `limit` of them if possible, and whether the index has no
        others in `asked`.
        """
        wanted, until_s = limit + _SPARE, time.monotonic() + (inf if timeout_s is None else timeout_s)
        while True:
            left_s = None if timeout_s is None else max(0.0, until_s - time.monotonic())
            hits = self._source.nearest(query, wanted, where, left_s)
            slots = np.unique(self._rows.slots(hits.rows))
            slots = slots[slots >= 0]
            slots = slots[asked[slots]]
            is_all = len(hits.rows) < wanted
            if is_all or len(slots) >= limit:
                return slots, is_all
            wanted *= _FURTHER


class IndexedVectors:
    """Which slots have vectors in an index. One thread changes them; any thread may use `view`."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._held = Column(np.empty(0, dtype=np.uint8))
        self._ndim = 0

    @classmethod
    def from_arrays(cls, arrays: LoadedArrays, source: Source) -> Self:
        """Restore from saved `arrays`. Raises `IndexDamagedError` if they are inconsistent."""
        held, ndim = arrays.get("held"), arrays.get("ndim")
        if held is None or ndim is None or held.dtype != np.uint8 or held.ndim != 1 or ndim.size != 1:
            raise IndexDamagedError("the vectors are not those of an index")
        restored = cls(source)
        restored._held, restored._ndim = Column(held), int(ndim[0])
        return restored

    def append(self, vectors: Embedding, further: Sequence[Embedding | None] | None = None) -> None:
        """Add slots, like `PassageVectors.append`."""
        self._held.append(self._kinds(vectors, further))

    def set(self, slots: Slots, vectors: Embedding, further: Sequence[Embedding | None] | None = None) -> bool:
        """Set the vectors of `slots`. Always succeeds, because the engine replaces entries."""
        self._held.set(slots, self._kinds(vectors, further))
        return True

    def remove(self, slots: Slots) -> None:
        self._held.set(slots, _NONE)

    def keep(self, slots: Slots) -> Self:
        kept = type(self)(self.source)
        kept._held, kept._ndim = Column(self._held.view()[slots]), self._ndim
        return kept

    def view(self, rows: RowSlots) -> IndexedView:
        """Return the current vectors; `rows` are the rows of the slots."""
        held = self._held.view()
        return IndexedView(self.source, held, rows, self._ndim, int(np.count_nonzero(held)))

    def arrays(self) -> Arrays:
        return {"held": self._held.view(), "ndim": np.array([self._ndim])}

    def graph_writer(self) -> GraphWriter:
        """Return a function that removes the built-in index's graph file."""
        return lambda path, _: path.unlink(missing_ok=True)

    def close(self) -> None: ...

    def _kinds(self, vectors: Embedding, further: Sequence[Embedding | None] | None) -> npt.NDArray[np.uint8]:
        has = vectors.any(axis=1)
        if has.any():
            self._ndim = self._ndim or vectors.shape[1]
            if vectors.shape[1] != self._ndim:
                raise InvalidInputError("vector", f"has shape {vectors.shape[1:]}, expected ({self._ndim},)")
        several = np.array([one is not None and len(one) > 0 for one in further or [None] * len(vectors)], dtype=bool)
        return (has.astype(np.uint8) + (has & several)).astype(np.uint8)


def _cosines(vectors: Embedding, unit: npt.NDArray[np.float64]) -> Scores:
    """Return the cosines (m,) between the vectors (m, d) and a unit vector (d,), with NaN for zero vectors."""
    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64))
    with np.errstate(invalid="ignore"):
        found: Scores = np.clip((vectors @ unit) / lengths, -1.0, 1.0)
    return found
