"""One vector for all queries: what runs used, less what they had asked for, on average (Rocchio, 1971). A baseline.

    moved = unit(x + beta mean(y - x))      x a request, centred; y = unit(mean of what its run used)

It learns from the runs that were approved and credited with something, each the same. The memory is the real one with
learning off: it is given another embedder, whose queries are moved. Since it takes the mean of its queries off them,
and that mean would soon take the vector off, too, they come from where the moved one is left (`MovedQueries`).

Memories are taken as they are searched, not centred as in the learner (`sona/exemplars`): with both sides centred both
means are next to nothing and the vector moves nothing (measured on LoCoMo: .07 to .11 long before beta, .56 to .63 as
it is). What this does not do: move queries while it learns; then the first runs alone would decide what the others are
shown.

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
"""What the vector counts: the classic weight (Manning, Raghavan and Schütze, 2008, 9.1.1)."""
_APPROVED = 0.5


class Rocchio:
    """What one course taught. Grows."""

    def __init__(self) -> None:
        self._asked: list[tuple[Embedding, Array | None]] = []

    def learn(self, query: Embedding, used: Sequence[Embedding], quality: float) -> None:
        """Take in a run that asked `query`, (d,), was credited with `used`, (k, d), and ended with a quality."""
        self._asked.append((query, _answer(used) if len(used) and quality > _APPROVED else None))

    def moving(self, embedder: Embedder) -> Embedder:
        """Return an embedder for a memory that was asked these queries and no others; nothing learnt moves nothing."""
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
    """An embedder whose queries, once a memory has centred them, are all moved by one vector.

    It counts along what the memory's mean is, so it may be asked for the queries of that memory and no others. They are
    not of unit length.
    """

    def __init__(self, embedder: Embedder, queries: QueryCentering, shift: Array) -> None:
        """Move by `shift`, (d,), queries of a memory that has centred by `queries` so far."""
        self._embedder = embedder
        self._plain, self._seen = (QueryCentering.from_bytes(queries.to_bytes(), shift.size) for _ in range(2))
        self._shift = shift

    @property
    def info(self) -> EmbedderInfo:
        """What the vectors come from."""
        return self._embedder.info

    def embed_query(self, text: str, timeout_s: float | None = None) -> Embedding:
        """Return where the memory has to start, (d,), to arrive at the moved query."""
        plain = self._embedder.embed_query(text, timeout_s)
        wanted = self._plain.centre(plain) + self._shift
        start = (wanted / np.linalg.norm(wanted) + self._seen.mean).astype(np.float32)
        self._plain.observe(plain)
        self._seen.observe(start)
        return start

    def embed_texts(self, texts: Sequence[str], progress: Progress | None = None) -> Embeddings:
        """Return the (n, d) vectors of `texts`, which stay where they are."""
        return self._embedder.embed_texts(texts, progress)

    def count_tokens(self, text: str, timeout_s: float | None = None) -> int:
        """Return how many tokens `text` has."""
        return self._embedder.count_tokens(text, timeout_s)

    def close(self) -> None:
        """Do nothing: the other embedder is the caller's."""
