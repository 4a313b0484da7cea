"""Get a query's vector from the embedder that computed the stored vectors.

After a change of model, the former embedder embeds the queries, if it is available, until all new vectors are computed.

Shapes: d = dimensions of an embedding, q = words of the query, e = dimensions of a word.
"""

from __future__ import annotations

from typing import Self

import msgspec
import numpy as np
import numpy.typing as npt

from memory_agent.embedders import EmbedderInfo, LazyEmbedder, Pending, comparable, failing_as_model_error
from memory_agent.errors import EmbedderUnavailableError, ModelError, ProviderUnavailableError
from memory_agent.recall.query import Deadline, Query
from memory_agent.records.embedded import WORD_DIMENSIONS, EmbeddedQuery, Embedding
from memory_agent.records.shared_requests import SentVector
from memory_agent.storage.codec import StoreState

_FLOAT, _HALF = "<f4", "<f2"
_REST_SHARE = 0.2  # share of the deadline that is reserved for the steps after the embedding
_MOST_REST_S = 0.05
_LEAST_READ = 0.5  # minimum share of a query's letters that the model must support


class QueryVector(msgspec.Struct, frozen=True):
    """The vector of a query, `raw` (d,), and the `stamp` of its model.

    `words` are the query's folded content words, `word_vectors` (q, e) are the vectors of these words, and
    `words_stamp` identifies how the vectors were computed. All three are empty if the embedder has no word vectors.
    """

    raw: Embedding
    stamp: str
    words: tuple[str, ...]
    word_vectors: npt.NDArray[np.float16]
    words_stamp: str

    def sent(self) -> SentVector:
        """Return the vectors as bytes."""
        return SentVector(
            raw=self.raw.astype(_FLOAT).tobytes(),
            stamp=self.stamp,
            words=self.words,
            word_vectors=self.word_vectors.astype(_HALF).tobytes(),
            words_stamp=self.words_stamp,
        )

    @classmethod
    def received(cls, sent: SentVector) -> Self | None:
        """Decode the bytes that `sent` returned; return None for `NO_VECTOR`."""
        if not sent.raw:
            return None
        raw, halves = np.frombuffer(sent.raw, _FLOAT), np.frombuffer(sent.word_vectors, _HALF)
        word_vectors = halves.reshape(len(sent.words), min(raw.size, WORD_DIMENSIONS))
        return cls(raw, sent.stamp, sent.words, word_vectors, sent.words_stamp)


class AskedVector(msgspec.Struct, frozen=True):
    text: str
    pending: Pending[EmbeddedQuery]
    embedder: LazyEmbedder


class QueryVectors:
    """Embeds the queries of one user. Thread-safe."""

    def __init__(self, embedder: LazyEmbedder) -> None:
        self._embedder = embedder
        self._of_former: str | None = None
        self._not_of_former: str | None = None

    def begin(self, query: Query, state: StoreState, deadline: Deadline) -> AskedVector | None:
        """Send a query to the embedder; return None if `deadline` records a failure."""
        former, stamp = self._embedder.former, state.stamp
        is_replaced = state.next is not None and stamp != self._not_of_former
        is_former = former is not None and stamp is not None and (is_replaced or stamp == self._of_former)
        try:
            asked = _asked(query.text, former if is_former and former is not None else self._embedder, deadline)
        except ModelError:
            deadline.degrade("no_model")
            return None
        if asked is None:
            deadline.degrade("deadline")
        return asked

    def result(self, asked: AskedVector, stored: str, deadline: Deadline) -> QueryVector | None:
        """Wait for the query's vector and return it; if there is none, return None and record the reason in `deadline`.

        `stored` identifies the embedder of the stored vectors, or is "" if there are none. If the query was embedded by
        another embedder, try the current or the former one, whichever has not been used yet.
        """
        former = self._embedder.former
        try:
            found, info = _result(asked)
        except ModelError as error:
            if asked.embedder is not former:
                is_late = isinstance(error, EmbedderUnavailableError | ProviderUnavailableError)
                deadline.degrade("embedder_timeout" if is_late else "no_model")
                return None
        else:
            if comparable(stored or info.stamp, info.stamp):
                return _vector_of(found, info, deadline)
        other = self._embedder if asked.embedder is former else former
        by_other = None if other is None or stored == self._not_of_former else _by(other, asked.text, deadline)
        if by_other is None or not comparable(stored, by_other[1].stamp):
            self._not_of_former = stored if by_other is not None and other is former else self._not_of_former
            deadline.degrade("model_changed")
            return None
        self._of_former, self._not_of_former = (stored, None) if other is former else (None, stored)
        return _vector_of(*by_other, deadline)


def _by(embedder: LazyEmbedder, text: str, deadline: Deadline) -> tuple[EmbeddedQuery, EmbedderInfo] | None:
    """Embed a query, or return None if the embedder fails or is too late."""
    try:
        asked = _asked(text, embedder, deadline)
        return None if asked is None else _result(asked)
    except ModelError:
        return None


def _asked(text: str, embedder: LazyEmbedder, deadline: Deadline) -> AskedVector | None:
    """Send a text to an embedder, or return None if no time is left. Raises `ModelError`."""
    timeout_s = deadline.remaining_s - min(_REST_SHARE * deadline.limit_s, _MOST_REST_S)
    if timeout_s <= 0:
        return None
    with failing_as_model_error():
        return AskedVector(text, embedder.begin_query_words(text, timeout_s), embedder)


def _result(asked: AskedVector) -> tuple[EmbeddedQuery, EmbedderInfo]:
    with failing_as_model_error():
        found = asked.pending.result()
        info = asked.embedder.get(0).info
    if not found.is_sound(info.ndim):
        raise ModelError(f"{info.stamp}: the query's vector is invalid")
    return found, info


def _vector_of(found: EmbeddedQuery, info: EmbedderInfo, deadline: Deadline) -> QueryVector | None:
    if found.read < _LEAST_READ:
        deadline.degrade("script_unknown")
        return None
    return QueryVector(found.vector, info.stamp, found.words, found.word_vectors, info.words_stamp)
