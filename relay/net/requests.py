"""Requests and replies between any number of clients and one server, matched by a correlation id.

A message is `[correlation id, body frame, ...]`; a ROUTER prepends the peer's address. A client may give up on a
request; if the reply arrives later, it is recognised and dropped.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Sequence
from typing import Any

from relay.access import Identity
from relay.errors import CodedError, DeadlineExceededError, ProtocolError, UnavailableError
from relay.net import zeromq
from relay.net.zeromq import CurveAuthenticator, Frames, Limits, Message, Waker

_LINGER_MS = 1_000
_SERVER = Limits(send_queue=256, receive_queue=4, frame_bytes=64 << 20)
_CLIENT = Limits(send_queue=10_000, receive_queue=10_000)


class ReplySocket:
    """Answers requests, from any peer or only from peers with known CURVE keys. Thread-safe."""

    def __init__(self, endpoint: str, authenticator: CurveAuthenticator | None = None) -> None:
        """Bind to `endpoint`; `authenticator` is closed with the socket. Raises `UnavailableError`."""
        self._authenticator = authenticator
        self._socket = zeromq.open_router(zeromq.context() if authenticator is None else authenticator.context, _SERVER)
        if authenticator is not None:
            authenticator.guard(self._socket)
        self.endpoint = zeromq.bind(self._socket, endpoint, UnavailableError)
        self._turn = threading.Lock()  # held by the thread that is waiting for a request
        self._guard = threading.Lock()  # held for each use of the socket, which is not thread-safe
        self._waker = Waker()
        self._arrival = self._waker.arrival_at(self._socket)
        self._is_stopped = False

    def receive(self, timeout_s: float) -> Message | None:
        """Return the next request, or None after `stop` or `timeout_s`. Waiting for other threads is not counted."""
        with self._turn:
            deadline_s = time.monotonic() + timeout_s
            while not self._is_stopped:
                with self._guard:
                    frames = zeromq.receive_now(self._socket) if zeromq.can_receive(self._socket) else None
                if frames is None:
                    if not self._arrival(_remaining_ms(deadline_s)):
                        return None
                elif (request := _request(frames)) is not None:
                    return request
            return None

    def stop(self) -> None:
        """Make `receive` return None in every thread from now on."""
        self._is_stopped = True
        self._waker.wake()

    def reply(self, request: Message, frames: Sequence[bytes]) -> None:
        """Send `frames` to the sender of `request`. They are dropped if the sender has disconnected."""
        with self._guard:
            zeromq.send_now(self._socket, [request.peer, request.correlation, *frames])
            has_more = zeromq.can_receive(self._socket)
        if has_more:  # because sending may consume the notification of a request
            self._waker.wake()

    def listen_again(self) -> None:
        """Recreate the socket file if it was removed. Raises `UnavailableError`."""
        with self._guard:
            zeromq.bind_again(self._socket, self.endpoint, UnavailableError)

    def close(self) -> None:
        """Close; unsent replies are still sent for up to a second. No other thread may be using the socket."""
        self._socket.close(linger=_LINGER_MS)
        if self._authenticator is not None:
            self._authenticator.close()
        self._waker.close()


class AsyncReplySocket:
    """Answers requests in an event loop, either from any peer or only from peers with known CURVE keys."""

    def __init__(self, endpoints: Sequence[str], authenticator: CurveAuthenticator | None = None) -> None:
        """Bind to every endpoint; `authenticator` is closed with the socket. Raises `UnavailableError`."""
        self._authenticator = authenticator
        context = zeromq.context() if authenticator is None else authenticator.context
        self._socket = zeromq.open_router(context, _SERVER)
        if authenticator is not None:
            authenticator.guard(self._socket)
        self.endpoints = tuple(zeromq.bind(self._socket, endpoint, UnavailableError) for endpoint in endpoints)

        self._may_receive = asyncio.Event()
        self._watch = zeromq.Watch(self._socket, self._look)

    async def receive(self) -> Message:
        """Return the next request. Lets other tasks run first, so that they make progress during a flood of
        requests.
        """
        await asyncio.sleep(0)
        while True:
            self._may_receive.clear()
            self._look()
            await self._may_receive.wait()
            frames = zeromq.receive_now(self._socket, copy=self._authenticator is None)
            if frames is not None and (request := self._read(frames)) is not None:
                return request

    def reply(self, request: Message, frames: Sequence[bytes]) -> None:
        """Send `frames` to the sender of `request`. They are dropped if the sender has disconnected."""
        zeromq.send_now(self._socket, [request.peer, request.correlation, *frames])
        self._look()

    def close(self) -> None:
        """Close; unsent replies are still sent for up to a second."""
        self._watch.close()
        self._socket.close(linger=_LINGER_MS)
        if self._authenticator is not None:
            self._authenticator.close()

    def _look(self) -> None:
        """Consume a request's notification even if no task is receiving; otherwise, the loop would repeat it
        forever.
        """
        if zeromq.can_receive(self._socket):
            self._may_receive.set()

    def _read(self, frames: Sequence[Any]) -> Message | None:
        if self._authenticator is None:
            return _request(frames)
        return _request([frame.bytes for frame in frames], zeromq.proven_key(frames))


def _request(frames: Sequence[bytes], curve_key: str | None = None) -> Message | None:
    """Split a ROUTER's message. Returns None without a correlation id, because a reply could not be matched."""
    if len(frames) < 3:
        return None
    return Message(frames[0], list(frames[2:]), curve_key, frames[1])


class RequestSocket:
    """Sends requests to one endpoint, one at a time. Not thread-safe: use one per thread."""

    def __init__(self, endpoint: str, identity: Identity | None = None, *, once: bool = False) -> None:
        """Connect to `endpoint` with the CURVE keys of `identity` if needed.

        The endpoint need not be bound yet, and the socket reconnects. With `once`, the socket connects only once, and
        requests fail as soon as the connection is lost. Raises `ProtocolError` if the endpoint is invalid, and
        `RelaySettingsError` if required CURVE keys are missing.
        """
        self._endpoint = endpoint
        self._socket = zeromq.open_dealer(zeromq.context(), _CLIENT)
        connect = zeromq.connect_once if once else zeromq.connect
        self._end = connect(self._socket, endpoint, identity or Identity(), ProtocolError)
        self._sources = [self._socket] if self._end is None else [self._socket, self._end]
        self._error: CodedError | None = None
        self._correlations = itertools.count(1)

    def request(self, body: bytes | Sequence[bytes], timeout_s: float) -> Frames:
        """Send `body` and return the frames of its reply. Raises the same errors as `send` and `receive`."""
        return self.receive(self.send(body), timeout_s)

    def send(self, body: bytes | Sequence[bytes]) -> bytes:
        """Send `body` without waiting; return the id to pass to `receive`. Raises `UnavailableError`."""
        correlation = _correlation(self._correlations)
        with zeromq.translated(UnavailableError, self._endpoint):
            if self.is_lost or not zeromq.send_now(self._socket, [correlation, *_frames(body)]):
                raise UnavailableError(f"no server at {self._endpoint}")
        return correlation

    def receive(self, correlation: bytes, timeout_s: float) -> Frames:
        """Return the reply's frames. Raises `DeadlineExceededError`, `ConnectionLostError` and `UnavailableError`."""
        deadline_s = time.monotonic() + timeout_s
        with zeromq.translated(UnavailableError, self._endpoint):
            while self._error is not None or zeromq.wait_to_receive(self._sources, _remaining_ms(deadline_s)):
                is_lost = self.is_lost  # read before the replies, so that no reply can arrive in between
                while reply := zeromq.receive_now(self._socket):
                    if reply[0] == correlation:
                        return list(reply[1:])
                if is_lost and self._error is not None:
                    raise self._error
        raise _no_reply(self._endpoint, timeout_s)

    @property
    def is_lost(self) -> bool:
        """Whether the single connection of a socket created with `once` has failed or ended."""
        if self._error is None and self._end is not None:
            self._error = zeromq.ended(self._end, self._endpoint)
        return self._error is not None

    def close(self) -> None:
        """Close, without waiting for replies."""
        if self._end is not None and not self._end.closed:
            zeromq.stop_monitoring(self._socket)
            self._end.close(linger=0)
        self._socket.close(linger=0)


class AsyncRequestSocket:
    """Sends requests to one endpoint, any number at a time, in one event loop. Connects only once."""

    def __init__(self, endpoint: str, identity: Identity | None = None) -> None:
        self._endpoint = endpoint
        self._socket = zeromq.open_dealer(zeromq.context(), _CLIENT)
        self._end = zeromq.connect_once(self._socket, endpoint, identity or Identity(), ProtocolError)
        self.is_lost = False  # True once this socket is closed, or its connection has failed or ended
        self._waiting: dict[bytes, asyncio.Future[Frames]] = {}
        self._correlations = itertools.count(1)
        self._watch = zeromq.Watch(self._socket, self._settle)
        self._end_watch = zeromq.Watch(self._end, self._look_for_end)

    async def request(self, body: bytes | Sequence[bytes], timeout_s: float) -> Frames:
        """Send `body`; return the frames of its reply.

        Raises the same errors as `RequestSocket.request` if the socket was created with `once`.
        """
        correlation, loop = _correlation(self._correlations), asyncio.get_running_loop()
        future: asyncio.Future[Frames] = loop.create_future()
        expiry = loop.call_later(timeout_s, self._expire, future, timeout_s)
        try:
            with zeromq.translated(UnavailableError, self._endpoint):
                self._send(correlation, future, _frames(body))
                return await future
        finally:
            expiry.cancel()
            self._waiting.pop(correlation, None)

    def close(self) -> None:
        """Close. Pending requests fail with `UnavailableError`. Idempotent."""
        self._give_up(UnavailableError(f"{self._endpoint}: closed"))
        if not self._socket.closed:
            zeromq.stop_monitoring(self._socket)
            for watch, socket in ((self._watch, self._socket), (self._end_watch, self._end)):
                watch.close()
                socket.close(linger=0)

    def _send(self, correlation: bytes, future: asyncio.Future[Frames], frames: Sequence[bytes]) -> None:
        if self.is_lost or not zeromq.send_now(self._socket, [correlation, *frames]):
            raise UnavailableError(f"no server at {self._endpoint}")
        self._waiting[correlation] = future
        self._settle()

    def _settle(self) -> None:
        while not self._socket.closed and zeromq.can_receive(self._socket):
            correlation, *frames = zeromq.receive_now(self._socket) or (b"",)
            future = self._waiting.get(correlation)
            if future is not None and not future.done():
                future.set_result(frames)

    def _look_for_end(self) -> None:
        error = zeromq.ended(self._end, self._endpoint)
        if error is not None:
            self._settle()  # all replies that arrived before the end are already in the socket
            self._give_up(error)

    def _expire(self, future: asyncio.Future[Frames], timeout_s: float) -> None:
        _fail(future, _no_reply(self._endpoint, timeout_s))

    def _give_up(self, error: CodedError) -> None:
        self.is_lost = True
        for future in self._waiting.values():
            _fail(future, type(error)(*error.args))


def _fail(future: asyncio.Future[Frames], error: CodedError) -> None:
    if not future.done():
        future.set_exception(error)


def _frames(body: bytes | Sequence[bytes]) -> Sequence[bytes]:
    return [body] if isinstance(body, bytes) else body


def _correlation(numbers: itertools.count[int]) -> bytes:
    return next(numbers).to_bytes(8, "big")


def _remaining_ms(deadline_s: float) -> int:
    return max(0, int((deadline_s - time.monotonic()) * 1000))


def _no_reply(endpoint: str, timeout_s: float) -> DeadlineExceededError:
    return DeadlineExceededError(f"no reply from {endpoint} within {timeout_s:.3g} s")
