"""A minimal HTTP client for hooks and `memory-agent mcp`. A coding agent waits for both, so the client loads quickly.

It uses plain sockets and raises only built-in errors: importing `http.client` takes 0.03 s, and `memory_agent.errors`
0.02 s. Each request opens an HTTP/1.0 connection.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Mapping
from typing import NamedTuple, Self

from memory_agent.layout import Layout, LocalCall

_MOST_ANSWER_BYTES = 256 << 20
_PART_BYTES = 1 << 16


class Door(NamedTuple):
    """The address of a daemon, `http(s)://HOST:PORT`, and the token to send.

    As long as `call` exists, an idle local daemon does not stop.
    """

    url: str
    token: str
    call: LocalCall | None = None


def local_door(layout: Layout, token: str | None = None) -> Door | None:
    """Return the HTTP address of a data folder's daemon, or None if no daemon is running or its HTTP interface is off.

    As long as the result exists, an idle daemon that a client started does not stop. `token` is the caller's token; if
    it is None, the data folder's token is read. Raises `OSError` if the token cannot be read.
    """
    call = layout.call()
    if (
        call is not None and layout.daemon_runs()
    ):  # a killed daemon leaves its address file behind, and its port may be reused
        with contextlib.suppress(FileNotFoundError):
            return Door(layout.http.read_text().strip(), layout.token() if token is None else token, call)
    return None


class Answer(NamedTuple):
    """A response. `first` is its status line; header names are in lower case."""

    first: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def status(self) -> int:
        """The status code, or 0 if the response is not HTTP."""
        words = self.first.split(maxsplit=2)
        return int(words[1]) if len(words) > 1 and words[1].isdecimal() else 0

    @property
    def media_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


class UnusableDoorError(OSError):
    """The certificate, the address or the token is wrong, so a retry cannot succeed."""


class Exchange:
    """One request and its response, with the deadline `until_s` (monotonic clock).

    `send` and `receive` raise `TimeoutError` after the deadline, `ConnectionResetError` if the daemon closes the
    connection before it responds, `ConnectionAbortedError` after `cancel`, `UnusableDoorError`, and other `OSError`s.
    """

    def __init__(self, door: Door, until_s: float) -> None:
        self._door = door
        self._until_s = until_s
        self._socket: socket.socket | None = None
        self._is_cancelled = False

    def send(self, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> Self:
        """Connect and send a POST request with a JSON body."""
        scheme, _, netloc = self._door.url.partition("://")
        host, port = _place(netloc, 443 if scheme == "https" else 80)
        if not self._door.token.isascii() or not self._door.token.isprintable():
            raise UnusableDoorError("the token contains invalid characters")
        try:
            plain = socket.create_connection((host, port), self._left_s())
        except UnicodeError as error:
            raise UnusableDoorError(f"{host!r} is not a valid host name") from error
        self._socket = plain
        if scheme == "https":
            self._socket = _secured(plain, host)
        lines = {
            "Host": netloc,
            "Authorization": f"Bearer {self._door.token}",
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            **(headers or {}),
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self._socket.settimeout(self._left_s())
        if self._is_cancelled:
            raise ConnectionAbortedError
        self._socket.sendall(f"POST {path} HTTP/1.0\r\n{head}\r\n".encode("latin-1") + body)
        return self

    def receive(self) -> Answer:
        assert self._socket is not None
        data = bytearray()
        with self._socket:
            while True:
                self._socket.settimeout(self._left_s())
                part = self._socket.recv(_PART_BYTES)
                if not part:
                    return _answer(data)
                data += part
                if len(data) > _MOST_ANSWER_BYTES:
                    raise OSError(f"the response is larger than {_MOST_ANSWER_BYTES} bytes")

    def cancel(self) -> None:
        """Close the connection from another thread. `receive` then fails, and a request that has not been sent is
        dropped.
        """
        self._is_cancelled = True
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Idempotent."""
        if self._socket is not None:
            self._socket.close()

    def _left_s(self) -> float:
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        return left_s


def _place(netloc: str, usual: int) -> tuple[str, int]:
    host, colon, port = netloc.rpartition(":")
    if not colon or not port.isdecimal():
        return netloc.strip("[]"), usual
    return host.strip("[]"), int(port)


def _answer(data: bytearray) -> Answer:
    head, complete, body = bytes(data).partition(b"\r\n\r\n")
    first, *fields = head.decode("latin-1").split("\r\n")
    headers = {name.strip().lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
    length = headers.get("content-length", "")
    if not complete or (length.isdecimal() and int(length) != len(body)):
        raise ConnectionResetError("the response is incomplete")
    return Answer(first, headers, body)


def _secured(plain: socket.socket, host: str) -> socket.socket:
    import ssl  # imported late: 5 MB, needed only for a daemon on another machine

    try:
        return ssl.create_default_context().wrap_socket(plain, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        reason = f"its certificate is not trusted ({error.verify_message}); to trust it, set SSL_CERT_FILE to its path"
        raise UnusableDoorError(reason) from error
