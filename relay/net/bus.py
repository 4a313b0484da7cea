"""The sockets of the bus: a server, a collector for plain PUB emitters, and clients.

PUB/SUB loses messages silently, so it carries only doorbells and the messages of plain emitters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic

from relay.access import Identity, TokenSource, is_curve
from relay.errors import RelayUnavailableError
from relay.net import zeromq
from relay.net.zeromq import AsyncSocket, CurveAuthenticator, Frames, Limits, Message, PlainSocket, Socket, Waker

_LINGER_MS = 1_000
_REPLIES = 256  # unread replies to one peer, which may send many requests at once
_REQUEST_BYTES = 20 << 20  # an event may be up to 16 MiB
_REPLY_BYTES = 64 << 20
_DOORBELLS = 10


class ServerSocket:
    """A ROUTER for requests and an XPUB for doorbells, plus a second pair with CURVE. Only `wake` is thread-safe."""

    def __init__(
        self, ingest: Sequence[str], feed: Sequence[str], queue_bytes: int, authenticator: CurveAuthenticator | None
    ) -> None:
        """Bind the sockets. For each peer, up to `queue_bytes` are queued, but always at least one message.

        CURVE endpoints need an `authenticator`, which is closed with the socket. Raises `RelayUnavailableError`.
        """
        self._waker = Waker()
        self._routers: list[PlainSocket] = []
        self._feeds: list[PlainSocket] = []
        self._authenticator = authenticator
        try:
            self._add_pair(queue_bytes, None)
            if authenticator is not None:
                self._add_pair(queue_bytes, authenticator)
            self.ingest = [_bind(self._routers[is_curve(endpoint)], endpoint) for endpoint in ingest]
            self.feed = [_bind(self._feeds[is_curve(endpoint)], endpoint) for endpoint in feed]
        except BaseException:
            self.close()
            raise
        self._poller = self._waker.poller(*self._routers, *self._feeds)

    def receive(self, limit: int, limit_bytes: int, timeout_s: float) -> list[Message]:
        """Return queued messages, up to `limit` or `limit_bytes`. Waits up to `timeout_s` for the first message."""
        ready = dict(self._poller.poll(int(timeout_s * 1000)))
        self._waker.clear_if(ready)
        messages: list[Message] = []
        size_bytes = 0
        for number, router in enumerate(self._routers):
            while router in ready and len(messages) < limit and size_bytes < limit_bytes:
                frames = zeromq.receive_now(router, copy=not number)
                if frames is None:
                    break
                messages.append(_message(number, frames))
                size_bytes += sum(map(len, messages[-1].frames))
        return messages

    def send(self, peer: bytes, frames: Sequence[bytes]) -> bool:
        """Send `frames` to a peer; return False if it is gone or its queue is full. Raises `RelayUnavailableError`."""
        with zeromq.translated(RelayUnavailableError, "reply"):
            return zeromq.send_now(self._routers[peer[0]], [peer[1:], *frames])

    def publish(self, frame: bytes) -> None:
        """Send a doorbell to all subscribers. Subscribers whose queue is full miss the doorbell."""
        for feed in self._feeds:
            zeromq.send_now(feed, [frame])

    def joined(self) -> bool:
        """Return whether a subscriber has joined the feed since the last call."""
        joined = False
        for feed in self._feeds:
            while (frames := zeromq.receive_now(feed)) is not None:
                joined |= frames[0][:1] == b"\x01"
        return joined

    def wake(self) -> None:
        """Make `receive` return. Callable from any thread and from signal handlers."""
        self._waker.wake()

    def close(self) -> None:
        """Close the sockets; queued replies are still sent for up to a second."""
        for socket in (*self._routers, *self._feeds):
            socket.close()
        if self._authenticator is not None:
            self._authenticator.close()
        self._waker.close()

    def _add_pair(self, queue_bytes: int, authenticator: CurveAuthenticator | None) -> None:
        context = zeromq.context() if authenticator is None else authenticator.context
        limits = Limits.of_bytes(_REPLIES, queue_bytes, _REQUEST_BYTES)
        self._routers.append(zeromq.open_mandatory_router(context, limits, _LINGER_MS))
        self._feeds.append(zeromq.open_publisher(context, Limits(_DOORBELLS, _DOORBELLS, _REPLY_BYTES)))
        if authenticator is not None:
            authenticator.guard(self._routers[-1])
            authenticator.guard(self._feeds[-1])


def _bind(socket: PlainSocket, endpoint: str) -> str:
    return zeromq.bind(socket, endpoint, RelayUnavailableError)


def _message(number: int, frames: Sequence[Any]) -> Message:
    """Return a message from ROUTER `number`. ROUTER 0 accepts plain peers; ROUTER 1 accepts only known CURVE keys."""
    if not number:
        return Message(b"\0" + frames[0], list(frames[1:]))
    key = zeromq.proven_key(frames)
    return Message(bytes([number]) + frames[0].bytes, [frame.bytes for frame in frames[1:]], key)


class CollectorSocket:
    """A SUB socket for all messages from plain PUB emitters. Not thread-safe."""

    def __init__(self, bind: Sequence[str], connect: Sequence[str], queue_bytes: int, max_bytes: int) -> None:
        """Bind and connect. Peers that send a frame larger than `max_bytes` are disconnected. Raises
        `RelayUnavailableError`.
        """
        limits = Limits.of_bytes(_DOORBELLS, queue_bytes, max_bytes)
        self._socket = zeromq.open_subscriber(zeromq.context(), limits)
        self.endpoints = [_bind(self._socket, endpoint) for endpoint in bind]
        for endpoint in connect:
            zeromq.connect(self._socket, endpoint, Identity(), RelayUnavailableError)

    def receive(self, limit: int, limit_bytes: int, timeout_s: float) -> list[Frames]:
        """Return queued messages, up to `limit` or `limit_bytes`. Waits up to `timeout_s` for the first message."""
        messages: list[Frames] = []
        size_bytes = 0
        if not self._socket.poll(int(timeout_s * 1000)):
            return messages
        while len(messages) < limit and size_bytes < limit_bytes:
            frames = zeromq.receive_now(self._socket)
            if frames is None:
                break
            messages.append(list(frames))
            size_bytes += sum(map(len, frames))
        return messages

    def close(self) -> None:
        self._socket.close()


class _Client(ABC, Generic[Socket]):
    """A DEALER. Each message carries the client's token, unless the connection is authenticated with a CURVE key."""

    def __init__(self, endpoint: str, identity: Identity) -> None:
        self._endpoint = endpoint
        self._token = TokenSource(identity)
        self._socket = self._connected()

    def reload_token(self) -> bool:
        """Read the token again; return whether it has changed."""
        return self._token.reload()

    def reconnect(self) -> None:
        """Drop all queued messages in both directions, and connect again."""
        former, self._socket = self._socket, self._connected()  # after an interrupt, `_socket` is one of the two
        former.close()

    def close(self) -> None:
        self._socket.close()

    def _connected(self) -> Socket:
        socket = self._open()
        zeromq.connect(socket, self._endpoint, self._token.identity, RelayUnavailableError)
        return socket

    @abstractmethod
    def _open(self) -> Socket: ...


class ClientSocket(_Client[PlainSocket]):
    """A DEALER socket connected to the relay, which need not be running yet. Only `wake` is thread-safe."""

    def __init__(self, endpoint: str, identity: Identity, queue: int = 1_000) -> None:
        """Connect; at most `queue` messages are queued. Raises `RelayUnavailableError` and `RelaySettingsError`."""
        self._limits = Limits(queue, queue, _REPLY_BYTES)
        self._waker = Waker()
        super().__init__(endpoint, identity)

    def send(self, frames: Sequence[bytes]) -> bool:
        """Queue `frames` for sending; return False if the queue is full."""
        return zeromq.send_now(self._socket, [*frames, self._token.current])

    def receive(self, timeout_s: float) -> Frames | None:
        """Return the next message, or None after `timeout_s` or `wake`."""
        ready = dict(self._poller.poll(max(0, int(timeout_s * 1000))))
        self._waker.clear_if(ready)
        return self._socket.recv_multipart() if self._socket in ready else None

    def wake(self) -> None:
        self._waker.wake()

    def close(self) -> None:
        super().close()
        self._waker.close()

    def _open(self) -> PlainSocket:
        socket = zeromq.open_dealer(zeromq.context(), self._limits)
        self._poller = self._waker.poller(socket)
        return socket


class AsyncClientSocket(_Client[AsyncSocket]):
    """`ClientSocket` for an event loop. Raises `RelayUnavailableError` and `RelaySettingsError` when it connects."""

    async def send(self, frames: Sequence[bytes]) -> None:
        await self._socket.send_multipart([*frames, self._token.current])

    async def receive(self) -> Frames:
        return await self._socket.recv_multipart()

    def _open(self) -> AsyncSocket:
        return zeromq.open_dealer(zeromq.async_context(), Limits())


class DoorbellSocket:
    """A SUB socket that keeps only the newest doorbell. Not thread-safe."""

    def __init__(self, endpoint: str, identity: Identity) -> None:
        """Connect. Raises `RelayUnavailableError` and `RelaySettingsError`."""
        self._socket = zeromq.open_subscriber(zeromq.context(), Limits(), newest_only=True)
        zeromq.connect(self._socket, endpoint, identity, RelayUnavailableError)

    def receive(self, timeout_s: float) -> bytes | None:
        """Return the newest doorbell, or None after `timeout_s`."""
        return self._socket.recv() if self._socket.poll(max(0, int(timeout_s * 1000))) else None

    def close(self) -> None:
        self._socket.close()


class AsyncDoorbellSocket:
    """`DoorbellSocket` for an event loop."""

    def __init__(self, endpoint: str, identity: Identity) -> None:
        self._socket = zeromq.open_subscriber(zeromq.async_context(), Limits(), newest_only=True)
        zeromq.connect(self._socket, endpoint, identity, RelayUnavailableError)

    async def receive(self) -> bytes:
        frame: bytes = await self._socket.recv()
        return frame

    def close(self) -> None:
        self._socket.close()
