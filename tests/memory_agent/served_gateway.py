"""A real gateway, dispatcher and relay on one data folder, with the users' memories in this process: no Ray."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

from memory_agent.daemon.absent_users import AbsentUsers
from memory_agent.daemon.announcer import Announcer
from memory_agent.daemon.dispatcher import Dispatcher
from memory_agent.daemon.erasure import DaemonEraser, RetentionRounds
from memory_agent.daemon.host import HostServer, MemoryHost
from memory_agent.daemon.hosts import Hosts
from memory_agent.daemon.reactor import Reactor
from memory_agent.daemon.service import Service
from memory_agent.doors.http.guard import place_of
from memory_agent.doors.http.server import HttpDoor
from memory_agent.doors.reception import Reception
from memory_agent.doors.zmq import Gateway
from memory_agent.embedders import Embedder
from memory_agent.knowledge import RemoteKnowledge
from memory_agent.layout import Layout
from memory_agent.records.memories import IngestReport, MemoryStats
from memory_agent.records.shared_requests import NO_RIGHTS, Rights
from memory_agent.settings import Settings
from memory_agent.signals import SignalTable
from memory_agent.storage.folders import user_folder
from memory_agent.storage.owners import Owners
from memory_agent.triggers.table import TriggerTable
from memory_agent.verbs.params import NoParams
from memory_agent.verbs.protocol import DaemonStatus, HostAddress, HostEndpoints, IngestBatch, decode_reply, encode
from relay import (
    SHARED_USER,
    AsyncSubscriber,
    Broker,
    Credentials,
    CurveAuthenticator,
    Endpoints,
    Publisher,
    RelaySettings,
    curve_pair,
    server_pair,
)
from relay.access import ipc_endpoint
from relay.net import AsyncReplySocket


class HostsHere:
    """What `Hosts` gives, from one `MemoryHost` of this process."""

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
    """Where it all listens."""

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
    """Serve `data_dir`, whose path must be short; with retention rules, upkeep runs all the time."""
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


async def _serve(
    layout: Layout,
    embedder: Embedder,
    settings: Settings,
    relay: Endpoints,
    listening: list[Served],
    ready: threading.Event,
    stop: threading.Event,
) -> None:
    endpoints = HostEndpoints(
        answer=ipc_endpoint(layout.run / "shared.sock"), ingest=ipc_endpoint(layout.run / "bulk.sock")
    )
    shared = RemoteKnowledge(endpoints.answer, user_folder(layout.data_dir, SHARED_USER))
    host = MemoryHost(layout.data_dir, settings, embedder, shared)
    of_shared = HostServer(host, endpoints, 4, 1)
    hosts = cast(Hosts, HostsHere(host))
    credentials = Credentials(layout.data_dir)
    authenticator = CurveAuthenticator(server_pair(layout.data_dir, curve_pair), credentials.knows_curve)
    sockets = [AsyncReplySocket([layout.gateway]), AsyncReplySocket(["curve+tcp://127.0.0.1:*"], authenticator)]
    async with AsyncSubscriber(*relay, "memory") as journal:
        owners = Owners(layout.owners)
        publisher = Publisher(relay.ingest)
        table = TriggerTable.load(settings.triggers.table)
        reactor = Reactor(hosts, publisher, settings.triggers, table, 8, lambda: dispatcher.waiting())
        dispatcher = Dispatcher(journal, hosts, owners, settings.daemon, reactor.notice)

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
                triggers=reactor.status(),
            )

        announcer = Announcer(shared, journal, relay.ingest, settings.relay.events)
        eraser = DaemonEraser(hosts, dispatcher, reactor, journal, layout.data_dir, settings.encryption, announcer.tell)
        absent = AbsentUsers(layout.data_dir, layout.absent_users, settings.recall, settings.learning, shared)
        announcer.wake()
        service = Service(hosts, dispatcher, journal, eraser, absent, describe, announcer.wake)
        await eraser.resume()
        reception = Reception(service, credentials, 64)
        gateway = Gateway(reception, sockets, 64, settings.daemon.requests_bytes)
        place = place_of(settings.daemon.http)
        assert place is not None
        door = HttpDoor(settings.daemon.http, place)
        answering = door.run(reception, relay, settings.relay.events, settings.daemon.requests_bytes)
        signals = SignalTable.load(settings.ingest.signals)
        rounds = RetentionRounds(hosts, eraser, layout.data_dir, settings.retention, signals)
        upkeep = _keep_up(host, eraser, hosts) if settings.retention.rules else asyncio.sleep(0)
        tasks = [
            asyncio.create_task(work)
            for work in (
                dispatcher.run(),
                reactor.run(),
                announcer.run(),
                gateway.run(),
                answering,
                rounds.run(),
                upkeep,
            )
        ]
        listening.append(Served(layout.data_dir, layout.gateway, sockets[1].endpoints[0], relay, host, door.url))
        ready.set()
        await asyncio.to_thread(stop.wait)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        shared.close()
        await asyncio.to_thread(of_shared.close)
        publisher.close()
        owners.close()
        absent.close()
    host.close()


async def _keep_up(host: MemoryHost, eraser: DaemonEraser, hosts: Hosts) -> None:
    while True:
        await asyncio.to_thread(host.keep_up, datetime.now(UTC))
        await eraser.finish(hosts.awake())
        await asyncio.sleep(0.1)
