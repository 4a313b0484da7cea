"""A baseline: one vector that moves all queries, what runs used less what they asked for, on average (Rocchio, 1971).

    moved = unit(x + beta mean(y - x))      x a request, centred; y = unit(mean of what its run used)

It learns from approved runs credited with something, all weighted the same. The memory is the real one with learning
off and an embedder that moves its queries. The memory subtracts the mean of its queries, which would soon cancel the
vector, so `MovedQueries` compensates for that mean.

Memories are used as searched, not centred as in the learner (`sona/exemplars`): with both sides centred, both means are
close to zero and the vector moves nothing (measured on LoCoMo: length .07 to .11 before beta, .56 to .63 as it is).
Queries are not moved while it learns, or the first runs alone would decide what the others are shown.

Shapes: d dimensions, k memories used.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from memory_agent.embedders import Embedder, EmbedderInfo, Embeddings, Progress
from memory_agent.records import Embedding
from sona.centering import QueryCentering
from sona.lesson import Array

BETA = 0.75
"""The classic weight of the vector (Manning, Raghavan and Schütze, 2008, 9.1.1)."""
_APPROVED = 0.5


class Rocchio:
    """The runs of one course so far. Mutable."""

    def __init__(self) -> None:
        self._asked: list[tuple[Embedding, Array | None]] = []

    def learn(self, query: Embedding, used: Sequence[Embedding], quality: float) -> None:
        """Add a run that asked `query` (d,), was credited with `used` (k, d) and ended with `quality`."""
        self._asked.append((query, _answer(used) if len(used) and quality > _APPROVED else None))

    def moving(self, embedder: Embedder) -> Embedder:
        """Return an embedder that moves queries, for a memory that was asked exactly these queries."""
        queries = QueryCentering(embedder.info.ndim)
        for query, _ in self._asked:
            queries.observe(query)
        ways = [answer - queries.centre(query) for query, answer in self._asked if answer is not None]
        return MovedQueries(embedder, queries, BETA * np.mean(ways, axis=0)) if ways else embedder


def _answer(used: Sequence[Embedding]) -> Array:
    mean = np.array(used, dtype=np.float64).mean(axis=0)
    unit: Array = mean / np.linalg.norm(mean)
    return unit


class MovedQueries:
    """An embedder whose queries, after a memory has centred them, are all moved by one vector.

    It tracks the memory's mean, so it serves the queries of that memory only. They are not of unit length.
    """

    def __init__(self, embedder: Embedder, queries: QueryCentering, shift: Array) -> None:
        """Move queries by `shift` (d,), for a memory that has centred by `queries` so far."""
        self._embedder = embedder
        self._plain, self._seen = (QueryCentering.from_bytes(queries.to_bytes(), shift.size) for _ in range(2))
        self._shift = shift

    @property
    def info(self) -> EmbedderInfo:
        """The model of the vectors."""
        return self._embedder.info

    def embed_query(self, text: str, timeout_s: float | None = None) -> Embedding:
        """Return the vector (d,) that the memory centres to the moved query."""
        plain = self._embedder.embed_query(text, timeout_s)
        wanted = self._plain.centre(plain) + self._shift
        start = (wanted / np.linalg.norm(wanted) + self._seen.mean).astype(np.float32)
        self._plain.observe(plain)
        self._seen.observe(start)
        return start

    def embed_texts(self, texts: Sequence[str], progress: Progress | None = None) -> Embeddings:
        """Return the (n, d) vectors of `texts`, unmoved."""
        return self._embedder.embed_texts(texts, progress)

    def count_tokens(self, text: str, timeout_s: float | None = None) -> int:
        """Return the number of tokens of `text`."""
        return self._embedder.count_tokens(text, timeout_s)

    def close(self) -> None:
        """Do nothing; the caller closes the wrapped embedder."""
