"""A pool of idle sockets to one server, and a circuit breaker that limits waiting while the server does not answer."""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import suppress

from relay.access import Identity
from relay.errors import UnavailableError
from relay.net.requests import RequestSocket

_SILENT_AFTER_S = 0.4  # four times the embedder's time for the longest text
_SILENT_PATIENCE_S = 0.05


class RequestSockets:
    """Idle sockets to one endpoint. Thread-safe without a lock, because the garbage collector may return a socket."""

    def __init__(self, endpoint: str, identity: Identity | None = None) -> None:
        """`identity`: the keys for a CURVE endpoint."""
        self.endpoint = endpoint
        self._identity = identity
        self._idle: deque[RequestSocket] = deque()
        self._closed = False

    def borrow(self) -> RequestSocket:
        """Return a socket for exclusive use. Raises `UnavailableError` if the pool is closed."""
        if self._closed:
            raise UnavailableError(f"the connections to {self.endpoint} are closed")
        try:
            return self._idle.pop()
        except IndexError:
            return RequestSocket(self.endpoint, self._identity)

    def give_back(self, socket: RequestSocket) -> None:
        """Keep the socket for later requests, which ignore late replies to earlier requests. Closes it if this pool is
        closed.
        """
        self._idle.append(socket)
        if self._closed:
            self.close()

    def close(self) -> None:
        """Close the idle sockets now, and borrowed sockets when they are returned."""
        self._closed = True
        with suppress(IndexError):
            while True:
                self._idle.pop().close()


class CircuitBreaker:
    """While the server is silent, one request probes it and other requests fail fast. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_silent = False
        self._probed_until_s = 0.0
        self._heard_at_s = 0.0

    def patience_s(self, wanted_s: float) -> float:
        """Return how long to wait for an answer: `wanted_s`, or less while another request probes the server."""
        now_s = time.monotonic()
        with self._lock:
            if not self._is_silent:
                return wanted_s
            if now_s < self._probed_until_s:
                return min(wanted_s, _SILENT_PATIENCE_S)
            self._probed_until_s = now_s + wanted_s
            return wanted_s

    def heard(self) -> None:
        """Record that the server answered, even with an error."""
        with self._lock:
            self._is_silent = False
            self._probed_until_s = 0.0
            self._heard_at_s = time.monotonic()

    def waited_since(self, asked_at_s: float) -> None:
        """Record an unanswered request. The server is considered silent after 0.4 s without any reply."""
        with self._lock:
            self._is_silent |= time.monotonic() - max(asked_at_s, self._heard_at_s) >= _SILENT_AFTER_S
