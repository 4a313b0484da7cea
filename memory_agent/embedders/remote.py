"""The embedder of this node, asked over its socket. Satisfies `Embedder`; loads no engine.

Each question is asked again, at growing intervals, until its time is up: a server that was killed and started again
answers the next asking, and asking twice costs little because it remembers what it embedded. What this file does not
do: it never embeds here when the server is away; the caller degrades to words.
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
from memory_agent.transport import RequestSocket

_FIRST_WAIT_S = 1.0
_CHUNK = 64


class RemoteEmbedder:
    """Asks one endpoint. Safe to use from several threads: each question has a socket of its own meanwhile."""

    def __init__(self, endpoint: str, *, timeout_s: float = 10.0, bulk_timeout_s: float = 120.0) -> None:
        """`timeout_s` bounds a question, `bulk_timeout_s` each chunk of 64 texts. The server need not be there yet."""
        self._endpoint = endpoint
        self._timeout_s = timeout_s
        self._bulk_timeout_s = bulk_timeout_s
        self._lock = threading.Lock()
        self._idle: deque[RequestSocket] = deque()
        self._closed = False
        self._info: EmbedderInfo | None = None

    @property
    def info(self) -> EmbedderInfo:
        """What the vectors come from: as of the last answer, or asked for. Raises as `embed_query` does."""
        if self._info is None:
            self._info = wire.decode_answer(self._ask(wire.InfoQuestion(), (), self._timeout_s)).info
        if self._info is None:
            raise EmbedderUnavailableError(f"{self._endpoint} does not say what its vectors come from")
        return self._info

    def embed_query(self, text: str, timeout_s: float | None = None) -> Embedding:
        """Return the (d,) vector of `text`; errors as of `Embedder.embed_query`."""
        check_text("text", text)
        patience = self._timeout_s if timeout_s is None else timeout_s
        vector: Embedding = self._vectors(wire.QueryQuestion(patience), [text], patience)[0]
        return vector

    def embed_texts(self, texts: Sequence[str], progress: Progress | None = None) -> Embeddings:
        """Return the (n, d) vectors of `texts`, asked for in chunks; errors as of `Embedder.embed_texts`."""
        for position, text in enumerate(texts):
            check_text(f"texts[{position}]", text)
        chunks = []
        for start in range(0, len(texts), _CHUNK):
            chunk = texts[start : start + _CHUNK]
            chunks.append(self._vectors(wire.BulkQuestion(), chunk, self._bulk_timeout_s))
            if progress is not None:
                progress(start + len(chunk), len(texts))
        return np.concatenate(chunks) if chunks else np.empty((0, self.info.ndim), dtype=np.float32)

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens of `text`, uncut."""
        check_text("text", text)
        return wire.decode_answer(self._ask(wire.TokensQuestion(), (text,), self._timeout_s)).tokens

    def close(self) -> None:
        """Close the sockets; questions under way end with their answer or their time."""
        with self._lock:
            self._closed = True
            while self._idle:
                self._idle.pop().close()

    def _vectors(self, question: wire.Question, texts: Sequence[str], timeout_s: float) -> Embeddings:
        self._info, vectors = wire.decode_vectors(self._ask(question, texts, timeout_s), len(texts))
        return vectors

    def _ask(self, question: wire.Question, texts: Sequence[str], timeout_s: float) -> list[bytes]:
        """Ask until there is an answer or `timeout_s` is over, which raises `EmbedderUnavailableError`."""
        frames = wire.encode_question(question, texts)
        deadline = time.monotonic() + timeout_s
        wait_s = _FIRST_WAIT_S
        with self._socket() as socket:
            while (remaining_s := deadline - time.monotonic()) > 0:
                try:
                    return socket.request(frames, min(wait_s, remaining_s))
                except DeadlineExceededError:
                    wait_s *= 2
                except UnavailableError as error:
                    raise EmbedderUnavailableError(str(error)) from error
        raise EmbedderUnavailableError(f"no answer from {self._endpoint} within {timeout_s:.3g} s")

    @contextmanager
    def _socket(self) -> Iterator[RequestSocket]:
        """Lend a socket to one question; a socket is never in two hands."""
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
