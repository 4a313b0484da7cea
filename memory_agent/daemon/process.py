"""The daemon process: starts the relay, the embedder, the hosts and other components, keeps them running, and stops
them in order.

Nothing depends on a clean shutdown: after a kill, the journal and the stores are complete.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import signal
import socket
import sys
import time
from collections.abc import Coroutine, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import msgspec

from memory_agent.archiving import ObjectStore, Placements
from memory_agent.daemon.children import resident_bytes
from memory_agent.daemon.cluster_secrets import ClusterSecrets, ray_environment, require_address
from memory_agent.daemon.components import opened_components
from memory_agent.daemon.exposition import exposition
from memory_agent.daemon.host_pool import Topology
from memory_agent.daemon.hosts import Hosts
from memory_agent.daemon.idle_end import Activity, IdleEnd, calls_lock, release_start
from memory_agent.daemon.nodes import Nodes
from memory_agent.daemon.service import Deployment
from memory_agent.daemon.supervisor import NEEDS_RAY, Endpoints, Supervisor, ray_installed
from memory_agent.daemon.time_slice import request_short_slices
from memory_agent.doors.http.guard import place_of
from memory_agent.embedders.lanes import usable_cores
from memory_agent.embedders.remote import RemoteEmbedder
from memory_agent.erasure.retention import RetentionRules
from memory_agent.errors import ModelError, SettingsError
from memory_agent.layout import Layout, default_data_dir
from memory_agent.learning import own_engine
from memory_agent.rerankers import check_judge
from memory_agent.settings import Settings
from memory_agent.signals import SignalTable
from memory_agent.storage.environment import require_keys
from memory_agent.tracing import start_tracing, stop_tracing
from memory_agent.triggers.table import TriggerTable
from memory_agent.verbs.protocol import DaemonStatus, PartStatus
from memory_agent.version import VERSION
from relay import (
    SHARED_USER,
    TOKEN_FILE,
    RelayError,
    RelaySettingsError,
    RelayStats,
    check_endpoint,
)
from relay.disk import write_private
from relay.log import log, rotate_log

if TYPE_CHECKING:
    from memory_agent.doors.http.server import HttpDoor

_SWITCH_S = 0.001
"""The interval at which the interpreter switches threads: a fifth of the default."""
_SCRAPE_S = 2.0


def serve(settings: Settings, data_dir: Path, *, on_demand: bool = False) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code. With `on_demand`, exit after `daemon.idle_end_min`.

    Raises `DaemonRunningError` if another daemon serves this folder, `StoreEncryptedError` if the data folder is
    encrypted and no key folder is set, `EncryptionKeyMissingError`, `SettingsError` and `UnavailableError`.
    """
    for endpoint in settings.daemon.listen:
        _require_guarded(endpoint)
    place_of(settings.daemon.http)
    if settings.cluster.listen:
        require_address("cluster.listen", settings.cluster.listen)
        if not settings.archive.url:
            reason = "needs archive.url, which names a folder or object store that all machines can reach"
            raise SettingsError("cluster.listen", reason)
        ObjectStore.open(settings.archive)
    RetentionRules(settings.retention, SignalTable.load(settings.ingest.signals))  # fail here instead of in each host
    own_engine(settings.learning)
    TriggerTable.load(settings.triggers.table)
    check_judge(settings.judge, settings.recall.deadline_ms)
    require_keys(settings.encryption, data_dir)
    start_tracing(settings.tracing)
    layout = Layout(data_dir)
    if layout.node_marker.exists():
        raise SettingsError("data_dir", f"{data_dir} belongs to a machine that joined a daemon (memory-agent join)")
    layout.create()
    layout.make_token()  # before the lock is visible: a client that connects during startup needs the token
    request_short_slices()
    sys.setswitchinterval(_SWITCH_S)
    with calls_lock(layout) as calls, layout.hold():
        if on_demand:
            release_start()
        else:
            layout.start.unlink(
                missing_ok=True
            )  # otherwise a hook would start another daemon while a service restarts this one
        idle_s = settings.daemon.idle_end_min * 60 if on_demand and not settings.daemon.listen else 0.0
        idle_end = IdleEnd(calls, idle_s) if idle_s else None
        try:
            return asyncio.run(Daemon(settings, layout, _supervisor(settings, layout), idle_end).run())
        finally:
            stop_tracing()


def _supervisor(settings: Settings, layout: Layout) -> Supervisor:
    """Return the supervisor for the form of daemon that the settings select, or the light one if Ray is not installed.

    Both are imported late: Ray takes a second to load, and it reads a cluster's variables at import.
    """
    listen = settings.cluster.listen
    if settings.daemon.light or not ray_installed():
        if listen:
            problem = "other machines cannot join a daemon with daemon.light" if ray_installed() else NEEDS_RAY
            raise SettingsError("cluster.listen", problem)
        if not settings.daemon.light:
            log.warning("daemon.light", reason=f"the form with several processes {NEEDS_RAY}")
        from memory_agent.daemon.local_supervisor import LocalSupervisor

        return LocalSupervisor(settings, layout)
    secrets = None
    if listen:
        secrets = ClusterSecrets(layout.cluster)
        os.environ.update(ray_environment(layout.cluster, secrets.certificate_for(listen)))
    from memory_agent.daemon.ray_supervisor import RaySupervisor

    return RaySupervisor(settings, layout, secrets)


class Daemon:
    def __init__(
        self, settings: Settings, layout: Layout, supervisor: Supervisor, idle_end: IdleEnd | None = None
    ) -> None:
        self._settings = settings
        self._idle_end = idle_end
        self._supervisor = supervisor
        self._layout = layout
        self._started_s = time.monotonic()
        self._starting = Starting(sys.stderr)
        self._stopping = asyncio.Event()
        self._is_keeping_up = False
        self._failed = False

    async def run(self) -> int:
        """Start, print the ready line, serve, and stop. Return the exit code: 1 if a part failed permanently."""
        self._catch_signals()
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(self._layout.clear_sockets)
            if await self._unless_stopped(self._start(stack)):
                self._starting.ready()
                self._print_ready()
                notify_service_manager("READY=1")
                log.info("daemon.ready", took_s=round(time.monotonic() - self._started_s, 1))
                await self._stopping.wait()
            log.info("daemon.stopping")
            notify_service_manager("STOPPING=1")
        log.info("daemon.stopped")
        return int(self._failed)

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> bool:
        """Await `work`, and raise its errors; if a stop signal comes first, cancel it and return False."""
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
        http = self._bound_http(stack)  # first, so that a port in use is reported at once
        stack.push_async_callback(self._supervisor.stop)
        listens = await self._supervisor.start(self._starting.part)
        self._model = self._supervisor.model
        self._catch_signals()  # Ray has set its own handlers
        self._starting.part("dispatcher and gateway")
        capacity = self._supervisor.capacity
        hosts = Hosts(self._supervisor, self._settings.daemon, capacity, self._topology())
        stack.push_async_callback(hosts.close)
        self._nodes = Nodes(self._supervisor, self._settings.cluster, lambda: self._model, hosts.vacate)
        deployment = Deployment(self._status, self._measure, self._nodes)
        opening = opened_components(self._layout, self._settings, capacity, hosts, deployment, http)
        self._components = await stack.enter_async_context(opening)
        self._endpoints = self._all_endpoints(listens, http)
        own = (self._keep_up(), self._nodes.run(), self._supervisor.watch())
        for work in (*self._components.work(), *own, *([self._end_when_idle()] if self._idle_end else [])):
            task = asyncio.create_task(work)
            task.add_done_callback(self._stop_if_failed)
            stack.push_async_callback(_cancel, task)

    def _topology(self) -> Topology | None:
        if not self._settings.cluster.listen:
            return None
        placements = Placements(self._layout.data_dir)
        return Topology(lambda: self._nodes.up(), placements, usable_cores(), self._settings.cluster.lease_s)

    def _bound_http(self, stack: contextlib.AsyncExitStack) -> HttpDoor | None:
        """Bind the HTTP port, unless HTTP is off. Raises `SettingsError` if the port is in use."""
        place = place_of(self._settings.daemon.http)
        if place is None:
            return None
        from memory_agent.doors.http.server import HttpDoor  # takes 0.1 s, so a daemon without HTTP skips it

        door = HttpDoor(self._settings.daemon.http, place, self._layout)
        stack.callback(door.close)
        return door

    def _all_endpoints(self, listens: Endpoints, http: HttpDoor | None) -> Endpoints:
        """Return the endpoints of the daemon's parts; write the address of the HTTP server into its file."""
        gateway, *listen = self._components.endpoints
        endpoints: Endpoints = {"gateway": gateway, "listen": listen, **listens}
        if http is not None:
            write_private(self._layout.http, f"{http.url}\n".encode())
            endpoints["http"] = http.url
        return endpoints

    async def _keep_up(self) -> None:
        embedder = RemoteEmbedder(self._layout.embedder)
        while True:
            await asyncio.sleep(self._settings.daemon.upkeep_interval_s)
            self._is_keeping_up = True
            has_model = False
            with contextlib.suppress(ModelError):
                self._model = (await asyncio.to_thread(lambda: embedder.info)).stamp
                has_model = True
            await self._components.keep_up(fill_vectors=has_model)
            self._is_keeping_up = has_model and any(host.waiting for host in self._components.hosts.figures().hosts)
            rotate_log()

    async def _end_when_idle(self) -> None:
        assert self._idle_end is not None
        await self._idle_end.wait(self._activity)
        log.info("daemon.idle", idle_min=self._settings.daemon.idle_end_min)
        self._stopping.set()

    def _activity(self) -> Activity:
        own = self._components
        hooks = self._layout.hooks
        counts = (own.requests_taken, own.dispatcher.read_through, hooks.stat().st_mtime_ns if hooks.exists() else 0)
        return Activity(self._is_keeping_up or own.is_busy, counts)

    async def _status(self) -> DaemonStatus:
        return self._described(await self._relay_stats(), await self._components.hosts.pids())

    async def _measure(self) -> str:
        """Return the figures as text. Sends one request (to the relay); hosts report their figures during upkeep."""
        stats = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SCRAPE_S):
                stats = await self._relay_stats()
        return exposition(self._described(stats, {}), stats, self._components)

    async def _relay_stats(self) -> RelayStats | None:
        with contextlib.suppress(RelayError):
            return await self._components.journal.stats()
        return None

    def _described(self, stats: RelayStats | None, hosts: Mapping[str, int]) -> DaemonStatus:
        """Return the status, with the figures of the relay and the process ids of the hosts, if they are known."""
        journal = {} if stats is None else {**msgspec.to_builtins(stats.journal), "counts": stats.counts}
        users = self._components.hosts
        full = users.full_nodes()
        own = os.getpid()
        parts = [
            PartStatus(name="daemon", state="running", pid=own, resident_bytes=resident_bytes(own)),
            *self._supervisor.parts(),
            *(
                PartStatus(name=name, state="running", pid=pid, resident_bytes=0 if pid == own else resident_bytes(pid))
                for name, pid in hosts.items()
            ),
        ]
        return DaemonStatus(
            version=VERSION,
            uptime_s=round(time.monotonic() - self._started_s, 1),
            endpoints=self._endpoints,
            parts=tuple(parts),
            active_users=tuple(user for user in users.awake() if user != SHARED_USER),
            journal=journal,
            dispatched={**self._components.dispatcher.counts, "lag": self._components.dispatcher.lag()},
            recalls=self._components.service.recall_latency.summary(),
            model=self._model,
            limits=asdict(self._supervisor.capacity),
            triggers=self._components.reactor.status(),
            form=self._supervisor.form,
            nodes=tuple(
                msgspec.structs.replace(node, users=users.count_on(node.name), is_full=node.name in full)
                for node in self._nodes.all()
            ),
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
    data_dir, url = Path(ready["data_dir"]), ready["endpoints"].get("http")
    named = "" if data_dir == default_data_dir() else f" --data-dir {shlex.quote(str(data_dir))}"
    page = "" if url is None else f"  page    memory-agent open{named}\n"
    http = "" if url is None else f"  HTTP    {url}/docs, with the token in {data_dir / TOKEN_FILE}\n"
    return (
        f"memory-agent is ready: {data_dir}, process {ready['pid']}\n{page}{http}"
        f'  try     memory-agent remember "Staging needs the VPN"{named}\n'
        f'          memory-agent recall "what does staging need?"{named}\n'
        f"  look    memory-agent status{named}\n"
    )


class Starting:
    """Shows progress while the daemon starts (the full form: 12 to 25 s). Prints only to a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream if stream.isatty() else None
        self._began_s = time.monotonic()

    def part(self, what: str) -> None:
        self._write(f"starting {what}")

    def ready(self) -> None:
        self._write("ready; Ctrl-C ends it")

    def _write(self, line: str) -> None:
        if self._stream is not None:
            self._stream.write(f"{time.monotonic() - self._began_s:5.1f} s  {line}\n")
            self._stream.flush()


def notify_service_manager(state: str) -> None:
    """Send a state such as READY=1 to systemd (sd_notify), if it started this process as `Type=notify`."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        try:
            manager.sendto(state.encode(), address.replace("@", "\0", 1) if address[0] == "@" else address)
        except OSError as error:
            log.warning("service_manager.unreachable", state=state, reason=error.strerror)


async def _cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _require_guarded(endpoint: str) -> None:
    try:
        check_endpoint("daemon.listen", endpoint)
    except RelaySettingsError as error:
        raise SettingsError(error.setting, error.reason) from error
