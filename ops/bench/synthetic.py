"""Generates any number of synthetic memories and vectors, the same each time.

Texts have the lengths of real events (mean 34 words, 5 % over 75) and a word distribution like that of a language;
vectors lie in 300 clusters.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np

from memory_agent.records.embedded import Embedding
from memory_agent.records.memories import MemoryRecord

NDIM = 384
START = datetime(2026, 1, 1, tzinfo=UTC)
_STOP_WORDS = (
    "the",
    "a",
    "of",
    "to",
    "and",
    "in",
    "is",
    "it",
    "for",
    "with",
    "on",
    "that",
    "this",
    "was",
    "we",
    "you",
    "not",
)


class SyntheticVectors:
    """Draws unit vectors around 300 centres, of rank 32 within each, with noise in all directions."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._centres = self._rng.normal(size=(300, NDIM))
        self._spreads = 0.35 * self._rng.normal(size=(300, 32, NDIM)).astype(np.float32)

    def draw(self, count: int, seed: int | None = None) -> Embedding:
        rng = self._rng if seed is None else np.random.default_rng(seed)
        topics = rng.integers(300, size=count)
        within = np.stack([rng.normal(size=32) @ self._spreads[topic] for topic in topics])
        vectors = self._centres[topics] + within + 0.3 * rng.normal(size=(count, NDIM))
        units: Embedding = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
        return units


class SyntheticTexts:
    """Draws sentences in which three words in ten are stop words and the others follow Zipf's law."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        letters = np.random.default_rng(0)
        self._words = ["".join(letters.choice(list("aeioulnrstdmkp"), letters.integers(3, 10))) for _ in range(20_000)]
        weights = 1 / np.arange(10, 20_010)
        self._weights = weights / weights.sum()

    def draw(self, words: int | None = None) -> str:
        length = words or int(np.clip(self._rng.lognormal(3.3, 0.65), 5, 400))
        rare = self._rng.choice(len(self._words), length, p=self._weights)
        stop = self._rng.integers(len(_STOP_WORDS), size=length)
        is_stop = self._rng.random(length) < 0.3
        return " ".join(
            _STOP_WORDS[s] if common else self._words[r] for r, s, common in zip(rare, stop, is_stop, strict=True)
        )


def synthetic_record(number: int, text: str) -> MemoryRecord:
    return MemoryRecord(
        id=f"01JM{number:022d}",
        event_id=f"01JN{number:022d}",
        text=text,
        source="worker_result",
        kind="finding" if number % 3 else "episode",
        timestamp=START + timedelta(minutes=number),
        session_id=f"session-{number // 30:06d}",
        run_id=f"run_{number // 10}",
        agent_id=f"worker:{number % 7}",
        quality_score=None if number % 4 else 0.8,
        tags=("auth",) if number % 10 == 0 else (),
        metadata={"event_type": "worker.report.received"},
    )
