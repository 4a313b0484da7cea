"""Requests and replies over ZeroMQ: the only place of this package that makes sockets.

Every message is `[correlation id, body frame, ...]`; a ROUTER adds the peer's address in front. A caller may give up on
a request: its late reply is recognised by the correlation id and thrown away. What this file does not do: it knows
nothing of methods, users or encodings (`protocol`). Rejected: REQ/REP sockets, which stay stuck after one lost reply.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import queue
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import zmq
import zmq.asyncio

from memory_agent.errors import DeadlineExceededError, ProtocolError, SettingsError, UnavailableError
from relay import CURVE, CurveGate, Identity, is_curve, show_curve

Frames = list[bytes]

_LINGER_MS = 1_000
_HIGH_WATER = 10_000
_REQUESTS, _REPLIES = 4, 256  # that wait of a peer, and that it has not read
_MAX_REQUEST_BYTES = 64 << 20  # a larger frame ends its connection before it is in memory


def ipc_endpoint(path: Path) -> str:
    """Return the endpoint of a socket file. Makes nothing: whoever only looks leaves no folder behind.

    Raises `SettingsError` where the path is longer than the system allows for a socket (107 bytes on Linux).
    """
    limit = int(zmq.IPC_PATH_MAX_LEN)
    length = len(os.fsencode(path))
    if length > limit:
        raise SettingsError(
            "data_dir",
            f"{path} is {length} bytes long, a socket path may have {limit}: choose a shorter folder",
        )
    return f"ipc://{path}"


@dataclass(frozen=True)
class Request:
    """One message that waits for a reply."""

    peer: bytes
    correlation: bytes
    frames: Frames = field(repr=False)
    curve_key: str | None = None
    """The public key that the peer's connection proved to have; None where it was not asked."""


def _unwrap(message: Sequence[bytes], curve_key: str | None = None) -> Request | None:
    """Split a ROUTER's message; None for one that has no correlation id (nobody could match the reply)."""
    if len(message) < 3:
        return None
    return Request(message[0], message[1], list(message[2:]), curve_key)


class ReplySocket:
    """Answers requests from one thread; `reply` may be called from any."""

    def __init__(self, endpoint: str) -> None:
        """Bind to `endpoint`. Raises `UnavailableError` where it cannot be bound."""
        self._socket = _open(zmq.ROUTER)
        self.endpoint = _bind(self._socket, endpoint)
        self._replies: queue.SimpleQueue[Frames] = queue.SimpleQueue()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._wake_read, zmq.POLLIN)

    def receive(self, timeout_s: float) -> Request | None:
        """Return the next request, or None after `timeout_s`. Sends waiting replies meanwhile."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._send_replies()
            remaining_ms = max(0, int((deadline - time.monotonic()) * 1000))
            ready = dict(self._poller.poll(remaining_ms))
            if self._wake_read in ready:
                _drain(self._wake_read)
                continue
            if self._socket not in ready:
                return None
            request = _unwrap(self._socket.recv_multipart())
            if request is not None:
                return request

    def reply(self, request: Request, frames: Sequence[bytes]) -> None:
        """Send `frames` to whoever sent `request`; a peer that went away misses it."""
        self._replies.put([request.peer, request.correlation, *frames])
        with contextlib.suppress(BlockingIOError, OSError):
            os.write(self._wake_write, b"\0")

    def close(self) -> None:
        """Send what waits, and close."""
        self._send_replies()
        self._socket.close(linger=_LINGER_MS)
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _send_replies(self) -> None:
        while True:
            try:
                frames = self._replies.get_nowait()
            except queue.Empty:
                return
            with contextlib.suppress(zmq.Again):
                self._socket.send_multipart(frames, flags=zmq.DONTWAIT)


class RequestSocket:
    """Asks one endpoint, one request at a time. Not thread-safe: one per thread."""

    def __init__(self, endpoint: str, identity: Identity | None = None) -> None:
        """Connect to `endpoint`, with the CURVE keys of `identity` if it asks; it need not be there yet."""
        self._endpoint = endpoint
        self._socket = _open(zmq.DEALER)
        _connect(self._socket, endpoint, identity)
        self._correlations = itertools.count(1)

    def request(self, body: bytes | Sequence[bytes], timeout_s: float) -> Frames:
        """Send `body` and return the frames of its reply.

        Raises `DeadlineExceededError` when no reply came in time, `UnavailableError` when it could not be sent.
        """
        frames = [body] if isinstance(body, bytes) else list(body)
        correlation = next(self._correlations).to_bytes(8, "big")
        deadline = time.monotonic() + timeout_s
        try:
            self._socket.send_multipart([correlation, *frames], flags=zmq.DONTWAIT)
            while True:
                remaining_ms = max(0, int((deadline - time.monotonic()) * 1000))
                if not self._socket.poll(remaining_ms, zmq.POLLIN):
                    raise DeadlineExceededError(f"no reply from {self._endpoint} within {timeout_s:.3g} s")
                reply = self._socket.recv_multipart()
                if reply and reply[0] == correlation:
                    return reply[1:]
        except zmq.Again as error:
            raise UnavailableError(f"nobody listens at {self._endpoint}") from error
        except zmq.ZMQError as error:
            raise UnavailableError(f"{self._endpoint}: {error}") from error

    def close(self) -> None:
        """Close; nothing that was not answered is waited for."""
        self._socket.close(linger=0)


class AsyncReplySocket:
    """Answers requests inside an event loop: of whoever connects, or of peers that a gate lets in, never of both.

    A peer that need not prove a key may claim any, so only a socket behind a gate tells whose request it is.
    """

    def __init__(self, endpoints: Sequence[str], gate: CurveGate | None = None) -> None:
        """Bind to every endpoint. Raises `UnavailableError` where one cannot be bound."""
        self._gate = gate
        context = zmq.asyncio.Context.instance() if gate is None else zmq.asyncio.Context(gate.context)
        self._socket = context.socket(zmq.ROUTER)
        _configure(self._socket)
        if gate is not None:
            gate.guard(self._socket)
        self.endpoints = tuple(_bind(self._socket, endpoint) for endpoint in endpoints)

    async def receive(self) -> Request:
        """Return the next request."""
        while True:
            request = await self._receive()
            if request is not None:
                return request

    async def _receive(self) -> Request | None:
        if self._gate is None:
            return _unwrap(await self._socket.recv_multipart())
        frames = await self._socket.recv_multipart(copy=False)
        return _unwrap([frame.bytes for frame in frames], str(frames[-1]["User-Id"]))

    async def reply(self, request: Request, frames: Sequence[bytes]) -> None:
        """Send `frames` to whoever sent `request`; a peer that went away misses it."""
        with contextlib.suppress(zmq.Again):
            await self._socket.send_multipart([request.peer, request.correlation, *frames], flags=zmq.DONTWAIT)

    def close(self) -> None:
        """Close, giving replies under way a moment."""
        self._socket.close(linger=_LINGER_MS)
        if self._gate is not None:
            self._gate.close()


class AsyncRequestSocket:
    """Asks one endpoint, any number of requests at a time, inside one event loop."""

    def __init__(self, endpoint: str, identity: Identity | None = None) -> None:
        """Connect to `endpoint`; the other side need not be there yet."""
        self._endpoint = endpoint
        self._socket = zmq.asyncio.Context.instance().socket(zmq.DEALER)
        _configure(self._socket)
        _connect(self._socket, endpoint, identity)
        self._waiting: dict[bytes, asyncio.Future[Frames]] = {}
        self._correlations = itertools.count(1)
        self._reader: asyncio.Task[None] | None = None

    async def request(self, body: bytes | Sequence[bytes], timeout_s: float) -> Frames:
        """Send `body` and return the frames of its reply; errors as of `RequestSocket.request`."""
        frames = [body] if isinstance(body, bytes) else list(body)
        correlation = next(self._correlations).to_bytes(8, "big")
        future: asyncio.Future[Frames] = asyncio.get_running_loop().create_future()
        self._waiting[correlation] = future
        if self._reader is None:
            self._reader = asyncio.create_task(self._read())
        try:
            async with asyncio.timeout(timeout_s):
                await self._socket.send_multipart([correlation, *frames])
                return await future
        except TimeoutError as error:
            raise DeadlineExceededError(f"no reply from {self._endpoint} within {timeout_s:.3g} s") from error
        except zmq.ZMQError as error:
            raise UnavailableError(f"{self._endpoint}: {error}") from error
        finally:
            self._waiting.pop(correlation, None)

    async def close(self) -> None:
        """Close; requests under way fail with `UnavailableError`."""
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(UnavailableError(f"{self._endpoint}: closed"))
        self._socket.close(linger=0)

    async def _read(self) -> None:
        while True:
            reply = await self._socket.recv_multipart()
            future = self._waiting.get(reply[0]) if reply else None
            if future is not None and not future.done():
                future.set_result(reply[1:])


def _configure(socket: zmq.Socket[bytes] | zmq.asyncio.Socket) -> None:
    socket.linger = 0
    socket.sndhwm = _HIGH_WATER
    socket.rcvhwm = _HIGH_WATER


def _open(kind: int) -> zmq.Socket[bytes]:
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(kind)
    _configure(socket)
    return socket


def _bind(socket: zmq.Socket[bytes] | zmq.asyncio.Socket, endpoint: str) -> str:
    socket.setsockopt(zmq.MAXMSGSIZE, _MAX_REQUEST_BYTES)
    socket.setsockopt(zmq.RCVHWM, _REQUESTS)
    socket.setsockopt(zmq.SNDHWM, _REPLIES)
    try:
        socket.bind(endpoint.removeprefix(CURVE))
    except zmq.ZMQError as error:
        socket.close(linger=0)
        raise UnavailableError(f"cannot listen at {endpoint}: {error}") from error
    bound = socket.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()  # type: ignore[union-attr]
    return CURVE + bound if is_curve(endpoint) else bound


def _connect(socket: zmq.Socket[bytes] | zmq.asyncio.Socket, endpoint: str, identity: Identity | None) -> None:
    try:
        if is_curve(endpoint):
            show_curve(socket, endpoint, identity or Identity())
        socket.connect(endpoint.removeprefix(CURVE))
    except zmq.ZMQError as error:
        socket.close(linger=0)
        raise ProtocolError(f"{endpoint} is no endpoint: {error}") from error


def _drain(descriptor: int) -> None:
    with contextlib.suppress(BlockingIOError):
        while os.read(descriptor, 4096):
            pass
