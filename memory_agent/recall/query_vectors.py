"""A query's vector: embedded before the deadline, by the model of the store, and centred on this user's queries.

The running mean of the queries is kept with the store, without a flush of its own; what a crash loses is learned again.

Shapes: d = dimensions of an embedding.
"""

from __future__ import annotations

import threading

import msgspec

from memory_agent.embedders import PendingVector, comparable
from memory_agent.embedders.lazy_embedder import LazyEmbedder, failing_as_model_error
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
    """A query as embedded (`raw`, for `score`) and as searched with (`centred`), each (d,); `stamp` names the model."""

    raw: Embedding
    centred: Embedding
    stamp: str


class QueryVectors:
    """Makes the query vectors of one user. Thread-safe."""

    def __init__(self, archive: Archive, embedder: LazyEmbedder, centering: bool) -> None:
        self._archive = archive
        self._embedder = embedder
        self._centering = centering
        self._lock = threading.Lock()
        self._learner: QueryCentering | None = None
        self._stamp = ""

    def begin(self, text: str, deadline: Deadline) -> PendingVector | None:
        """Send `text` to the embedder and return what `finish` waits for, or None with a reason noted in `deadline`."""
        timeout_s = deadline.remaining_s - min(_REST_SHARE * deadline.limit_s, _MOST_REST_S)
        if timeout_s <= 0:
            deadline.degrade("deadline")
            return None
        try:
            with failing_as_model_error():
                return self._embedder.begin_query(text, timeout_s)
        except ModelError:
            deadline.degrade("no_model")
            return None

    def finish(self, pending: PendingVector, stored: str, deadline: Deadline) -> QueryVector | None:
        """Wait for the vector of a query and return it, or None with a reason noted in `deadline`.

        `stored` names the embedder of the vectors that are searched, "" without any.
        """
        try:
            with failing_as_model_error():
                vector = pending.result()
                stamp = self._embedder.get(0).info.stamp
        except EmbedderUnavailableError:
            deadline.degrade("embedder_timeout")
            return None
        except ModelError:
            deadline.degrade("no_model")
            return None
        if not comparable(stored or self._archive.store.stamp or stamp, stamp):
            deadline.degrade("model_changed")
            return None
        return QueryVector(vector, self._centre(vector, stamp) if self._centering else vector, stamp)

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
