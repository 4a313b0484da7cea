"""The components that run in the daemon's own process, how they are connected, and in which order they start."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from memory_agent.daemon.absent_users import AbsentUsers
from memory_agent.daemon.announcer import Announcer
from memory_agent.daemon.capacity import Capacity
from memory_agent.daemon.dispatcher import Dispatcher
from memory_agent.daemon.erasure import DaemonEraser, RetentionRounds
from memory_agent.daemon.host import shared_socket
from memory_agent.daemon.hosts import Hosts
from memory_agent.daemon.open_runs import OpenRuns
from memory_agent.daemon.reactor import Reactor
from memory_agent.daemon.service import Deployment, Service
from memory_agent.doors.reception import Reception
from memory_agent.doors.request_quota import RequestQuota
from memory_agent.doors.zmq import Gateway
from memory_agent.errors import MemoryAgentError
from memory_agent.knowledge import RemoteKnowledge
from memory_agent.layout import CONSUMER, Layout
from memory_agent.settings import Settings
from memory_agent.signals import SignalTable
from memory_agent.storage.environment import open_user_key
from memory_agent.storage.folders import user_folder
from memory_agent.storage.owners import Owners
from memory_agent.triggers.table import TriggerTable
from memory_agent.verbs.table import USUAL_PATIENCE_MS
from relay import (
    SHARED_USER,
    SYSTEM_USER,
    AsyncSubscriber,
    Credentials,
    CurveAuthenticator,
    Endpoints,
    EventLimits,
    JournalEntry,
    Publisher,
    RelayError,
    curve_pair,
    is_curve,
    relay_endpoints,
    server_pair,
)
from relay.access import ipc_endpoint
from relay.log import log
from relay.net import AsyncReplySocket

if TYPE_CHECKING:
    from memory_agent.doors.http.server import HttpDoor


@dataclass
class Components:
    """The components of one daemon, wired together. They must be used from a single event loop."""

    layout: Layout
    settings: Settings
    hosts: Hosts
    journal: AsyncSubscriber
    dispatcher: Dispatcher
    reactor: Reactor
    announcer: Announcer
    eraser: DaemonEraser
    service: Service
    endpoints: tuple[str, ...] = field(default=(), init=False)
    """The endpoints of the gateway, the socket file first."""
    http: HttpDoor | None = field(default=None, init=False)
    requests: RequestQuota | None = field(default=None, init=False)
    _doors: tuple[Callable[[], Coroutine[Any, Any, None]], ...] = field(default=(), init=False)

    def open_doors(self, requests_in_flight: int, http: HttpDoor | None) -> None:
        """Listen for requests, which are answered once `work` runs."""
        credentials = Credentials(self.layout.data_dir)
        reception = Reception(self.service, credentials, requests_in_flight)
        self.requests, self.http = reception.requests, http
        sockets = _bound_sockets(self.layout, self.settings.daemon.listen, credentials)
        self.endpoints = tuple(endpoint for socket in sockets for endpoint in socket.endpoints)
        most_bytes = self.settings.daemon.requests_bytes
        self._doors = (Gateway(reception, sockets, requests_in_flight, most_bytes).run,)
        if http is not None:
            relay = relay_endpoints(self.layout.data_dir)
            self._doors += (partial(http.run, reception, relay, self.settings.relay.events, most_bytes),)

    @property
    def is_busy(self) -> bool:
        """Whether a request, a stream, an event, a trigger or a run is in progress."""
        doors = len(self.requests or ()) + (0 if self.http is None else self.http.running)
        events = self.dispatcher.lag() or self.reactor.status()["waiting"]
        return bool(doors or self.hosts.calls_under_way or events or len(self.service.open_runs or ()))

    @property
    def requests_taken(self) -> int:
        return self.service.requests.total() + (0 if self.http is None else self.http.requests)

    def work(self) -> list[Coroutine[Any, Any, None]]:
        """Return the coroutines of all components, which run until they are cancelled."""
        signals = SignalTable.load(self.settings.ingest.signals)
        rounds = RetentionRounds(self.hosts, self.eraser, self.layout.data_dir, self.settings.retention, signals)
        always = (self.dispatcher, self.reactor, self.announcer, rounds)
        return [*(component.run() for component in always), *(run() for run in self._doors)]

    async def keep_up(self, *, fill_vectors: bool) -> None:
        """Run one round of upkeep. `fill_vectors`: also compute missing vectors, which needs the embedder."""
        await self.hosts.sleep_idle()
        await self.hosts.balance()
        await self.keep_shared_awake()
        await self.hosts.keep_up(fill_vectors=fill_vectors)
        self.announcer.wake()
        await self.eraser.finish(self.hosts.awake())

    async def keep_shared_awake(self) -> None:
        """Wake the store of shared items, if it exists: users' hosts connect to it directly.

        In a cluster, the store always exists, because hosts on other machines cannot check whether it exists.
        """
        exists = await asyncio.to_thread(user_folder(self.layout.data_dir, SHARED_USER).exists)
        if exists or self.settings.cluster.listen:
            try:
                await self.hosts.wake(SHARED_USER, USUAL_PATIENCE_MS)
            except MemoryAgentError as error:
                log.warning("shared.not_awake", code=error.code)


@asynccontextmanager
async def opened_components(
    layout: Layout,
    settings: Settings,
    capacity: Capacity,
    hosts: Hosts,
    deployment: Deployment,
    http: HttpDoor | None = None,
) -> AsyncIterator[Components]:
    """Connect the components and continue interrupted erasures. The caller closes `hosts` and `http`."""
    data_dir = layout.data_dir
    async with AsyncExitStack() as stack:
        runs = OpenRuns(SignalTable.load(settings.ingest.signals))
        journal, dispatcher, reactor = await _open_event_path(stack, layout, settings, capacity, hosts, runs)
        shared_endpoint = ipc_endpoint(shared_socket(layout.run))
        shared = stack.enter_context(closing(RemoteKnowledge(shared_endpoint, user_folder(data_dir, SHARED_USER))))
        announcer = Announcer(shared, journal, relay_endpoints(data_dir).ingest, settings.relay.events)
        eraser = DaemonEraser(hosts, dispatcher, reactor, journal, data_dir, settings, announcer.publish_changes)
        absent = AbsentUsers(data_dir, layout.absent_users, settings.recall, settings.learning, shared)
        stack.enter_context(closing(absent))
        service = Service(hosts, dispatcher, journal, eraser, absent, announcer.wake, deployment)
        service.open_runs = runs
        components = Components(layout, settings, hosts, journal, dispatcher, reactor, announcer, eraser, service)
        await eraser.resume()
        await components.keep_shared_awake()
        announcer.wake()
        components.open_doors(capacity.requests_in_flight, http)
        yield components


async def _open_event_path(
    stack: AsyncExitStack, layout: Layout, settings: Settings, capacity: Capacity, hosts: Hosts, runs: OpenRuns
) -> tuple[AsyncSubscriber, Dispatcher, Reactor]:
    relay = relay_endpoints(layout.data_dir)
    journal = await stack.enter_async_context(AsyncSubscriber(*relay, CONSUMER))
    key = open_user_key(settings.encryption, layout.data_dir, SYSTEM_USER)
    owners = stack.enter_context(closing(Owners(layout.owners, key=key)))
    publisher = await stack.enter_async_context(_block_publisher(relay, settings.relay.events))
    table = TriggerTable.load(settings.triggers.table)
    calls_at_once = capacity.answer_threads
    reactor = Reactor(hosts, publisher, settings.triggers, table, calls_at_once, lambda: dispatcher.waiting())

    def notice(user_id: str, entry: JournalEntry) -> None:
        reactor.notice(user_id, entry)
        runs.notice(user_id, entry)

    dispatcher = Dispatcher(
        journal, hosts, owners, settings.daemon, notice, archive_interval_s=settings.archive.interval_s
    )
    return journal, dispatcher, reactor


@asynccontextmanager
async def _block_publisher(relay: Endpoints, limits: EventLimits) -> AsyncIterator[Publisher]:
    """Open a publisher that is used only for blocks, so that all its unacknowledged events are blocks."""
    publisher = Publisher(relay.ingest, limits=limits)
    try:
        yield publisher
    finally:
        try:
            await asyncio.to_thread(publisher.close)
        except RelayError as error:
            log.warning("blocks.not_published", code=error.code)


def _bound_sockets(layout: Layout, listen: tuple[str, ...], credentials: Credentials) -> list[AsyncReplySocket]:
    """CURVE endpoints share a separate socket."""
    sockets = [AsyncReplySocket([layout.gateway, *(one for one in listen if not is_curve(one))])]
    guarded = [endpoint for endpoint in listen if is_curve(endpoint)]
    if guarded:
        authenticator = CurveAuthenticator(server_pair(layout.data_dir, curve_pair), credentials.knows_curve)
        sockets.append(AsyncReplySocket(guarded, authenticator))
    return sockets
