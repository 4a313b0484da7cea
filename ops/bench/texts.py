"""Texts for benchmarks: distinct passages of real English, as long as real events.

The source is Python's language reference (`pydoc_data`): real sentences with a natural word distribution, on every
machine, without a download. Random words were rejected, because their word pieces and frequencies differ from those of
a natural language, which distorts the cost of tokenizing and of postings.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache
from pydoc_data.topics import topics
from typing import Any

import numpy as np

MEAN_TOKENS = 34
"""The mean number of tokens per passage, accurate to one token (measured with the model's tokenizer)."""

CHANNEL = "project:bench"
_MEDIAN_WORDS = 17.4
_SPREAD = 0.62
_LEAST, _MOST = 4, 120
_QUERY_WORDS = (5, 12)
_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def passages(count: int, seed: int) -> list[str]:
    """Return `count` texts that average 34 tokens; 5 % of them have over 80."""
    rng = np.random.default_rng(seed)
    return _distinct(count, lambda: _passage(rng, _length(rng)))


def queries(count: int, seed: int) -> list[str]:
    """Return `count` requests of 5 to 12 words."""
    rng = np.random.default_rng(seed)
    return _distinct(count, lambda: _passage(rng, int(rng.integers(*_QUERY_WORDS))))


def events(texts: list[str], user_id: str, series: str) -> list[dict[str, Any]]:
    """Return one event per text; each event becomes a memory."""
    return [event_of(text, place, user_id, series) for place, text in enumerate(texts)]


def event_of(text: str, place: int, user_id: str, series: str) -> dict[str, Any]:
    """Return the event for the text at position `place` in the series."""
    return {
        "event_id": f"{series}-{place:06}",
        "event_type": "worker.task.finding",
        "timestamp": (_BEGIN + timedelta(minutes=place)).isoformat(),
        "user_id": user_id,
        "session_id": f"{series}-{place // 30}",
        "actor_id": "worker:bench",
        "channel_id": CHANNEL,
        "payload": {"run_id": f"{series}-run-{place // 10}", "claim": text},
    }


def _distinct(count: int, draw: Callable[[], str]) -> list[str]:
    texts: dict[str, None] = {}
    while len(texts) < count:
        texts[draw()] = None
    return list(texts)


def _length(rng: np.random.Generator) -> int:
    return int(np.clip(rng.lognormal(np.log(_MEDIAN_WORDS), _SPREAD), _LEAST, _MOST))


def _passage(rng: np.random.Generator, words: int) -> str:
    source = _words()
    start = int(rng.integers(len(source) - words))
    return " ".join(source[start : start + words])


@cache
def _words() -> list[str]:
    return [word for word in " ".join(topics.values()).split() if any(map(str.isalpha, word))]
