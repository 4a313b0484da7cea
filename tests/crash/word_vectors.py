"""Vectors for the laboratory's memories, without a model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from memory_agent.embedders import EmbedderInfo, PassageEmbedder, Pending, Progress
from memory_agent.records.embedded import Embedded, EmbeddedQuery, Embedding

NDIM = 32
PASSAGE_WORDS = 6

T = TypeVar("T")


class WordVectors(PassageEmbedder):
    """An embedder based on feature hashing: a word is a direction, and a passage is the sum of its words' directions.

    The laboratory tests that vectors, passages and words are preserved, not what they mean. The real model would take a
    second to load after each of hundreds of kills. Only the long runs with Ray use the real model.
    """

    @property
    def info(self) -> EmbedderInfo:
        return EmbedderInfo(
            model="words", model_sha256="0" * 16, scheme="float32", runtime="tests", ndim=NDIM, words="directions"
        )

    def begin_passages(
        self, texts: Sequence[str], progress: Progress | None = None, timeout_s: float | None = None
    ) -> Pending[list[Embedded]]:
        return Settled([_embedded(text) for text in texts])

    def begin_query_words(self, text: str, timeout_s: float | None = None) -> Pending[EmbeddedQuery]:
        words = tuple(dict.fromkeys(text.split()))
        vectors = np.array([_direction(word) for word in words], dtype=np.float16).reshape(-1, NDIM)
        return Settled(EmbeddedQuery(_vector(text), words, vectors))

    def count_tokens(self, text: str, timeout_s: float | None = None) -> int:
        return len(text.split())

    def close(self) -> None:
        pass


class Settled(Generic[T]):
    """A result that is available at once."""

    def __init__(self, found: T) -> None:
        self._found = found

    def result(self) -> T:
        return self._found


def _embedded(text: str) -> Embedded:
    words = text.split()
    starts = range(0, max(1, len(words)), PASSAGE_WORDS)
    parts = [" ".join(words[start : start + PASSAGE_WORDS]) for start in starts[1:]]
    vectors = np.stack([_vector(part) for part in (text, *parts)])  # the first is the whole text's vector
    spans = np.array([[start, start + PASSAGE_WORDS] for start in starts], dtype=np.int32)
    signs = np.array([_direction(word) > 0 for word in dict.fromkeys(words)]).reshape(-1, NDIM)
    return Embedded(vectors, spans, np.packbits(signs, axis=1), len(words))


def _vector(text: str) -> Embedding:
    total: npt.NDArray[np.float32] = sum((_direction(word) for word in text.split()), np.zeros(NDIM, np.float32))
    length = float(np.linalg.norm(total))
    return total / length if length else _direction("")


@lru_cache(1 << 16)
def _direction(word: str) -> npt.NDArray[np.float32]:
    seed = int.from_bytes(blake2b(word.encode(), digest_size=8).digest(), "big")
    vector = np.random.default_rng(seed).normal(size=NDIM).astype(np.float32)
    return vector / np.linalg.norm(vector)
