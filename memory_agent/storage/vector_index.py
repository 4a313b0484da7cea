"""Nearest vectors of one user, exactly and approximately: a cache of the store's vectors, held by usearch.

Up to a limit (20,000) usearch scans a flat table of bfloat16, which loses nothing, does not decay by deletes and takes
.3 ms per 10,000 vectors; above, an HNSW graph over int8 finds candidates. In both the scores come from the store's own
vectors, in float32, so they are the same on every path. Distances do not leave this file: a score is a cosine.

Under a filter the graph is never asked, since it may miss: the rows that pass are read one by one, or all vectors are
scanned, and the scan goes on until what it has not returned cannot belong to the best, its rounding included.

What usearch does not do is done here (measured, see decision 0004): NaN is kept out, since it would rank first; one
Python thread at a time; saved files carry our header and a checksum that is compared before usearch sees a byte, since
a flipped bit in one kills the process. It does not decide when to be rebuilt from the store: that is `derived`.
Rejected: float32 in numpy (twice the memory, slower above 10,000), and one graph for all sizes.

n = number of rows, d = dimensions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from itertools import islice
from math import ceil, inf
from pathlib import Path
from typing import Any

import numpy as np
from usearch.index import Index

from memory_agent.errors import IndexDamagedError
from memory_agent.records import Embedding
from memory_agent.storage.changes import Change, Changes, Rows, Scores
from memory_agent.storage.codec import unit_vector
from memory_agent.storage.nearest import SPARE, best, growth, least, reading_us, scanning_us, small
from memory_agent.storage.vector_index_file import IndexHeader, parse_index, write_index
from relay.cipher import Cipher

Keep = Callable[[Rows], Rows]
"""Says which of some rows may answer."""

_ENGINE = f"usearch {version('usearch')}"
_CHUNK = 1_000  # vectors held in memory at a time while building
_GRAPH_CHUNK = 16  # added to a graph while searches wait: about 5 ms
_SLACK = 16  # candidates beyond the limit: the edge of the best lies among them, as a rule
_BF16_ERROR = 0.004  # of a scanned cosine; the bound, since each component is off by 2^-9 of itself at most
INT8_ERROR = 0.012  # the same: 23 standard deviations for MiniLM, 5 where one component of many is large
_WORN_SHARE = 0.3  # of removed slots: from there on a graph searches slower by factors
_WORN_FROM = 1_000  # slots; below, wear costs nothing


class VectorIndex:
    """The vectors of one store. Threads may share it; changes are applied by one at a time."""

    def __init__(
        self,
        read_vectors: Callable[[Rows], Embedding],
        exact_search_limit: int = 20_000,
        expansion_search: int = 128,
    ) -> None:
        """`read_vectors` maps rows (n,) to the store's unit vectors (n, d), zeros where there is none."""
        self.applied = 0
        self.stamp = ""
        self.lineage = ""
        self.ndim = 0
        self._read_vectors = read_vectors
        self._limit = exact_search_limit
        self._expansion = expansion_search
        self._engine: Any = None
        self._is_graph = False
        self._slots = 0  # most vectors held at once since the engine was built
        self._removed = 0  # vectors removed since then
        self._using = threading.Lock()
        self._changing = threading.RLock()

    def __len__(self) -> int:
        engine = self._engine
        return 0 if engine is None else len(engine)

    @property
    def is_approximate(self) -> bool:
        """Whether searches go through the graph."""
        return self._is_graph

    def search(self, query: Embedding, limit: int) -> tuple[Rows, Scores]:
        """Return at most `limit` rows and their cosines with `query` (d,), best first.

        Raises `InvalidInputError` for a query that is not finite, of length zero or of another d.
        """
        if not len(self) or limit < 1:
            return _no_rows(), _no_scores()
        unit = unit_vector(query, self.ndim)
        if not self._is_graph:
            return self._scan(unit, limit, _keep_all) or (_no_rows(), _no_scores())
        # Twice as many as wanted: it walks further then, and what int8 puts in another order is among them.
        return self._rank(unit, self._candidates(unit, 2 * (limit + _SLACK), exact=False)[0], limit)

    def score_rows(self, query: Embedding, rows: Rows) -> Scores:
        """Return (n,) the exact cosine of each row with `query`; NaN where a row has no vector."""
        if not len(self):
            return np.full(len(rows), np.nan, dtype=np.float32)
        return self._score(unit_vector(query, self.ndim), rows)

    def search_within(self, query: Embedding, rows: Rows, limit: int) -> tuple[Rows, Scores]:
        """Return the best `limit` of `rows` (n,) as `search` does; rows without a vector are left out.

        As exact above the limit as below: the rows are read one by one, or found by scans where that costs less.
        """
        if not len(self) or not len(rows) or limit < 1:
            return _no_rows(), _no_scores()
        unit = unit_vector(query, self.ndim)
        found = self._scan(
            unit,
            limit,
            lambda asked: asked[np.isin(asked, rows)],
            share=len(rows) / len(self),
            budget_us=reading_us(len(rows)),
        )
        return found or self._rank(unit, rows, limit)

    def search_passing(
        self, query: Embedding, limit: int, keep: Keep, share: float = 1.0, budget_us: float = inf
    ) -> tuple[Rows, Scores] | None:
        """Return the best `limit` of the rows that `keep` lets through, as `search` does; exact at any size.

        `keep` is asked for the nearest rows first, for each once, and for more until enough have passed: `share` says
        how many to expect. None when a further scan would cost more than `budget_us`: list the rows instead.
        """
        if not len(self) or limit < 1:
            return _no_rows(), _no_scores()
        return self._scan(unit_vector(query, self.ndim), limit, keep, share, budget_us)

    def apply(self, changes: Changes) -> None:
        """Follow a stretch of the change log; what was followed before does no harm.

        Raises `IndexDamagedError` when changes between are missing, or when usearch fails: build it anew then.
        """
        with self._changing:
            if changes.through <= self.applied:
                return
            if changes.after > self.applied:
                raise IndexDamagedError(f"changes {self.applied + 1} to {changes.after} are missing")
            rows = iter(changes.rows)
            while part := list(islice(rows, _CHUNK)):
                self._follow(part)
            self.applied = changes.through
            if self._is_unfit():
                self._refit()

    def rebuild(
        self, vectors: Iterable[tuple[Rows, Embedding]], count: int, *, through: int, stamp: str, lineage: str
    ) -> None:
        """Start again from all vectors of a store, about `count`, as of change `through`. Searches go on meanwhile."""
        with self._changing:
            self._build(vectors, count)
            self.applied, self.stamp, self.lineage = through, stamp, lineage

    def save(self, path: Path, cipher: Cipher | None = None) -> None:
        """Keep the graph in a file, replaced as a whole; not fsynced, it is a cache.

        With a `cipher` it is encrypted. A flat table is read from the store instead (55 ms per 10,000), so none is
        kept, and an old file is removed.
        Raises `OSError`; the old file is kept then.
        """
        with self._changing:
            if not self._is_graph:
                path.unlink(missing_ok=True)
                return
            with self._using, _translating():
                body = self._engine.save()
            header = self._header()
        write_index(path, header, body, cipher)

    def load(self, path: Path, cipher: Cipher | None = None) -> None:
        """Take over what `save` kept. Raises `IndexDamagedError` when it is missing or not exactly what was saved."""
        try:
            content = memoryview(path.read_bytes())
        except OSError as error:
            raise IndexDamagedError(f"{path.name}: {error.strerror}") from error
        header, body = parse_index(path.name, content, _ENGINE, cipher)
        engine = _graph(header.ndim, self._expansion)
        with _translating():
            engine.load(bytes(body))
        if len(engine) != header.count:
            raise IndexDamagedError(f"{path.name}: holds {len(engine)} vectors, expected {header.count}")
        with self._changing:
            self._swap(engine, is_graph=True)
            self.ndim = header.ndim
            self.applied, self.stamp, self.lineage = header.applied, header.stamp, header.lineage
            if self._is_unfit():  # the limit may have been raised since
                self._refit()

    def held(self) -> Iterator[tuple[Rows, Embedding]]:
        """Go over what is held: rows (n,) and their vectors (n, d) as the engine keeps them, 1,000 at a time."""
        if self._engine is None:
            return
        with self._using:
            rows: Rows = np.sort(self._engine.keys[:].astype(np.int64))
        for i in range(0, len(rows), _CHUNK):
            part = rows[i : i + _CHUNK]
            with self._using, _translating():
                vectors = np.asarray(self._engine.get(part.astype(np.uint64)), dtype=np.float32)
            yield part, vectors.reshape(len(part), self.ndim)

    def clear(self) -> None:
        """Let go of everything."""
        with self._changing, self._using:
            self._engine = None
            self._is_graph = False
            self.applied, self.stamp, self.lineage, self.ndim = 0, "", "", 0

    def _candidates(self, unit: Embedding, count: int, *, exact: bool) -> tuple[Rows, Scores, float]:
        """Return the nearest rows, best first, their cosines as the engine sees them, and how far off those may be."""
        with self._using, _translating():
            matches = self._engine.search(small(unit) if self._is_graph else unit, count, exact=exact, threads=1)
            error = INT8_ERROR if self._is_graph else _BF16_ERROR
        keys: Rows = np.atleast_1d(matches.keys).astype(np.int64)
        return keys, 1.0 - np.atleast_1d(matches.distances).astype(np.float32), error

    def _scan(
        self, unit: Embedding, limit: int, keep: Keep, share: float = 1.0, budget_us: float = inf
    ) -> tuple[Rows, Scores] | None:
        """Return the best `limit` that `keep` lets through, by scans for more and more of the nearest."""
        total = len(self)
        count = min(total, ceil(SPARE * (limit + _SLACK) / max(share, 1.0 / total)))
        asked, kept = _no_rows(), _no_rows()
        while scanning_us(total, count) <= budget_us:
            found, near, error = self._candidates(unit, count, exact=True)
            kept = np.concatenate([kept, keep(np.setdiff1d(found, asked))])
            passed = np.isin(found, kept)
            first = found[passed][:limit]
            scores = self._score(unit, first)
            floor = least(scores, limit) - error  # what the engine sees below it is not among the best
            if len(found) < count or count >= total or near[-1] < floor:
                rest = found[passed & (near >= floor)][limit:]
                return best(np.concatenate([first, rest]), np.concatenate([scores, self._score(unit, rest)]), limit)
            asked, count = found, min(total, ceil(count * growth(near, floor, limit / max(1, len(first)))))
        return None

    def _rank(self, unit: Embedding, rows: Rows, limit: int) -> tuple[Rows, Scores]:
        return best(rows, self._score(unit, rows), limit)

    def _score(self, unit: Embedding, rows: Rows) -> Scores:
        parts = [self._score_part(unit, rows[i : i + _CHUNK]) for i in range(0, len(rows), _CHUNK)]
        return np.concatenate(parts) if parts else _no_scores()

    def _score_part(self, unit: Embedding, rows: Rows) -> Scores:
        vectors = self._read_vectors(rows)
        if vectors.shape[1:] != unit.shape:  # the store has changed its embedder since
            return np.full(len(rows), np.nan, dtype=np.float32)
        lengths = np.linalg.norm(vectors, axis=1)  # float16 leaves them within .0005 of one
        # Not `vectors @ unit`: there the last bit of a row's score depends on which rows stand beside it.
        products = np.einsum("ij,j->i", vectors, unit)
        with np.errstate(invalid="ignore"):
            scores: Scores = (products / lengths).astype(np.float32)  # 0 / 0 is NaN: no vector
        return scores

    def _follow(self, part: list[Change]) -> None:
        changed = [change for change in part if change.op == "delete" or change.new_vector]
        arrived = [change for change in changed if change.vector is not None]
        self._remove(np.array([change.row for change in changed], dtype=np.int64))
        if arrived:
            rows = np.array([change.row for change in arrived], dtype=np.int64)
            self._add(rows, np.stack([change.vector for change in arrived if change.vector is not None]))

    def _remove(self, rows: Rows) -> None:
        if self._engine is None or not len(rows):
            return
        with self._using, _translating():
            held = rows[np.atleast_1d(self._engine.contains(rows))]
            if len(held):
                self._engine.remove(held)
        self._removed += len(held)

    def _add(self, rows: Rows, vectors: Embedding) -> None:
        if self._engine is None:
            self.ndim = vectors.shape[1]
            self._swap(_flat(self.ndim), is_graph=False)
        step = _GRAPH_CHUNK if self._is_graph else _CHUNK
        for i in range(0, len(rows), step):
            with self._using, _translating():
                _fill(self._engine, rows[i : i + step], vectors[i : i + step], self._is_graph)
        self._slots = max(self._slots, len(self))

    def _is_unfit(self) -> bool:
        """Whether the engine is of the wrong form for its size, or worn by removals."""
        if not self._is_graph and len(self) > self._limit:
            return True
        gone = self._slots - len(self)
        worn = gone > _WORN_SHARE * self._slots or (self._is_graph and self._removed > len(self))
        return worn and self._slots > _WORN_FROM

    def _refit(self) -> None:
        """Build anew from the store's vectors of the rows that are held."""
        with self._using:
            rows: Rows = np.sort(self._engine.keys[:].astype(np.int64))
        parts = (rows[i : i + _CHUNK] for i in range(0, len(rows), _CHUNK))
        self._build(((part, self._read_vectors(part)) for part in parts), len(rows))

    def _build(self, vectors: Iterable[tuple[Rows, Embedding]], count: int) -> None:
        """Fill a new engine beside the one in use, then put it in its place."""
        is_graph = count > self._limit
        engine = None
        for rows, part in vectors:
            present = part.any(axis=1)  # a row may have gone since it was listed
            if engine is None:
                engine = _graph(part.shape[1], self._expansion) if is_graph else _flat(part.shape[1])
            with _translating():
                _fill(engine, rows[present], part[present], is_graph)
        self.ndim = 0 if engine is None else engine.ndim
        self._swap(engine, is_graph=is_graph and engine is not None)

    def _swap(self, engine: Any, *, is_graph: bool) -> None:
        with self._using:
            self._engine, self._is_graph = engine, is_graph
        self._slots, self._removed = len(self), 0

    def _header(self) -> IndexHeader:
        return IndexHeader(
            engine=_ENGINE,
            ndim=self.ndim,
            count=len(self),
            applied=self.applied,
            stamp=self.stamp,
            lineage=self.lineage,
        )


def _flat(ndim: int) -> Any:
    """A table to scan. usearch always keeps a graph as well: the smallest one makes adding 20 times faster."""
    return Index(ndim=ndim, metric="cos", dtype="bf16", connectivity=2, expansion_add=1, expansion_search=1)


def _graph(ndim: int, expansion_search: int) -> Any:
    return Index(
        ndim=ndim,
        metric="cos",
        dtype="i8",
        connectivity=16,
        expansion_add=128,
        expansion_search=expansion_search,
    )


def _fill(engine: Any, rows: Rows, vectors: Embedding, is_graph: bool) -> None:
    if len(rows):
        engine.add(rows.astype(np.uint64), small(vectors) if is_graph else vectors, threads=1)


@contextmanager
def _translating() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, ValueError, MemoryError, KeyError) as error:
        raise IndexDamagedError(f"usearch: {error}") from error


def _keep_all(rows: Rows) -> Rows:
    return rows


def _no_rows() -> Rows:
    return np.empty(0, dtype=np.int64)


def _no_scores() -> Scores:
    return np.empty(0, dtype=np.float32)
