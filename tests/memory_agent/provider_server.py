"""A real HTTP server on port 0 that answers like a model provider, or fails as the test requests."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from memory_agent.settings import GeminiEmbedder, OllamaEmbedder, RemoteEmbedder

NDIM = 16
Reply = Callable[["Request"], None]


class Request(BaseHTTPRequestHandler):
    """One request: `path`, `headers`, and `body` decoded from JSON."""

    server: _Server
    body: Any

    def do_POST(self) -> None:
        self.body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.provider.requests.append(self)
        with suppress(ConnectionError):
            self.server.provider.next_reply()(self)

    def start(self, status: int, length: int, headers: Mapping[str, str]) -> None:
        """Send the head of an answer."""
        self.send_response(status)
        for name, value in {"content-type": "application/json", "content-length": str(length), **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    provider: Provider


class Provider:
    """The server's address, the requests so far, and the replies to the next requests."""

    def __init__(self, url: str, released: threading.Event) -> None:
        self.url = url
        self.released = released
        self.requests: list[Request] = []
        self._replies: deque[Reply] = deque()

    def then(self, *replies: Reply) -> None:
        """Send these replies to the next requests; repeat the last reply."""
        self._replies = deque(replies)

    def next_reply(self) -> Reply:
        return self._replies[0] if len(self._replies) == 1 else self._replies.popleft()


def answer(content: object, status: int = 200, **headers: str) -> Reply:
    """Reply with JSON. Underscores in header names stand for hyphens."""
    return raw(json.dumps(content).encode(), status, **headers)


def raw(content: bytes, status: int = 200, **headers: str) -> Reply:
    """Reply with these bytes."""

    def reply(request: Request) -> None:
        request.start(status, len(content), {name.replace("_", "-"): value for name, value in headers.items()})
        request.wfile.write(content)

    return reply


def hang(request: Request) -> None:
    """Never reply."""
    request.server.provider.released.wait()
    request.close_connection = True


def drip(request: Request) -> None:
    """Reply one byte at a time, for ever."""
    request.wfile.write(b"HTTP/1.0 200 OK\r\nx-slow: ")
    while not request.server.provider.released.wait(0.01):
        request.wfile.write(b"a")
    request.close_connection = True


def drop(request: Request) -> None:
    """Close the connection without a reply."""
    request.close_connection = True


def vector_of(text: str, ndim: int = NDIM) -> list[float]:
    """Return a vector that depends on the words of a text."""
    found = np.zeros(ndim)
    for word in text.lower().split():
        found += np.random.default_rng(list(word.encode())).normal(size=ndim)
    return (found + 0.01).tolist()


def texts_of(body: Any) -> list[str]:
    """Return the texts in a request to any kind of server."""
    return body["input"] if "input" in body else [one["content"]["parts"][0]["text"] for one in body["requests"]]


def content(kind: RemoteEmbedder, vectors: list[list[float]]) -> Any:
    """Return the body of a server's response."""
    if isinstance(kind, OllamaEmbedder):
        return {"embeddings": vectors, "prompt_eval_count": 7}
    if isinstance(kind, GeminiEmbedder):
        return {"embeddings": [{"values": vector} for vector in vectors]}
    data = [{"index": place, "embedding": vector} for place, vector in enumerate(vectors)]
    return {"data": data[::-1], "usage": {"prompt_tokens": 7}, "model": "any"}


def embeds(kind: RemoteEmbedder, longest: int = 10**6, ndim: int = NDIM) -> Reply:
    """Reply like a real server, and reject texts of more than `longest` characters."""

    def reply(request: Request) -> None:
        texts = texts_of(request.body)
        if max(map(len, texts)) > longest:
            answer({"error": "the input length exceeds the context length"}, 400)(request)
        else:
            answer(content(kind, [vector_of(text, ndim) for text in texts]))(request)

    return reply


@contextmanager
def serving() -> Iterator[Provider]:
    """Run the server in a thread for the duration of the block."""
    server = _Server(("127.0.0.1", 0), Request)
    released = threading.Event()
    server.provider = Provider(f"http://127.0.0.1:{server.server_port}", released)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server.provider
    finally:
        released.set()
        server.shutdown()
        thread.join()
        server.server_close()
