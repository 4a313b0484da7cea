"""An embedder without a model, whose vectors, passages and words depend only on the text."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from memory_agent.embedders import EmbedderInfo, PassageEmbedder, Pending, Progress
from memory_agent.records.embedded import Embedded, EmbeddedQuery

PASSAGE_WORDS = 20
WAIT_S = 60.0


class Made:
    """A result that is already available."""

    def __init__(self, found: list[Embedded]) -> None:
        self._found = found

    def result(self) -> list[Embedded]:
        return self._found


class MadeQuery:
    """An embedded query that is already available."""

    def __init__(self, found: EmbeddedQuery) -> None:
        self._found = found

    def result(self) -> EmbeddedQuery:
        return self._found


class MadeVectors(PassageEmbedder):
    """A passage's vector is the sum of its words' random vectors, so texts that share words are similar."""

    def __init__(self, ndim: int = 32, words: str = "signs-1", model: str = "made", runtime: str = "none") -> None:
        """Without `words`, embed only the first passage of a text."""
        self._info = EmbedderInfo(
            model=model, model_sha256=model * 16, scheme="float32", runtime=runtime, ndim=ndim, words=words
        )
        self.texts = 0
        self.going_on = threading.Event()  # bulk work waits for this event
        self.going_on.set()

    @property
    def info(self) -> EmbedderInfo:
        return self._info

    def begin_passages(
        self, texts: Sequence[str], progress: Progress | None = None, timeout_s: float | None = None
    ) -> Pending[list[Embedded]]:
        assert timeout_s is not None or self.going_on.wait(WAIT_S)
        self.texts += len(texts)
        return Made([self._made(text) for text in texts])

    def begin_query_words(self, text: str, timeout_s: float | None = None) -> Pending[EmbeddedQuery]:
        words = tuple(dict.fromkeys(text.casefold().split()))
        vectors = np.array([self._word(word) for word in words], dtype=np.float16).reshape(-1, self.info.ndim)
        return MadeQuery(EmbeddedQuery(self._vector(words), words, vectors))

    def count_tokens(self, text: str, timeout_s: float | None = None) -> int:
        return len(text.split())

    def close(self) -> None:
        pass

    def _made(self, text: str) -> Embedded:
        words = text.casefold().split()
        starts = range(0, max(1, len(words)), PASSAGE_WORDS) if self.info.words else (0,)
        vectors = np.stack([self._vector(words[start : start + PASSAGE_WORDS]) for start in starts])
        bits = np.packbits(np.array([self._word(word) > 0 for word in dict.fromkeys(words)]), axis=-1)
        spans = np.array([[start, start + 1] for start in starts], dtype=np.int32)
        bits = (
            bits.reshape(-1, self.info.ndim // 8) if self.info.words else np.zeros((0, self.info.ndim // 8), np.uint8)
        )
        return Embedded(vectors, spans, bits, len(words))

    def _vector(self, words: Sequence[str]) -> npt.NDArray[np.float32]:
        total = np.sum([self._word(word) for word in words or ("",)], axis=0)
        unit: npt.NDArray[np.float32] = (total / np.linalg.norm(total)).astype(np.float32)
        return unit

    def _word(self, word: str) -> npt.NDArray[np.float64]:
        return _vector_of(self.info.model, self.info.ndim, word)


@lru_cache(10_000)
def _vector_of(model: str, ndim: int, word: str) -> npt.NDArray[np.float64]:
    seed = int.from_bytes(blake2b(f"{model} {word}".encode(), digest_size=8).digest())
    vector = np.random.default_rng(seed).normal(size=ndim)
    unit: npt.NDArray[np.float64] = vector / np.linalg.norm(vector)
    unit.setflags(write=False)
    return unit
