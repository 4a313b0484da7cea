"""Text embedding: the `Embedder` protocol, and `open_embedder`, which embeds in this process.

Each embedder identifies the origin of its vectors (`info.stamp`). Stores keep the stamp with the vectors, so vectors of
different models are never compared. Importing this module loads no engine, which keeps processes that use `remote`
small.

Rejected: a library that depends on torch (2 GB), and one session per user (100 MB each) instead of one per node
(`server`).

Shapes: n texts, d dimensions of an embedding (384 with the default model). All vectors are float32 of unit length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec
import numpy as np
import numpy.typing as npt

from memory_agent.errors import InvalidInputError, ModelError
from memory_agent.records import Embedding
from memory_agent.settings import EmbedderSettings

Embeddings = npt.NDArray[np.float32]
Progress = Callable[[int, int], None]
"""Called with (done, total)."""
ByteProgress = Callable[[str, int, int], None]
"""Called with (file, bytes done, total bytes)."""


class EmbedderInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The origin of vectors. `scheme` is int8 or float32; `runtime` names engine, kernels, graph and truncation."""

    model: str
    model_sha256: str
    scheme: str
    runtime: str
    ndim: int

    @property
    def stamp(self) -> str:
        """The identifier to store with vectors: equal stamps mean bit-identical vectors for the same text."""
        return "|".join((self.model, self.model_sha256[:16], self.scheme, self.runtime, str(self.ndim)))


def comparable(stamp: str, other: str) -> bool:
    """Return whether vectors with these stamps may be compared: same weights, same dimensions.

    int8 and float32 vectors of one model are comparable (cosine .99 for the same text); those of two models are not.
    """
    return _weights_and_ndim(stamp) == _weights_and_ndim(other)


def _weights_and_ndim(stamp: str) -> tuple[str, ...]:
    parts = stamp.split("|")
    return (parts[1], parts[-1]) if len(parts) == 5 else (stamp,)


def check_text(field: str, text: object) -> None:
    """Check that `text` is a string that encodes as UTF-8. Raises `InvalidInputError` (with `field`)."""
    if not isinstance(text, str):
        raise InvalidInputError(field, f"must be text, is {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(field, f"is not valid Unicode: lone surrogate at {error.start}") from error


class PendingVector(Protocol):
    """A query that is being embedded, from `Embedder.begin_query`. For one thread and one `result`, or none."""

    def result(self) -> Embedding:
        """Wait for the (d,) vector and return it.

        Raises `EmbedderUnavailableError` after the timeout given to `begin_query`, or another `ModelError`.
        """
        ...


class PendingVectors(Protocol):
    """Texts that are being embedded, from `Embedder.begin_texts`. For one thread and one `result`, or none."""

    def result(self) -> Embeddings:
        """Wait for the (n, d) vectors and return them. Raises a `ModelError` if any text fails."""
        ...


class SettledVector:
    """A `PendingVector`, or `PendingVectors`, whose outcome is known."""

    def __init__(self, outcome: Embeddings | ModelError) -> None:
        self._outcome = outcome

    def result(self) -> Embeddings:
        """Return the vectors, or raise the error."""
        if isinstance(self._outcome, ModelError):
            raise self._outcome
        return self._outcome


@runtime_checkable
class Embedder(Protocol):
    """Turns text into vectors. Thread-safe; the same text always gives the same bits. Implementations inherit it.

    All blank texts share one vector. Text that is not valid Unicode (a lone surrogate) raises `InvalidInputError`.
    `ModelMissingError` and `EmbedderUnavailableError` are retryable.
    """

    @property
    def info(self) -> EmbedderInfo:
        """The origin of the vectors."""
        ...

    def begin_query(self, text: str, timeout_s: float | None = None) -> PendingVector:
        """Begin to embed `text`, ahead of all bulk work, and return without waiting.

        `timeout_s` bounds the whole, from now. Raises only `InvalidInputError`; other errors come with the result.
        """
        ...

    def embed_query(self, text: str, timeout_s: float | None = None) -> Embedding:
        """Return the (d,) vector of `text`, ahead of all bulk work.

        Raises `EmbedderUnavailableError` after `timeout_s`.
        """
        return self.begin_query(text, timeout_s).result()

    def begin_texts(self, texts: Sequence[str], progress: Progress | None = None) -> PendingVectors:
        """Begin to embed `texts`, at low priority, and return without waiting.

        `progress` is called while the result is waited for. Raises only `InvalidInputError`; other errors come with the
        result.
        """
        ...

    def embed_texts(self, texts: Sequence[str], progress: Progress | None = None) -> Embeddings:
        """Return the (n, d) vectors of `texts`, at low priority. Raises if any text fails."""
        return self.begin_texts(texts, progress).result()

    def count_tokens(self, text: str, timeout_s: float | None = None) -> int:
        """Return the number of tokens of `text`, without special tokens and without truncation.

        With an embedder in another process, raises `EmbedderUnavailableError` after `timeout_s`.
        """
        ...

    def close(self) -> None:
        """Stop the embedder; waiting callers get `EmbedderUnavailableError`."""
        ...


def open_embedder(settings: EmbedderSettings, *, cache: Path | None = None, package: str | None = None) -> Embedder:
    """Open an embedder in this process; the caller closes it.

    `cache` is the folder for built graphs, `package` the distribution that may carry the weights ("" for none). Raises
    `ModelMissingError`, `ModelChecksumError`, or `ModelError` for an unsupported architecture.
    """
    from memory_agent.embedders.lanes import LanedEmbedder  # loads the engines
    from memory_agent.embedders.minilm import open_minilm
    from memory_agent.embedders.weights import PACKAGE, cache_folder

    model = open_minilm(settings, cache or cache_folder(), PACKAGE if package is None else package)
    return LanedEmbedder(model, bulk_niceness=settings.bulk_niceness, query_cache=settings.query_cache)
