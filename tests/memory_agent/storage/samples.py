"""Memories, vectors and settings for the storage tests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from memory_agent.records.embedded import Embedded
from memory_agent.records.memories import MemoryRecord
from memory_agent.settings import StoreSettings
from memory_agent.storage.environment import UserKey
from memory_agent.storage.passages import PassageVectors
from memory_agent.storage.vector_table import VectorTable
from relay.crypto import KeyRing

NOW = datetime(2026, 2, 16, 10, 0, tzinfo=UTC)
SMALL = StoreSettings(map_size_bytes=64 << 20, reserve_bytes=64 << 10, takeover_after_s=0.3)
NDIM = 16
WORD_BYTES = 6

_numbers = count(1)


def memory(text: str = "fixed the auth race with a mutex", **fields: Any) -> MemoryRecord:
    """A memory with a new id."""
    number = next(_numbers)
    defaults: dict[str, Any] = {
        "id": f"memory-{number:08d}",
        "source": "worker_result",
        "kind": "finding",
        "timestamp": NOW + timedelta(seconds=number),
    }
    return MemoryRecord(text=text, **(defaults | fields))


def new_key(folder: Path) -> UserKey:
    """Return the key of user alice, created on first use."""
    return UserKey(KeyRing(folder), "alice")


def unit_vectors(count: int, seed: int, ndim: int = NDIM) -> npt.NDArray[np.float32]:
    """Return (count, ndim) unit vectors in clusters, like the vectors of real text."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(max(1, count // 50), ndim))
    vectors = centres[rng.integers(len(centres), size=count)] + 0.5 * rng.normal(size=(count, ndim))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def tables(exact_search_limit: int = 250_000) -> PassageVectors:
    """An empty index of passages."""
    return PassageVectors(VectorTable(exact_search_limit), VectorTable(exact_search_limit))


def embedded(seed: int, passages: int = 1, words: int = 3, *, ndim: int = NDIM) -> Embedded:
    """A plausible model output with this many passages and words, determined by the seed."""
    rng = np.random.default_rng(seed)
    starts = seed + 100 * np.arange(passages, dtype=np.int32)
    return Embedded(
        vectors=unit_vectors(passages, seed, ndim),
        spans=np.stack([starts, starts + 130], axis=1),
        word_bits=rng.integers(0, 256, (words, WORD_BYTES), dtype=np.uint8),
        length=40 * passages,
    )


def exact_ranking(vectors: dict[int, npt.NDArray[np.float32]], query: npt.NDArray[np.float32]) -> list[int]:
    """The rows sorted by cosine in float32, best first."""
    rows = np.array(list(vectors), dtype=np.int64)
    if not len(rows):
        return []
    scores = np.stack([vectors[int(row)] for row in rows]) @ query
    return rows[np.argsort(-scores, kind="stable")].tolist()
