"""A query's vector: embedded before the deadline, by the model of the store, and centred on this user's queries.

The running mean of the queries is kept with the store, without a flush of its own; what a crash loses is learned again.

Shapes: d = dimensions of an embedding, q = words of the query, e = dimensions of a word.
"""

from __future__ import annotations

import threading

import msgspec
import numpy as np
import numpy.typing as npt

from memory_agent.embedded import EmbeddedQuery
from memory_agent.embedders import Pending, comparable
from memory_agent.embedders.lazy_embedder import LazyEmbedder
from memory_agent.errors import EmbedderUnavailableError, ModelError
from memory_agent.recall.deadline import Deadline
from memory_agent.records import Embedding
from memory_agent.storage.archive import Archive
from sona.centering import QueryCentering
from sona.errors import DamagedStateError

_BLOB = "centering"
_REST_SHARE = 0.2  # of the deadline, reserved for the steps after the embedding
_MOST_REST_S = 0.05

_SavedMean = tuple[str, bytes]


class QueryVector(msgspec.Struct, frozen=True):
    """A query as embedded (`raw`, for `score`) and as searched with (`centred`), each (d,); `stamp` names the model.

    `words` are its content words, folded, and `word_vectors` (q, e) theirs; `words_stamp` names how these are made. All
    are empty with an embedder that makes none.
    """

    raw: Embedding
    centred: Embedding
    stamp: str
    words: tuple[str, ...]
    word_vectors: npt.NDArray[np.float16]
    words_stamp: str


class QueryVectors:
    """Makes the query vectors of one user. Thread-safe."""

    def __init__(self, archive: Archive, embedder: LazyEmbedder, centering: bool) -> None:
        self._archive = archive
        self._embedder = embedder
        self._centering = centering
        self._lock = threading.Lock()
        self._learner: QueryCentering | None = None
        self._stamp = ""

    def begin(self, text: str, deadline: Deadline) -> Pending[EmbeddedQuery] | None:
        """Send `text` to the embedder and return what `finish` waits for, or None with a reason noted in `deadline`."""
        timeout_s = deadline.remaining_s - min(_REST_SHARE * deadline.limit_s, _MOST_REST_S)
        if timeout_s > 0:
            return self._embedder.begin_query_words(text, timeout_s)
        deadline.degrade("deadline")
        return None

    def finish(self, pending: Pending[EmbeddedQuery], stored: str, deadline: Deadline) -> QueryVector | None:
        """Wait for the vector of a query and return it, or None with a reason noted in `deadline`.

        `stored` names the embedder of the vectors that are searched, "" without any.
        """
        try:
            found = pending.result()
            info = self._embedder.get(0).info
        except EmbedderUnavailableError:
            deadline.degrade("embedder_timeout")
            return None
        except ModelError:
            deadline.degrade("no_model")
            return None
        if not comparable(stored or self._archive.store.stamp or info.stamp, info.stamp):
            deadline.degrade("model_changed")
            return None
        return QueryVector(
            raw=found.vector,
            centred=self._centre(found.vector, info.stamp) if self._centering else found.vector,
            stamp=info.stamp,
            words=found.words,
            word_vectors=found.word_vectors,
            words_stamp=info.words_stamp,
        )

    def _centre(self, vector: Embedding, stamp: str) -> Embedding:
        """Centre `vector` by the mean of the earlier queries, and add it to the mean."""
        with self._lock:
            if self._learner is None or not comparable(self._stamp, stamp):
                self._learner, self._stamp = self._restore(vector.size, stamp), stamp
            centred = self._learner.centre(vector)
            self._learner.observe(vector)
            self._archive.note(_BLOB, msgspec.msgpack.encode((stamp, self._learner.to_bytes())))
        return centred

    def _restore(self, ndim: int, stamp: str) -> QueryCentering:
        blob = self._archive.store.blob(_BLOB)
        if blob is None:
            return QueryCentering(ndim)
        try:
            saved_stamp, state = msgspec.msgpack.decode(blob, type=_SavedMean)
            return QueryCentering.from_bytes(state, ndim) if comparable(saved_stamp, stamp) else QueryCentering(ndim)
        except (msgspec.DecodeError, DamagedStateError):
            return QueryCentering(ndim)  # it is learned again
