"""Stores one user's vectors as two int8 planes, whose products numkong computes exactly.

A vector is `scale * (coarse + fine / 254)`, of unit length: `coarse` is the component times 127 divided by the largest
component, rounded, and `fine` is the remainder in units of 1/254. A scan reads only `coarse`. Products of integers are
exact, so equal vectors have equal cosines in any scan. With many vectors, a graph (`vector_graph`) finds the
candidates.

A scale of NaN marks a slot without a vector. Planes are only written at slots whose scale is NaN in every view, so
later changes do not affect a view.

Shapes: n = all slots, k and m = slots passed as an argument, d = dimensions, q = queries, g = groups of rows, b = d / 8
bytes of packed signs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from math import inf, nan
from pathlib import Path
from typing import Any, NamedTuple, Self

import numkong
import numpy as np
import numpy.typing as npt

from memory_agent.errors import IndexDamagedError, InvalidInputError
from memory_agent.records.embedded import Embedding
from memory_agent.storage.column import Arrays, Column, Cosines, GraphWriter, LoadedArrays, Mask, Scores, Slots
from memory_agent.storage.vector_graph import VectorGraph
from relay.crypto import Cipher

Bytes = npt.NDArray[np.int8]
Bits = npt.NDArray[np.uint8]
Scales = npt.NDArray[np.float32]

_COARSE_STEPS = 127  # steps per largest component
_FINE_STEPS = 254  # steps per coarse step
_LEAST_CAPACITY, _MOST_CAPACITY = 8_192, 65_536  # slots per chunk; the chunk of a large append is larger
_GATHER_SHARE = 0.15  # if a mask contains a larger share of the slots, reading all slots in order is faster
_ROUNDING = 1e-6  # rounding error of a scanned cosine in float32
_SPARE = 16  # extra candidates requested from the graph, so that the result usually includes the best `limit`
_GENERATION_BYTES = 8


class _Quantized(NamedTuple):
    """Vectors as integers: planes (k, d), scales (k,), and `rest`, the maximum length of the part that `coarse`
    omits.
    """

    coarse: Bytes
    fine: Bytes
    scales: Scales
    rest: float


class _Chunk(NamedTuple):
    """The rows of both planes (m, d) from slot `start` on."""

    start: int
    coarse: Bytes
    fine: Bytes


class _Planes(NamedTuple):
    """Both planes, two int8 matrices (n, d), in chunks of rows that never move."""

    chunks: tuple[_Chunk, ...] = ()

    def parts(self, count: int) -> Iterator[_Chunk]:
        for start, coarse, fine in self.chunks:
            if start < count:
                yield _Chunk(start, coarse[: count - start], fine[: count - start])

    def take(self, slots: Slots, ndim: int) -> tuple[Bytes, Bytes]:
        if len(self.chunks) == 1:
            _, coarse, fine = self.chunks[0]
            return coarse.take(slots, axis=0), fine.take(slots, axis=0)
        taken = np.empty((2, len(slots), ndim), dtype=np.int8)
        for places, inside, chunk in self._split(slots):
            taken[0, inside] = chunk.coarse.take(places, axis=0)
            taken[1, inside] = chunk.fine.take(places, axis=0)
        return taken[0], taken[1]

    def take_coarse(self, slots: Slots, ndim: int) -> Bytes:
        taken = np.empty((len(slots), ndim), dtype=np.int8)
        for places, inside, chunk in self._split(slots):
            taken[inside] = chunk.coarse.take(places, axis=0)
        return taken

    def put(self, slots: Slots, coarse: Bytes, fine: Bytes) -> None:
        for places, inside, chunk in self._split(slots):
            chunk.coarse[places], chunk.fine[places] = coarse[inside], fine[inside]

    def holding(self, count: int, ndim: int) -> _Planes:
        room = sum(len(chunk.coarse) for chunk in self.chunks)
        if count <= room:
            return self
        capacity = max(count - room, min(max(room, _LEAST_CAPACITY), _MOST_CAPACITY))
        coarse, fine = (np.zeros((capacity, ndim), dtype=np.int8) for _ in range(2))
        return _Planes((*self.chunks, _Chunk(room, coarse, fine)))

    def _split(self, slots: Slots) -> Iterator[tuple[Slots, Slots, _Chunk]]:
        """For each chunk that contains any of `slots`, yield the positions of these slots in the chunk and in `slots`,
        and the chunk.
        """
        for chunk in self.chunks:
            (inside,) = ((slots >= chunk.start) & (slots < chunk.start + len(chunk.coarse))).nonzero()
            if len(inside):
                yield slots[inside] - chunk.start, inside, chunk


class TableView:
    """A snapshot of the vectors of a `VectorTable`."""

    def __init__(
        self, planes: _Planes, scales: Scales, *, ndim: int, count: int, rest: float, graph: VectorGraph | None
    ) -> None:
        self.ndim = ndim
        self.count = count
        self._planes, self._scales = planes, scales
        self._rest = rest
        self._graph = graph

    @property
    def is_approximate(self) -> bool:
        """Whether scans without a mask use the graph."""
        return self._graph is not None and self._graph.is_ready

    def scan(self, query: Embedding, limit: int, mask: Mask | None = None) -> Cosines:
        """Return approximate cosines with `query` (d,), at least for the best `limit` slots.

        With a `mask` (n,), exactly the slots in it are scanned. The error bound follows from the lengths of the omitted
        remainders (Cauchy-Schwarz inequality). Raises `InvalidInputError` for a query that has a non-finite component,
        has length zero, or does not have d dimensions.
        """
        unit = self._quantized(query)
        if not self.count:
            return Cosines(self._unknown(), 0.0, -inf)
        coarse_length = float(unit.scales[0]) * float(np.linalg.norm(unit.coarse.astype(np.float64)))
        error = coarse_length * self._rest + unit.rest + _ROUNDING
        if mask is None and (found := self._near(unit.coarse[0], limit)) is not None:
            near, beyond = found
            values = self._filled(unit, np.concatenate([near, beyond]))
            return Cosines(values, error, float(values[near].min(initial=1.0)) + error)
        if mask is not None and np.count_nonzero(mask) < _GATHER_SHARE * len(mask):
            return Cosines(self._filled(unit, np.flatnonzero(mask)), error, -inf)
        values = np.empty(len(self._scales), dtype=np.float32)
        for start, rows, _ in self._planes.parts(len(values)):
            products_into(unit.coarse, rows, values[None, start : start + len(rows)])
        values *= self._scales * unit.scales
        if mask is not None:
            np.copyto(values, nan, where=~mask)
        return Cosines(values, error, -inf)

    def cosines(self, query: Embedding, slots: Slots) -> Scores:
        """Return the exact cosines (m,) with `query`, or NaN where a slot has no vector. Raises as `scan`."""
        unit = self._quantized(query)
        if not self.count:
            return np.full(len(slots), nan)
        both = np.concatenate([unit.coarse, unit.fine])
        with_coarse, with_fine = (products(both, plane) for plane in self._planes.take(slots, self.ndim))
        product = with_coarse[0] + (with_coarse[1] + with_fine[0]) / _FINE_STEPS + with_fine[1] / _FINE_STEPS**2
        scales = self._scales[slots].astype(np.float64) * float(unit.scales[0])
        cosines: Scores = np.minimum(np.maximum(product * scales, -1.0), 1.0)  # takes a third of the time of `np.clip`
        return cosines

    def _quantized(self, query: Embedding) -> _Quantized:
        vector = np.asarray(query, dtype=np.float32)
        if vector.ndim != 1 or (self.ndim and vector.size != self.ndim):
            raise InvalidInputError("vector", f"has shape {vector.shape}, expected ({self.ndim or 'd'},)")
        return _quantized_query(vector.tobytes())

    def vectors(self, slots: Slots) -> Embedding:
        """Return the vectors (m, d) of unit length, or zeros where a slot has no vector."""
        coarse, fine = self._planes.take(slots, self.ndim)
        scales = self._scales[slots]
        whole = fine.astype(np.float32)
        whole /= _FINE_STEPS
        whole += coarse
        whole *= np.where(np.isnan(scales), np.float32(0), scales)[:, None]
        return whole

    def beyond(self, held: Mask) -> Slots:
        """Return the slots that have a vector and are not in `held`, which may be shorter than n."""
        is_beyond = ~np.isnan(self._scales)
        is_beyond[: len(held)] &= ~held[: len(is_beyond)]
        return np.flatnonzero(is_beyond)

    def coarse(self, slots: Slots) -> Bytes:
        return self._planes.take_coarse(slots, self.ndim)

    def _filled(self, unit: _Quantized, slots: Slots) -> Scales:
        values = self._unknown()
        found = products(unit.coarse, self.coarse(slots))[0]
        values[slots] = found * (self._scales[slots] * unit.scales)
        return values

    def _unknown(self) -> Scales:
        return np.full(len(self._scales), nan, dtype=np.float32)

    def _near(self, query: Bytes, limit: int) -> tuple[Slots, Slots] | None:
        """Return enough of the graph's candidates to find the best `limit`, and the slots that must also be scanned."""
        wanted = 2 * (limit + _SPARE)
        while self._graph is not None and (found := self._graph.search(query, wanted)) is not None:
            near, held = found
            is_all = len(near) < wanted
            near = near[near < len(self._scales)]
            near = near[~np.isnan(self._scales[near])]
            if is_all or len(near) >= limit + _SPARE:
                return near, self.beyond(held)
            wanted *= 2  # many were removed
        return None


class VectorTable:
    """Vectors by slot. The first vector determines d. One thread changes the table; any thread may use `view`."""

    def __init__(self, exact_search_limit: int = 250_000, expansion_search: int = 128) -> None:
        """Create an empty table that builds a graph for more than `exact_search_limit` vectors."""
        self._limit, self._expansion = exact_search_limit, expansion_search
        self._graph: VectorGraph | None = None
        self._generation = os.urandom(_GENERATION_BYTES)
        self._planes = _Planes()
        self._scales = Column(np.empty(0, dtype=np.float32))
        self._ndim = 0
        self._count = 0
        self._rest = 0.0

    @classmethod
    def from_arrays(cls, arrays: LoadedArrays, exact_search_limit: int = 250_000, expansion_search: int = 128) -> Self:
        """Restore the table from saved `arrays`, which are modified in place. Raises `IndexDamagedError`."""
        match arrays:
            case {
                "coarse": np.ndarray() as coarse,
                "fine": np.ndarray() as fine,
                "scales": np.ndarray() as scales,
                "rest": np.ndarray() as rest,
                "generation": np.ndarray() as generation,
            } if (
                coarse.ndim == 2
                and coarse.shape == fine.shape
                and scales.shape == coarse.shape[:1]
                and (rest.size, generation.size) == (1, _GENERATION_BYTES)
            ):
                table = cls(exact_search_limit, expansion_search)
                table._take(coarse, fine, scales, float(rest[0]))
                table._generation = generation.tobytes()
                return table
        raise IndexDamagedError("the vector arrays are inconsistent")

    def _take(self, coarse: Bytes, fine: Bytes, scales: Scales, rest: float) -> None:
        self._ndim, self._rest = coarse.shape[1], rest
        self._scales = Column(scales)
        if coarse.size:
            self._planes = _Planes((_Chunk(0, coarse, fine),))
        self._count = int(np.count_nonzero(~np.isnan(scales)))

    def append(self, vectors: Embedding) -> None:
        """Add all slots or none, with `vectors` (k, d); a row of zeros stands for no vector. Raises
        `InvalidInputError`.
        """
        added = self._accepted(vectors)
        start, end = len(self._scales), len(self._scales) + len(added.scales)
        self._write(np.arange(start, end), added, end)
        self._scales.append(added.scales)

    def set(self, slots: Slots, vectors: Embedding) -> bool:
        """Set the vectors of `slots` (k,). If any of the slots has ever had a vector, set none and return False. Raises
        `InvalidInputError`.
        """
        added = self._accepted(vectors)
        if np.isnan(added.scales).any():
            raise InvalidInputError("vector", "has length zero")
        if self._ndim and self._planes.take_coarse(slots, self._ndim).any():  # planes are zero until a vector is set
            return False
        self._write(slots, added, len(self._scales))
        self._scales.set(slots, added.scales)
        return True

    def remove(self, slots: Slots) -> None:
        """Drop the vectors of `slots`. Their bytes remain until `keep`. Idempotent."""
        self._count -= int(np.count_nonzero(~np.isnan(self._scales.view()[slots])))
        self._scales.set(slots, nan)

    def keep(self, slots: Slots) -> Self:
        """Return a new table of only these slots (ascending), renumbered from 0, without the bytes of other slots."""
        coarse, fine = self._planes.take(slots, self._ndim)
        scales = self._scales.view()[slots]
        coarse[np.isnan(scales)] = fine[np.isnan(scales)] = 0
        kept = type(self)(self._limit, self._expansion)
        kept._take(coarse, fine, scales, self._rest)
        return kept

    def view(self) -> TableView:
        """Return the current vectors; the graph follows them in the background."""
        if self._graph is None and self._count > self._limit:
            self._graph = VectorGraph(self._ndim, self._expansion)
        graph = self._graph if self._count > self._limit else None
        view = TableView(
            self._planes, self._scales.view(), ndim=self._ndim, count=self._count, rest=self._rest, graph=graph
        )
        if graph is not None:
            graph.follow(view)
        return view

    def close(self) -> None:
        if self._graph is not None:
            self._graph.close()

    def arrays(self) -> Arrays:
        """Return the content, for `from_arrays`. A later `set` may change planes whose scale is NaN here."""
        count = len(self._scales)
        none = np.empty((count, self._ndim), dtype=np.int8)  # d is 0 before the first vector
        return {
            "coarse": [part.coarse for part in self._planes.parts(count)] or [none],
            "fine": [part.fine for part in self._planes.parts(count)] or [none],
            "scales": self._scales.view(),
            "rest": np.array([self._rest]),
            "generation": np.frombuffer(self._generation, dtype=np.uint8),
        }

    def graph_writer(self) -> GraphWriter:
        """Return a function that writes the current graph or, if there is none, removes the file."""
        if self._graph is None:
            return lambda path, _: path.unlink(missing_ok=True)
        return self._graph.writer(self._generation.hex())

    def load_graph(self, path: Path, cipher: Cipher | None = None) -> None:
        if self._count > self._limit:
            with suppress(IndexDamagedError):
                self._graph = VectorGraph.load(
                    path, self._ndim, self._generation.hex(), len(self._scales), self._expansion, cipher
                )

    def _accepted(self, vectors: Embedding) -> _Quantized:
        if vectors.shape[1] not in (0, self._ndim) and self._ndim:
            raise InvalidInputError("vector", f"has shape {vectors.shape[1:]}, expected ({self._ndim},)")
        return _quantized(vectors)

    def _write(self, slots: Slots, added: _Quantized, end: int) -> None:
        """Write the vectors of `slots` (k,); `end` is the number of slots afterwards."""
        arrived = np.flatnonzero(~np.isnan(added.scales))
        if not self._ndim and len(arrived):
            self._ndim = added.coarse.shape[1]
        if not self._ndim:
            return
        self._planes = self._planes.holding(end, self._ndim)
        self._planes.put(slots[arrived], added.coarse[arrived], added.fine[arrived])
        self._count += len(arrived)
        self._rest = max(self._rest, added.rest)


@lru_cache(maxsize=4)
def _quantized_query(vector: bytes) -> _Quantized:
    """Quantize one query (d,) of float32. Cached, because a recall uses each query repeatedly."""
    quantized = _quantized(np.frombuffer(vector, dtype=np.float32)[None])
    if np.isnan(quantized.scales[0]):
        raise InvalidInputError("vector", "has length zero")
    return quantized


def _quantized(vectors: Embedding) -> _Quantized:
    largest = np.abs(vectors).max(axis=1, initial=0.0)
    if not np.isfinite(largest).all():
        raise InvalidInputError("vector", "is not finite")
    is_there = largest > 0
    scaled = vectors / np.where(is_there, largest, 1)[:, None] * np.float32(_COARSE_STEPS)
    coarse = np.rint(scaled)
    fine = np.rint((scaled - coarse) * _FINE_STEPS)
    rest = fine / np.float32(_FINE_STEPS)
    lengths = np.where(is_there, _lengths(coarse + rest), nan)
    rests = _lengths(rest) / lengths
    return _Quantized(
        coarse.astype(np.int8),
        fine.astype(np.int8),
        (1 / lengths).astype(np.float32),
        float(np.max(rests, where=is_there, initial=0.0)),
    )


def _lengths(vectors: npt.NDArray[np.floating[Any]]) -> Scores:
    lengths: Scores = np.sqrt(np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64))
    return lengths


def products(queries: Bytes, rows: Bytes) -> Scores:
    """Return the exact inner products of `queries` (q, d) with `rows` (m, d): (q, m)."""
    found = np.zeros((len(queries), len(rows)))
    if len(rows):  # numkong rejects empty input
        numkong.cdist(queries, rows, "inner", out=found)
    return found


def products_into(query: Bytes, rows: Bytes, out: npt.NDArray[np.float32]) -> None:
    """Write the inner products of `query` (1, d) with `rows` (m, d) into `out` (1, m)."""
    numkong.cdist(query, rows, "inner", out=out)


def greatest_with_signs(queries: Bytes, signs: Bits, starts: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """Return the greatest inner products of `queries` (q, d) with rows of +1 and -1, in each group of rows: (g, q).

    The rows are bits (m, b), 1 for +1 and 0 for -1; the groups start at `starts` (g,). The product with a row of signs
    is twice the product with its bits, minus the sum of the query's components.
    """
    ones = np.unpackbits(signs, axis=1).view(np.int8)
    packed = numkong.dots_pack(queries, "int8")  # 7 times as fast as unpacked, for 8 queries
    halves = np.asarray(numkong.dots_packed(ones, packed))
    greatest: npt.NDArray[np.int32] = np.maximum.reduceat(halves, starts, axis=0)
    greatest *= 2
    greatest -= queries.sum(axis=1, dtype=np.int32)
    return greatest
