"""The only module that imports ZeroMQ: creates sockets with limits and CURVE keys, and translates errors."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import select
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import zmq
import zmq.asyncio
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils.monitor import parse_monitor_message

from relay.access import CURVE, CurvePair, Identity, is_curve
from relay.errors import CodedError, ConnectionLostError, RelaySettingsError, UnavailableError

Frames = list[bytes]
PlainSocket = zmq.Socket[bytes]
AsyncSocket = zmq.asyncio.Socket
Socket = TypeVar("Socket", bound=zmq.Socket[Any])

_ZAP_DOMAIN = "keys"
_HEARTBEAT_MS = 1_000
_SILENT_MS = 3_000
_DAY_MS = 86_400_000
_MONITORS = itertools.count(1)

# Integers, because each operation on pyzmq's flags creates an enum member, and a recall exchanges a dozen messages.
_NOW, _MORE, _EVENTS, _READABLE = (int(flag) for flag in (zmq.DONTWAIT, zmq.SNDMORE, zmq.EVENTS, zmq.POLLIN))


class Limits(NamedTuple):
    """The maximum number of queued messages per peer, and the maximum size of a frame. ZeroMQ cannot limit a queue in
    bytes.
    """

    send_queue: int = 1_000
    receive_queue: int = 1_000
    frame_bytes: int = -1  # peers that send a larger frame are disconnected before it is read; -1: no limit

    @classmethod
    def of_bytes(cls, send_queue: int, queue_bytes: int, frame_bytes: int) -> Limits:
        """Limit the unread messages of a peer to `queue_bytes`, but allow at least one message."""
        return cls(send_queue, max(1, queue_bytes // frame_bytes), frame_bytes)


@dataclass(frozen=True, slots=True)
class Message:
    """A message that a peer sent to a server, and the address for the reply."""

    peer: bytes
    frames: Frames = field(repr=False)
    curve_key: str | None = None  # the peer's authenticated public key; None on sockets without CURVE
    correlation: bytes = b""  # the id that the reply repeats; empty on the bus, where the first frame is the id


def curve_pair() -> CurvePair:
    public, secret = zmq.curve_keypair()
    return CurvePair(public.decode(), secret.decode())


class CurveAuthenticator:
    """Makes the sockets in its own context accept only peers with known CURVE keys; a pyzmq thread checks the keys."""

    def __init__(self, pair: CurvePair, knows: Callable[[str], bool]) -> None:
        """`pair` is the server's key pair. `knows` is called in another thread and returns whether the holder of a
        public key may connect.
        """
        self._pair = pair
        self._knows = knows
        self.context: zmq.Context[PlainSocket] = zmq.Context()
        self._authenticator = ThreadAuthenticator(self.context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback(domain=_ZAP_DOMAIN, credentials_provider=self)

    def guard(self, socket: zmq.Socket[Any]) -> None:
        """Authenticate every peer of a socket of `context`; call it before binding."""
        socket.setsockopt(zmq.CURVE_SECRETKEY, self._pair.secret.encode())
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.ZAP_DOMAIN, _ZAP_DOMAIN.encode())

    def callback(self, _domain: str, key: bytes) -> bool:
        return self._knows(key.decode())

    def close(self) -> None:
        """Stop. Close the sockets first."""
        self._authenticator.stop()
        self.context.term()


class Waker:
    """Wakes a thread that polls sockets. `wake` may be called from any thread and from a signal handler."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)

    def wake(self) -> None:
        with contextlib.suppress(OSError):  # the pipe is closed, or so full that the poll returns anyway
            os.write(self._write, b"\0")

    def poller(self, *sockets: PlainSocket) -> zmq.Poller:
        """Return a poller for these sockets; `wake` interrupts it."""
        poller = zmq.Poller()
        for source in (*sockets, self._read):
            poller.register(source, zmq.POLLIN)
        return poller

    def arrival_at(self, socket: PlainSocket) -> Callable[[int], bool]:
        """Return a function that waits for a message or `wake`, and returns False on timeout.

        The function uses only the socket's descriptor, so other threads may use the socket (zmq_getsockopt(3), ZMQ_FD).
        """
        poll = select.poll()
        for source in (_number(socket, zmq.FD), self._read):
            poll.register(source, select.POLLIN)

        def wait(timeout_ms: int) -> bool:
            ready = poll.poll(timeout_ms)
            self.clear_if([source for source, _ in ready])
            return bool(ready)

        return wait

    def clear_if(self, ready: Container[object]) -> bool:
        """Return whether the poller's result shows that `wake` was called."""
        if self._read not in ready:
            return False
        with contextlib.suppress(BlockingIOError):
            while os.read(self._read, 4096):
                pass
        return True

    def close(self) -> None:
        descriptors, self._read, self._write = (self._read, self._write), -1, -1  # cleared before they are reused
        for descriptor in descriptors:
            if descriptor >= 0:
                os.close(descriptor)


class Watch:
    """Calls a function in the running event loop when a message may have arrived at a socket, until `close`.

    Also check for messages after each send, because the descriptor reports each change only once, and sending consumes
    the report (zmq_getsockopt(3), ZMQ_FD). A `Watch` is faster than `zmq.asyncio`, whose futures take twice as long as
    a whole request.
    """

    def __init__(self, socket: PlainSocket, notify: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._descriptor = _number(socket, zmq.FD)
        self._loop.add_reader(self._descriptor, notify)
        self._loop.call_soon(notify)

    def close(self) -> None:
        """Stop watching. Call it before closing the socket. Idempotent."""
        self._loop.remove_reader(self._descriptor)


def context() -> zmq.Context[PlainSocket]:
    return zmq.Context.instance()


def async_context() -> zmq.Context[AsyncSocket]:
    return zmq.asyncio.Context.instance()


def open_router(context: zmq.Context[Socket], limits: Limits) -> Socket:
    return _open(context, zmq.ROUTER, limits)


def open_mandatory_router(context: zmq.Context[Socket], limits: Limits, linger_ms: int) -> Socket:
    """Return a ROUTER on which `send_now` detects disconnected peers. After closing, queued messages are still sent for
    up to `linger_ms`.
    """
    socket = _open(context, zmq.ROUTER, limits)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.setsockopt(zmq.LINGER, linger_ms)
    return socket


def open_dealer(context: zmq.Context[Socket], limits: Limits) -> Socket:
    return _open(context, zmq.DEALER, limits)


def ended(monitor: PlainSocket, endpoint: str) -> CodedError | None:
    """Return, once, the error that ended a connection made by `connect_once`; otherwise None. Does not wait."""
    if monitor.closed or not can_receive(monitor) or (frames := receive_now(monitor)) is None:
        return None
    was_connected = parse_monitor_message(list(frames))["event"] == zmq.EVENT_DISCONNECTED
    return ConnectionLostError(endpoint) if was_connected else UnavailableError(f"no server at {endpoint}")


def stop_monitoring(socket: PlainSocket) -> None:
    """Stop the monitoring begun by `connect_once`, because unread reports would block libzmq's I/O thread."""
    socket.disable_monitor()


def open_publisher(context: zmq.Context[Socket], limits: Limits) -> Socket:
    socket = _open(context, zmq.XPUB, limits)
    socket.setsockopt(zmq.XPUB_VERBOSE, 1)
    return socket


def open_subscriber(context: zmq.Context[Socket], limits: Limits, *, newest_only: bool = False) -> Socket:
    """Return a SUB socket that receives every message, or only the newest message."""
    socket = _open(context, zmq.SUB, limits)
    socket.setsockopt(zmq.CONFLATE, int(newest_only))
    socket.subscribe(b"")
    return socket


def _open(context: zmq.Context[Socket], kind: int, limits: Limits) -> Socket:
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, limits.send_queue)
    socket.setsockopt(zmq.RCVHWM, limits.receive_queue)
    socket.setsockopt(zmq.MAXMSGSIZE, limits.frame_bytes)
    return socket


def bind(socket: zmq.Socket[Any], endpoint: str, failure: type[CodedError]) -> str:
    """Bind with private permissions; return the endpoint with its port. On failure, close the socket and raise
    `failure`.
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
        raise failure(f"cannot listen on {endpoint}: {error}") from error


def bind_again(socket: PlainSocket, endpoint: str, failure: type[CodedError]) -> None:
    """Bind again if the socket file was removed. Does not unbind, because unbinding would later remove the new file."""
    if endpoint.startswith("ipc://") and not Path(endpoint.removeprefix("ipc://")).exists():
        bind(socket, endpoint, failure)


def connect(socket: zmq.Socket[Any], endpoint: str, identity: Identity, failure: type[CodedError]) -> None:
    """Connect to an endpoint, which need not be bound yet, with the CURVE keys of `identity` if needed.

    Closes the socket and raises `failure` for an invalid endpoint, or `RelaySettingsError` for missing keys.
    """
    try:
        if is_curve(endpoint):
            _prove_keys(socket, endpoint, identity)
        socket.connect(endpoint.removeprefix(CURVE))
    except zmq.ZMQError as error:
        socket.close(linger=0)
        forms = f"ipc:///PATH, tcp://HOST:PORT or {CURVE}tcp://HOST:PORT"
        raise failure(f"{endpoint} is not a valid endpoint ({forms}): {error}") from error
    except RelaySettingsError:
        socket.close(linger=0)
        raise


def connect_once(socket: PlainSocket, endpoint: str, identity: Identity, failure: type[CodedError]) -> PlainSocket:
    """Like `connect`, without reconnecting. Return a socket for `ended`, readable when the connection fails or ends.

    Call `stop_monitoring` before closing either socket. Once its connection has ended, close the socket, which would
    otherwise reconnect after a day. A reconnect interval of -1 is not used, because it would discard unread replies.
    """
    socket.setsockopt(zmq.RECONNECT_IVL, _DAY_MS)
    # pyzmq derives the default address from a descriptor, whose former monitor may still be closing.
    address = f"inproc://monitor-{next(_MONITORS)}"
    monitor: PlainSocket = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED, address)
    monitor.setsockopt(zmq.LINGER, 0)
    try:
        connect(socket, endpoint, identity, failure)
    except CodedError:
        monitor.close()
        raise
    return monitor


def _prove_keys(socket: zmq.Socket[Any], endpoint: str, identity: Identity) -> None:
    if identity.curve is None:
        raise RelaySettingsError("key_file", f"{endpoint} requires a key file with a CURVE key (keys create --curve)")
    socket.setsockopt(zmq.CURVE_PUBLICKEY, identity.curve.public.encode())
    socket.setsockopt(zmq.CURVE_SECRETKEY, identity.curve.secret.encode())
    socket.setsockopt(zmq.CURVE_SERVERKEY, identity.server.encode())
    socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)  # a machine that loses power does not close its connections
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, _SILENT_MS)


def send_now(socket: PlainSocket, frames: Sequence[bytes]) -> bool:
    """Queue `frames` without waiting; return False if the queue is full or the peer has disconnected."""
    try:
        for frame in frames[:-1]:
            socket.send(frame, _MORE | _NOW)
        socket.send(frames[-1], _NOW)
    except zmq.ZMQError as error:
        if error.errno in (zmq.EAGAIN, zmq.EHOSTUNREACH):
            return False
        raise
    return True


def receive_now(socket: PlainSocket, *, copy: bool = True) -> Sequence[Any] | None:
    """Return a message without waiting, or None if there is none. Pass `copy=False` to use the frames with
    `proven_key`.
    """
    try:
        frame = socket.recv(_NOW, copy=False)
    except zmq.Again:
        return None
    frames = [frame]
    while frame.more:
        frame = socket.recv(_NOW, copy=False)
        frames.append(frame)
    return [frame.bytes for frame in frames] if copy else frames


def wait_to_receive(sockets: Sequence[PlainSocket], timeout_ms: int) -> bool:
    return bool(zmq.zmq_poll([(socket, _READABLE) for socket in sockets], timeout_ms))


def can_receive(socket: PlainSocket) -> bool:
    return bool(_number(socket, _EVENTS) & _READABLE)


def _number(socket: PlainSocket, option: int) -> int:
    return int(socket.getsockopt(option))


def proven_key(frames: Sequence[Any]) -> str:
    """Return the public key proved by the peer of a guarded socket. The frames must not have been copied."""
    return str(frames[-1]["User-Id"])


@contextlib.contextmanager
def translated(failure: type[CodedError], endpoint: str) -> Iterator[None]:
    """Raise `failure` for a ZeroMQ error in the block."""
    try:
        yield
    except zmq.ZMQError as error:
        raise failure(f"{endpoint}: {error}") from error
