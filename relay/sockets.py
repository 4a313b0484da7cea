"""The sockets of the bus: the only place of this package that makes them.

Requests and acknowledged events go over DEALER and ROUTER. PUB/SUB loses messages silently (33,604 of 50,000 at
default settings, measured), so it carries only what may be lost: doorbells, and what plain emitters send. Listening is
on socket files in private folders and on loopback, where a request carries a token; elsewhere over CURVE alone, where
a peer whose key is unknown gets no byte through. The two never share a socket: a peer without CURVE may claim any
`User-Id`. What this file does not do: it knows nothing of messages (`wire`), nor of who may what (`credentials`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import zmq
import zmq.asyncio
from zmq.auth.thread import ThreadAuthenticator

from relay.access import CURVE, CurvePair, Identity, Shown, is_curve
from relay.errors import RelaySettingsError, RelayUnavailableError
from relay.wake import Wake

Frames = list[bytes]

_LINGER_MS = 1_000
_DOORBELL_HIGH_WATER = 10
_MAX_FRAME_BYTES = 20 << 20  # an event may have 16; a larger frame ends its connection before it is in memory
_MAX_ANSWER_BYTES = 64 << 20
_ANSWERS = 256  # that a peer has not read; many may be asked for at once
_DOMAIN = "keys"


class Letter(NamedTuple):
    """A message and whose it is. `curve_key` is the peer's public key where the connection proved that it has it."""

    peer: bytes
    frames: Frames
    curve_key: str | None = None


def curve_pair() -> CurvePair:
    """Return a new CURVE key pair."""
    public, secret = zmq.curve_keypair()
    return CurvePair(public.decode(), secret.decode())


class CurveGate:
    """Makes sockets that hear only peers whose CURVE key is known. pyzmq's authenticator asks, in a thread of its own.

    A context of its own, because a context has one authenticator.
    """

    def __init__(self, pair: CurvePair, knows: Callable[[str], bool]) -> None:
        """`pair` is ours; `knows` says whether a public key may connect, and is called in another thread."""
        self._pair = pair
        self._knows = knows
        self.context = zmq.Context()
        self._authenticator = ThreadAuthenticator(self.context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback(domain=_DOMAIN, credentials_provider=self)

    def guard(self, socket: Any) -> None:
        """Have a socket of `context` authenticate whoever connects to where it is bound from now on."""
        socket.setsockopt(zmq.CURVE_SECRETKEY, self._pair.secret.encode())
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.ZAP_DOMAIN, _DOMAIN.encode())

    def callback(self, _domain: str, key: bytes) -> bool:
        """Called by pyzmq with a peer's public key, as Z85."""
        return self._knows(key.decode())

    def close(self) -> None:
        """End, once the sockets are closed."""
        self._authenticator.stop()
        self.context.term()


class ServerSocket:
    """A ROUTER with an XPUB beside it, and both again behind a gate. One thread owns it, except for `wake`."""

    def __init__(self, ingest: Sequence[str], feed: Sequence[str], queue_bytes: int, gate: CurveGate | None) -> None:
        """Listen, with a queue of `queue_bytes` for each peer, or of one message.

        `gate` is needed where an endpoint asks for CURVE. Raises `RelayUnavailableError`.
        """
        self._wake = Wake()
        self._routers: list[zmq.Socket[bytes]] = []
        self._feeds: list[zmq.Socket[bytes]] = []
        self._gate = gate
        try:
            for wall in (None, gate) if gate is not None else (None,):
                self._add_pair(queue_bytes, wall)
            self.ingest = [_bind(self._routers[is_curve(endpoint)], endpoint) for endpoint in ingest]
            self.feed = [_bind(self._feeds[is_curve(endpoint)], endpoint) for endpoint in feed]
        except BaseException:
            self.close()
            raise
        self._poller = zmq.Poller()
        for socket in (*self._routers, *self._feeds, self._wake.fileno()):
            self._poller.register(socket, zmq.POLLIN)

    def receive(self, limit: int, limit_bytes: int, timeout_s: float) -> list[Letter]:
        """Return what is queued, or comes before `timeout_s`; no more once it is `limit` messages, or the bytes."""
        ready = dict(self._poller.poll(int(timeout_s * 1000)))
        if self._wake.fileno() in ready:
            self._wake.clear()
        letters: list[Letter] = []
        size_bytes = 0
        for number, router in enumerate(self._routers):
            with contextlib.suppress(zmq.Again):
                while router in ready and len(letters) < limit and size_bytes < limit_bytes:
                    letters.append(_letter(number, router.recv_multipart(zmq.DONTWAIT, copy=not number)))
                    size_bytes += sum(map(len, letters[-1].frames))
        return letters

    def send(self, peer: bytes, frames: Sequence[bytes]) -> bool:
        """Send `frames` to a peer; False when it went away, or does not read."""
        try:
            self._routers[peer[0]].send_multipart([peer[1:], *frames], zmq.DONTWAIT)
        except zmq.ZMQError as error:
            if error.errno in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                return False
            raise RelayUnavailableError(str(error)) from error
        return True

    def publish(self, frame: bytes) -> None:
        """Send a doorbell to all who listen; one who is behind misses it."""
        for feed in self._feeds:
            with contextlib.suppress(zmq.Again):
                feed.send(frame, zmq.DONTWAIT)

    def joined(self) -> bool:
        """Return whether somebody subscribed to the feed since the last call."""
        joined = False
        for feed in self._feeds:
            with contextlib.suppress(zmq.Again):
                while True:
                    joined |= feed.recv(zmq.DONTWAIT)[:1] == b"\x01"
        return joined

    def wake(self) -> None:
        """Make `receive` return; for other threads."""
        self._wake.ring()

    def close(self) -> None:
        """Close, giving replies a moment to leave."""
        for socket in (*self._routers, *self._feeds):
            socket.close()
        if self._gate is not None:
            self._gate.close()
        self._wake.close()

    def _add_pair(self, queue_bytes: int, gate: CurveGate | None) -> None:
        context = gate.context if gate is not None else None
        router = _open(zmq.ROUTER, _ANSWERS, linger_ms=_LINGER_MS, context=context)
        _bound_queue(router, queue_bytes, _MAX_FRAME_BYTES)
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        feed = _open(zmq.XPUB, _DOORBELL_HIGH_WATER, context=context)
        feed.setsockopt(zmq.XPUB_VERBOSE, 1)
        self._routers.append(router)
        self._feeds.append(feed)
        if gate is not None:
            gate.guard(router)
            gate.guard(feed)


def _letter(number: int, message: Sequence[Any]) -> Letter:
    """Return what ROUTER `number` received: plain bytes of the first, frames with what is known of the peer else."""
    if not number:
        return Letter(b"\0" + message[0], list(message[1:]))
    return Letter(bytes([number]) + message[0].bytes, [frame.bytes for frame in message[1:]], message[-1]["User-Id"])


class CollectorSocket:
    """A SUB that takes everything plain PUB emitters send. One thread owns it."""

    def __init__(self, bind: Sequence[str], connect: Sequence[str], queue_bytes: int, most_bytes: int) -> None:
        """Listen and connect, with a queue of `queue_bytes` for each emitter.

        A frame of more than `most_bytes` ends its connection. Raises `RelayUnavailableError`.
        """
        self._socket = _open(zmq.SUB, _DOORBELL_HIGH_WATER)
        _bound_queue(self._socket, queue_bytes, most_bytes)
        try:
            self.endpoints = [_bind(self._socket, endpoint) for endpoint in bind]
            for endpoint in connect:
                _connect(self._socket, endpoint, Identity())
        except BaseException:
            self._socket.close()
            raise
        self._socket.subscribe(b"")

    def receive(self, limit: int, limit_bytes: int, timeout_s: float) -> list[Frames]:
        """Return what is queued, or comes before `timeout_s`; no more once it is `limit` messages, or the bytes."""
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


class ClientSocket:
    """A DEALER. One thread owns it, except for `wake`. The relay need not be there yet.

    What it sends carries the token of `identity`, unless its connection proves a CURVE key.
    """

    def __init__(self, endpoint: str, identity: Identity, high_water: int = 1_000) -> None:
        self._shown = Shown(identity)
        self._endpoint = endpoint
        self._high_water = high_water
        self._wake = Wake()
        self._socket = self._connected()

    def send(self, frames: Sequence[bytes]) -> bool:
        """Queue `frames` to be sent; False when the queue is full."""
        try:
            self._socket.send_multipart([*frames, self._shown.token], zmq.DONTWAIT)
        except zmq.Again:
            return False
        return True

    def renew(self) -> bool:
        """Look again for what to show; return whether that is something else now."""
        return self._shown.renew()

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
        _connect(socket, self._endpoint, self._shown.identity)
        self._poller = zmq.Poller()
        self._poller.register(socket, zmq.POLLIN)
        self._poller.register(self._wake.fileno(), zmq.POLLIN)
        return socket


class DoorbellSocket:
    """A SUB that keeps only the newest doorbell. One thread owns it."""

    def __init__(self, endpoint: str, identity: Identity) -> None:
        self._socket = _open_doorbell(zmq.Context.instance().socket(zmq.SUB), endpoint, identity)

    def receive(self, timeout_s: float) -> bytes | None:
        """Return the newest doorbell, or None after `timeout_s`."""
        return self._socket.recv() if self._socket.poll(max(0, int(timeout_s * 1000)), zmq.POLLIN) else None

    def close(self) -> None:
        self._socket.close()


class AsyncClientSocket:
    """A DEALER inside an event loop, otherwise as `ClientSocket`."""

    def __init__(self, endpoint: str, identity: Identity) -> None:
        self._shown = Shown(identity)
        self._endpoint = endpoint
        self._socket = self._connected()

    async def send(self, frames: Sequence[bytes]) -> None:
        await self._socket.send_multipart([*frames, self._shown.token])

    def renew(self) -> bool:
        """Look again for what to show; return whether that is something else now."""
        return self._shown.renew()

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
        _connect(socket, self._endpoint, self._shown.identity)
        return socket


class AsyncDoorbellSocket:
    """A SUB inside an event loop that keeps only the newest doorbell."""

    def __init__(self, endpoint: str, identity: Identity) -> None:
        self._socket = _open_doorbell(zmq.asyncio.Context.instance().socket(zmq.SUB), endpoint, identity)

    async def receive(self) -> bytes:
        frame: bytes = await self._socket.recv()
        return frame

    def close(self) -> None:
        self._socket.close()


def _open(
    kind: int, high_water: int, linger_ms: int = 0, context: zmq.Context[zmq.Socket[bytes]] | None = None
) -> zmq.Socket[bytes]:
    socket: zmq.Socket[bytes] = (context or zmq.Context.instance()).socket(kind)
    socket.setsockopt(zmq.LINGER, linger_ms)
    socket.setsockopt(zmq.SNDHWM, high_water)
    socket.setsockopt(zmq.RCVHWM, high_water)
    socket.setsockopt(zmq.MAXMSGSIZE, _MAX_ANSWER_BYTES)
    return socket


def _bound_queue(socket: zmq.Socket[bytes], queue_bytes: int, most_bytes: int) -> None:
    """Let what waits of a peer be `queue_bytes` at most, in frames of `most_bytes`: ZeroMQ counts messages alone."""
    socket.setsockopt(zmq.MAXMSGSIZE, most_bytes)
    socket.setsockopt(zmq.RCVHWM, max(1, queue_bytes // most_bytes))


def _open_doorbell(socket: Any, endpoint: str, identity: Identity) -> Any:
    socket.setsockopt(zmq.CONFLATE, 1)
    socket.setsockopt(zmq.LINGER, 0)
    _connect(socket, endpoint, identity)
    socket.subscribe(b"")
    return socket


def _bind(socket: zmq.Socket[bytes], endpoint: str) -> str:
    """Bind, and return where. A socket file is private; one that a killed process left is replaced by libzmq."""
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
        raise RelayUnavailableError(f"cannot listen at {endpoint}: {error}") from error


def _connect(socket: Any, endpoint: str, identity: Identity) -> None:
    try:
        if is_curve(endpoint):
            show_curve(socket, endpoint, identity)
        socket.connect(endpoint.removeprefix(CURVE))
    except zmq.ZMQError as error:
        socket.close(linger=0)
        raise RelayUnavailableError(f"{endpoint} is no endpoint: {error}") from error


def show_curve(socket: Any, endpoint: str, identity: Identity) -> None:
    """Have a socket prove the keys of `identity`. Closes it and raises `RelaySettingsError` where there are none."""
    if identity.curve is None:
        socket.close(linger=0)
        raise RelaySettingsError("key_file", f"{endpoint} needs the key file of a CURVE key (keys create --curve)")
    socket.setsockopt(zmq.CURVE_PUBLICKEY, identity.curve.public.encode())
    socket.setsockopt(zmq.CURVE_SECRETKEY, identity.curve.secret.encode())
    socket.setsockopt(zmq.CURVE_SERVERKEY, identity.server.encode())
