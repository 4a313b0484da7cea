"""A real gateway, dispatcher and relay on one data folder; users' memories run in this process, not in Ray."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import msgspec
from served_host import absent_embedder

from memory_agent.daemon.capacity import capacity_of
from memory_agent.daemon.components import Components, opened_components
from memory_agent.daemon.exposition import exposition
from memory_agent.daemon.host import HostServer, MemoryHost, shared_socket
from memory_agent.daemon.host_pool import PoolFigures
from memory_agent.daemon.hosts import Hosts
from memory_agent.daemon.nodes import Nodes
from memory_agent.daemon.service import Deployment
from memory_agent.daemon.supervisor import Supervisor
from memory_agent.doors.http.guard import place_of
from memory_agent.doors.http.server import HttpDoor
from memory_agent.embedders import Embedder
from memory_agent.knowledge import RemoteKnowledge
from memory_agent.layout import Layout
from memory_agent.records.memories import IngestReport, MemoryStats
from memory_agent.records.shared_requests import NO_RIGHTS, Rights
from memory_agent.settings import Settings
from memory_agent.storage.folders import user_folder
from memory_agent.verbs.params import NoParams
from memory_agent.verbs.protocol import DaemonStatus, HostAddress, HostEndpoints, IngestBatch, decode_reply, encode
from relay import SHARED_USER, Broker, Endpoints, RelaySettings
from relay.access import ipc_endpoint
from tests.memory_agent.at_home import AtHome

GUARDED = "curve+tcp://127.0.0.1:*"
REQUESTS_IN_FLIGHT = 64
UPKEEP_INTERVAL_S = 0.1


class HostsHere(AtHome):
    """Implements `Hosts` with one `MemoryHost` in this process. All users stay awake."""

    def __init__(self, host: MemoryHost) -> None:
        self._host = host
        self.calls_under_way = 0

    async def call(
        self, user_id: str, method: str, params: bytes, deadline_ms: float, rights: Rights = NO_RIGHTS
    ) -> bytes:
        return await asyncio.to_thread(self._host.call, user_id, method, params, deadline_ms, rights)

    def is_awake(self, user_id: str) -> bool:
        return user_id in self._host._memories

    async def ingest(self, user_id: str, batch: IngestBatch) -> IngestReport:
        return decode_reply(await asyncio.to_thread(self._host.ingest, user_id, encode(batch)), IngestReport)

    def awake(self) -> tuple[str, ...]:
        return tuple(self._host._memories)

    def figures(self) -> PoolFigures:
        return PoolFigures()

    async def sleep_idle(self) -> None:
        pass

    async def balance(self) -> None:
        pass

    async def keep_up(self, *, fill_vectors: bool) -> None:
        await asyncio.to_thread(self._host.keep_up, datetime.now(UTC), fill_vectors=fill_vectors)

    async def sleep(self, user_id: str) -> None:
        await asyncio.to_thread(self._host.sleep, user_id)

    @asynccontextmanager
    async def kept_asleep(self, user_id: str) -> AsyncIterator[None]:
        await self.sleep(user_id)
        yield

    async def wake(self, user_id: str, deadline_ms: float) -> None:
        decode_reply(await self.call(user_id, "stats", encode(NoParams()), deadline_ms), MemoryStats)

    async def address(self, user_id: str, deadline_ms: float) -> HostAddress:
        await self.wake(user_id, deadline_ms)
        return HostAddress(actor=f"host-of-{user_id}", namespace="here")


@dataclass(frozen=True)
class Served:
    """The addresses of a served data folder."""

    data_dir: Path
    gateway: str
    guarded: str
    relay: Endpoints
    host: MemoryHost
    http: str

    @property
    def token(self) -> str:
        """The token of the data folder."""
        return Layout(self.data_dir).token()


@contextmanager
def gateway_without_ray(
    data_dir: Path,
    embedder: Embedder,
    relay_settings: RelaySettings | None = None,
    settings: Settings | None = None,
) -> Iterator[Served]:
    """Serve `data_dir`, whose path must be short enough for a Unix socket. If there are retention rules, upkeep runs
    continuously.
    """
    layout = Layout(data_dir)
    layout.create()
    layout.make_token()
    with Broker(data_dir, relay_settings) as broker:
        listening: list[Served] = []
        ready, stop = threading.Event(), threading.Event()
        serving = _serve(layout, embedder, settings or Settings(), broker.endpoints, listening, ready, stop)
        thread = threading.Thread(target=lambda: asyncio.run(serving))
        thread.start()
        assert ready.wait(30)
        try:
            yield listening[0]
        finally:
            stop.set()
            thread.join()


@contextmanager
def gateway_in_new_folder(
    embedder: Embedder | None = None, relay_settings: RelaySettings | None = None, settings: Settings | None = None
) -> Iterator[Served]:
    """Serve a new data folder. Without `embedder`, memories have no vectors, and recalls search by words."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gateway-")))
        embedder = embedder or stack.enter_context(absent_embedder(folder))
        yield stack.enter_context(gateway_without_ray(folder, embedder, relay_settings, settings))


@contextmanager
def found_by_clients(served: Served) -> Iterator[None]:
    """Let clients find the gateway through its data folder, as they find a daemon."""
    with Layout(served.data_dir).hold():
        Layout(served.data_dir).http.write_text(f"{served.http}\n")
        yield


async def _serve(
    layout: Layout,
    embedder: Embedder,
    settings: Settings,
    relay: Endpoints,
    listening: list[Served],
    ready: threading.Event,
    stop: threading.Event,
) -> None:
    settings = msgspec.structs.replace(settings, daemon=msgspec.structs.replace(settings.daemon, listen=(GUARDED,)))
    capacity = capacity_of(
        msgspec.structs.replace(settings.daemon, requests_in_flight=REQUESTS_IN_FLIGHT), cores=2, memory_bytes=8 << 30
    )
    answer, ingest = ipc_endpoint(shared_socket(layout.run)), ipc_endpoint(layout.run / "bulk.sock")
    shared = RemoteKnowledge(answer, user_folder(layout.data_dir, SHARED_USER))
    host = MemoryHost(layout.data_dir, settings, embedder, shared)
    of_shared = HostServer(host, HostEndpoints(answer=answer, ingest=ingest), 4, 1)
    place = place_of(settings.daemon.http)
    assert place is not None
    http = HttpDoor(settings.daemon.http, place, layout)

    async def describe() -> DaemonStatus:
        return DaemonStatus(
            version="0",
            uptime_s=0.0,
            endpoints={"gateway": layout.gateway},
            parts=(),
            active_users=(),
            journal={},
            dispatched={},
            recalls={},
            model=None,
            triggers=components.reactor.status(),
        )

    async def measure() -> str:
        dispatched = {**components.dispatcher.counts, "lag": components.dispatcher.lag()}
        status = msgspec.structs.replace(await describe(), dispatched=dispatched)
        return exposition(status, await components.journal.stats(), components)

    hosts = cast(Hosts, HostsHere(host))

    async def drain(_node: str) -> None:
        pass

    nodes = Nodes(cast(Supervisor, None), settings.cluster, lambda: None, drain)
    deployment = Deployment(describe, measure, nodes)
    async with opened_components(layout, settings, capacity, hosts, deployment, http) as components:
        works = [*components.work(), *([_keep_up(components)] if settings.retention.rules else [])]
        tasks = [asyncio.create_task(work) for work in works]
        listening.append(Served(layout.data_dir, layout.gateway, components.endpoints[1], relay, host, http.url))
        ready.set()
        await asyncio.to_thread(stop.wait)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    shared.close()
    await asyncio.to_thread(of_shared.close)
    host.close()


async def _keep_up(components: Components) -> None:
    while True:
        await components.keep_up(fill_vectors=False)
        await asyncio.sleep(UPKEEP_INTERVAL_S)
