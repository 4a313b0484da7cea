"""Vectors for the laboratory's memories, without a model."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from memory_agent.embedders import Embedder, EmbedderInfo, PendingVector, PendingVectors, Progress, SettledVector
from memory_agent.records import Embedding

NDIM = 32


class WordVectors(Embedder):
    """An embedder by feature hashing: each word has a direction, a text the sum of its words' directions.

    The laboratory tests that vectors are kept, not what they mean; the real model would load for a second after each of
    hundreds of kills. The long form with Ray uses the real one.
    """

    @property
    def info(self) -> EmbedderInfo:
        return EmbedderInfo(model="words", model_sha256="0" * 16, scheme="float32", runtime="tests", ndim=NDIM)

    def begin_query(self, text: str, timeout_s: float | None = None) -> PendingVector:
        return SettledVector(_vector(text))

    def begin_texts(self, texts: Sequence[str], progress: Progress | None = None) -> PendingVectors:
        return SettledVector(np.stack([_vector(text) for text in texts]))

    def count_tokens(self, text: str, timeout_s: float | None = None) -> int:
        return len(text.split())

    def close(self) -> None:
        pass


def _vector(text: str) -> Embedding:
    total: npt.NDArray[np.float32] = sum((_direction(word) for word in text.split()), np.zeros(NDIM, np.float32))
    length = float(np.linalg.norm(total))
    return total / length if length else _direction("")


def _direction(word: str) -> npt.NDArray[np.float32]:
    seed = int.from_bytes(blake2b(word.encode(), digest_size=8).digest(), "big")
    vector = np.random.default_rng(seed).normal(size=NDIM).astype(np.float32)
    return vector / np.linalg.norm(vector)
