"""The supervisor of the daemon's light form, in which the relay, the embedder and the hosts are threads of one process.
Does not import Ray.

All users share one interpreter, so this form uses little more than one core. A crash in native code ends the whole
daemon; its supervisor or the next agent then restarts it. Nothing acknowledged is lost.
"""

from __future__ import annotations

import asyncio
import os
import resource
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from queue import Empty, SimpleQueue
from typing import Final, Literal, TypeVar, cast

from memory_agent.archiving import archived_journal
from memory_agent.daemon.capacity import capacity_here
from memory_agent.daemon.deliveries import Deliveries
from memory_agent.daemon.host import HostServer, MemoryHost, internal_error, shared_socket
from memory_agent.daemon.supervisor import Endpoints, Host, host_endpoints, relay_listens
from memory_agent.embedders.malloc import return_freed_memory
from memory_agent.embedders.remote import RemoteEmbedder
from memory_agent.embedders.server import EmbedderServer, open_server
from memory_agent.errors import DeadlineExceededError, HostDiedError, MemoryAgentError, NoClusterError, UnavailableError
from memory_agent.knowledge import RemoteKnowledge
from memory_agent.layout import Layout
from memory_agent.records.placement import Position
from memory_agent.settings import Settings, former_of
from memory_agent.storage.folders import user_folder
from memory_agent.verbs.protocol import (
    HostAddress,
    HostEndpoints,
    HostFigures,
    HostRequest,
    IngestBatch,
    JoinGrant,
    PartStatus,
    decode,
)
from relay import SHARED_USER, Broker, RelayError, RelaySettings, open_after_former
from relay.access import ipc_endpoint
from relay.log import log

_CHECK_S = 1.0
_STOP_TIMEOUT_S = 10.0
_OPEN_FILES = 65_536
_NO_CLUSTER = "this daemon runs as one process (serve --light), which other machines cannot join"
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 5.0

T = TypeVar("T")


class LocalSupervisor:
    """One host serves all users, and another serves the shared items, regardless of the settings."""

    form: Final = "light"

    def __init__(self, settings: Settings, layout: Layout) -> None:
        self._settings = settings
        self._layout = layout
        self.capacity = replace(capacity_here(settings.daemon), dedicated_hosts=0, shared_hosts=1, spare_hosts=1)
        self._relay = RelayThread(settings, layout)
        self._embedder: EmbedderServer | None = None
        self._embedder_thread = threading.Thread(target=self._embed, name="embedder", daemon=True)
        self._is_stopping = False
        self._started = 0

    async def start(self, progress: Callable[[str], None]) -> Endpoints:
        return_freed_memory()
        _allow_open_files()
        progress("relay and embedder (the first start prepares the model)")
        self._deliveries = Deliveries(self._layout.run / "deliveries", self._settings.daemon.crashes_before_quarantine)
        await in_thread(self._relay.start)
        self._embedder = await in_thread(
            partial(open_server, self._layout.embedder, self._settings.embedder, former=former_of(self._settings))
        )
        self._embedder_thread.start()
        return relay_listens(self._relay.listening) | {"embedder": self._layout.embedder}

    @property
    def model(self) -> str | None:
        return None if self._embedder is None else self._embedder.model

    def start_host(self, *, shared: bool = False, node: str = "") -> ThreadHost:
        if node:
            raise NoClusterError(_NO_CLUSTER)
        self._started += 1
        name = f"shared-{self._started}" if shared else f"host-{self._started}"
        endpoints = host_endpoints(self._layout.run, self._started, shared=shared)
        data_dir = self._layout.data_dir
        memories = MemoryHost(
            data_dir,
            self._settings,
            RemoteEmbedder(self._layout.embedder),
            RemoteKnowledge(ipc_endpoint(shared_socket(self._layout.run)), user_folder(data_dir, SHARED_USER)),
        )
        threads = (self.capacity.answer_threads, self.capacity.ingest_threads)
        return ThreadHost(name, endpoints, memories, HostServer(memories, endpoints, *threads), self._deliveries)

    def grant(self, address: str) -> JoinGrant:
        raise NoClusterError(_NO_CLUSTER)

    async def ray_nodes(self) -> dict[str, frozenset[str]]:
        return {}

    async def end_node(self, node: str) -> None:
        """Does nothing, because other machines cannot join."""

    def parts(self) -> tuple[PartStatus, ...]:
        """The threads' memory is included in the daemon's memory."""
        return self._relay.status(), PartStatus(name="embedder", state="running", pid=os.getpid())

    async def watch(self) -> None:
        """The relay is reopened after an error; the embedder is not."""
        while self._embedder_thread.is_alive() and self._relay.is_alive:
            await asyncio.sleep(_CHECK_S)
        raise UnavailableError("the relay thread or the embedder thread ended")

    async def stop(self) -> None:
        self._is_stopping = True
        if self._embedder_thread.ident is not None:
            await in_thread(partial(self._embedder_thread.join, _STOP_TIMEOUT_S))
        await in_thread(self._relay.stop)

    def _embed(self) -> None:
        assert self._embedder is not None
        try:
            self._embedder.serve(lambda: not self._is_stopping)
        except BaseException:
            log.exception("embedder.failed")


class RelayThread:
    """The relay in a thread of this process. After a storage error it is closed and reopened."""

    def __init__(self, settings: Settings, layout: Layout) -> None:
        self._data_dir = layout.data_dir
        self._settings = RelaySettings.of(settings.relay, settings.encryption)
        self._copy = archived_journal(settings.archive)
        self._broker: Broker | None = None
        self._restarts = 0
        self._stopping = SimpleQueue[None]()  # an `Event` may hang after Ctrl-C (`relay.locks`)
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)

    def start(self) -> None:
        broker = open_after_former(self._data_dir, self._settings, self._copy)
        if self._is_stopping:  # `stop` came first
            broker.run(lambda: False)
            return
        self._broker = broker
        self.listening = broker.listening
        self._thread.start()

    def stop(self) -> None:
        """Answer queued requests, close the journal and join the thread, waiting at most 10 s. Idempotent."""
        self._is_stopping = True
        self._stopping.put(None)
        if self._broker is not None:
            self._broker.stop()
        if self._thread.ident is not None:
            self._thread.join(_STOP_TIMEOUT_S)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def status(self) -> PartStatus:
        is_open = self._broker is not None
        state: Literal["running", "restarting"] = "running" if is_open else "restarting"
        return PartStatus(name="relay", state=state, pid=os.getpid(), restarts=self._restarts)

    def _run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._is_stopping:
            try:
                if self._broker is None:
                    self._broker = Broker(self._data_dir, self._settings, self._copy)
                    pause_s = _FIRST_PAUSE_S
                self._broker.run(lambda: not self._is_stopping)
            except Exception as error:  # noqa: BLE001 - reopened, as a new process would
                self._broker = None
                self._restarts += 1
                reason = str(error) if isinstance(error, RelayError) else type(error).__name__
                log.warning("part.died", part="relay", reason=reason)
                with suppress(Empty):
                    self._stopping.get(timeout=pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


class ThreadHost(Host):
    """A host in threads of this process."""

    can_be_killed = False

    def __init__(
        self,
        name: str,
        endpoints: HostEndpoints,
        memories: MemoryHost,
        server: HostServer,
        deliveries: Deliveries,
    ) -> None:
        super().__init__(name, endpoints)
        self._memories = memories
        self._server = server
        self._deliveries = deliveries
        self._is_kept_up = threading.Lock()

    @property
    def address(self) -> HostAddress:
        raise UnavailableError("this daemon runs without Ray (serve --light): use MemoryClient")

    async def request(self, request: HostRequest, body: bytes, timeout_s: float) -> bytes:
        """Records each batch of events while handling it, so that a crash of the process is attributed to the batch."""
        if request.method:
            return await super().request(request, body, timeout_s)
        with self._deliveries.of(request.user_id, [seq for seq, _ in decode(body, IngestBatch).events]):
            return await super().request(request, body, timeout_s)

    async def keep_up(self, timeout_s: float, *, fill_vectors: bool) -> HostFigures:
        """Does nothing if an earlier round exceeded its timeout and is still running."""
        if not self._is_kept_up.acquire(blocking=False):
            return self.figures

        def work() -> HostFigures:
            try:
                return self._memories.keep_up(datetime.now(UTC), fill_vectors=fill_vectors)
            finally:
                self._is_kept_up.release()

        return await self._within(timeout_s, work)

    async def sleep(self, user_id: str, timeout_s: float) -> Position | None:
        return await self._within(timeout_s, lambda: self._memories.sleep(user_id))

    async def pid(self, timeout_s: float) -> int:
        self._require_alive()
        return os.getpid()

    def end(self) -> None:
        """Returns at once. A thread waits for the requests in progress and then closes their memories."""
        self.is_gone = True
        super().end()
        threading.Thread(target=self._close, name=f"{self.name}-end", daemon=True).start()

    def _close(self) -> None:
        self._server.close()
        self._remove_sockets()  # a thread of the server may have recreated one
        self._memories.close()

    async def endpoints(self) -> HostEndpoints:
        self._require_alive()
        return self._server.endpoints

    async def _within(self, timeout_s: float, work: Callable[[], T]) -> T:
        self._require_alive()
        try:
            async with asyncio.timeout(timeout_s):
                return await in_thread(work)
        except TimeoutError as error:
            raise DeadlineExceededError(f"{self.name} did not answer within {timeout_s:.3g} s") from error
        except MemoryAgentError:
            raise
        except Exception as error:
            log.exception("host.failed", host=self.name)
            raise internal_error(error) from error

    def _require_alive(self) -> None:
        if self.is_gone:
            raise HostDiedError(f"{self.name} has ended")


def _allow_open_files() -> None:
    """Raise the limit on open files, as Ray does for its processes. Each awake user keeps four files open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def in_thread(work: Callable[[], T]) -> T:
    """Run `work` in a daemon thread, which may outlast a timeout.

    The loop's executor is not used, because the loop waits for the executor's threads.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(cast(T, result))

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except BaseException as raised:  # noqa: BLE001 - raised in the loop
            error = raised
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, daemon=True).start()
    return await done
