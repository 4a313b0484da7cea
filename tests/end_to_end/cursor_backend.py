"""Fakes Cursor's servers on loopback. Cursor's agent sends its list of tools to these servers, and calls the tools that
they request.

Messages are Protocol Buffers in the framing of Connect. Field numbers are those of `@cursor/sdk` 1.0.32.
"""

from __future__ import annotations

import base64
import json
import queue
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PATIENCE_S = 60.0
SERVER = "memory-agent"


class Backend:
    """What Cursor's agent has sent: the names of its tools, and the text of each call's result."""

    def __init__(self, calls: list[tuple[str, dict[str, str]]]) -> None:
        self.calls = calls
        self.tools: set[str] = set()
        self.results: list[str] = []
        self.answers: queue.Queue[Mapping[int, list[Any]]] = queue.Queue()
        self.url = ""

    def questions(self) -> Iterator[bytes]:
        """Yield the messages of a run, each after the answer to the previous message."""
        yield encoded({2: {1: 1, 15: "context", 10: {}}})
        context = inside(self.answers.get(timeout=PATIENCE_S), 10, 1, 1)
        self.tools = {decoded(tool)[5][0].decode() for tool in context[7]}
        for name, arguments in self.calls:
            given = [{1: key, 2: {3: value}} for key, value in arguments.items()]
            call = {1: f"{SERVER}-{name}", 2: given, 3: name, 4: SERVER, 5: name, 8: 1, 9: SERVER}
            yield encoded({2: {1: 2, 15: name, 11: call}})
            self.results.append(inside(self.answers.get(timeout=PATIENCE_S), 11, 1, 1, 1)[1][0].decode())
        yield encoded({1: {14: {}}})  # the turn has ended


def encoded(fields: Mapping[int, Any]) -> bytes:
    """Return a message. A value is a number, a string, a message, or a list of messages."""
    return b"".join(_field(number, one) for number, some in fields.items() for one in _each(some))


def _each(some: Any) -> list[Any]:
    return some if isinstance(some, list) else [some]


def _field(number: int, value: Any) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    content = encoded(value) if isinstance(value, Mapping) else value.encode()
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + _varint(value >> 7)


def decoded(data: bytes) -> Mapping[int, list[Any]]:
    """Return the values of each field, in order: numbers, or bytes."""
    fields: dict[int, list[Any]] = defaultdict(list)
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        number, kind = divmod(varint(), 8)
        assert kind in (0, 2), f"field {number} has wire type {kind}"
        value = varint()
        if kind == 2:
            at += value
            fields[number].append(data[at - value : at])
        else:
            fields[number].append(value)
    return fields


def inside(message: Mapping[int, list[Any]], *path: int) -> Mapping[int, list[Any]]:
    """Return the message at a path of fields."""
    for number in path:
        message = decoded(message[number][0])
    return message


@contextmanager
def cursor_backend(calls: list[tuple[str, dict[str, str]]]) -> Iterator[Backend]:
    """Serve Cursor's agent; in each run, have it call these tools of our server."""
    backend = Backend(calls)

    class Handler(_Handler):
        own = backend

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        backend.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield backend
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    own: Backend
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._reply({"items": [{"id": "fake", "displayName": "Fake"}]})

    def do_POST(self) -> None:
        body = self._body()
        if self.path.endswith("/exchange_user_api_key"):
            parts = ({}, {"sub": "user", "exp": 4_102_444_800})  # the year 2100
            token = ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode() for part in parts)
            self._reply({"accessToken": f"{token}.", "refreshToken": f"{token}."})
        elif self.path.endswith("/RunSSE"):
            self._run()
        else:
            if self.path.endswith("/BidiAppend"):
                message = decoded(bytes.fromhex(decoded(body)[1][0].decode()))
                if 2 in message:
                    self.own.answers.put(decoded(message[2][0]))
            self._reply({})

    def _body(self) -> bytes:
        if (length := self.headers.get("Content-Length")) is not None:
            return self.rfile.read(int(length))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _reply(self, value: Any) -> None:
        """Answer with a value or, if the request is not in JSON, with an empty message."""
        kind = self.headers.get("Content-Type", "application/json")
        content = json.dumps(value).encode() if kind == "application/json" else b""
        self.send_response_only(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _run(self) -> None:
        self.send_response_only(200)
        self.send_header("Content-Type", "application/connect+proto")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        for message in self.own.questions():
            self._send(0, message)
        self._send(2, b"{}")  # the end of the stream

    def _send(self, flags: int, content: bytes) -> None:
        self.wfile.write(bytes([flags]) + len(content).to_bytes(4, "big") + content)

    def log_message(self, *_: object) -> None:
        pass
