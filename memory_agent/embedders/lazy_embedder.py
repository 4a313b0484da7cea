"""Open an embedder in this process, immediately or on first use, and adapt callers' embedders to the protocol.

A lazy embedder opens in its own thread, so a caller's deadline bounds the wait. A failure is remembered for 30 s, so
that not every recall searches for missing weights again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from memory_agent.embedders.protocol import (
    Embedder,
    EmbedderInfo,
    Embeddings,
    Later,
    Pending,
    PendingVector,
    PendingVectors,
    Progress,
    SettledVector,
)
from memory_agent.errors import EmbedderUnavailableError, MemoryAgentError, ModelError
from memory_agent.records.arguments import check_text
from memory_agent.records.embedded import EmbeddedQuery
from memory_agent.records.memories import ApiCounts
from memory_agent.settings import AnyEmbedder, EmbedderSettings
from relay.log import log

if TYPE_CHECKING:
    from memory_agent.embedders.lanes import LanedEmbedder
    from memory_agent.embedders.providers import ProviderEmbedder

    ServedEmbedder: TypeAlias = LanedEmbedder | ProviderEmbedder

_TRY_AGAIN_AFTER_S = 30.0
_CLOSE_WAIT_S = 10.0


def open_embedder(settings: AnyEmbedder, *, cache: Path | None = None, package: str | None = None) -> ServedEmbedder:
    """Open an embedder in this process; the caller closes it.

    `cache` is the folder for built graphs. `package` is the distribution that may contain the weights ("" for none).
    Raises `ModelMissingError`, `ModelChecksumError`, or `ModelError` for an unsupported architecture. If the model is
    on a server, raises `SettingsError`, `ProviderUnavailableError` or `ProviderError`.
    """
    if not isinstance(settings, EmbedderSettings):
        from memory_agent.embedders.providers import open_provider

        return open_provider(settings)
    from memory_agent.embedders.lanes import LanedEmbedder  # imports onnxruntime
    from memory_agent.embedders.minilm import open_minilm
    from memory_agent.embedders.weights import PACKAGE, cache_folder

    model = open_minilm(settings, cache or cache_folder(), PACKAGE if package is None else package)
    return LanedEmbedder(model, bulk_niceness=settings.bulk_niceness, query_cache=settings.query_cache)


class LazyEmbedder:
    """The caller's embedder, or one that the first `get` opens. Thread-safe."""

    def __init__(
        self,
        embedder: Embedder | None,
        settings: AnyEmbedder,
        former: AnyEmbedder | None = None,
        *,
        is_own: bool = False,
    ) -> None:
        """Use `embedder` if it is given; otherwise, open one with `settings` on first use. The caller closes a given
        embedder unless `is_own`.

        `former` is the replaced embedder, whose vectors may still be stored. A client of an embedder process uses that
        process's former embedder.
        """
        self.former = None if former is None else LazyEmbedder(_former_of(embedder), former, is_own=True)
        """The former embedder, for queries while its vectors are still stored."""
        self._settings = settings
        self._given = embedder is not None and not is_own
        self._embedder = None if embedder is None else _adapted(embedder)
        self._failure: ModelError | None = None
        self._failed_at_s = 0.0
        self._opening: threading.Thread | None = None
        self._guard = threading.Lock()

    def get(self, timeout_s: float | None = None) -> Embedder:
        """Return the embedder, waiting at most `timeout_s` while it opens.

        Raises a `ModelError`, such as `ModelMissingError`, if opening fails, and `EmbedderUnavailableError` if the
        model is not ready in time.
        """
        if self._embedder is not None:
            return self._embedder
        opening = self._start()
        if opening is not None:
            opening.join(timeout_s)
        with self._guard:
            if self._embedder is not None:
                return self._embedder
            if self._failure is not None:
                raise self._failure.with_traceback(None)
        raise EmbedderUnavailableError("the model is still being loaded")

    def begin_query_words(self, text: str, timeout_s: float | None = None) -> Pending[EmbeddedQuery]:
        """Like `Embedder.begin_query_words`, but while the embedder is opening, `result` starts the query."""
        if self._embedder is not None:
            return self._embedder.begin_query_words(text, timeout_s)
        check_text("text", text)
        self._start()
        ends_at_s = None if timeout_s is None else time.monotonic() + timeout_s

        def remaining_s() -> float | None:
            return None if ends_at_s is None else max(0.0, ends_at_s - time.monotonic())

        return Later(lambda: self.get(remaining_s()).embed_query_words(text, remaining_s()))

    def provider_calls(self, timeout_s: float = 0.5) -> ApiCounts | None:
        """Return counts of the calls to the model's server, or None for a local model or after a timeout."""
        if self._embedder is None or isinstance(self._settings, EmbedderSettings):
            return None
        try:
            return self._embedder.provider_calls(timeout_s)
        except ModelError:
            return None

    @property
    def is_open(self) -> bool:
        return self._embedder is not None

    def look_again(self) -> None:
        """Forget a failure, so that the next `get` tries to open the model again."""
        with self._guard:
            self._failure = None

    def close(self) -> None:
        """Close the embedder if it was opened here."""
        if self._opening is not None:
            self._opening.join(_CLOSE_WAIT_S)  # a download that takes longer is cut off when the process ends
        if self._embedder is not None and not self._given:
            self._embedder.close()
        if self.former is not None:
            self.former.close()

    def _start(self) -> threading.Thread | None:
        """Return the thread that opens the embedder, or None if opening failed less than 30 s ago."""
        with self._guard:
            if self._opening is not None and self._opening.is_alive():
                return self._opening
            if self._failure is not None and time.monotonic() - self._failed_at_s < _TRY_AGAIN_AFTER_S:
                return None
            self._opening = threading.Thread(target=self._open, name="embedder-opening", daemon=True)
            self._opening.start()
            return self._opening

    def _open(self) -> None:
        try:
            embedder = open_embedder(self._settings)
        except MemoryAgentError as error:
            failure = error if isinstance(error, ModelError) else ModelError(str(error))
            with self._guard:
                self._failure, self._failed_at_s = failure, time.monotonic()
        else:
            with self._guard:
                self._embedder, self._failure = embedder, None


def _former_of(embedder: Embedder | None) -> Embedder | None:
    """Return a client of the former embedder if `embedder` is itself a client, else None."""
    made: Embedder | None = getattr(embedder, "former", lambda: None)()
    return made


class _Plain(Embedder):
    """Adapts an embedder that has `begin_query` and `begin_texts` but does not inherit from the protocol."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder

    @property
    def info(self) -> EmbedderInfo:
        return self._embedder.info

    def begin_query(self, text: str, timeout_s: float | None = None) -> PendingVector:
        return self._embedder.begin_query(text, timeout_s)

    def begin_texts(self, texts: Sequence[str], progress: Progress | None = None) -> PendingVectors:
        return self._embedder.begin_texts(texts, progress)

    def count_tokens(self, text: str, timeout_s: float | None = None) -> int:
        return self._embedder.count_tokens(text, timeout_s)

    def close(self) -> None:
        self._embedder.close()


class _Waiting(_Plain):
    """Adapts an embedder that has only the blocking `embed_query` and `embed_texts`."""

    def begin_query(self, text: str, timeout_s: float | None = None) -> PendingVector:
        return _settled(lambda: self._embedder.embed_query(text, timeout_s))

    def begin_texts(self, texts: Sequence[str], progress: Progress | None = None) -> PendingVectors:
        return _settled(lambda: self._embedder.embed_texts(texts, progress))


def _adapted(embedder: Embedder) -> Embedder:
    """Return the embedder, adapted if needed. Avoids `isinstance`, which would request `info`."""
    kind = type(embedder)
    if getattr(kind, "begin_query", Embedder.begin_query) is Embedder.begin_query:
        return _Waiting(embedder)
    return embedder if hasattr(kind, "begin_passages") else _Plain(embedder)


@contextmanager
def failing_as_model_error() -> Iterator[None]:
    """Convert exceptions from a caller's embedder to `ModelError`, unless they are ours; log only their type."""
    try:
        yield
    except MemoryAgentError:
        raise
    except Exception as error:
        log.error("embedder.failed", error=type(error).__name__)
        raise ModelError(f"the embedder failed: {type(error).__name__}") from error


def _settled(embed: Callable[[], Embeddings]) -> SettledVector:
    try:
        return SettledVector(embed())
    except ModelError as error:
        return SettledVector(error)
