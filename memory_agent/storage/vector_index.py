"""Nearest-neighbour search over one user's vectors, exact and approximate: a cache of the store, held by usearch.

Up to a limit (20,000) usearch scans a flat table of bfloat16: exact, unaffected by deletes, .3 ms per 10,000 vectors.
Above it, an HNSW graph over int8 finds candidates. Both are scored by the store's own float32 vectors, so a score is
the same on every path. Distances do not leave this file: a score is a cosine.

Filtered searches never use the graph, since it may miss: matching rows are read one by one, or all vectors are scanned,
until nothing unread can belong to the best, rounding included.

Around usearch (measured, decision 0004): NaN is kept out, since it would rank first; one Python thread at a time; files
carry our header and checksums. When to rebuild is decided by `derived`. Rejected: float32 in numpy (twice the memory,
slower above 10,000), and one graph for all sizes.

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
from memory_agent.storage.changes import Change, Changes, IndexScores, Rows
from memory_agent.storage.codec import unit_vector
from memory_agent.storage.nearest import SPARE, best, least, quantize, reading_us, scanning_us, widening
from memory_agent.storage.vector_index_file import IndexHeader, parse_index, write_index
from relay.crypto import Cipher

Keep = Callable[[Rows], Rows]
"""Returns those of some rows that pass the filter."""

_ENGINE = f"usearch {version('usearch')}"
_CHUNK = 1_000  # vectors held in memory at a time while building
_GRAPH_CHUNK = 16  # added to a graph while searches wait: about 5 ms
_SLACK = 16  # candidates beyond the limit, so that the last of the best is usually among them
_BF16_ERROR = 0.004  # bound of a scanned cosine: each component is off by 2^-9 of itself at most
INT8_ERROR = 0.012  # the same: 23 standard deviations for MiniLM, 5 where one component of many is large
_WORN_SHARE = 0.3  # of removed slots; above, a graph searches several times slower
_WORN_FROM = 1_000  # slots; below, removals cost nothing


class VectorIndex:
    """The vectors of one store. Thread-safe; changes are applied one at a time."""

    def __init__(
        self,
        read_vectors: Callable[[Rows], Embedding],
        exact_search_limit: int = 20_000,
        expansion_search: int = 128,
    ) -> None:
        """Create an empty index; `read_vectors` maps rows (n,) to the store's unit vectors (n, d), zeros for none."""
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

    def search(self, query: Embedding, limit: int) -> tuple[Rows, IndexScores]:
        """Return at most `limit` rows and their cosines with `query` (d,), best first.

        Raises `InvalidInputError` for a query that is not finite, of length zero or of another d.
        """
        if not len(self) or limit < 1:
            return _no_rows(), _no_scores()
        unit = unit_vector(query, self.ndim)
        if not self._is_graph:
            return self._scan(unit, limit, _keep_all) or (_no_rows(), _no_scores())
        # Twice as many: the graph is walked further, and rows that int8 puts in another order are among them.
        return self._rank(unit, self._candidates(unit, 2 * (limit + _SLACK), exact=False)[0], limit)

    def score_rows(self, query: Embedding, rows: Rows) -> IndexScores:
        """Return (n,) the exact cosine of each row with `query`; NaN where a row has no vector."""
        if not len(self):
            return np.full(len(rows), np.nan, dtype=np.float32)
        return self._score(unit_vector(query, self.ndim), rows)

    def search_within(self, query: Embedding, rows: Rows, limit: int) -> tuple[Rows, IndexScores]:
        """Return the best `limit` of `rows` (n,) as `search` does; rows without a vector are left out.

        Exact at any size: the rows are read one by one, or found by scans where that costs less.
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
    ) -> tuple[Rows, IndexScores] | None:
        """Return the best `limit` of the rows that pass `keep`, as `search` does; exact at any size.

        `keep` receives each row once, the nearest first, until enough have passed; `share` estimates how many pass.
        Returns None when the next scan would cost more than `budget_us`: list the rows instead.
        """
        if not len(self) or limit < 1:
            return _no_rows(), _no_scores()
        return self._scan(unit_vector(query, self.ndim), limit, keep, share, budget_us)

    def apply(self, changes: Changes) -> None:
        """Apply a stretch of the change log; idempotent.

        Raises `IndexDamagedError` when earlier changes are missing or usearch fails; rebuild then.
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
        """Rebuild from all vectors of a store, about `count`, as of change `through`. Searches continue meanwhile."""
        with self._changing:
            self._build(vectors, count)
            self.applied, self.stamp, self.lineage = through, stamp, lineage

    def save(self, path: Path, cipher: Cipher | None = None) -> None:
        """Write the graph to a file, atomically and not fsynced, encrypted with a `cipher`.

        A flat table is read from the store at open (55 ms per 10,000) and not saved; an old file is removed. Raises
        `OSError`; the old file is then kept.
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
        """Load what `save` wrote. Raises `IndexDamagedError` when it is missing or differs from what was saved."""
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
        """Iterate over the held rows (n,) and their vectors (n, d) at the engine's precision, 1,000 at a time."""
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
        """Drop all vectors."""
        with self._changing, self._using:
            self._engine = None
            self._is_graph = False
            self.applied, self.stamp, self.lineage, self.ndim = 0, "", "", 0

    def _candidates(self, unit: Embedding, count: int, *, exact: bool) -> tuple[Rows, IndexScores, float]:
        """Return the nearest rows, best first, their cosines at the engine's precision, and their error bound."""
        with self._using, _translating():
            matches = self._engine.search(quantize(unit) if self._is_graph else unit, count, exact=exact, threads=1)
            error = INT8_ERROR if self._is_graph else _BF16_ERROR
        keys: Rows = np.atleast_1d(matches.keys).astype(np.int64)
        return keys, 1.0 - np.atleast_1d(matches.distances).astype(np.float32), error

    def _scan(
        self, unit: Embedding, limit: int, keep: Keep, share: float = 1.0, budget_us: float = inf
    ) -> tuple[Rows, IndexScores] | None:
        """Return the best `limit` that pass `keep`, by widening scans; None when one would exceed the budget."""
        total = len(self)
        count = min(total, ceil(SPARE * (limit + _SLACK) / max(share, 1.0 / total)))
        asked, kept = _no_rows(), _no_rows()
        while scanning_us(total, count) <= budget_us:
            found, near, error = self._candidates(unit, count, exact=True)
            kept = np.concatenate([kept, keep(np.setdiff1d(found, asked))])
            passed = np.isin(found, kept)
            first = found[passed][:limit]
            scores = self._score(unit, first)
            floor = least(scores, limit) - error  # a row that the engine scores below it is not among the best
            if len(found) < count or count >= total or near[-1] < floor:
                rest = found[passed & (near >= floor)][limit:]
                return best(np.concatenate([first, rest]), np.concatenate([scores, self._score(unit, rest)]), limit)
            asked, count = found, min(total, ceil(count * widening(near, floor, limit / max(1, len(first)))))
        return None

    def _rank(self, unit: Embedding, rows: Rows, limit: int) -> tuple[Rows, IndexScores]:
        return best(rows, self._score(unit, rows), limit)

    def _score(self, unit: Embedding, rows: Rows) -> IndexScores:
        parts = [self._score_part(unit, rows[i : i + _CHUNK]) for i in range(0, len(rows), _CHUNK)]
        return np.concatenate(parts) if parts else _no_scores()

    def _score_part(self, unit: Embedding, rows: Rows) -> IndexScores:
        vectors = self._read_vectors(rows)
        if vectors.shape[1:] != unit.shape:  # the store has another embedder since
            return np.full(len(rows), np.nan, dtype=np.float32)
        lengths = np.linalg.norm(vectors, axis=1)  # within .0005 of one after float16
        # Not `vectors @ unit`: the last bit of a row's score would depend on the other rows.
        products = np.einsum("ij,j->i", vectors, unit)
        with np.errstate(invalid="ignore"):
            scores: IndexScores = (products / lengths).astype(np.float32)  # 0 / 0 is NaN: no vector
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
        """Whether the engine should be rebuilt: wrong form for its size, or too many removals."""
        if not self._is_graph and len(self) > self._limit:
            return True
        gone = self._slots - len(self)
        worn = gone > _WORN_SHARE * self._slots or (self._is_graph and self._removed > len(self))
        return worn and self._slots > _WORN_FROM

    def _refit(self) -> None:
        """Rebuild from the store's vectors of the held rows."""
        with self._using:
            rows: Rows = np.sort(self._engine.keys[:].astype(np.int64))
        parts = (rows[i : i + _CHUNK] for i in range(0, len(rows), _CHUNK))
        self._build(((part, self._read_vectors(part)) for part in parts), len(rows))

    def _build(self, vectors: Iterable[tuple[Rows, Embedding]], count: int) -> None:
        """Fill a new engine beside the one in use, then replace it."""
        is_graph = count > self._limit
        engine = None
        for rows, part in vectors:
            present = part.any(axis=1)  # a row may have been deleted since it was listed
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
    """Return a table to scan. usearch always keeps a graph; the smallest one makes adding 20 times faster."""
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
        engine.add(rows.astype(np.uint64), quantize(vectors) if is_graph else vectors, threads=1)


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


def _no_scores() -> IndexScores:
    return np.empty(0, dtype=np.float32)
