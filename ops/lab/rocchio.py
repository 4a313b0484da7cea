"""A baseline: one vector that moves all queries, the mean of what runs used less what they asked (Rocchio, 1971).

    moved = unit(x + beta mean(y - x))      x a request, centred; y = unit(mean of what its run used)

It learns from approved runs with at least one credited memory, all weighted equally. The memory is the real one with
learning off and an embedder that moves its queries. The memory subtracts the mean of its queries, which would soon
cancel the vector, so `MovedQueries` compensates for that mean.

Memories are not centred, unlike in the learner (`sona/exemplars`): with both sides centred, both means are close to
zero and the vector moves nothing (measured on LoCoMo: length .07 to .11 before beta, .56 to .63 as it is). Queries are
not moved during learning, or the first runs alone would decide what later runs are shown.

Shapes: d dimensions, k memories used.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from memory_agent.embedded import Embedded, EmbeddedQuery
from memory_agent.embedders import Embedder, EmbedderInfo, PassageEmbedder, Pending, Progress, Settled
from memory_agent.records import Embedding
from sona.centering import QueryCentering
from sona.lesson import Array

BETA = 0.75
"""The classic weight of the vector (Manning, Raghavan and Schütze, 2008, 9.1.1)."""
_APPROVED = 0.5


class Rocchio:
    """The runs of one course so far, and the vector they give. Mutable."""

    def __init__(self) -> None:
        self._asked: list[tuple[Embedding, Array | None]] = []

    def learn(self, query: Embedding, used: Sequence[Embedding], quality: float) -> None:
        """Add a run that asked `query` (d,), was credited with `used` (k, d) and ended with `quality`."""
        self._asked.append((query, _answer(used) if len(used) and quality > _APPROVED else None))

    def moving(self, embedder: Embedder) -> Embedder:
        """Return an embedder that moves queries, for a memory that has been asked exactly these queries."""
        queries = QueryCentering(embedder.info.ndim)
        for query, _ in self._asked:
            queries.observe(query)
        ways = [answer - queries.centre(query) for query, answer in self._asked if answer is not None]
        return MovedQueries(embedder, queries, BETA * np.mean(ways, axis=0)) if ways else embedder


def _answer(used: Sequence[Embedding]) -> Array:
    mean = np.array(used, dtype=np.float64).mean(axis=0)
    unit: Array = mean / np.linalg.norm(mean)
    return unit


class MovedQueries(PassageEmbedder):
    """An embedder that shifts the queries of one memory by a vector, as seen after the memory has centred them.

    It tracks the mean of that memory, so it must not serve another one. Its query vectors are not of unit length.
    """

    def __init__(self, embedder: Embedder, queries: QueryCentering, shift: Array) -> None:
        """Move queries by `shift` (d,), for a memory whose centring so far is `queries`."""
        self._embedder = embedder
        self._plain, self._seen = (QueryCentering.from_bytes(queries.to_bytes(), shift.size) for _ in range(2))
        self._shift = shift

    @property
    def info(self) -> EmbedderInfo:
        """The model of the vectors."""
        return self._embedder.info

    def begin_query_words(self, text: str, timeout_s: float | None = None) -> Pending[EmbeddedQuery]:
        """Return the query with the vector (d,) that becomes the moved query when the memory centres it."""
        query = self._embedder.embed_query_words(text, timeout_s)
        plain = query.vector
        wanted = self._plain.centre(plain) + self._shift
        start = (wanted / np.linalg.norm(wanted) + self._seen.mean).astype(np.float32)
        self._plain.observe(plain)
        self._seen.observe(start)
        return Settled(msgspec.structs.replace(query, vector=start))

    def begin_passages(
        self, texts: Sequence[str], progress: Progress | None = None, timeout_s: float | None = None
    ) -> Pending[list[Embedded]]:
        """Return what is made of `texts`, unmoved."""
        return self._embedder.begin_passages(texts, progress, timeout_s)

    def count_tokens(self, text: str, timeout_s: float | None = None) -> int:
        """Return the number of tokens of `text`."""
        return self._embedder.count_tokens(text, timeout_s)

    def close(self) -> None:
        """Do nothing; the caller closes the wrapped embedder."""
