"""The `Embedder` protocol, and types shared by its implementations: the origin of vectors, and pending results.

Shapes: n texts, d dimensions of an embedding (384 with the default model). All vectors are float32 of unit length,
except the vectors of a query's words (`memory_agent.records.embedded`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar, runtime_checkable

import msgspec
import numpy as np
import numpy.typing as npt

from memory_agent.errors import ModelError
from memory_agent.records.embedded import Embedded, EmbeddedQuery, Embedding, of_vector, query_of_vector
from memory_agent.records.memories import ApiCounts

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Embeddings = npt.NDArray[np.float32]
_PARTS_WITH_PREFIXES, _RUNTIME = 6, 3  # the number of parts in a stamp, and the index of the runtime
SERVER_RUNTIME = "api"  # prefix of the `runtime` of a model on a server

Progress = Callable[[int, int], None]  # called with (done, total)
ByteProgress = Callable[[str, int, int], None]  # called with (file, bytes done, total bytes)


class EmbedderInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The origin of vectors."""

    model: str
    model_sha256: str
    scheme: str  # int8 or float32
    runtime: str  # names the engine, kernels, graph and truncation
    ndim: int
    words: str = ""  # the version of the passages and word bits, if any
    prefixes: str = ""  # identifies the prefixes of queries and passages, if any

    @property
    def stamp(self) -> str:
        """The identifier to store with vectors: equal stamps mean bit-identical vectors for the same text."""
        parts = (self.model, self.model_sha256[:16], self.scheme, self.runtime, str(self.ndim), self.prefixes)
        return "|".join(parts if self.prefixes else parts[:-1])

    @property
    def words_stamp(self) -> str:
        """The identifier to store with further passages and word bits, or "" if the embedder computes none."""
        return f"{self.words}|{self.stamp}" if self.words else ""


def has_prefixes(stamp: str) -> bool:
    """Return whether vectors with this stamp were computed with prefixes, which shift the cosines."""
    return len(stamp.split("|")) == _PARTS_WITH_PREFIXES


def is_of_server(stamp: str) -> bool:
    parts = stamp.split("|")
    return len(parts) > _RUNTIME and parts[_RUNTIME].startswith(SERVER_RUNTIME)


def comparable(stamp: str, other: str) -> bool:
    """Return whether vectors with these stamps may be compared: same weights, dimensions and prefixes (any scheme)."""
    return _weights_and_ndim(stamp) == _weights_and_ndim(other)


def comparable_words(stamp: str, other: str) -> bool:
    """Return whether word vectors with these stamps may be compared: same version, weights, dimensions and prefixes."""
    (words, _, vectors), (other_words, _, other_vectors) = stamp.partition("|"), other.partition("|")
    return words == other_words and comparable(vectors, other_vectors)


def _weights_and_ndim(stamp: str) -> tuple[str, ...]:
    parts = stamp.split("|")
    is_ours = _PARTS_WITH_PREFIXES - 1 <= len(parts) <= _PARTS_WITH_PREFIXES
    return (parts[1], *parts[4:]) if is_ours else (stamp,)


class Pending(Protocol[T_co]):
    """The result of an embedding that is in progress. Call `result` from one thread, at most once."""

    def result(self) -> T_co:
        """Wait for the result. Raises a `ModelError`, such as `EmbedderUnavailableError` after the timeout."""
        ...


PendingVector = Pending[Embedding]  # (d,) of a query
PendingVectors = Pending[Embeddings]  # (n, d) of texts


class Later(Generic[T]):
    """A pending result whose `result` calls a blocking function."""

    def __init__(self, result: Callable[[], T]) -> None:
        self.result = result


class Settled(Generic[T]):
    """A result or error that is already known."""

    def __init__(self, outcome: T | ModelError) -> None:
        self._outcome = outcome

    def result(self) -> T:
        if isinstance(self._outcome, ModelError):
            raise self._outcome
        return self._outcome


SettledVector = Settled[Embeddings]


def all_of(pending: Sequence[Pending[T]]) -> Pending[list[T]]:
    """Combine several pending results into one."""
    return Later(lambda: [each.result() for each in pending])


@runtime_checkable
class Embedder(Protocol):
    """Turns text into vectors. Thread-safe. The same text always yields bit-identical vectors. Implementations inherit
    from it.

    An embedder that computes only vectors implements `begin_query` and `begin_texts`; an embedder that also computes
    passages and word vectors is a `PassageEmbedder`. If the model has prefixes, the same string has different vectors
    as a query and as a text. All blank texts share one vector. Text that is not valid Unicode (a lone surrogate) raises
    `InvalidInputError`. `ModelMissingError` and `EmbedderUnavailableError` are retryable.
    """

    @property
    def info(self) -> EmbedderInfo: ...

    def begin_query(self, text: str, timeout_s: float | None = None) -> PendingVector:
        """Begin to embed `text` ahead of all bulk work, and return without waiting for the result.

        `timeout_s` limits the time from this call to the result. Raises only `InvalidInputError`; `result` raises other
        errors.
        """
        ...

    def embed_query(self, text: str, timeout_s: float | None = None) -> Embedding:
        """Return the (d,) vector of `text`, ahead of bulk work. Raises `EmbedderUnavailableError` after `timeout_s`."""
        return self.begin_query(text, timeout_s).result()

    def begin_texts(self, texts: Sequence[str], progress: Progress | None = None) -> PendingVectors:
        """Begin to embed `texts`, at low priority, and return without waiting.

        `progress` is called while `result` waits. Raises only `InvalidInputError`; `result` raises other errors.
        """
        ...

    def embed_texts(self, texts: Sequence[str], progress: Progress | None = None) -> Embeddings:
        """Return the (n, d) vectors of `texts`, at low priority. Raises if any text fails."""
        return self.begin_texts(texts, progress).result()

    def begin_query_words(self, text: str, timeout_s: float | None = None) -> Pending[EmbeddedQuery]:
        """Like `begin_query`, but the result includes the query's word vectors if the embedder computes them."""
        pending = self.begin_query(text, timeout_s)
        return Later(lambda: query_of_vector(pending.result()))

    def embed_query_words(self, text: str, timeout_s: float | None = None) -> EmbeddedQuery:
        """Return the vectors of `text` and of its words. Raises the same errors as `embed_query`."""
        return self.begin_query_words(text, timeout_s).result()

    def begin_passages(
        self, texts: Sequence[str], progress: Progress | None = None, timeout_s: float | None = None
    ) -> Pending[list[Embedded]]:
        """Like `begin_texts`, but the results include each text's passages and words if the embedder computes them.

        With `timeout_s`, the texts are embedded within that time and, like queries, ahead of bulk work.
        """
        pending: PendingVectors | Pending[list[Embedding]]
        if timeout_s is None:
            pending = self.begin_texts(texts, progress)
        else:
            pending = all_of([self.begin_query(text, timeout_s) for text in texts])
        return Later(lambda: list(map(of_vector, texts, pending.result())))

    def embed_passages(self, texts: Sequence[str], progress: Progress | None = None) -> list[Embedded]:
        """Return the passages and words of `texts`, at low priority. Raises if any text fails."""
        return self.begin_passages(texts, progress).result()

    def count_tokens(self, text: str, timeout_s: float | None = None) -> int:
        """Return the number of tokens of `text`, without special tokens and without truncation.

        With an embedder in another process, raises `EmbedderUnavailableError` after `timeout_s`.
        """
        ...

    def provider_calls(self, timeout_s: float | None = None) -> ApiCounts | None:
        """Return counts of the calls to the provider's API so far, or None for a model without a provider.

        With an embedder in another process, raises `EmbedderUnavailableError` after `timeout_s`.
        """
        return None

    def close(self) -> None:
        """Stop the embedder; waiting callers get `EmbedderUnavailableError`."""
        ...


class PassageEmbedder(Embedder):
    """An embedder that implements `begin_query_words` and `begin_passages`, and derives the other methods from them."""

    def begin_query(self, text: str, timeout_s: float | None = None) -> PendingVector:
        pending = self.begin_query_words(text, timeout_s)
        return Later(lambda: pending.result().vector.copy())

    def begin_texts(self, texts: Sequence[str], progress: Progress | None = None) -> PendingVectors:
        pending = self.begin_passages(texts, progress)
        return Later(lambda: self._first_vectors(pending.result()))

    def _first_vectors(self, found: Sequence[Embedded]) -> Embeddings:
        vectors = [one.vectors[0] for one in found]
        return np.array(vectors, dtype=np.float32).reshape(len(vectors), self.info.ndim)
