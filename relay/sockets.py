"""The sockets of the bus: the only place of this package that makes them.

Requests and acknowledged events go over DEALER and ROUTER. PUB/SUB loses messages silently (33,604 of 50,000 at
default settings, measured), so it carries only what may be lost: doorbells, and what plain emitters send. Listening is
on socket files in private folders, or on loopback. What this file does not do: it knows nothing of messages (`wire`).
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import zmq
import zmq.asyncio

from relay.errors import RelaySettingsError, RelayUnavailableError

Frames = list[bytes]

_LINGER_MS = 1_000
_DOORBELL_HIGH_WATER = 10
_MAX_FRAME_BYTES = 64 << 20  # a larger frame ends its connection before it is in memory


def check_endpoint(setting: str, endpoint: str) -> str:
    """Return `endpoint` when it is a socket file of at most 107 bytes, or TCP on loopback.

    Raises `RelaySettingsError`.
    """
    scheme, _, place = endpoint.partition("://")
    if scheme == "ipc" and place:
        _check_length(setting, place)
    elif scheme == "tcp" and place:
        _check_loopback(setting, place.rpartition(":")[0])
    else:
        raise RelaySettingsError(setting, f"{endpoint!r} is no endpoint: ipc://PATH or tcp://127.0.0.1:PORT")
    return endpoint


def _check_length(setting: str, path: str) -> None:
    length, limit = len(os.fsencode(path)), int(zmq.IPC_PATH_MAX_LEN)
    if length > limit:
        raise RelaySettingsError(
            setting, f"{path} has {length} bytes, a socket path may have {limit}: choose a shorter folder"
        )


def _check_loopback(setting: str, host: str) -> None:
    with contextlib.suppress(ValueError):
        if host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback:
            return
    raise RelaySettingsError(setting, f"{host or '*'} is not loopback: only 127.0.0.1, ::1 and localhost are allowed")


class Wake:
    """Wakes a thread that polls sockets; `ring` may be called from any thread and from a signal handler."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)

    def ring(self) -> None:
        with contextlib.suppress(OSError):  # full: it will wake anyhow; closed: nobody listens any more
            os.write(self._write, b"\0")

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._read, 4096):
                pass

    def fileno(self) -> int:
        return self._read

    def close(self) -> None:
        for descriptor in (self._read, self._write):
            os.close(descriptor)
        self._read = self._write = -1  # a number that is used again must not be written to


class ServerSocket:
    """A ROUTER with an XPUB beside it. One thread owns it, except for `wake`."""

    def __init__(self, ingest: str, feed: str, high_water: int) -> None:
        """Listen. Raises `RelayUnavailableError` where that is not possible."""
        self._wake = Wake()
        self._router = _open(zmq.ROUTER, high_water, linger_ms=_LINGER_MS)
        self._router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._feed = _open(zmq.XPUB, _DOORBELL_HIGH_WATER)
        self._feed.setsockopt(zmq.XPUB_VERBOSE, 1)
        try:
            self.ingest = _bind(self._router, ingest)
            self.feed = _bind(self._feed, feed)
        except BaseException:
            self.close()
            raise
        self._poller = zmq.Poller()
        for socket in (self._router, self._feed, self._wake.fileno()):
            self._poller.register(socket, zmq.POLLIN)

    def receive(self, limit: int, timeout_s: float) -> list[tuple[bytes, Frames]]:
        """Return at most `limit` messages as (peer, frames): what is queued, or what comes before `timeout_s`."""
        ready = dict(self._poller.poll(int(timeout_s * 1000)))
        if self._wake.fileno() in ready:
            self._wake.clear()
        if self._router not in ready:
            return []
        messages: list[tuple[bytes, Frames]] = []
        with contextlib.suppress(zmq.Again):
            while len(messages) < limit:
                peer, *frames = self._router.recv_multipart(zmq.DONTWAIT)
                messages.append((peer, frames))
        return messages

    def send(self, peer: bytes, frames: Sequence[bytes]) -> bool:
        """Send `frames` to a peer; False when it went away, or does not read."""
        try:
            self._router.send_multipart([peer, *frames], zmq.DONTWAIT)
        except zmq.ZMQError as error:
            if error.errno in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                return False
            raise RelayUnavailableError(str(error)) from error
        return True

    def publish(self, frame: bytes) -> None:
        """Send a doorbell to all who listen; one who is behind misses it."""
        with contextlib.suppress(zmq.Again):
            self._feed.send(frame, zmq.DONTWAIT)

    def joined(self) -> bool:
        """Return whether somebody subscribed to the feed since the last call."""
        joined = False
        with contextlib.suppress(zmq.Again):
            while True:
                joined |= self._feed.recv(zmq.DONTWAIT)[:1] == b"\x01"
        return joined

    def wake(self) -> None:
        """Make `receive` return; for other threads."""
        self._wake.ring()

    def close(self) -> None:
        """Close, giving replies a moment to leave."""
        self._router.close()
        self._feed.close()
        self._wake.close()


class CollectorSocket:
    """A SUB that takes everything plain PUB emitters send. One thread owns it."""

    def __init__(self, bind: Sequence[str], connect: Sequence[str], high_water: int) -> None:
        """Listen and connect. Raises `RelayUnavailableError`."""
        self._socket = _open(zmq.SUB, high_water)
        try:
            self.endpoints = [_bind(self._socket, endpoint) for endpoint in bind]
            for endpoint in connect:
                _connect(self._socket, endpoint)
        except BaseException:
            self._socket.close()
            raise
        self._socket.subscribe(b"")

    def receive(self, limit: int, timeout_s: float) -> list[Frames]:
        """Return at most `limit` messages: what is queued, or what comes before `timeout_s`."""
        messages: list[Frames] = []
        if self._socket.poll(int(timeout_s * 1000), zmq.POLLIN):
            with contextlib.suppress(zmq.Again):
                while len(messages) < limit:
                    messages.append(self._socket.recv_multipart(zmq.DONTWAIT))
        return messages

    def close(self) -> None:
        self._socket.close()


class ClientSocket:
    """A DEALER. One thread owns it, except for `wake`. The relay need not be there yet."""

    def __init__(self, endpoint: str, high_water: int = 1_000) -> None:
        self._endpoint = endpoint
        self._high_water = high_water
        self._wake = Wake()
        self._socket = self._connected()

    def send(self, frames: Sequence[bytes]) -> bool:
        """Queue `frames` to be sent; False when the queue is full."""
        try:
            self._socket.send_multipart(frames, zmq.DONTWAIT)
        except zmq.Again:
            return False
        return True

    def receive(self, timeout_s: float) -> Frames | None:
        """Return the next message, or None after `timeout_s` or when woken."""
        ready = dict(self._poller.poll(max(0, int(timeout_s * 1000))))
        if self._wake.fileno() in ready:
            self._wake.clear()
        return self._socket.recv_multipart() if self._socket in ready else None

    def reconnect(self) -> None:
        """Throw away what is queued in either direction, and connect anew."""
        self._socket.close()
        self._socket = self._connected()

    def wake(self) -> None:
        """Make `receive` return; for other threads."""
        self._wake.ring()

    def close(self) -> None:
        self._socket.close()
        self._wake.close()

    def _connected(self) -> zmq.Socket[bytes]:
        socket = _open(zmq.DEALER, self._high_water)
        _connect(socket, self._endpoint)
        self._poller = zmq.Poller()
        self._poller.register(socket, zmq.POLLIN)
        self._poller.register(self._wake.fileno(), zmq.POLLIN)
        return socket


class DoorbellSocket:
    """A SUB that keeps only the newest doorbell. One thread owns it."""

    def __init__(self, endpoint: str) -> None:
        self._socket = _open_doorbell(zmq.Context.instance().socket(zmq.SUB), endpoint)

    def receive(self, timeout_s: float) -> bytes | None:
        """Return the newest doorbell, or None after `timeout_s`."""
        return self._socket.recv() if self._socket.poll(max(0, int(timeout_s * 1000)), zmq.POLLIN) else None

    def close(self) -> None:
        self._socket.close()


class AsyncClientSocket:
    """A DEALER inside an event loop."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._socket = self._connected()

    async def send(self, frames: Sequence[bytes]) -> None:
        await self._socket.send_multipart(frames)

    async def receive(self) -> Frames:
        return await self._socket.recv_multipart()

    def reconnect(self) -> None:
        """Throw away what is queued in either direction, and connect anew."""
        self._socket.close()
        self._socket = self._connected()

    def close(self) -> None:
        self._socket.close()

    def _connected(self) -> zmq.asyncio.Socket:
        socket = zmq.asyncio.Context.instance().socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        _connect(socket, self._endpoint)
        return socket


class AsyncDoorbellSocket:
    """A SUB inside an event loop that keeps only the newest doorbell."""

    def __init__(self, endpoint: str) -> None:
        self._socket = _open_doorbell(zmq.asyncio.Context.instance().socket(zmq.SUB), endpoint)

    async def receive(self) -> bytes:
        frame: bytes = await self._socket.recv()
        return frame

    def close(self) -> None:
        self._socket.close()


def _open(kind: int, high_water: int, linger_ms: int = 0) -> zmq.Socket[bytes]:
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(kind)
    socket.setsockopt(zmq.LINGER, linger_ms)
    socket.setsockopt(zmq.SNDHWM, high_water)
    socket.setsockopt(zmq.RCVHWM, high_water)
    socket.setsockopt(zmq.MAXMSGSIZE, _MAX_FRAME_BYTES)
    return socket


def _open_doorbell(socket: Any, endpoint: str) -> Any:
    socket.setsockopt(zmq.CONFLATE, 1)
    socket.setsockopt(zmq.LINGER, 0)
    _connect(socket, endpoint)
    socket.subscribe(b"")
    return socket


def _bind(socket: zmq.Socket[bytes], endpoint: str) -> str:
    """Bind, and return where. A socket file is private; one that a killed process left is replaced by libzmq."""
    file = Path(endpoint.removeprefix("ipc://")) if endpoint.startswith("ipc://") else None
    try:
        if file is not None:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        socket.bind(endpoint)
        if file is not None:
            file.chmod(0o600)
        return socket.getsockopt_string(zmq.LAST_ENDPOINT)
    except (zmq.ZMQError, OSError) as error:
        socket.close(linger=0)
        raise RelayUnavailableError(f"cannot listen at {endpoint}: {error}") from error


def _connect(socket: Any, endpoint: str) -> None:
    try:
        socket.connect(endpoint)
    except zmq.ZMQError as error:
        socket.close(linger=0)
        raise RelayUnavailableError(f"{endpoint} is no endpoint: {error}") from error
