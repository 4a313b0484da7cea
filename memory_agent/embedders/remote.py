"""A client of the node's embedder process that implements `Embedder`; loads no engine.

A request is retried with backoff until its timeout, so it survives a restart of the server; a retry is cheap, because
the server caches vectors. While the server does not answer, one query waits for it and the others fail fast, so that
waiting queries do not occupy all threads of the process. There is no local fallback: the caller falls back to keyword
search.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from memory_agent.embedders import EmbedderInfo, Embeddings, Progress, check_text, wire
from memory_agent.errors import DeadlineExceededError, EmbedderUnavailableError, UnavailableError
from memory_agent.records import Embedding
from relay.net import RequestSocket

_FIRST_WAIT_S = 1.0
_LEAST_WAIT_S = 0.001  # sockets count milliseconds; too little for a retry
_CHUNK = 64
_SILENT_AFTER_S = 0.4  # four times the time of the longest text
_SILENT_PATIENCE_S = 0.05


class RemoteEmbedder:
    """A client of one endpoint. Thread-safe: each request uses its own socket."""

    def __init__(self, endpoint: str, *, timeout_s: float = 10.0, bulk_timeout_s: float = 120.0) -> None:
        """`timeout_s` bounds a request, `bulk_timeout_s` each chunk of 64 texts. The server may start later."""
        self._endpoint = endpoint
        self._timeout_s = timeout_s
        self._bulk_timeout_s = bulk_timeout_s
        self._lock = threading.Lock()
        self._idle: deque[RequestSocket] = deque()
        self._closed = False
        self._info: EmbedderInfo | None = None
        self._silence = _Silence()

    @property
    def info(self) -> EmbedderInfo:
        """The origin of the vectors, from the last answer or by a request. Raises the errors of `embed_query`."""
        if self._info is None:
            self._info = wire.decode_answer(self._ask(wire.InfoQuestion(), (), self._timeout_s)).info
        if self._info is None:
            raise EmbedderUnavailableError(f"{self._endpoint} does not say what its vectors come from")
        return self._info

    def embed_query(self, text: str, timeout_s: float | None = None) -> Embedding:
        """Return the (d,) vector of `text`; same errors as `Embedder.embed_query`."""
        check_text("text", text)
        with self._silence.patience(self._timeout_s if timeout_s is None else timeout_s) as patience_s:
            question = wire.QueryQuestion(patience_s, time.monotonic())
            vector: Embedding = self._vectors(question, [text], patience_s)[0]
        return vector

    def embed_texts(self, texts: Sequence[str], progress: Progress | None = None) -> Embeddings:
        """Return the (n, d) vectors of `texts`, requested in chunks; same errors as `Embedder.embed_texts`."""
        for position, text in enumerate(texts):
            check_text(f"texts[{position}]", text)
        chunks = []
        for start in range(0, len(texts), _CHUNK):
            chunk = texts[start : start + _CHUNK]
            chunks.append(self._vectors(wire.BulkQuestion(), chunk, self._bulk_timeout_s))
            if progress is not None:
                progress(start + len(chunk), len(texts))
        return np.concatenate(chunks) if chunks else np.empty((0, self.info.ndim), dtype=np.float32)

    def count_tokens(self, text: str, timeout_s: float | None = None) -> int:
        """Return the number of tokens of `text`; same errors as `Embedder.count_tokens`."""
        check_text("text", text)
        patience_s = self._timeout_s if timeout_s is None else timeout_s
        return wire.decode_answer(self._ask(wire.TokensQuestion(), (text,), patience_s)).tokens

    def close(self) -> None:
        """Close the sockets; requests in progress end with their answer or timeout."""
        with self._lock:
            self._closed = True
            while self._idle:
                self._idle.pop().close()

    def _vectors(self, question: wire.Question, texts: Sequence[str], timeout_s: float) -> Embeddings:
        self._info, vectors = wire.decode_vectors(self._ask(question, texts, timeout_s), len(texts))
        return vectors

    def _ask(self, question: wire.Question, texts: Sequence[str], timeout_s: float) -> list[bytes]:
        """Retry the request until it is answered. Raises `EmbedderUnavailableError` after `timeout_s`."""
        frames = wire.encode_question(question, texts)
        asked_at_s = time.monotonic()
        wait_s = _FIRST_WAIT_S
        with self._socket() as socket:
            while (remaining_s := asked_at_s + timeout_s - time.monotonic()) >= _LEAST_WAIT_S:
                try:
                    answer = socket.request(frames, min(wait_s, remaining_s))
                except DeadlineExceededError:
                    wait_s *= 2
                except UnavailableError as error:
                    raise EmbedderUnavailableError(str(error)) from error
                else:
                    self._silence.heard()
                    return answer
        self._silence.waited_since(asked_at_s)
        raise EmbedderUnavailableError(f"no answer from {self._endpoint} within {timeout_s:.3g} s")

    @contextmanager
    def _socket(self) -> Iterator[RequestSocket]:
        """Borrow a socket for exclusive use."""
        with self._lock:
            if self._closed:
                raise EmbedderUnavailableError("this embedder was closed")
            socket = self._idle.pop() if self._idle else None
        socket = socket or RequestSocket(self._endpoint)
        try:
            yield socket
        finally:
            with self._lock:
                keep = not self._closed
                if keep:
                    self._idle.append(socket)
            if not keep:
                socket.close()


class _Silence:
    """A circuit breaker: while the server is silent, one query probes it and the others fail fast. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_silent = False
        self._is_probed = False
        self._heard_at_s = 0.0

    @contextmanager
    def patience(self, wanted_s: float) -> Iterator[float]:
        """Yield how long a query should wait: `wanted_s`, or briefly while another query probes."""
        with self._lock:
            probes = self._is_silent and not self._is_probed
            waits = probes or not self._is_silent
            self._is_probed |= probes
        try:
            yield wanted_s if waits else min(wanted_s, _SILENT_PATIENCE_S)
        finally:
            if probes:
                with self._lock:
                    self._is_probed = False

    def heard(self) -> None:
        """Record that the server answered, with an error or not."""
        with self._lock:
            self._is_silent = False
            self._heard_at_s = time.monotonic()

    def waited_since(self, asked_at_s: float) -> None:
        """Record an unanswered request; the server counts as silent after `_SILENT_AFTER_S` without any answer."""
        with self._lock:
            self._is_silent |= time.monotonic() - max(asked_at_s, self._heard_at_s) >= _SILENT_AFTER_S
