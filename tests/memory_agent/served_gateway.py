"""A real gateway, dispatcher and relay on one data folder, with the users' memories in this process: no Ray."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from memory_agent.daemon.dispatcher import Dispatcher
from memory_agent.daemon.gateway import Gateway
from memory_agent.daemon.host import MemoryHost
from memory_agent.daemon.hosts import Hosts
from memory_agent.daemon.owners import Owners
from memory_agent.daemon.service import Service
from memory_agent.embedders import Embedder
from memory_agent.layout import Layout
from memory_agent.protocol import DaemonStatus, HostAddress, IngestBatch, decode_reply, encode
from memory_agent.records import IngestReport
from memory_agent.settings import Settings
from memory_agent.transport import AsyncReplySocket
from relay import AsyncSubscriber, Broker, Credentials, CurveGate, Endpoints, RelaySettings, curve_pair, server_pair


class HostsHere:
    """What `Hosts` gives, from one `MemoryHost` of this process."""

    def __init__(self, host: MemoryHost) -> None:
        self._host = host

    async def call(self, user_id: str, method: str, params: bytes, deadline_ms: float) -> bytes:
        return await asyncio.to_thread(self._host.call, user_id, method, params, deadline_ms)

    async def ingest(self, user_id: str, batch: IngestBatch) -> IngestReport:
        return decode_reply(await asyncio.to_thread(self._host.ingest, user_id, encode(batch)), IngestReport)

    async def address(self, user_id: str, deadline_ms: float) -> HostAddress:
        return HostAddress(actor=f"host-of-{user_id}", namespace="here")


@dataclass(frozen=True)
class Served:
    """Where it all listens."""

    data_dir: Path
    gateway: str
    guarded: str
    relay: Endpoints


@contextmanager
def gateway_without_ray(
    data_dir: Path, embedder: Embedder, relay_settings: RelaySettings | None = None
) -> Iterator[Served]:
    """Serve `data_dir`, whose path must be short."""
    layout = Layout(data_dir)
    layout.create()
    layout.make_token()
    with Broker(data_dir, relay_settings) as broker:
        listening: list[Served] = []
        ready, stop = threading.Event(), threading.Event()
        serving = _serve(layout, embedder, broker.endpoints, listening, ready, stop)
        thread = threading.Thread(target=lambda: asyncio.run(serving))
        thread.start()
        assert ready.wait(30)
        try:
            yield listening[0]
        finally:
            stop.set()
            thread.join()


async def _serve(
    layout: Layout,
    embedder: Embedder,
    relay: Endpoints,
    listening: list[Served],
    ready: threading.Event,
    stop: threading.Event,
) -> None:
    settings = Settings()
    host = MemoryHost(layout.data_dir, settings, embedder)
    hosts = cast(Hosts, HostsHere(host))
    credentials = Credentials(layout.data_dir)
    gate = CurveGate(server_pair(layout.data_dir, curve_pair), credentials.knows_curve)
    sockets = [AsyncReplySocket([layout.gateway]), AsyncReplySocket(["curve+tcp://127.0.0.1:*"], gate)]
    async with AsyncSubscriber(*relay, "memory") as journal:
        owners = Owners(layout.owners)
        dispatcher = Dispatcher(journal, hosts, owners, settings.daemon)

        async def describe() -> DaemonStatus:
            raise AssertionError("the daemon is not asked here")

        service = Service(hosts, dispatcher, journal, describe)
        await service.eraser.resume(layout.data_dir)
        gateway = Gateway(service, sockets, credentials, 64)
        tasks = [asyncio.create_task(dispatcher.run()), asyncio.create_task(gateway.run())]
        listening.append(Served(layout.data_dir, layout.gateway, sockets[1].endpoints[0], relay))
        ready.set()
        await asyncio.to_thread(stop.wait)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        owners.close()
    host.close()
