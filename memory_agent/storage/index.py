"""Nearest vectors of one user, exactly and approximately: a cache of the store's vectors, held by usearch.

Up to a limit (20,000) usearch scans a flat table of bfloat16, which loses nothing, does not decay by deletes and takes
.3 ms per 10,000 vectors; above, an HNSW graph over int8 finds candidates. In both the scores come from the store's own
vectors, in float32, so they are the same on every path. Distances do not leave this file: a score is a cosine.

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
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash
from usearch.index import Index

from memory_agent.errors import IndexDamagedError
from memory_agent.records import Embedding
from memory_agent.storage.changes import Change, Changes, Rows, Scores
from memory_agent.storage.codec import unit_vector

_MAGIC = b"memory-agent index 1\n"
_ENGINE = f"usearch {version('usearch')}"
_CHUNK = 1_000  # vectors held in memory at a time while building
_GRAPH_CHUNK = 16  # added to a graph while searches wait: about 5 ms
_SLACK = 16  # candidates beyond the limit, so that bfloat16 rounding at the edge does not count
_WORN_SHARE = 0.3  # of removed slots: from there on a graph searches slower by factors
_WORN_FROM = 1_000  # slots; below, wear costs nothing
_SCORE_DIRECTLY = 512  # rows; below, scoring each is cheaper than scanning for them


class _Header(msgspec.Struct, frozen=True, kw_only=True):
    engine: str
    ndim: int
    count: int
    applied: int
    stamp: str
    lineage: str
    body_bytes: int
    body_xxh3: bytes


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
        return self._rank(unit, self._candidates(unit, self._fetch(limit), exact=not self._is_graph), limit)

    def score_rows(self, query: Embedding, rows: Rows) -> Scores:
        """Return (n,) the exact cosine of each row with `query`; NaN where a row has no vector."""
        if not len(self):
            return np.full(len(rows), np.nan, dtype=np.float32)
        unit = unit_vector(query, self.ndim)
        parts = [self._score(unit, rows[i : i + _CHUNK]) for i in range(0, len(rows), _CHUNK)]
        return np.concatenate(parts) if parts else _no_scores()

    def search_within(self, query: Embedding, rows: Rows, limit: int) -> tuple[Rows, Scores]:
        """Return the best `limit` of `rows` (n,) as `search` does; rows without a vector are left out.

        Never goes through the graph, so it is as exact above the limit as below: 5 ms at 100,000.
        """
        if not len(self) or not len(rows) or limit < 1:
            return _no_rows(), _no_scores()
        unit = unit_vector(query, self.ndim)
        if len(rows) > _SCORE_DIRECTLY:
            rows = self._widen(unit, rows, self._fetch(limit))
        return self._rank(unit, rows, limit)

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

    def save(self, path: Path) -> None:
        """Keep the graph in a file, replaced as a whole; not fsynced, it is a cache.

        A flat table is read from the store instead (55 ms per 10,000), so none is kept, and an old file is removed.
        Raises `OSError`; the old file is kept then.
        """
        with self._changing:
            if not self._is_graph:
                path.unlink(missing_ok=True)
                return
            with self._using, _translating():
                body = self._engine.save()
            header = self._header(body)
        content = msgspec.msgpack.encode(header)
        temporary = path.with_name(path.name + ".new")
        try:
            with temporary.open("wb") as file:
                file.write(_MAGIC + xxhash.xxh3_64_digest(content) + len(content).to_bytes(4, "big") + content)
                file.write(body)
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)  # half a file helps nobody, least of all a full disk
            raise

    def load(self, path: Path) -> None:
        """Take over what `save` kept. Raises `IndexDamagedError` when it is missing or not exactly what was saved."""
        try:
            content = memoryview(path.read_bytes())
        except OSError as error:
            raise IndexDamagedError(f"{path.name}: {error.strerror}") from error
        header, body = _parse(path.name, content)
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

    def clear(self) -> None:
        """Let go of everything."""
        with self._changing, self._using:
            self._engine = None
            self._is_graph = False
            self.applied, self.stamp, self.lineage, self.ndim = 0, "", "", 0

    def _fetch(self, limit: int) -> int:
        """How many candidates to ask for. int8 puts 4 % of the best ten out of the first ten, none out of twenty."""
        return 2 * limit + 2 * _SLACK if self._is_graph else limit + _SLACK

    def _candidates(self, unit: Embedding, count: int, *, exact: bool) -> Rows:
        with self._using, _translating():
            matches = self._engine.search(unit, count, exact=exact, threads=1)
        keys: Rows = np.atleast_1d(matches.keys).astype(np.int64)
        return keys

    def _widen(self, unit: Embedding, rows: Rows, wanted: int) -> Rows:
        """Return the best of `rows`, at least `wanted` if there are as many: scan for more until enough are found."""
        total = len(self)
        count = min(total, wanted * (1 + 2 * total // len(rows)))
        while True:
            found = self._candidates(unit, count, exact=True)
            kept = found[np.isin(found, rows)]
            if len(kept) >= wanted or count >= total:
                return kept
            count = min(total, 4 * count)

    def _rank(self, unit: Embedding, rows: Rows, limit: int) -> tuple[Rows, Scores]:
        """Score rows in float32 and return the best; equal scores in order of rows."""
        scores = np.concatenate(
            [self._score(unit, rows[i : i + _CHUNK]) for i in range(0, len(rows), _CHUNK)] or [_no_scores()]
        )
        present = ~np.isnan(scores)
        rows, scores = rows[present], scores[present]
        best = np.lexsort((rows, -scores))[:limit]
        return rows[best], scores[best]

    def _score(self, unit: Embedding, rows: Rows) -> Scores:
        vectors = self._read_vectors(rows)
        if vectors.shape[1:] != unit.shape:  # the store has changed its embedder since
            return np.full(len(rows), np.nan, dtype=np.float32)
        lengths = np.linalg.norm(vectors, axis=1)  # float16 leaves them within .0005 of one
        with np.errstate(invalid="ignore"):
            scores: Scores = (vectors @ unit / lengths).astype(np.float32)  # 0 / 0 is NaN: no vector
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
                _fill(self._engine, rows[i : i + step], vectors[i : i + step])
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
                _fill(engine, rows[present], part[present])
        self.ndim = 0 if engine is None else engine.ndim
        self._swap(engine, is_graph=is_graph and engine is not None)

    def _swap(self, engine: Any, *, is_graph: bool) -> None:
        with self._using:
            self._engine, self._is_graph = engine, is_graph
        self._slots, self._removed = len(self), 0

    def _header(self, body: bytes) -> _Header:
        return _Header(
            engine=_ENGINE,
            ndim=self.ndim,
            count=len(self),
            applied=self.applied,
            stamp=self.stamp,
            lineage=self.lineage,
            body_bytes=len(body),
            body_xxh3=xxhash.xxh3_128_digest(body),
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


def _fill(engine: Any, rows: Rows, vectors: Embedding) -> None:
    if len(rows):
        engine.add(rows.astype(np.uint64), vectors, threads=1)


def _parse(name: str, content: memoryview) -> tuple[_Header, memoryview]:
    """Return header and body of a saved file, all checksums compared."""
    start = len(_MAGIC)
    length = int.from_bytes(content[start + 8 : start + 12], "big")
    encoded = content[start + 12 : start + 12 + length]
    if content[:start] != _MAGIC or xxhash.xxh3_64_digest(encoded) != content[start : start + 8]:
        raise IndexDamagedError(f"{name}: the header is damaged")
    header = msgspec.msgpack.decode(encoded, type=_Header)
    body = content[start + 12 + length :]
    if header.engine != _ENGINE:
        raise IndexDamagedError(f"{name}: written by {header.engine}, this is {_ENGINE}")
    if len(body) != header.body_bytes or xxhash.xxh3_128_digest(body) != header.body_xxh3:
        raise IndexDamagedError(f"{name}: the body does not match its checksum")
    return header, body


@contextmanager
def _translating() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, ValueError, MemoryError, KeyError) as error:
        raise IndexDamagedError(f"usearch: {error}") from error


def _no_rows() -> Rows:
    return np.empty(0, dtype=np.int64)


def _no_scores() -> Scores:
    return np.empty(0, dtype=np.float32)
