"""The daemon: starts relay, embedder, Ray and gateway, keeps them running, stops them in order.

It stops from the outside in: refuse new requests, finish dispatching, commit the cursor, put the memories to sleep, end
the processes. Nothing depends on an orderly stop: after a kill, journal and stores have everything.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import msgspec

from memory_agent.daemon.absent_users import AbsentUsers
from memory_agent.daemon.actors import Cluster, shared_socket
from memory_agent.daemon.announcer import Announcer
from memory_agent.daemon.capacity import capacity_here
from memory_agent.daemon.children import Child, resident_bytes
from memory_agent.daemon.dispatcher import Dispatcher
from memory_agent.daemon.erasure import DaemonEraser
from memory_agent.daemon.hosts import Hosts
from memory_agent.daemon.reactor import Reactor
from memory_agent.daemon.retention_rounds import RetentionRounds
from memory_agent.daemon.service import Service
from memory_agent.doors.http.guard import place_of
from memory_agent.doors.reception import Reception
from memory_agent.doors.zmq import Gateway
from memory_agent.embedders.remote import RemoteEmbedder
from memory_agent.erasure.retention import RetentionRules
from memory_agent.errors import MemoryAgentError, ModelError, SettingsError, UnavailableError
from memory_agent.knowledge import RemoteKnowledge
from memory_agent.layout import CONSUMER, Layout, default_data_dir
from memory_agent.records.shared_requests import Caller, ForgetUser, SharedPart
from memory_agent.settings import Settings
from memory_agent.signals.table import SignalTable
from memory_agent.storage.folders import user_folder
from memory_agent.storage.owners import Owners
from memory_agent.storage.user_key import open_user_key, require_keys
from memory_agent.triggers.table import TriggerTable
from memory_agent.verbs.params import AskSharedParams
from memory_agent.verbs.protocol import LONGEST_DEADLINE_MS, DaemonStatus, PartStatus, decode_reply, encode_fields
from memory_agent.verbs.table import USUAL_PATIENCE_MS
from memory_agent.version import VERSION
from relay import (
    SHARED_USER,
    SYSTEM_USER,
    TOKEN_FILE,
    AsyncSubscriber,
    Credentials,
    CurveAuthenticator,
    Publisher,
    RelayError,
    RelaySettings,
    RelaySettingsError,
    check_endpoint,
    curve_pair,
    is_curve,
    relay_endpoints,
    server_pair,
)
from relay.access import ipc_endpoint
from relay.disk import write_private
from relay.log import log
from relay.net import AsyncReplySocket

if TYPE_CHECKING:
    from memory_agent.doors.http.server import HttpDoor

_RAY_CHECK_S = 1.0
_HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""For the embedder: a query takes 16 % less processor time, a text 11 % (measured). glibc reads it at the start."""


def serve(settings: Settings, data_dir: Path) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code.

    Raises `DaemonRunningError` when another daemon serves this folder, `SettingsError`, `UnavailableError`,
    `StoreEncryptedError` when the data folder is encrypted and no key folder is set, `EncryptionKeyMissingError` when
    the key folder is missing.
    """
    for endpoint in settings.daemon.listen:
        _require_guarded(endpoint)
    place_of(settings.daemon.http)
    RetentionRules(settings.retention, SignalTable.load(settings.ingest.signals))  # refused here, not by each host
    TriggerTable.load(settings.triggers.table)
    require_keys(settings.encryption, data_dir)
    layout = Layout(data_dir)
    layout.create()
    layout.make_token()  # before the lock is visible: a client that connects during the start needs it
    with layout.hold():
        return asyncio.run(Daemon(settings, layout).run())


class Daemon:
    """All parts of one daemon."""

    def __init__(self, settings: Settings, layout: Layout) -> None:
        self._settings = settings
        self._capacity = capacity_here(settings.daemon)
        self._layout = layout
        self._started_s = time.monotonic()
        self._starting = Starting(sys.stderr)
        self._stopping = asyncio.Event()
        self._failed = False

    async def run(self) -> int:
        """Start, print the ready line, serve, stop. Return the exit code: 1 when a part failed for good."""
        self._catch_signals()
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(self._layout.clear_sockets)
            if await self._unless_stopped(self._start(stack)):
                self._starting.ready()
                self._print_ready()
                log.info("daemon.ready", took_s=round(time.monotonic() - self._started_s, 1))
                await self._stopping.wait()
            log.info("daemon.stopping")
        log.info("daemon.stopped")
        return int(self._failed)

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> bool:
        """Do `work`; return False if the stop signal came first. Raises what `work` raises."""
        task = asyncio.create_task(work)
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait((task, stopping), return_when=asyncio.FIRST_COMPLETED)
        await _cancel(stopping)
        if not task.done():
            await _cancel(task)
            return False
        await task
        return True

    def _print_ready(self) -> None:
        ready = {
            "ready": True,
            "pid": os.getpid(),
            "data_dir": str(self._layout.data_dir),
            "endpoints": self._endpoints,
        }
        sys.stdout.write(ready_words(ready) if sys.stdout.isatty() else json.dumps(ready) + "\n")
        sys.stdout.flush()

    async def _start(self, stack: contextlib.AsyncExitStack) -> None:
        http = self._take_http(stack)  # first: a port that is taken is said at once
        self._children = self._make_children()
        for child in self._children:
            stack.push_async_callback(child.stop)
        self._starting.part("relay and embedder (the first time, the model's graph is made)")
        await _all(child.start() for child in self._children)
        self._model: str | None = self._children[1].ready.get("model")
        self._starting.part("Ray, which takes the longest")
        self._cluster = Cluster(
            self._settings, self._layout.data_dir, self._layout.run, self._layout.embedder, self._capacity
        )
        stack.callback(self._cluster.stop)
        self._catch_signals()  # Ray sets handlers of its own
        self._starting.part("dispatcher and gateway")
        self._journal = AsyncSubscriber(*relay_endpoints(self._layout.data_dir), CONSUMER)
        stack.push_async_callback(self._journal.close)
        key = open_user_key(self._settings.encryption, self._layout.data_dir, SYSTEM_USER)
        owners = Owners(self._layout.owners, key=key)
        stack.callback(owners.close)
        self._hosts = Hosts(self._cluster, self._settings.daemon, self._capacity)
        stack.push_async_callback(self._hosts.close)
        self._reactor = self._make_reactor(stack)
        self._dispatcher = Dispatcher(self._journal, self._hosts, owners, self._settings.daemon, self._reactor.notice)
        self._shared = RemoteKnowledge(ipc_endpoint(shared_socket(self._layout.run)), self._shared_folder)
        stack.callback(self._shared.close)
        ingest = relay_endpoints(self._layout.data_dir).ingest
        self._announcer = Announcer(self._shared, self._journal, ingest, self._settings.relay.events)
        self._eraser = DaemonEraser(
            self._hosts,
            self._dispatcher,
            self._reactor,
            self._journal,
            self._layout.data_dir,
            self._settings.encryption,
            self._forget_shared,
            self._announcer.tell,
        )
        absent = AbsentUsers(
            self._layout.data_dir,
            self._layout.absent_users,
            self._settings.recall,
            self._settings.learning,
            self._shared,
        )
        stack.callback(absent.close)
        self._service = Service(
            self._hosts, self._dispatcher, self._journal, self._eraser, absent, self._status, self._announcer.wake
        )
        await self._eraser.resume()
        await self._keep_shared_awake()
        self._announcer.wake()
        credentials = Credentials(self._layout.data_dir)
        reception = Reception(self._service, credentials, self._capacity.requests_in_flight)
        gateway = self._make_gateway(reception, credentials)
        self._run_in_background(stack, gateway.run(), *self._open_http(http, reception))

    def _run_in_background(self, stack: contextlib.AsyncExitStack, *doors: Coroutine[Any, Any, None]) -> None:
        table = SignalTable.load(self._settings.ingest.signals)
        rounds = RetentionRounds(self._hosts, self._eraser, self._layout.data_dir, self._settings.retention, table)
        for work in (
            self._dispatcher.run(),
            self._reactor.run(),
            self._announcer.run(),
            self._keep_up(),
            rounds.run(),
            self._watch_ray(),
            *doors,
        ):
            task = asyncio.create_task(work)
            task.add_done_callback(self._stop_if_failed)
            stack.push_async_callback(_cancel, task)

    def _make_reactor(self, stack: contextlib.AsyncExitStack) -> Reactor:
        """Make what reacts to events, with a publisher of its own, so that blocks are acknowledged apart."""
        limits = self._settings.relay.events
        publisher = Publisher(relay_endpoints(self._layout.data_dir).ingest, limits=limits)
        stack.push_async_callback(_closed, publisher)
        table = TriggerTable.load(self._settings.triggers.table)
        return Reactor(
            self._hosts,
            publisher,
            self._settings.triggers,
            table,
            self._capacity.answer_threads,
            lambda: self._dispatcher.waiting(),
        )

    def _make_gateway(self, reception: Reception, credentials: Credentials) -> Gateway:
        sockets = self._listen(credentials)
        listening = [endpoint for socket in sockets for endpoint in socket.endpoints]
        relay = self._children[0].ready
        self._endpoints: dict[str, str | list[str]] = {
            "gateway": listening[0],
            "listen": listening[1:],
            "relay": relay["ingest"],
            "relay_feed": relay["feed"],
            "relay_listen": relay["listen"],
            "relay_feed_listen": relay["feed_listen"],
            "relay_pub": relay["pub"],
            "embedder": self._layout.embedder,
            "ray": self._cluster.address,
        }
        return Gateway(reception, sockets, self._capacity.requests_in_flight, self._settings.daemon.requests_bytes)

    def _take_http(self, stack: contextlib.AsyncExitStack) -> HttpDoor | None:
        """Take the port of the door over HTTP, unless the settings close it. Raises `SettingsError` if it is taken."""
        place = place_of(self._settings.daemon.http)
        if place is None:
            return None
        from memory_agent.doors.http.server import HttpDoor  # a tenth of a second, for those who want it

        door = HttpDoor(self._settings.daemon.http, place)
        stack.callback(door.close)
        return door

    def _open_http(self, door: HttpDoor | None, reception: Reception) -> list[Coroutine[Any, Any, None]]:
        """Say where the door over HTTP is; return its work, or nothing where it is closed."""
        if door is None:
            return []
        write_private(self._layout.http, f"{door.url}\n".encode())
        self._endpoints["http"] = door.url
        relay, limits = relay_endpoints(self._layout.data_dir), self._settings.relay.events
        return [door.run(reception, relay, limits, self._settings.daemon.requests_bytes)]

    def _listen(self, credentials: Credentials) -> list[AsyncReplySocket]:
        """Listen at the socket file and on loopback; CURVE endpoints get a socket of their own."""
        named = self._settings.daemon.listen
        sockets = [AsyncReplySocket([self._layout.gateway, *(one for one in named if not is_curve(one))])]
        guarded = [endpoint for endpoint in named if is_curve(endpoint)]
        if guarded:
            authenticator = CurveAuthenticator(server_pair(self._layout.data_dir, curve_pair), credentials.knows_curve)
            sockets.append(AsyncReplySocket(guarded, authenticator))
        return sockets

    def _make_children(self) -> tuple[Child, ...]:
        """Give each child its part of the settings, which are read once, here."""
        configuration = self._layout.run / "relay.toml"
        configuration.write_bytes(
            msgspec.toml.encode(RelaySettings.of(self._settings.relay, self._settings.encryption))
        )
        parent = ("--parent-pid", str(os.getpid()))
        data_dir = str(self._layout.data_dir)
        relay = ("--data-dir", data_dir, "--config", str(configuration), "--log-level", self._settings.log_level)
        settings = msgspec.json.encode(self._settings.embedder).decode()
        embedder = ("--endpoint", self._layout.embedder, "--settings", settings)
        return (
            Child("relay", "relay", relay + parent),
            Child("embedder", "memory_agent.embedders", embedder + parent, _HUGE_PAGES),
        )

    async def _keep_up(self) -> None:
        """Put idle users to sleep, balance the hosts, do upkeep, finish erasures, embed what has no vector yet."""
        embedder = RemoteEmbedder(self._layout.embedder)
        while True:
            await asyncio.sleep(self._settings.daemon.upkeep_interval_s)
            await self._hosts.sleep_idle()
            await self._hosts.balance()
            await self._keep_shared_awake()
            await self._hosts.keep_up()
            self._announcer.wake()
            await self._eraser.finish(self._hosts.awake())
            with contextlib.suppress(ModelError):
                self._model = (await asyncio.to_thread(lambda: embedder.info)).stamp
                await self._hosts.fill_vectors()

    @property
    def _shared_folder(self) -> Path:
        return user_folder(self._layout.data_dir, SHARED_USER)

    async def _forget_shared(self, user_id: str, dry_run: bool) -> SharedPart:
        """Take away what a user shared, in the store itself, unless `dry_run`; return how much that is."""
        if not await asyncio.to_thread(self._shared_folder.exists):
            return SharedPart()
        asked = AskSharedParams(caller=Caller(user_id=user_id), ask=ForgetUser(dry_run=dry_run))
        reply = await self._hosts.call(SHARED_USER, "ask_shared", encode_fields(asked), LONGEST_DEADLINE_MS)
        return decode_reply(reply, SharedPart)

    async def _keep_shared_awake(self) -> None:
        """Wake what users share, where anything was ever published: their hosts ask it without the daemon."""
        if await asyncio.to_thread(self._shared_folder.exists):
            try:
                await self._service.wake_shared(USUAL_PATIENCE_MS)
            except MemoryAgentError as error:
                log.warning("shared.not_awake", code=error.code)

    async def _watch_ray(self) -> None:
        """Stop when Ray's own processes died: actors would live on unsupervised; a restart recovers."""
        while self._cluster.alive():
            await asyncio.sleep(_RAY_CHECK_S)
        log.error("ray.died")
        raise UnavailableError("Ray died")

    async def _status(self) -> DaemonStatus:
        journal: dict[str, Any] = {}
        with contextlib.suppress(RelayError):
            stats = await self._journal.stats()
            journal = {**msgspec.to_builtins(stats.journal), "counts": stats.counts}
        hosts = await self._hosts.pids()
        parts = [
            PartStatus(name="daemon", state="running", pid=os.getpid(), resident_bytes=resident_bytes(os.getpid())),
            *(child.status() for child in self._children),
            *(
                PartStatus(name=name, state="running", pid=pid, resident_bytes=resident_bytes(pid))
                for name, pid in hosts.items()
            ),
        ]
        return DaemonStatus(
            version=VERSION,
            uptime_s=round(time.monotonic() - self._started_s, 1),
            endpoints=self._endpoints,
            parts=tuple(parts),
            active_users=tuple(user for user in self._hosts.awake() if user != SHARED_USER),
            journal=journal,
            dispatched={**self._dispatcher.counts, "lag": self._dispatcher.lag()},
            recalls=self._service.recall_latency.summary(),
            model=self._model,
            limits=asdict(self._capacity),
            triggers=self._reactor.status(),
        )

    def _catch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)

    def _stop_if_failed(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or task.exception() is None:
            return
        log.error("daemon.failed", exc_info=task.exception())
        self._failed = True
        self._stopping.set()


def ready_words(ready: Mapping[str, Any]) -> str:
    """Return the ready line in words, for a terminal: where the doors are, and what to do next."""
    data_dir, url = Path(ready["data_dir"]), ready["endpoints"].get("http")
    named = "" if data_dir == default_data_dir() else f" --data-dir {shlex.quote(str(data_dir))}"
    http = "" if url is None else f"  HTTP    {url}/docs, with the token in {data_dir / TOKEN_FILE}\n"
    return (
        f"memory-agent is ready: {data_dir}, process {ready['pid']}\n{http}"
        f'  try     memory-agent remember "Staging needs the VPN"{named}\n'
        f'          memory-agent recall "what does staging need?"{named}\n'
        f"  look    memory-agent status{named}\n"
    )


class Starting:
    """Progress for a terminal while the daemon starts, which takes 12 to 25 seconds; silent for a file or a pipe."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream if stream.isatty() else None
        self._began_s = time.monotonic()

    def part(self, what: str) -> None:
        """Write which part starts now."""
        self._write(f"starting {what}")

    def ready(self) -> None:
        """Write that everything runs, and how to stop it."""
        self._write("ready; Ctrl-C ends it")

    def _write(self, line: str) -> None:
        if self._stream is not None:
            self._stream.write(f"{time.monotonic() - self._began_s:5.1f} s  {line}\n")
            self._stream.flush()


async def _all(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all of them concurrently to the end, then raise the first error, if any."""
    for outcome in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


async def _closed(publisher: Publisher) -> None:
    """Close the publisher of the blocks; one that no acknowledgement came for is lost, as in a crash."""
    try:
        await asyncio.to_thread(publisher.close)
    except RelayError as error:
        log.warning("blocks.not_published", code=error.code)


async def _cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _require_guarded(endpoint: str) -> None:
    """Raise `SettingsError` for an endpoint that other machines could reach without a key."""
    try:
        check_endpoint("daemon.listen", endpoint)
    except RelaySettingsError as error:
        raise SettingsError(error.setting, error.reason) from error
