"""The one file that makes ZeroMQ sockets, for the bus and for requests to the daemon, its hosts and the embedder.

Bus: `ServerSocket`, `CollectorSocket`, `ClientSocket` and `DoorbellSocket`. PUB/SUB loses messages silently (33,604 of
50,000 at default settings, measured), so it carries only doorbells and what plain emitters send. Requests and replies:
`RequestSocket` and `ReplySocket`; REQ/REP sockets lost, because they stay stuck after one lost reply.
Socket files and loopback carry a token; other endpoints need CURVE, and an unknown key gets no byte through. The two
never share a socket: a peer without CURVE may claim any `User-Id`. Encodings are in `wire` and `protocol`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import queue
import time
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import zmq
import zmq.asyncio
from zmq.auth.thread import ThreadAuthenticator

from relay.access import CURVE, CurvePair, Identity, TokenSource, is_curve
from relay.errors import (
    CodedError,
    DeadlineExceededError,
    ProtocolError,
    RelaySettingsError,
    RelayUnavailableError,
    UnavailableError,
)

Frames = list[bytes]
_Socket = TypeVar("_Socket", bound="zmq.Socket[Any]")

_LINGER_MS = 1_000
_ZAP_DOMAIN = "keys"
_MAX_EVENT_FRAME_BYTES = 20 << 20  # an event may have 16 MiB; a larger frame ends its connection before it is in memory
_MAX_FRAME_BYTES = 64 << 20


class _Limits(NamedTuple):
    """How many messages a socket queues per peer, and the largest frame: ZeroMQ bounds no queue by its bytes."""

    send_queue: int = 1_000
    receive_queue: int = 1_000
    frame_bytes: int = -1

    @classmethod
    def of_bytes(cls, send_queue: int, queue_bytes: int, frame_bytes: int) -> _Limits:
        """Bound what waits to be read to `queue_bytes`, or one message."""
        return cls(send_queue, max(1, queue_bytes // frame_bytes), frame_bytes)


_REPLIES = 256  # that a peer has not read; many may be requested at once
_DOORBELLS = _Limits(10, 10, _MAX_FRAME_BYTES)
_OF_SERVERS = _Limits(_REPLIES, 4, _MAX_FRAME_BYTES)
_OF_CALLERS = _Limits(10_000, 10_000)


@dataclass(frozen=True, slots=True)
class Message:
    """What a peer sent to a server, and where the reply goes."""

    peer: bytes
    frames: Frames = field(repr=False)
    curve_key: str | None = None
    """The public key that the connection proved; None on sockets without CURVE."""
    correlation: bytes = b""
    """The id that the reply repeats; empty on the bus, where it is the first frame."""


def curve_pair() -> CurvePair:
    """Return a new CURVE key pair."""
    public, secret = zmq.curve_keypair()
    return CurvePair(public.decode(), secret.decode())


class CurveAuthenticator:
    """Makes sockets accept only peers with known CURVE keys; pyzmq's authenticator checks in a thread of its own.

    Has its own ZeroMQ context, because a context has one authenticator.
    """

    def __init__(self, pair: CurvePair, knows: Callable[[str], bool]) -> None:
        """`pair` is the server's; `knows` says whether a public key may connect, and is called in another thread."""
        self._pair = pair
        self._knows = knows
        self.context = zmq.Context()
        self._authenticator = ThreadAuthenticator(self.context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback(domain=_ZAP_DOMAIN, credentials_provider=self)

    def guard(self, socket: zmq.Socket[Any]) -> None:
        """Authenticate every peer of a socket of `context`; call it before binding."""
        socket.setsockopt(zmq.CURVE_SECRETKEY, self._pair.secret.encode())
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.ZAP_DOMAIN, _ZAP_DOMAIN.encode())

    def callback(self, _domain: str, key: bytes) -> bool:
        """Called by pyzmq with a peer's public key, as Z85."""
        return self._knows(key.decode())

    def close(self) -> None:
        """Stop; close the sockets first."""
        self._authenticator.stop()
        self.context.term()


class ServerSocket:
    """A ROUTER for requests and an XPUB for doorbells, and a second pair with CURVE. One thread owns it, but `wake`."""

    def __init__(
        self,
        ingest: Sequence[str],
        feed: Sequence[str],
        queue_bytes: int,
        authenticator: CurveAuthenticator | None,
    ) -> None:
        """Bind, queueing at most `queue_bytes`, or one message, for each peer.

        CURVE endpoints need `authenticator`, which is closed with the socket. Raises `RelayUnavailableError`.
        """
        self._waker = _Waker()
        self._routers: list[zmq.Socket[bytes]] = []
        self._feeds: list[zmq.Socket[bytes]] = []
        self._authenticator = authenticator
        try:
            self._add_pair(queue_bytes, None)
            if authenticator is not None:
                self._add_pair(queue_bytes, authenticator)
            self.ingest = [self._bind(self._routers, endpoint) for endpoint in ingest]
            self.feed = [self._bind(self._feeds, endpoint) for endpoint in feed]
        except BaseException:
            self.close()
            raise
        self._poller = self._waker.poller(*self._routers, *self._feeds)

    def receive(self, limit: int, limit_bytes: int, timeout_s: float) -> list[Message]:
        """Return queued messages, waiting up to `timeout_s` for the first; stops at `limit` or `limit_bytes`."""
        ready = dict(self._poller.poll(int(timeout_s * 1000)))
        self._waker.clear_if(ready)
        messages: list[Message] = []
        size_bytes = 0
        for number, router in enumerate(self._routers):
            with contextlib.suppress(zmq.Again):
                while router in ready and len(messages) < limit and size_bytes < limit_bytes:
                    messages.append(_received(number, router.recv_multipart(zmq.DONTWAIT, copy=not number)))
                    size_bytes += sum(map(len, messages[-1].frames))
        return messages

    def send(self, peer: bytes, frames: Sequence[bytes]) -> bool:
        """Send `frames` to a peer; False when it has gone, or does not read. Raises `RelayUnavailableError`."""
        try:
            self._routers[peer[0]].send_multipart([peer[1:], *frames], zmq.DONTWAIT)
        except zmq.ZMQError as error:
            if error.errno in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                return False
            raise RelayUnavailableError(str(error)) from error
        return True

    def publish(self, frame: bytes) -> None:
        """Send a doorbell to all subscribers; a subscriber that is behind misses it."""
        for feed in self._feeds:
            with contextlib.suppress(zmq.Again):
                feed.send(frame, zmq.DONTWAIT)

    def joined(self) -> bool:
        """Return whether anyone has subscribed to the feed since the last call."""
        joined = False
        for feed in self._feeds:
            with contextlib.suppress(zmq.Again):
                while True:
                    joined |= feed.recv(zmq.DONTWAIT)[:1] == b"\x01"
        return joined

    def wake(self) -> None:
        """Make `receive` return; for any thread, and for signal handlers."""
        self._waker.wake()

    def close(self) -> None:
        """Close; unsent replies get a second to leave."""
        for socket in (*self._routers, *self._feeds):
            socket.close()
        if self._authenticator is not None:
            self._authenticator.close()
        self._waker.close()

    def _add_pair(self, queue_bytes: int, authenticator: CurveAuthenticator | None) -> None:
        context = _context() if authenticator is None else authenticator.context
        router = _open(context, zmq.ROUTER, _Limits.of_bytes(_REPLIES, queue_bytes, _MAX_EVENT_FRAME_BYTES))
        router.setsockopt(zmq.LINGER, _LINGER_MS)
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        feed = _open(context, zmq.XPUB, _DOORBELLS)
        feed.setsockopt(zmq.XPUB_VERBOSE, 1)
        self._routers.append(router)
        self._feeds.append(feed)
        if authenticator is not None:
            authenticator.guard(router)
            authenticator.guard(feed)

    @staticmethod
    def _bind(pair: Sequence[zmq.Socket[bytes]], endpoint: str) -> str:
        return _bind(pair[is_curve(endpoint)], endpoint, RelayUnavailableError)


def _received(number: int, message: Sequence[Any]) -> Message:
    """Return what ROUTER `number` received: bytes from the plain one, frames with the peer's key from the other."""
    if not number:
        return Message(b"\0" + message[0], list(message[1:]))
    return Message(bytes([number]) + message[0].bytes, [frame.bytes for frame in message[1:]], _proven_key(message))


class CollectorSocket:
    """A SUB that receives everything plain PUB emitters send. One thread owns it."""

    def __init__(self, bind: Sequence[str], connect: Sequence[str], queue_bytes: int, max_bytes: int) -> None:
        """Bind and connect, queueing at most `queue_bytes` for each emitter.

        A frame of more than `max_bytes` ends its connection. Raises `RelayUnavailableError`.
        """
        self._socket = _open(_context(), zmq.SUB, _Limits.of_bytes(10, queue_bytes, max_bytes))
        self.endpoints = [_bind(self._socket, endpoint, RelayUnavailableError) for endpoint in bind]
        for endpoint in connect:
            _connect(self._socket, endpoint, Identity(), RelayUnavailableError)
        self._socket.subscribe(b"")

    def receive(self, limit: int, limit_bytes: int, timeout_s: float) -> list[Frames]:
        """Return queued messages, waiting up to `timeout_s` for the first; stops at `limit` or `limit_bytes`."""
        messages: list[Frames] = []
        size_bytes = 0
        if self._socket.poll(int(timeout_s * 1000), zmq.POLLIN):
            with contextlib.suppress(zmq.Again):
                while len(messages) < limit and size_bytes < limit_bytes:
                    messages.append(self._socket.recv_multipart(zmq.DONTWAIT))
                    size_bytes += sum(map(len, messages[-1]))
        return messages

    def close(self) -> None:
        self._socket.close()


class _RelayClient(Generic[_Socket]):
    """A DEALER to the relay, which need not be up yet.

    Each message carries the token of `identity`, unless the connection proves a CURVE key.
    """

    def __init__(self, context: zmq.Context[_Socket], endpoint: str, identity: Identity, limits: _Limits) -> None:
        self._context = context
        self._limits = limits
        self._endpoint = endpoint
        self._token = TokenSource(identity)
        self._connect()

    def reload_token(self) -> bool:
        """Read the token again; return whether it has changed."""
        return self._token.reload()

    def reconnect(self) -> None:
        """Drop what is queued in either direction, and connect again."""
        self._socket.close()
        self._connect()

    def close(self) -> None:
        self._socket.close()

    def _connect(self) -> None:
        self._socket = _open(self._context, zmq.DEALER, self._limits)
        _connect(self._socket, self._endpoint, self._token.identity, RelayUnavailableError)


class ClientSocket(_RelayClient["zmq.Socket[bytes]"]):
    """A DEALER to the relay, which need not be up yet. One thread owns it, but `wake`."""

    def __init__(self, endpoint: str, identity: Identity, queue: int = 1_000) -> None:
        """Connect, queueing at most `queue` messages. Raises `RelayUnavailableError`, `RelaySettingsError`."""
        self._waker = _Waker()
        super().__init__(_context(), endpoint, identity, _Limits(queue, queue, _MAX_FRAME_BYTES))

    def send(self, frames: Sequence[bytes]) -> bool:
        """Queue `frames` for sending; False when the queue is full."""
        try:
            self._socket.send_multipart([*frames, self._token.current], zmq.DONTWAIT)
        except zmq.Again:
            return False
        return True

    def receive(self, timeout_s: float) -> Frames | None:
        """Return the next message, or None after `timeout_s` or `wake`."""
        ready = dict(self._poller.poll(max(0, int(timeout_s * 1000))))
        self._waker.clear_if(ready)
        return self._socket.recv_multipart() if self._socket in ready else None

    def wake(self) -> None:
        """Make `receive` return; for any thread."""
        self._waker.wake()

    def close(self) -> None:
        super().close()
        self._waker.close()

    def _connect(self) -> None:
        super()._connect()
        self._poller = self._waker.poller(self._socket)


class AsyncClientSocket(_RelayClient[zmq.asyncio.Socket]):
    """`ClientSocket` for an event loop."""

    def __init__(self, endpoint: str, identity: Identity) -> None:
        """Connect. Raises `RelayUnavailableError`, `RelaySettingsError`."""
        super().__init__(zmq.asyncio.Context.instance(), endpoint, identity, _Limits())

    async def send(self, frames: Sequence[bytes]) -> None:
        await self._socket.send_multipart([*frames, self._token.current])

    async def receive(self) -> Frames:
        return await self._socket.recv_multipart()


class DoorbellSocket:
    """A SUB that keeps only the newest doorbell. One thread owns it."""

    def __init__(self, endpoint: str, identity: Identity) -> None:
        """Connect. Raises `RelayUnavailableError`, `RelaySettingsError`."""
        self._socket = _open_doorbell(_context(), endpoint, identity)

    def receive(self, timeout_s: float) -> bytes | None:
        """Return the newest doorbell, or None after `timeout_s`."""
        return self._socket.recv() if self._socket.poll(max(0, int(timeout_s * 1000)), zmq.POLLIN) else None

    def close(self) -> None:
        self._socket.close()


class AsyncDoorbellSocket:
    """`DoorbellSocket` for an event loop."""

    def __init__(self, endpoint: str, identity: Identity) -> None:
        """Connect. Raises `RelayUnavailableError`, `RelaySettingsError`."""
        self._socket = _open_doorbell(zmq.asyncio.Context.instance(), endpoint, identity)

    async def receive(self) -> bytes:
        frame: bytes = await self._socket.recv()
        return frame

    def close(self) -> None:
        self._socket.close()


class ReplySocket:
    """Answers requests from one thread; `reply` may be called from any."""

    def __init__(self, endpoint: str) -> None:
        """Bind to `endpoint`. Raises `UnavailableError`."""
        self._socket = _open_replies(_context())
        self.endpoint = _bind(self._socket, endpoint, UnavailableError)
        self._replies: queue.SimpleQueue[Frames] = queue.SimpleQueue()
        self._waker = _Waker()
        self._poller = self._waker.poller(self._socket)

    def receive(self, timeout_s: float) -> Message | None:
        """Return the next request, or None after `timeout_s`; sends waiting replies meanwhile."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            self._send_replies()
            ready = dict(self._poller.poll(_remaining_ms(deadline_s)))
            if self._waker.clear_if(ready):
                continue
            if self._socket not in ready:
                return None
            request = _request(self._socket.recv_multipart())
            if request is not None:
                return request

    def reply(self, request: Message, frames: Sequence[bytes]) -> None:
        """Send `frames` to the sender of `request`; dropped when it has gone."""
        self._replies.put([request.peer, request.correlation, *frames])
        self._waker.wake()

    def close(self) -> None:
        """Send waiting replies, and close."""
        self._send_replies()
        self._socket.close(linger=_LINGER_MS)
        self._waker.close()

    def _send_replies(self) -> None:
        while True:
            try:
                frames = self._replies.get_nowait()
            except queue.Empty:
                return
            with contextlib.suppress(zmq.Again):
                self._socket.send_multipart(frames, flags=zmq.DONTWAIT)


class AsyncReplySocket:
    """Answers requests in an event loop: from any peer, or from peers with known CURVE keys, never from both."""

    def __init__(self, endpoints: Sequence[str], authenticator: CurveAuthenticator | None = None) -> None:
        """Bind to every endpoint; `authenticator` is closed with the socket. Raises `UnavailableError`."""
        self._authenticator = authenticator
        if authenticator is None:
            self._socket = _open_replies(zmq.asyncio.Context.instance())
        else:
            self._socket = _open_replies(zmq.asyncio.Context(authenticator.context))
            authenticator.guard(self._socket)
        self.endpoints = tuple(_bind(self._socket, endpoint, UnavailableError) for endpoint in endpoints)

    async def receive(self) -> Message:
        """Return the next request."""
        while True:
            if self._authenticator is None:
                request = _request(await self._socket.recv_multipart())
            else:
                frames = await self._socket.recv_multipart(copy=False)
                request = _request([frame.bytes for frame in frames], _proven_key(frames))
            if request is not None:
                return request

    async def reply(self, request: Message, frames: Sequence[bytes]) -> None:
        """Send `frames` to the sender of `request`; dropped when it has gone."""
        with contextlib.suppress(zmq.Again):
            await self._socket.send_multipart([request.peer, request.correlation, *frames], flags=zmq.DONTWAIT)

    def close(self) -> None:
        """Close; unsent replies get a second to leave."""
        self._socket.close(linger=_LINGER_MS)
        if self._authenticator is not None:
            self._authenticator.close()


def _request(message: Sequence[bytes], curve_key: str | None = None) -> Message | None:
    """Split a ROUTER's message; None without a correlation id, since no reply could be matched."""
    if len(message) < 3:
        return None
    return Message(message[0], list(message[2:]), curve_key, message[1])


class RequestSocket:
    """Sends requests to one endpoint, one at a time. Not thread-safe: one per thread.

    A late reply to an earlier request is recognised by its correlation id and dropped.
    """

    def __init__(self, endpoint: str, identity: Identity | None = None) -> None:
        """Connect to `endpoint`, which need not be bound yet, with the CURVE keys of `identity` if it needs them.

        Raises `ProtocolError` for what is no endpoint, `RelaySettingsError` where CURVE keys are missing.
        """
        self._endpoint = endpoint
        self._socket = _open_requests(_context(), endpoint, identity)
        self._correlations = itertools.count(1)

    def request(self, body: bytes | Sequence[bytes], timeout_s: float) -> Frames:
        """Send `body` and return the frames of its reply.

        Raises `DeadlineExceededError` when no reply came in time, `UnavailableError` when it could not be sent.
        """
        frames = [body] if isinstance(body, bytes) else list(body)
        correlation = next(self._correlations).to_bytes(8, "big")
        deadline_s = time.monotonic() + timeout_s
        try:
            self._socket.send_multipart([correlation, *frames], flags=zmq.DONTWAIT)
            while self._socket.poll(_remaining_ms(deadline_s), zmq.POLLIN):
                reply = self._socket.recv_multipart()
                if reply and reply[0] == correlation:
                    return reply[1:]
        except zmq.Again as error:
            raise UnavailableError(f"nobody listens at {self._endpoint}") from error
        except zmq.ZMQError as error:
            raise UnavailableError(f"{self._endpoint}: {error}") from error
        raise DeadlineExceededError(f"no reply from {self._endpoint} within {timeout_s:.3g} s")

    def close(self) -> None:
        """Close, without waiting for replies."""
        self._socket.close(linger=0)


class AsyncRequestSocket:
    """Sends requests to one endpoint, any number at a time, in one event loop."""

    def __init__(self, endpoint: str, identity: Identity | None = None) -> None:
        """As `RequestSocket`."""
        self._endpoint = endpoint
        self._socket = _open_requests(zmq.asyncio.Context.instance(), endpoint, identity)
        self._waiting: dict[bytes, asyncio.Future[Frames]] = {}
        self._correlations = itertools.count(1)
        self._reader: asyncio.Task[None] | None = None

    async def request(self, body: bytes | Sequence[bytes], timeout_s: float) -> Frames:
        """Send `body` and return the frames of its reply; raises as `RequestSocket.request`."""
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


class _Waker:
    """Wakes a thread that polls sockets; `wake` may be called from any thread and from a signal handler."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)

    def wake(self) -> None:
        with contextlib.suppress(OSError):  # the pipe is full, so the poll returns anyway; or closed
            os.write(self._write, b"\0")

    def poller(self, *sockets: zmq.Socket[bytes]) -> zmq.Poller:
        """Return what polls these sockets until one can be read or `wake` is called."""
        poller = zmq.Poller()
        for source in (*sockets, self._read):
            poller.register(source, zmq.POLLIN)
        return poller

    def clear_if(self, ready: Container[object]) -> bool:
        """Return whether `wake` was called, going by what the poller found ready."""
        if self._read not in ready:
            return False
        with contextlib.suppress(BlockingIOError):
            while os.read(self._read, 4096):
                pass
        return True

    def close(self) -> None:
        for descriptor in (self._read, self._write):
            os.close(descriptor)
        self._read = self._write = -1  # a later `wake` must not write to a file that got the number


def _context() -> zmq.Context[zmq.Socket[bytes]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    return context


def _open(context: zmq.Context[_Socket], kind: int, limits: _Limits) -> _Socket:
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, limits.send_queue)
    socket.setsockopt(zmq.RCVHWM, limits.receive_queue)
    socket.setsockopt(zmq.MAXMSGSIZE, limits.frame_bytes)
    return socket


def _open_doorbell(context: zmq.Context[_Socket], endpoint: str, identity: Identity) -> _Socket:
    socket = _open(context, zmq.SUB, _Limits())
    socket.setsockopt(zmq.CONFLATE, 1)
    _connect(socket, endpoint, identity, RelayUnavailableError)
    socket.subscribe(b"")
    return socket


def _open_replies(context: zmq.Context[_Socket]) -> _Socket:
    return _open(context, zmq.ROUTER, _OF_SERVERS)


def _open_requests(context: zmq.Context[_Socket], endpoint: str, identity: Identity | None) -> _Socket:
    socket = _open(context, zmq.DEALER, _OF_CALLERS)
    _connect(socket, endpoint, identity or Identity(), ProtocolError)
    return socket


def _bind(socket: zmq.Socket[Any], endpoint: str, failure: type[CodedError]) -> str:
    """Bind; return the endpoint with its port. Closes the socket and raises `failure` where that cannot be.

    A socket file becomes private; libzmq replaces one that a killed process left.
    """
    file = Path(endpoint.removeprefix("ipc://")) if endpoint.startswith("ipc://") else None
    try:
        if file is not None:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        socket.bind(endpoint.removeprefix(CURVE))
        if file is not None:
            file.chmod(0o600)
        return (CURVE if is_curve(endpoint) else "") + socket.getsockopt_string(zmq.LAST_ENDPOINT)
    except (zmq.ZMQError, OSError) as error:
        socket.close(linger=0)
        raise failure(f"cannot listen at {endpoint}: {error}") from error


def _connect(socket: zmq.Socket[Any], endpoint: str, identity: Identity, failure: type[CodedError]) -> None:
    """Connect, proving the CURVE keys of `identity` where the endpoint needs them.

    Closes the socket and raises `failure` for what is no endpoint, `RelaySettingsError` where there are no keys.
    """
    try:
        if is_curve(endpoint):
            if identity.curve is None:
                raise RelaySettingsError(
                    "key_file", f"{endpoint} needs the key file of a CURVE key (keys create --curve)"
                )
            socket.setsockopt(zmq.CURVE_PUBLICKEY, identity.curve.public.encode())
            socket.setsockopt(zmq.CURVE_SECRETKEY, identity.curve.secret.encode())
            socket.setsockopt(zmq.CURVE_SERVERKEY, identity.server.encode())
        socket.connect(endpoint.removeprefix(CURVE))
    except zmq.ZMQError as error:
        socket.close(linger=0)
        raise failure(f"{endpoint} is no endpoint: {error}") from error
    except RelaySettingsError:
        socket.close(linger=0)
        raise


def _proven_key(frames: Sequence[Any]) -> str:
    return str(frames[-1]["User-Id"])


def _remaining_ms(deadline_s: float) -> int:
    return max(0, int((deadline_s - time.monotonic()) * 1000))
