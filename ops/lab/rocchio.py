"""A baseline: shifts all queries by the mean difference between used memories and their requests (Rocchio, 1971).

    moved = unit(x + beta mean(y - x))      x a request; y = unit(mean of what its run used)

The vector is computed from approved runs with at least one credited memory, all weighted equally. The memory is the
real `Memory` with learning off and an embedder that shifts its queries. Neither requests nor memories are centred: with
centred memories, both means are close to zero and the vector has no effect. On LoCoMo, its length before multiplication
by beta is .07 to .11 with centring, and .56 to .63 without. Queries are not shifted during learning; otherwise the
first runs would determine the memories that are shown to later runs.

Shapes: d dimensions, k memories used.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from memory_agent.embedders import Embedder, EmbedderInfo, PassageEmbedder, Pending, Progress, Settled
from memory_agent.records.embedded import Embedded, EmbeddedQuery, Embedding
from sona import Array

BETA = 0.75
"""The vector's classic weight (Manning, Raghavan and Schütze, 2008, 9.1.1)."""
_APPROVED = 0.5


class Rocchio:
    """Accumulates one course's runs and computes their vector. Mutable."""

    def __init__(self) -> None:
        self._ways: list[Array] = []

    def learn(self, query: Embedding, used: Sequence[Embedding], quality: float) -> None:
        """Add a run with its request `query` (d,), its credited memories `used` (k, d) and its `quality`."""
        if len(used) and quality > _APPROVED:
            self._ways.append(_answer(used) - query)

    def moving(self, embedder: Embedder) -> Embedder:
        """Return an embedder that shifts queries, or `embedder` itself if no approved run used a memory."""
        return MovedQueries(embedder, BETA * np.mean(self._ways, axis=0)) if self._ways else embedder


def _answer(used: Sequence[Embedding]) -> Array:
    mean = np.array(used, dtype=np.float64).mean(axis=0)
    unit: Array = mean / np.linalg.norm(mean)
    return unit


class MovedQueries(PassageEmbedder):
    """An embedder that shifts queries by a vector."""

    def __init__(self, embedder: Embedder, shift: Array) -> None:
        """Shift `embedder`'s queries by `shift` (d,)."""
        self._embedder = embedder
        self._shift = shift

    @property
    def info(self) -> EmbedderInfo:
        """Like `Embedder.info`."""
        return self._embedder.info

    def begin_query_words(self, text: str, timeout_s: float | None = None) -> Pending[EmbeddedQuery]:
        """Return the query with its vector (d,) shifted and rescaled to unit length, and its words unchanged."""
        query = self._embedder.embed_query_words(text, timeout_s)
        moved = query.vector + self._shift
        return Settled(msgspec.structs.replace(query, vector=(moved / np.linalg.norm(moved)).astype(np.float32)))

    def begin_passages(
        self, texts: Sequence[str], progress: Progress | None = None, timeout_s: float | None = None
    ) -> Pending[list[Embedded]]:
        """Return the unshifted embeddings of `texts`."""
        return self._embedder.begin_passages(texts, progress, timeout_s)

    def count_tokens(self, text: str, timeout_s: float | None = None) -> int:
        """Return the model's token count for `text`."""
        return self._embedder.count_tokens(text, timeout_s)

    def close(self) -> None:
        """Do nothing; the caller closes the wrapped embedder."""
