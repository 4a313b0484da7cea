"""The supervisor of a daemon: starts and stops the relay, the embedder and the hosts, and detects their failures.

There are two: `ray_supervisor` runs them as processes, `local_supervisor` as threads of the daemon's process. In both
forms, requests and batches of events reach a host through its sockets, so the rest of the daemon is the same.
"""

from __future__ import annotations

import asyncio
import importlib.util
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import msgspec

from memory_agent.daemon.capacity import Capacity
from memory_agent.daemon.host import shared_socket
from memory_agent.errors import DeadlineExceededError, HostDiedError, UnavailableError
from memory_agent.records.placement import HOME, Placement, Position
from memory_agent.verbs.protocol import (
    HostAddress,
    HostEndpoints,
    HostFigures,
    HostRequest,
    JoinGrant,
    PartStatus,
    encode,
)
from relay import Identity
from relay.access import ipc_endpoint
from relay.log import log
from relay.net import AsyncRequestSocket

_GRACE_S = 0.1
"""Added to the deadline of a request, so that a reply sent at the last moment still arrives."""

NEEDS_RAY = "requires Ray: pip install 'ray<2.61' cryptography fsspec"  # the extra `cluster`

Endpoints = dict[str, str | list[str]]
"""Where the parts listen, by the names that the ready line and `status` use."""


def ray_installed() -> bool:
    """Whether Ray can be imported; does not import it."""
    return importlib.util.find_spec("ray") is not None


def relay_listens(ready: Mapping[str, Any]) -> Endpoints:
    return {
        "relay": ready["ingest"],
        "relay_feed": ready["feed"],
        "relay_listen": ready["listen"],
        "relay_feed_listen": ready["feed_listen"],
        "relay_pub": ready["pub"],
    }


class Supervisor(Protocol):
    """Runs the parts of one daemon. Must be used from a single event loop."""

    capacity: Capacity

    @property
    def form(self) -> Literal["full", "light"]:
        """Which of the two forms this is."""

    async def start(self, progress: Callable[[str], None]) -> Endpoints:
        """Start the relay, the embedder and what the hosts need; return their endpoints. Hosts are started on demand.

        `progress` receives the name of each part before it starts. If this raises, the caller must call `stop`.
        """

    @property
    def model(self) -> str | None:
        """The stamp of the model that was loaded at start, or None if there is none."""

    def start_host(self, *, shared: bool = False, node: str = HOME) -> Host:
        """Start a host on a machine (for shared items if `shared` is set). Does not wait until the host is ready."""

    def grant(self, address: str) -> JoinGrant:
        """Return what a machine with this IP address needs to join. Raises `NoClusterError`."""

    async def ray_nodes(self) -> dict[str, frozenset[str]]:
        """Return the Ray ids of the other live machines, by machine name. Raises `UnavailableError`."""

    async def end_node(self, node: str) -> None:
        """Stop Ray on another machine, which also ends the hosts there. Raises `UnavailableError`."""

    def parts(self) -> tuple[PartStatus, ...]:
        """Return the states of the relay and the embedder."""

    async def watch(self) -> None:
        """Wait until a part that cannot be restarted fails, and raise `UnavailableError` or the part's error."""

    async def stop(self) -> None:
        """End all parts that were started. Nothing committed is lost, even if memories are still awake."""


def host_endpoints(run_folder: Path, number: int, *, shared: bool) -> HostEndpoints:
    """Return the sockets of the `number`th host to be started. The host of shared items has a fixed number."""
    answer = shared_socket(run_folder) if shared else run_folder / f"host-{number}.sock"
    return HostEndpoints(answer=ipc_endpoint(answer), ingest=ipc_endpoint(run_folder / f"bulk-{number}.sock"))


class Host(ABC):
    """One host, for use in the daemon's event loop."""

    can_be_killed: ClassVar[bool] = True
    """Whether `end` also ends a memory that did not close in time. If False, the host is reused."""

    def __init__(
        self, name: str, endpoints: HostEndpoints | None, node: str = HOME, identity: Identity | None = None
    ) -> None:
        """`endpoints` are socket files, which `end` removes. A host on another machine (`node`) has an `identity`."""
        self.name = name
        self.node = node
        own = () if endpoints is None else (endpoints.answer, endpoints.ingest)
        self._files = [Path(endpoint.removeprefix("ipc://")) for endpoint in own]
        self.is_gone = False
        """Whether the host has ended and will not be restarted."""
        self.figures = HostFigures()
        self._connected: Counter[str] = Counter()
        self._answers = HostConnection(name, partial(self._endpoint, "answer"), identity)
        self._batches = HostConnection(name, partial(self._endpoint, "ingest"), identity)

    @property
    @abstractmethod
    def address(self) -> HostAddress:
        """The address for callers within Ray. Raises `UnavailableError` if Ray is not used."""

    async def request(self, request: HostRequest, body: bytes, timeout_s: float) -> bytes:
        """Send a verb with its parameters or, without a verb, a batch of events; return the encoded reply.

        Sets the time of sending and the deadline. Raises the same errors as `HostConnection.request`.
        """
        connection = self._answers if request.method else self._batches
        sent_at_s = 0.0 if self.node else time.time()  # the clock of another machine may differ
        sent = msgspec.structs.replace(request, deadline_ms=timeout_s * 1000, sent_at_s=sent_at_s)
        return await connection.request([encode(sent), body], timeout_s + _GRACE_S)

    @abstractmethod
    async def keep_up(self, timeout_s: float, *, fill_vectors: bool) -> HostFigures:
        """Run the upkeep of awake users; return the figures. Raises `HostDiedError` and `DeadlineExceededError`."""

    @abstractmethod
    async def sleep(self, user_id: str, timeout_s: float) -> Position | None:
        """Close the memory of `user_id`; on another node, archive it first and return the state of the archive.

        Raises the same errors as `keep_up`, and `ArchiveUnavailableError` if the memory was closed but could not be
        archived.
        """

    async def renew(self, written_s: float, lease_s: float, was_full: bool, timeout_s: float) -> tuple[float, bool]:
        """Renew the host's lease (`MemoryHost.renew`). Raises the same errors as `keep_up`."""
        raise self._outside_cluster()

    async def archive(self, user_id: str, timeout_s: float) -> Position:
        """Archive everything that was written to the open memory of `user_id`. Raises the same errors as `sleep`."""
        raise self._outside_cluster()

    async def release(self, user_id: str, placement: Placement, timeout_s: float) -> Position | None:
        """Archive and release the files that a sleeping user has on the daemon's machine (`UserFiles.release`). Raises
        as `sleep`."""
        raise self._outside_cluster()

    async def discard(self, user_id: str, epoch: int, timeout_s: float) -> None:
        """Delete the files that a user left on this node before an epoch (`UserFiles.discard`). Raises as `sleep`."""
        raise self._outside_cluster()

    async def discard_archive(self, user_id: str, epoch: int, timeout_s: float) -> None:
        """Delete what was archived before an epoch (`UserFiles.discard_archive`). Raises the same errors as `sleep`."""
        raise self._outside_cluster()

    def _outside_cluster(self) -> UnavailableError:
        return UnavailableError(f"{self.name} is not part of a cluster")

    @abstractmethod
    async def pid(self, timeout_s: float) -> int:
        """Return the process id. Raises the same errors as `keep_up`."""

    def end(self) -> None:
        """End the host. Close its memories first; even if you do not, nothing committed is lost."""
        self._answers.close()
        self._batches.close()
        self._remove_sockets()

    def _remove_sockets(self) -> None:
        for file in self._files:
            file.unlink(missing_ok=True)

    @abstractmethod
    async def endpoints(self) -> HostEndpoints:
        """Return the endpoints of the sockets once the host is listening. Raises `HostDiedError`."""

    @property
    def restarts(self) -> int:
        """The number of restarts that were followed by a request, derived from the number of connections to the
        process.
        """
        return max(0, *(self._connected[socket] - 1 for socket in ("answer", "ingest")))

    async def _endpoint(self, socket: Literal["answer", "ingest"]) -> str:
        endpoint = str(getattr(await self.endpoints(), socket))
        self._connected[socket] += 1
        return endpoint


class HostConnection:
    """A connection to one socket of a host process, for concurrent requests. Must be used from a single event loop.

    When the process ends, requests in progress fail at once, and the next request connects to the restarted process.
    """

    def __init__(self, name: str, locate: Callable[[], Awaitable[str]], identity: Identity | None = None) -> None:
        """`locate` returns the endpoint once the process is listening. `identity`: the keys for CURVE endpoints."""
        self._name = name
        self._locate = locate
        self._identity = identity
        self._connecting: asyncio.Task[AsyncRequestSocket] | None = None

    async def request(self, frames: list[bytes], timeout_s: float) -> bytes:
        """Return the encoded reply. If the host hit a bug, the reply contains a traceback, which is logged.

        Raises `HostDiedError`, `DeadlineExceededError`, and `UnavailableError` if the request was not sent.
        """
        deadline_s = time.monotonic() + timeout_s
        try:
            socket = self._connected()
            if socket is None:
                async with asyncio.timeout(timeout_s):
                    socket = await self._connection()
            reply = await self._asked(socket, frames, deadline_s - time.monotonic())
        except (TimeoutError, DeadlineExceededError) as error:
            raise DeadlineExceededError(f"{self._name} did not answer within {timeout_s:.3g} s") from error
        if len(reply) > 1:
            log.error("host.failed", host=self._name, traceback=reply[1].decode())
        return reply[0]

    def close(self) -> None:
        """Close the connection; requests in progress fail. Idempotent."""
        task, self._connecting = self._connecting, None
        if task is not None and not task.cancel() and not task.cancelled() and task.exception() is None:
            task.result().close()

    def _connected(self) -> AsyncRequestSocket | None:
        task = self._connecting
        return None if task is None or not task.done() or self._is_over() else task.result()

    async def _connection(self) -> AsyncRequestSocket:
        if self._is_over():
            self.close()
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect())
        connecting = self._connecting
        if not connecting.done():
            await asyncio.wait((connecting,))
        if connecting.cancelled():
            raise UnavailableError(f"{self._name}: the connection was closed")
        try:
            return connecting.result()
        except HostDiedError as error:
            raise UnavailableError(f"{self._name} is not up: {error}") from error

    def _is_over(self) -> bool:
        """Whether the connection was lost or could not be established."""
        task = self._connecting
        if task is None or not task.done():
            return False
        return task.cancelled() or task.exception() is not None or task.result().is_lost

    async def _connect(self) -> AsyncRequestSocket:
        return AsyncRequestSocket(await self._locate(), self._identity)

    async def _asked(self, socket: AsyncRequestSocket, frames: list[bytes], timeout_s: float) -> list[bytes]:
        try:
            return await socket.request(frames, timeout_s)
        except UnavailableError as error:
            raise HostDiedError(f"{self._name}: {error}") from error
