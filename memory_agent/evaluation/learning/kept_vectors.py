"""An embedder that embeds a text once: the same turns lie in several stores, alone and beside those of others.

The same text always has the same vector (`Embedder`), so nothing is measured differently; it only takes a third of the
time. What this does not do: keep anything on disk.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from memory_agent.embedders import Embedder, EmbedderInfo, Embeddings, Progress
from memory_agent.records import Embedding


class KeptVectors:
    """Another embedder, and the vectors that it gave. Not safe to share between threads that embed in bulk."""

    def __init__(self, embedder: Embedder) -> None:
        """Embed with `embedder`, which stays the caller's."""
        self._embedder = embedder
        self._vectors: dict[str, Embedding] = {}

    @property
    def info(self) -> EmbedderInfo:
        """What the vectors come from."""
        return self._embedder.info

    def embed_query(self, text: str, timeout_s: float | None = None) -> Embedding:
        """Return what the other embedder returns, which keeps queries itself."""
        return self._embedder.embed_query(text, timeout_s)

    def embed_texts(self, texts: Sequence[str], progress: Progress | None = None) -> Embeddings:
        """Return the (n, d) vectors of `texts`; only those that are new are embedded."""
        new = [text for text in dict.fromkeys(texts) if text not in self._vectors]
        if new:
            self._vectors.update(zip(new, self._embedder.embed_texts(new, progress), strict=True))
        return np.array([self._vectors[text] for text in texts], dtype=np.float32).reshape(len(texts), self.info.ndim)

    def count_tokens(self, text: str, timeout_s: float | None = None) -> int:
        """Return how many tokens `text` has."""
        return self._embedder.count_tokens(text, timeout_s)

    def close(self) -> None:
        """Do nothing: the other embedder is the caller's."""
