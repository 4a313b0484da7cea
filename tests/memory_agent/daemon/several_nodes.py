"""A cluster in one process: real hosts with their own folders on each node, one archive, and `Hosts` above them.

The hosts run in threads. After `Node.pause`, a node answers no requests from the daemon and renews no leases, like a
frozen or unreachable machine. Its threads continue.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TypeVar, cast

from dispatching import dispatching

from memory_agent.archiving import Placements, UserFiles
from memory_agent.daemon.capacity import capacity_of
from memory_agent.daemon.deliveries import Deliveries
from memory_agent.daemon.dispatcher import Dispatcher
from memory_agent.daemon.host import HostServer, MemoryHost
from memory_agent.daemon.host_pool import Topology
from memory_agent.daemon.hosts import Hosts
from memory_agent.daemon.lease import Lease
from memory_agent.daemon.local_supervisor import ThreadHost, in_thread
from memory_agent.daemon.supervisor import Supervisor
from memory_agent.embedders import Embedder
from memory_agent.errors import DeadlineExceededError, HostDiedError
from memory_agent.records.memories import MemoryPage, MemoryRecord
from memory_agent.records.placement import Placement, Position
from memory_agent.settings import ArchiveSettings, DaemonSettings, Settings, StoreSettings
from memory_agent.storage.folders import user_folder
from memory_agent.verbs.protocol import HostEndpoints, HostRequest, decode_reply, encode_fields
from memory_agent.verbs.table import BY_NAME
from relay import AsyncSubscriber, Broker, EncryptionSettings, Publisher
from relay.access import ipc_endpoint

DEADLINE_MS = 60_000.0
_PATIENCE_S = 20.0

T = TypeVar("T")


class Node:
    """One machine. Its hosts keep their files in `folder`."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self.is_paused = False
        self.is_up = True
        self.hosts: list[NodeHost] = []
        self.renewals = 0

    def pause(self) -> None:
        """Cut the node off from the daemon until `go_on`: it receives no requests and sends no answers."""
        self.is_paused = True

    def go_on(self) -> None:
        """End the pause."""
        self.is_paused = False

    def files_of(self, user_id: str) -> list[str]:
        """Return the names of the user's files on this node."""
        folder = user_folder(self.folder, user_id)
        names = (path.name for path in folder.iterdir()) if folder.exists() else ()
        return sorted(name for name in names if name != "placed.json")  # this file may record that the user has left


class NodeHost(ThreadHost):
    """A host on a node."""

    def __init__(self, node: Node, number: int, memories: MemoryHost, deliveries: Deliveries) -> None:
        run = node.folder / "run"
        run.mkdir(parents=True, exist_ok=True)
        sockets = HostEndpoints(
            answer=ipc_endpoint(run / f"host-{number}.sock"), ingest=ipc_endpoint(run / f"bulk-{number}.sock")
        )
        server = HostServer(memories, sockets, answer_threads=4, ingest_threads=2)
        super().__init__(f"host-{number}", sockets, memories, server, deliveries)
        self.node = node.name
        self.machine = node
        self.memories = memories
        self._has_ended = False

    def end(self) -> None:
        """As `Host.end`. Idempotent."""
        if not self._has_ended:
            self._has_ended = True
            super().end()

    async def request(self, request: HostRequest, body: bytes, timeout_s: float) -> bytes:
        """Like `Host.request`, but the reply of a paused node arrives only after `go_on`."""
        reply = await super().request(request, body, timeout_s)
        while self.machine.is_paused:
            if self.is_gone:
                raise HostDiedError(self.name)
            await asyncio.sleep(0.01)
        return reply

    async def renew(self, written_s: float, lease_s: float, was_full: bool, timeout_s: float) -> tuple[float, bool]:
        self.machine.renewals += 1
        return await self._reached(timeout_s, lambda: self.memories.renew(written_s, lease_s, was_full))

    async def archive(self, user_id: str, timeout_s: float) -> Position:
        return await self._reached(timeout_s, lambda: self.memories.archive(user_id))

    async def sleep(self, user_id: str, timeout_s: float) -> Position | None:
        return await self._reached(timeout_s, lambda: self.memories.sleep(user_id))

    async def release(self, user_id: str, placement: Placement, timeout_s: float) -> Position | None:
        return await self._reached(timeout_s, lambda: self.memories.release(user_id, placement))

    async def discard(self, user_id: str, epoch: int, timeout_s: float) -> None:
        await self._reached(timeout_s, lambda: self.memories.discard(user_id, epoch))

    async def discard_archive(self, user_id: str, epoch: int, timeout_s: float) -> None:
        await self._reached(timeout_s, lambda: self.memories.discard_archive(user_id, epoch))

    async def _reached(self, timeout_s: float, work: Callable[[], T]) -> T:
        self._require_alive()
        if self.machine.is_paused:
            await asyncio.sleep(min(timeout_s, 0.05))
            raise DeadlineExceededError(self.name)
        return await in_thread(work)


class Machines:
    """The nodes, and the supervisor that starts hosts on them."""

    def __init__(self, folder: Path, names: tuple[str, ...], embedder: Embedder, settings: Settings) -> None:
        self.settings = settings
        self.nodes = {name: Node(name, folder / (name or "home")) for name in ("", *names)}
        self._embedder = embedder
        self._started = 0
        self._deliveries = Deliveries(folder / "deliveries", 3)

    def start_host(self, *, shared: bool = False, node: str = "") -> NodeHost:
        self._started += 1
        machine = self.nodes[node]
        files = UserFiles(machine.folder, self.settings, is_home=not node)
        lease = Lease() if node else None
        memories = MemoryHost(machine.folder, self.settings, self._embedder, files=files, lease=lease)
        host = NodeHost(machine, self._started, memories, self._deliveries)
        machine.hosts.append(host)
        return host

    def cores(self) -> dict[str, int]:
        """Return the cores of the nodes that are up, including paused nodes."""
        return {name: 2 for name, node in self.nodes.items() if name and node.is_up}


@asynccontextmanager
async def cluster(
    folder: Path,
    names: tuple[str, ...],
    embedder: Embedder,
    lease_s: float = 2.0,
    keys_folder: str = "",
    store: StoreSettings | None = None,
) -> AsyncIterator[tuple[Hosts, Machines, Placements]]:
    """Run `Hosts` over nodes with these names, in addition to the daemon's own machine."""
    settings = Settings(
        archive=ArchiveSettings(url=f"file://{folder / 'archive'}", timeout_s=10.0),
        encryption=EncryptionSettings(keys_folder=keys_folder),
        store=store or StoreSettings(),
    )
    machines = Machines(folder, names, embedder, settings)
    capacity = capacity_of(settings.daemon, cores=2, memory_bytes=8 << 30)
    placements = Placements(folder / "home")
    places = Topology(machines.cores, placements, cores=1, lease_s=lease_s)
    hosts = Hosts(cast(Supervisor, machines), settings.daemon, capacity, places)
    try:
        yield hosts, machines, placements
    finally:
        for node in machines.nodes.values():
            node.go_on()
        await hosts.close()
        for node in machines.nodes.values():
            for host in node.hosts:
                host.end()
        for thread in threading.enumerate():
            if thread.name.endswith("-end"):  # still archives into the test's folder
                await asyncio.to_thread(thread.join, _PATIENCE_S)


async def remember(hosts: Hosts, user_id: str, text: str) -> MemoryRecord:
    call = BY_NAME["remember"].call({"text": text})
    return decode_reply(await hosts.call(user_id, "remember", encode_fields(call.params), DEADLINE_MS), MemoryRecord)


async def contents(hosts: Hosts, user_id: str) -> list[str]:
    call = BY_NAME["list"].call({})
    page = decode_reply(await hosts.call(user_id, "list", encode_fields(call.params), DEADLINE_MS), MemoryPage)
    return sorted(record.text for record in page.records)


def publish(broker: Broker, user_id: str, numbers: range) -> None:
    """Publish events that become memories, and wait for their acknowledgements."""
    with Publisher(broker.endpoints.ingest) as publisher:
        for number in numbers:
            payload = {"text": f"Please check lamp number {number} in the house of {user_id} and note what you find"}
            publisher.publish(
                {
                    "event_type": "chat.user_msg",
                    "user_id": user_id,
                    "event_id": f"{user_id}-{number}",
                    "payload": payload,
                }
            )


@asynccontextmanager
async def dispatched(
    broker: Broker, folder: Path, hosts: Hosts, archive_interval_s: float
) -> AsyncIterator[tuple[Dispatcher, AsyncSubscriber]]:
    journal = AsyncSubscriber(*broker.endpoints, "memory")
    async with dispatching(journal, folder, hosts, DaemonSettings(batch_events=4), archive_interval_s) as dispatcher:
        yield dispatcher, journal


def objects(folder: Path) -> list[str]:
    """Return the names of the objects in the archive of the cluster in `folder`."""
    return sorted(path.name for path in (folder / "archive").rglob("*") if path.is_file())


@contextmanager
def refusing_archive(folder: Path, *user_ids: str) -> Iterator[None]:
    """Make the archive of these users refuse all operations within the context."""
    for user_id in user_ids:
        archived = folder / "archive" / "users" / user_id
        archived.rename(folder / f"away-{user_id}")
        archived.touch()  # a file, where no folder can be created
    try:
        yield
    finally:
        for user_id in user_ids:
            archived = folder / "archive" / "users" / user_id
            archived.unlink()
            (folder / f"away-{user_id}").rename(archived)


class Held:
    """Holds a call until `go_on`, while a test checks that its caller waits or gives up."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._goes_on = threading.Event()
        self._ended = threading.Event()

    def here(self) -> None:
        """Wait in the calling thread."""
        self._reached.set()
        assert self._goes_on.wait(_PATIENCE_S)

    def go_on(self) -> None:
        self._goes_on.set()

    def end(self) -> None:
        """Record that the held call has ended."""
        self._ended.set()

    async def reached(self) -> None:
        assert await asyncio.to_thread(self._reached.wait, _PATIENCE_S)

    async def ended(self) -> None:
        assert await asyncio.to_thread(self._ended.wait, _PATIENCE_S)
