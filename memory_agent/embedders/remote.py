"""An `Embedder` that calls the node's embedder process. It does not import onnxruntime.

A request is retried with backoff until its timeout, so it survives a restart of the server. Retries cost little,
because the server caches vectors. While the server does not respond, only one query or token count waits for it; other
requests fail at once, so that they do not occupy all threads of the process. The caller then uses keyword search.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from memory_agent.embedders import wire
from memory_agent.embedders.protocol import EmbedderInfo, Later, PassageEmbedder, Pending, Progress, Settled, all_of
from memory_agent.errors import DeadlineExceededError, EmbedderUnavailableError, UnavailableError
from memory_agent.records.arguments import check_text
from memory_agent.records.embedded import Embedded, EmbeddedQuery
from memory_agent.records.memories import ApiCounts
from memory_agent.tracing import current_span
from relay.net import CircuitBreaker, RequestSockets

_FIRST_WAIT_S = 1.0
_LEAST_WAIT_S = 0.001  # socket timeouts are in whole milliseconds, so a shorter time does not allow a retry
_CHUNK = 64
_CHUNK_CHARS = 1 << 16
_CHUNKS_SENT = 2

T = TypeVar("T")


class RemoteEmbedder(PassageEmbedder):
    """A client of one endpoint. Thread-safe: each request uses its own socket."""

    def __init__(
        self, endpoint: str, *, timeout_s: float = 10.0, bulk_timeout_s: float = 120.0, is_former: bool = False
    ) -> None:
        """`timeout_s` limits the time of a request; `bulk_timeout_s` limits that of a chunk of at most 64 texts. The
        server may start later.

        With `is_former`, queries are embedded by the server's former embedder.
        """
        self._is_former = is_former
        self._timeout_s = timeout_s
        self._bulk_timeout_s = bulk_timeout_s
        self._sockets = RequestSockets(endpoint)
        self._info: EmbedderInfo | None = None
        self._silence = CircuitBreaker()

    @property
    def info(self) -> EmbedderInfo:
        """The origin of the vectors, from the last answer or a new request. Raises the same errors as `embed_query`."""
        if self._info is None:
            self._info = wire.decode_answer(
                self._begin(wire.InfoQuestion(self._is_former), (), self._timeout_s).result()
            ).info
        if self._info is None:
            raise EmbedderUnavailableError(f"{self._sockets.endpoint} did not report the origin of its vectors")
        return self._info

    def begin_query_words(self, text: str, timeout_s: float | None = None) -> Pending[EmbeddedQuery]:
        """Send a query and return without waiting for its vectors. Raises the same errors as the protocol."""
        check_text("text", text)
        return self._send_before_bulk(text, timeout_s, wire.decode_query)

    def begin_passages(
        self, texts: Sequence[str], progress: Progress | None = None, timeout_s: float | None = None
    ) -> Pending[list[Embedded]]:
        """Send the first chunks or, with `timeout_s`, single texts. Raises the same errors as the protocol."""
        for position, text in enumerate(texts):
            check_text(f"texts[{position}]", text)
        if timeout_s is not None:
            return all_of([self._send_before_bulk(text, timeout_s, _decode_text, is_text=True) for text in texts])
        return _SentTexts(texts, self._send_chunk, progress)

    def count_tokens(self, text: str, timeout_s: float | None = None) -> int:
        check_text("text", text)
        request = self._begin(wire.TokensQuestion(), (text,), self._patience_s(timeout_s))
        return wire.decode_answer(request.result()).tokens

    def provider_calls(self, timeout_s: float | None = None) -> ApiCounts | None:
        request = self._begin(wire.InfoQuestion(), (), self._patience_s(timeout_s))
        return wire.decode_answer(request.result()).calls

    def former(self) -> RemoteEmbedder:
        """Return a client of the server's former embedder, for queries; the caller closes it."""
        return RemoteEmbedder(self._sockets.endpoint, timeout_s=self._timeout_s, is_former=True)

    def close(self) -> None:
        """Close the sockets; requests in progress still complete or time out."""
        self._sockets.close()

    def _send_before_bulk(
        self,
        text: str,
        timeout_s: float | None,
        decode: Callable[[wire.Frames], tuple[EmbedderInfo, T]],
        *,
        is_text: bool = False,
    ) -> Pending[T]:
        patience_s = self._patience_s(timeout_s)
        trace = current_span().traceparent
        question = wire.QueryQuestion(patience_s, time.monotonic(), is_text, self._is_former, trace)
        return self._send(question, [text], patience_s, decode)

    def _patience_s(self, timeout_s: float | None) -> float:
        return self._silence.patience_s(self._timeout_s if timeout_s is None else timeout_s)

    def _send_chunk(self, texts: Sequence[str]) -> Pending[list[Embedded]]:
        return self._send(
            wire.BulkQuestion(), texts, self._bulk_timeout_s, lambda frames: wire.decode_texts(frames, len(texts))
        )

    def _send(
        self,
        question: wire.Question,
        texts: Sequence[str],
        timeout_s: float,
        decode: Callable[[wire.Frames], tuple[EmbedderInfo, T]],
    ) -> Pending[T]:
        try:
            request = self._begin(question, texts, timeout_s)
        except EmbedderUnavailableError as error:
            return Settled(error)
        return Later(lambda: self._learned(*decode(request.result())))

    def _begin(self, question: wire.Question, texts: Sequence[str], timeout_s: float) -> _Request:
        return _Request(self._sockets, wire.encode_question(question, texts), timeout_s, self._silence)

    def _learned(self, info: EmbedderInfo, found: T) -> T:
        self._info = info
        return found


def _decode_text(frames: wire.Frames) -> tuple[EmbedderInfo, Embedded]:
    info, (found,) = wire.decode_texts(frames, 1)
    return info, found


class _SentTexts:
    """Texts sent in chunks, two at a time, so that the server embeds one chunk while it returns the previous one."""

    def __init__(
        self,
        texts: Sequence[str],
        send: Callable[[Sequence[str]], Pending[list[Embedded]]],
        progress: Progress | None,
    ) -> None:
        """Send the first chunks. If there are no texts, send an empty chunk to test whether the server responds."""
        chunks = list(_chunks(texts)) or [texts]
        self._total = len(texts)
        self._waiting = deque(chunks)
        self._send = send
        self._sent: deque[Pending[list[Embedded]]] = deque()
        self._progress = progress
        self._send_next()

    def result(self) -> list[Embedded]:
        """Return the results. Raises the same errors as `Pending.result`, and errors of the progress function."""
        done: list[Embedded] = []
        while self._sent:
            done += self._sent.popleft().result()
            self._send_next()
            if self._progress is not None and self._total:
                self._progress(len(done), self._total)
        return done

    def _send_next(self) -> None:
        while self._waiting and len(self._sent) < _CHUNKS_SENT:
            self._sent.append(self._send(self._waiting.popleft()))


def _chunks(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Divide texts into chunks that take one or two seconds each, regardless of the texts' lengths."""
    start, chars = 0, 0
    for position, text in enumerate(texts):
        chars += len(text)
        if position + 1 - start == _CHUNK or chars >= _CHUNK_CHARS:
            yield texts[start : position + 1]
            start, chars = position + 1, 0
    if start < len(texts):
        yield texts[start:]


class _Request:
    """A request in progress. It returns its socket to the pool after the answer, or when it is deleted."""

    def __init__(self, sockets: RequestSockets, frames: wire.Frames, timeout_s: float, silence: CircuitBreaker) -> None:
        """Send `frames`. Raises `EmbedderUnavailableError` if sending fails, or if the timeout is below 1 ms."""
        self._endpoint = sockets.endpoint
        self._frames = frames
        self._timeout_s = timeout_s
        self._silence = silence
        self._sent_at_s = time.monotonic()
        if timeout_s < _LEAST_WAIT_S:
            raise self._unanswered()
        try:
            self._socket = sockets.borrow()
        except UnavailableError as error:
            raise EmbedderUnavailableError("this embedder was closed") from error
        self._give_back = weakref.finalize(self, sockets.give_back, self._socket)
        self._correlation = self._send()

    def result(self) -> wire.Frames:
        """Wait for the answer, repeating the request. Raises `EmbedderUnavailableError` after the timeout."""
        try:
            return self._wait()
        finally:
            self._give_back()

    def _wait(self) -> wire.Frames:
        ends_at_s, wait_s = self._sent_at_s + self._timeout_s, _FIRST_WAIT_S
        while True:
            remaining_s = ends_at_s - time.monotonic()
            try:
                answer = self._socket.receive(self._correlation, min(wait_s, remaining_s))
            except DeadlineExceededError as error:
                if ends_at_s - time.monotonic() < _LEAST_WAIT_S:
                    self._silence.waited_since(self._sent_at_s)
                    raise self._unanswered() from error
                wait_s *= 2
                self._correlation = self._send()
            except UnavailableError as error:
                raise EmbedderUnavailableError(str(error)) from error
            else:
                self._silence.heard()
                return answer

    def _send(self) -> bytes:
        try:
            return self._socket.send(self._frames)
        except UnavailableError as error:
            raise EmbedderUnavailableError(str(error)) from error

    def _unanswered(self) -> EmbedderUnavailableError:
        return EmbedderUnavailableError(f"no answer from {self._endpoint} within {self._timeout_s:.3g} s")
