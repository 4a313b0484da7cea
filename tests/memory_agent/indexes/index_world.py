"""Vectors, entries and stores with an index, for the tests of indexes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import psycopg
import pytest

from memory_agent.indexes import (
    COLUMNS,
    Entry,
    IndexOf,
    Position,
    VectorIndex,
    Where,
    forget_user,
    open_index,
)
from memory_agent.records.embedded import Embedded, Embedding
from memory_agent.records.memories import MemoryFilter, MemoryRecord, Mode
from memory_agent.settings import IndexSettings, StoreSettings
from memory_agent.storage.archive import Archive

NDIM = 8

SMALL = StoreSettings(map_size_bytes=64 << 20, reserve_bytes=64 << 10)

SESSIONS = (None, "a", "it's b")

MODES: tuple[Mode, ...] = ("hybrid", "vector", "lexical")

ANGLE = 0.02  # maximum error of a cosine computed from int8 vectors

_numbers = count(1)

NOW = datetime(2026, 2, 16, 10, tzinfo=UTC)


def embedded_of(seeds: list[int]) -> Embedded:
    """The output of a model for a text with one passage per seed."""
    vectors = np.stack([vector_of(seed) for seed in seeds])
    spans = np.stack([np.arange(len(seeds)), 1 + np.arange(len(seeds))], axis=1).astype(np.int32)
    return Embedded(vectors=vectors, spans=spans, word_bits=np.zeros((1, 2), dtype=np.uint8), length=5)


def vector_of(seed: int) -> Embedding:
    vector = np.random.default_rng(seed).normal(size=NDIM)
    return (vector / np.linalg.norm(vector)).astype(np.float32)


@contextmanager
def opened(
    chosen: IndexSettings, folder: Path, user_id: str = "alice", secret: bytes | None = None
) -> Iterator[VectorIndex]:
    folder.mkdir(exist_ok=True)
    index = open_index(chosen.engine, IndexOf(chosen, user_id, folder, secret))
    try:
        yield index
    finally:
        index.close()


def entry(row: int, *vectors: Embedding, session: str | None = None) -> Entry:
    names = {"kind": "finding", "source": "user_input", "session": session}
    return Entry(row, np.stack(vectors), tuple(names.get(column) for column in COLUMNS), 1_000 * row)


def position(**fields: Any) -> Position:
    return Position(**({"lineage": "store", "stamp": "model", "ndim": NDIM, "applied": 1} | fields))


class World:
    """A store with an index, and the expected content: for each id, the session and the seeds of the vectors."""

    def __init__(self, folder: Path, chosen: IndexSettings) -> None:
        self.user_id = f"user-{next(_numbers)}"
        self.folder = folder / self.user_id
        self.chosen = chosen
        self.known: dict[str, tuple[str | None, list[int]]] = {}
        self.archive = self._open()

    def _open(self) -> Archive:
        of = IndexOf(self.chosen, self.user_id, self.folder)
        archive = Archive.open(self.folder, SMALL, "library", index=of)
        archive.settled_view()
        return archive

    def put(self, number: int, session: str | None, seeds: list[int], *, unseen: bool = False) -> None:
        """Add or replace a memory. `unseen`: as if the process had died between the store's commit and the index's."""
        self.known[f"m{number}"] = session, seeds
        record = MemoryRecord(
            id=f"m{number}", text=f"text {number} {seeds}", source="user_input", kind="finding",
            timestamp=NOW, session_id=session,
        )  # fmt: skip
        with self.archive.store.batch() if unseen else self.archive.batch() as batch:
            batch.set_stamp("model")
            batch.set_words_stamp("words")
            record = batch.upsert(record, None)
            row = batch.row_of_id(record.id)
            assert row is not None
            batch.set_vector(row, embedded_of(seeds))
        if unseen:
            self.reopen()

    def delete(self, number: int) -> None:
        self.known.pop(f"m{number}", None)
        with self.archive.batch() as batch:
            row = batch.row_of_id(f"m{number}")
            if row is not None:
                batch.delete(row)

    def reopen(self) -> None:
        self.archive.close()
        self.archive = self._open()

    def compact(self) -> None:
        self.archive.purge()

    def check(self, seed: int) -> None:
        """Compare the answers for one query, with and without a filter."""
        view, query = self.archive.view, vector_of(seed)
        expected = {
            name: max(float(vector_of(one) @ query) for one in seeds) for name, (_, seeds) in self.known.items()
        }
        for session in SESSIONS[1:]:
            inside = {name for name, (of, _) in self.known.items() if of == session}
            mask = view.mask(MemoryFilter(session_id=session))
            found = self.found(
                view.vectors.scan(query, view.count or 1, mask, Where(among={"session": (session or "",)}))
            )
            assert found.keys() == inside
            if self.archive.follower is not None:
                assert self.archive.follower.index.count("session", session or "") == len(inside)
        for limit in (1, 3, 20):
            found = self.found(view.vectors.scan(query, limit))
            best = sorted(expected, key=lambda name: -expected[name])[:limit]
            assert len(found) >= len(best)
            least = min((expected[name] for name in best), default=0.0)
            assert all(expected[name] <= least + ANGLE for name in best if name not in found)
            for name, cosine in found.items():
                assert cosine == pytest.approx(expected[name], abs=ANGLE)

    def found(self, cosines: Any) -> dict[str, float]:
        view = self.archive.view
        slots = np.flatnonzero(~np.isnan(cosines.values))
        records = self.archive.store.records(view.rows[slots].tolist())
        return {
            one.id: float(cosines.values[slot]) for one, slot in zip(records, slots, strict=True) if one is not None
        }

    def close(self) -> None:
        self.archive.close()
        forget_user(self.chosen, self.user_id)
        shutil.rmtree(self.folder)


TEXTS = [
    f"{subject} {verb} the {thing} of {place}"
    for subject in ("Ann", "the deploy", "a test")
    for verb in ("broke", "fixed", "measured")
    for thing in ("cache", "parser", "queue")
    for place in ("staging", "production")
]

QUERIES = ("which deploy fixed the parser?", "what did Ann measure")


@contextmanager
def away(database: str, postgres: str) -> Iterator[None]:
    """Close all connections to a database, and refuse new connections inside the block."""
    name = urlsplit(database).path[1:]
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,))
        try:
            yield
        finally:
            connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
