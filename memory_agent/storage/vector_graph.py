"""A usearch HNSW graph over the coarse planes of a vector table, built by a background thread.

The graph only grows: the caller ignores removed slots, and compaction starts a new graph. While the graph is incomplete
or busy, `search` returns None and the caller scans instead. Only one thread at a time uses usearch. Files are verified
first, because a flipped bit would kill the process.

Shapes: n = all slots, m = slots passed as an argument, d = dimensions.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol, Self

import msgspec
import numpy as np
import numpy.typing as npt
from usearch.index import Index

from memory_agent.errors import IndexDamagedError
from memory_agent.storage.array_file import read_arrays, write_arrays
from memory_agent.storage.column import Mask, Slots
from relay.crypto import Cipher
from relay.locks import holding

_ENGINE = f"usearch {version('usearch')}"
_ENGINE_ERRORS = (RuntimeError, ValueError, MemoryError, KeyError)
_CONNECTIVITY, _EXPANSION_ADD = 16, 128
_STEP = 64  # slots added per step while no search is running
_SHORT_STEP = 4  # slots added per step while searches may be waiting; a step takes 2-4 ms
_PATIENCE_S = 0.005
_MOST_BEHIND, _SHARE_BEHIND = 10_000, 1 / 32  # at most this many slots outside the graph; scanning them takes 0.3 ms
_NICE = 10


class Vectors(Protocol):
    @property
    def count(self) -> int: ...

    def beyond(self, held: Mask) -> Slots:
        """Return the slots that have a vector and are not in `held`, which may be shorter than n."""
        ...

    def coarse(self, slots: Slots) -> npt.NDArray[np.int8]: ...


class _Header(msgspec.Struct, frozen=True, kw_only=True):
    engine: str
    ndim: int
    generation: str


class VectorGraph:
    """A graph that follows a table. One thread calls `follow`; any thread may call `search`."""

    def __init__(self, ndim: int, expansion_search: int = 128) -> None:
        self.is_ready = False
        self._ndim = ndim
        self._engine = _engine(ndim, expansion_search)
        self._held: Mask = np.zeros(0, dtype=bool)
        self._using = threading.RLock()  # guards the engine and `_held`
        self._starting = threading.Lock()  # guards the thread and its source
        self._source: Vectors | None = None
        self._thread: threading.Thread | None = None
        self._is_closing = False

    @classmethod
    def load(
        cls, path: Path, ndim: int, generation: str, count: int, expansion_search: int, cipher: Cipher | None = None
    ) -> Self:
        """Return the graph that a `writer` wrote for a table of this `generation`. Raises `IndexDamagedError`."""
        header, arrays = read_arrays(path, _Header, cipher)
        if header != _Header(engine=_ENGINE, ndim=ndim, generation=generation):
            raise IndexDamagedError(f"{path.name}: belongs to a different table or to {header.engine}")
        graph, held = cls(ndim, expansion_search), arrays["held"]
        try:
            graph._engine.load(arrays["graph"])
        except _ENGINE_ERRORS as error:
            raise IndexDamagedError(f"{path.name}: {error}") from error
        if len(held) > count or len(graph._engine) != np.count_nonzero(held):
            raise IndexDamagedError(f"{path.name}: the graph contains {len(graph._engine)} of {count} slots")
        graph._held = held
        return graph

    def writer(self, generation: str) -> Callable[[Path, Cipher | None], None]:
        """Return a function that writes the current graph. A written graph must not contain slots that are missing from
        the written table.
        """
        with self._using:
            content, held = self._engine.save(), np.trim_zeros(self._held, "b").copy()
        header = _Header(engine=_ENGINE, ndim=self._ndim, generation=generation)
        arrays = {"graph": np.frombuffer(content, dtype=np.uint8), "held": held}
        return lambda path, cipher: write_arrays(path, header, arrays, cipher)

    def follow(self, vectors: Vectors) -> None:
        """Add new vectors in the background; return immediately."""
        with self._starting:
            if self._is_closing:
                return
            self._source = vectors
            if self._thread is None and self._is_due(vectors):
                self._thread = threading.Thread(target=self._build, name="vector-graph")
                self._thread.start()

    def search(self, query: npt.NDArray[np.int8], limit: int) -> tuple[Slots, Mask] | None:
        """Return the slots nearest to `query` (d,), and all slots in the graph. Returns None if the graph is busy or
        fails.
        """
        if not self.is_ready:
            return None
        with holding(self._using, _PATIENCE_S) as is_held:
            if not is_held:
                return None
            try:
                near: Slots = self._engine.search(query, limit, threads=1).keys.astype(np.int64)
                return near, self._held.copy()
            except _ENGINE_ERRORS:
                self._give_up()
                return None

    def close(self) -> None:
        """Stop building and wait for the thread. Searches continue. Idempotent."""
        self._is_closing = True
        with self._starting:
            thread = self._thread
        if thread is not None:
            thread.join()
        with self._starting:
            self._source = None  # otherwise, a reference cycle keeps both until the next garbage collection

    def _is_due(self, vectors: Vectors) -> bool:
        """Whether there are enough new vectors to add; if not, the graph is ready."""
        is_due = len(vectors.beyond(self._held)) > min(_MOST_BEHIND, int(_SHARE_BEHIND * vectors.count))
        self.is_ready = self.is_ready or not is_due
        return is_due

    def _build(self) -> None:
        if sys.platform == "linux":
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)  # for this thread only
        while True:
            with self._starting:
                source = self._source
                if source is None or self._is_closing or not self._is_due(source):
                    self._thread = None
                    return
            try:
                self._add(source, source.beyond(self._held))
            except _ENGINE_ERRORS:
                self._give_up()

    def _add(self, source: Vectors, slots: Slots) -> None:
        done = 0
        while done < len(slots) and not self._is_closing:
            began, step = time.monotonic(), _SHORT_STEP if self.is_ready else _STEP
            part = slots[done : done + step]
            vectors = source.coarse(part)
            with self._using:
                self._engine.add(part.astype(np.uint64), vectors, threads=1)
                if part[-1] >= len(self._held):
                    self._held = np.concatenate([self._held, np.zeros(part[-1] + 1, dtype=bool)])
                self._held[part] = True
            done += len(part)
            if self.is_ready:
                time.sleep(time.monotonic() - began)  # lets waiting searches run, because the lock is not fair

    def _give_up(self) -> None:
        """Stop using the graph after a usearch error, so that all searches scan."""
        self._is_closing = True
        self.is_ready = False


def _engine(ndim: int, expansion_search: int) -> Any:
    return Index(
        ndim=ndim,
        metric="cos",
        dtype="i8",
        connectivity=_CONNECTIVITY,
        expansion_add=_EXPANSION_ADD,
        expansion_search=expansion_search,
    )
