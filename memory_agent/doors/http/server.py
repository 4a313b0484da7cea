"""The HTTP server: the protocol of uvicorn, inside the daemon's event loop.

The server class of uvicorn is not used: it handles signals, which the daemon handles itself, and wakes up ten times a
second. A subclass of the protocol class limits the number of connections, the time to receive a head, and the time that
a client may go without reading.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from pathlib import Path

from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from memory_agent.doors.http.app import Routes, make_app
from memory_agent.doors.http.asgi import Asgi
from memory_agent.doors.http.guard import MOST_PORT, Place
from memory_agent.doors.http.page.sessions import Sessions
from memory_agent.doors.http.publishing import Intake
from memory_agent.doors.http.streams import JournalWatch
from memory_agent.doors.reception import Reception
from memory_agent.doors.request_quota import RequestQuota
from memory_agent.errors import SettingsError
from memory_agent.layout import Layout
from memory_agent.settings import HttpSettings
from relay import Endpoints, EventLimits
from relay.disk import write_private
from relay.log import log

_KEEP_ALIVE_S = 30
_MOST_CONNECTIONS = 1_024
_MOST_HEAD_BYTES = 64 << 10
_BACKLOG = 128
_HANDSHAKE_S = 10.0
_NO_LINGER = struct.pack("ii", 1, 0)


class HttpDoor:
    def __init__(self, settings: HttpSettings, place: Place, layout: Layout) -> None:
        """Bind the port; requests are served once `run` is called. Raises `SettingsError`.

        Port 0 means the port that was last used for this data folder, if it is free, so that an open page can
        reconnect.
        """
        self._settings = settings
        self._place = place
        self._layout = layout
        self._tls = _tls(settings) if place.is_tls else None
        self._socket = _listen(place, layout.http_port)
        self._streams: RequestQuota | None = None
        self._state = ServerState()
        port: int = self._socket.getsockname()[1]
        self.url = place.url(port)
        self._sessions = Sessions(layout.page_sessions, port, place.is_tls)

    async def run(self, reception: Reception, relay: Endpoints, limits: EventLimits, bodies_bytes: int) -> None:
        """Serve until cancelled, then drop running requests and end streams.

        At most `bodies_bytes` of request bodies are buffered; a single body may have any size.
        """
        watch = JournalWatch(relay)
        intake = Intake(relay.ingest, limits, self._layout)
        routes = Routes(reception, relay, intake, watch, self._sessions, self._settings, bodies_bytes)
        self._streams = routes.streams
        loop = asyncio.get_running_loop()
        config, state = _config(make_app(routes.routes(), self._place, self._settings.hosts)), self._state
        timeout_s = self._settings.timeout_s
        server = await loop.create_server(
            lambda: _Connection(config, state, loop, timeout_s),
            sock=self._socket,
            backlog=_BACKLOG,
            ssl=self._tls,
            ssl_handshake_timeout=_HANDSHAKE_S if self._tls else None,
        )
        try:
            await watch.run()
        finally:
            server.close()
            running = list(state.tasks)
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            for connection in list(state.connections):
                connection.transport.abort()

    @property
    def streams(self) -> int:
        """The number of streams that clients follow."""
        return 0 if self._streams is None else len(self._streams)

    @property
    def running(self) -> int:
        return len(self._state.tasks)

    @property
    def requests(self) -> int:
        return self._state.total_requests

    def close(self) -> None:
        """Stop listening if `run` was never called."""
        self._socket.close()


class _Connection(H11Protocol):
    """A connection that is closed if a request's head does not arrive in time or a response is not read in time."""

    def __init__(self, config: Config, state: ServerState, loop: asyncio.AbstractEventLoop, timeout_s: float) -> None:
        super().__init__(config, state, {}, loop)
        self._timeout_s = timeout_s
        self._head: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # TCP_NODELAY saves 40 ms per response (measured); asyncio sets it only if the socket's protocol is named.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if len(self.connections) > _MOST_CONNECTIONS:
            transport.abort()
        else:
            self._await_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._await_head()
        else:
            self._stop_waiting_for_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete and self.conn.trailing_data[0]:  # part of the next request has already arrived
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting_for_head()
        self._stop_waiting_for_reading()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_reading()

    def resume_writing(self) -> None:
        self._stop_waiting_for_reading()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        if self.transport.get_write_buffer_size():
            self._cut_off()  # a plain close would wait for a client that does not read the rest

    def _await_head(self) -> None:
        if self._head is None:
            self._head = self.loop.call_later(self._timeout_s, self.transport.abort)

    def _await_reading(self) -> None:
        left = self.transport.get_write_buffer_size()
        self._unread = self.loop.call_later(self._timeout_s, self._require_reading, left)

    def _require_reading(self, left: int) -> None:
        """Continue waiting if the client has read any of the remaining bytes, else disconnect it."""
        if self.transport.get_write_buffer_size() < left:
            self._await_reading()
        else:
            self._cut_off()

    def _stop_waiting_for_head(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _stop_waiting_for_reading(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _cut_off(self) -> None:
        """Drop the connection and its unsent data, including data in kernel buffers."""
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self.transport.abort()


def _config(app: Asgi) -> Config:
    config = Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="critical",
        access_log=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        h11_max_incomplete_event_size=_MOST_HEAD_BYTES,
    )
    config.load()
    return config


def _listen(place: Place, former_port: Path) -> socket.socket:
    listening = _former(place, former_port) if place.port == 0 else None
    if listening is None:
        try:
            listening = _bound(place.host, place.port)
        except OSError as error:
            raise SettingsError(
                "daemon.http.listen", f"{place.host}:{place.port}: {error.strerror or error}"
            ) from error
        if place.port == 0:
            _save(former_port, listening.getsockname()[1])
    listening.setblocking(False)
    return listening


def _former(place: Place, former_port: Path) -> socket.socket | None:
    try:
        port = int(former_port.read_text())
        return _bound(place.host, port) if 0 < port <= MOST_PORT else None
    except (OSError, ValueError):
        return None


def _save(former_port: Path, port: int) -> None:
    try:
        write_private(former_port, b"%d\n" % port)
    except OSError as error:  # the server works without it
        log.warning("http.port_not_saved", reason=error.strerror or str(error))


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=_BACKLOG)


def _tls(settings: HttpSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    certificate, key = (str(Path(file).expanduser()) for file in (settings.certificate, settings.private_key))
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError("daemon.http.certificate", f"cannot be used: {error}") from error
    return context
