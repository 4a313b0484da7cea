"""A query's vector and those of its words: embedded before the deadline, by the model of the store.

Shapes: d = dimensions of an embedding, q = words of the query, e = dimensions of a word.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from memory_agent.embedders import Pending, comparable
from memory_agent.embedders.lazy_embedder import LazyEmbedder, failing_as_model_error
from memory_agent.errors import EmbedderUnavailableError, ModelError
from memory_agent.recall.deadline import Deadline
from memory_agent.records.embedded import EmbeddedQuery, Embedding
from memory_agent.storage.archive import Archive

_REST_SHARE = 0.2  # of the deadline, reserved for the steps after the embedding
_MOST_REST_S = 0.05
_LEAST_READ = 0.5
"""Share of a query's letters that the model reads, below which its vector says nothing of what it means."""


class QueryVector(msgspec.Struct, frozen=True):
    """A query as embedded, `raw` (d,); `stamp` names the model.

    `words` are its content words, folded, and `word_vectors` (q, e) theirs; `words_stamp` names how these are made. All
    are empty with an embedder that makes none.
    """

    raw: Embedding
    stamp: str
    words: tuple[str, ...]
    word_vectors: npt.NDArray[np.float16]
    words_stamp: str


class QueryVectors:
    """Makes the query vectors of one user. Thread-safe."""

    def __init__(self, archive: Archive, embedder: LazyEmbedder) -> None:
        self._archive = archive
        self._embedder = embedder

    def begin(self, text: str, deadline: Deadline) -> Pending[EmbeddedQuery] | None:
        """Send `text` to the embedder and return what `finish` waits for, or None with a reason noted in `deadline`."""
        timeout_s = deadline.remaining_s - min(_REST_SHARE * deadline.limit_s, _MOST_REST_S)
        if timeout_s <= 0:
            deadline.degrade("deadline")
            return None
        try:
            with failing_as_model_error():
                return self._embedder.begin_query_words(text, timeout_s)
        except ModelError:
            deadline.degrade("no_model")
            return None

    def finish(self, pending: Pending[EmbeddedQuery], stored: str, deadline: Deadline) -> QueryVector | None:
        """Wait for the vector of a query and return it, or None with a reason noted in `deadline`.

        `stored` names the embedder of the vectors that are searched, "" without any.
        """
        try:
            with failing_as_model_error():
                found = pending.result()
                info = self._embedder.get(0).info
            if not found.is_sound(info.ndim):
                raise ModelError(f"{info.stamp}: the vector of a query cannot be compared")
        except EmbedderUnavailableError:
            deadline.degrade("embedder_timeout")
            return None
        except ModelError:
            deadline.degrade("no_model")
            return None
        if not comparable(stored or self._archive.store.stamp or info.stamp, info.stamp):
            deadline.degrade("model_changed")
            return None
        if found.read < _LEAST_READ:
            deadline.degrade("script_unknown")
            return None
        return QueryVector(
            raw=found.vector,
            stamp=info.stamp,
            words=found.words,
            word_vectors=found.word_vectors,
            words_stamp=info.words_stamp,
        )
