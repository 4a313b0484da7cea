"""A daemon's host processes, which are started when needed, kept as spares and, on other nodes, held under leases."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from memory_agent.archiving import Placements
from memory_agent.daemon.lease import keep_lease
from memory_agent.daemon.supervisor import Host, Supervisor
from memory_agent.errors import MemoryAgentError
from memory_agent.records.memories import ApiCounts
from memory_agent.records.placement import HOME
from memory_agent.verbs.protocol import HostFigures
from relay.log import log

_AVOIDED_S = 10.0
"""How long no new users are placed on a node after it has lost a host."""


@dataclass(frozen=True)
class Topology:
    """The nodes of a cluster with their cores, and the placements of users. `lease_s`: see `keep_lease`."""

    nodes: Callable[[], Mapping[str, int]]
    placements: Placements
    cores: int
    lease_s: float = 3.0


CALLS = ("calls", "failed", "retries", "refused", "tokens_read", "tokens_written", "cost_usd")


@dataclass(frozen=True)
class PoolFigures:
    """The figures of the hosts in use, the number of spares, and counts since the daemon started.

    `lost` is the number of hosts that died and were replaced. `calls` counts the requests to model servers, by part and
    by name in `CALLS`.
    """

    hosts: tuple[HostFigures, ...] = ()
    spares: int = 0
    restarts: int = 0
    lost: int = 0
    calls: Mapping[tuple[str, str], float] = field(default_factory=dict)


class HostPool:
    """The hosts in use, by the names that `Directory` gives them, and the spares. Must be used from a single event
    loop.

    Up to `spares_kept` processes without awake users are kept as spares: starting a process takes a second.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        spares_kept: int,
        cluster: Topology | None,
        on_lost: Callable[[str], None],
        on_full: Callable[[str], None],
    ) -> None:
        """`on_lost` takes the name of a lost host on another node, and `on_full` takes a node whose disk became
        full.
        """
        self._supervisor = supervisor
        self._spares_kept = spares_kept
        self._cluster = cluster
        self._on_lost = on_lost
        self._on_full = on_full
        self._full: set[str] = set()
        self._used: dict[str, Host] = {}
        self._spares: list[Host] = []
        self._leases: dict[Host, asyncio.Task[None]] = {}
        self._avoided: dict[str, float] = {}
        self._restarts = self._lost = 0
        self._calls: defaultdict[tuple[str, str], float] = defaultdict(float)
        self._embedders: dict[str, ApiCounts] = {}

    def __len__(self) -> int:
        return len(self._used)

    def nodes(self) -> dict[str, int]:
        """Return the cores of the nodes that may receive users now, including the daemon's own."""
        return {node: cores for node, cores in self._reached().items() if node not in self._full}

    def full_nodes(self) -> set[str]:
        return self._full & self._reached().keys()

    def _reached(self) -> dict[str, int]:
        if self._cluster is None:
            return {HOME: 1}
        now_s = time.monotonic()
        others = self._cluster.nodes().items()
        return {HOME: self._cluster.cores} | {
            node: cores for node, cores in others if self._avoided.get(node, 0.0) <= now_s
        }

    def find(self, name: str) -> Host | None:
        return self._used.get(name)

    def use(self, name: str, node: str = HOME, *, shared: bool = False) -> Host:
        """Return the host with this name, taking a spare on the node or starting a process if there is none."""
        if name not in self._used:
            spare = None if shared else next((spare for spare in self._spares if spare.node == node), None)
            if spare is not None:
                self._spares.remove(spare)
            self._used[name] = spare or self._start(node, shared=shared)
        return self._used[name]

    def started(self, name: str, node: str) -> Host:
        """Return the host that `use` would return; start it as a spare if it does not exist."""
        spare = next((spare for spare in self._spares if spare.node == node), None)
        host = self.find(name) or spare or self._start(node)
        if name not in self._used and spare is None:
            self._spares.append(host)
        return host

    def any_on(self, node: str) -> Host:
        """Return any host on a node, starting one if there is none."""
        for host in (*self._used.values(), *self._spares):
            if host.node == node:
                return host
        self._spares.append(self._start(node))
        return self._spares[-1]

    def release(self, name: str, *, is_usable: bool) -> None:
        """Keep a host without users as a spare, or stop it."""
        host = self._used.pop(name, None)
        if host is None:
            return
        spares = sum(spare.node == host.node for spare in self._spares)
        if not host.can_be_killed or (is_usable and spares < self._spares_kept):
            self._spares.append(host)
        else:
            self._end(host)

    def end_spares(self, node: str) -> None:
        """Stop the spares on a node that is leaving. Otherwise, they would count as lost."""
        for host in [spare for spare in self._spares if spare.node == node]:
            self._spares.remove(host)
            self._end(host)

    def forget_if_gone(self, host: Host) -> None:
        """Forget a host that will not be restarted. A host on another node is forgotten only once its lease has
        expired.
        """
        if host.is_gone and host.node == HOME:
            self._forget(host)

    def _forget(self, host: Host) -> None:
        name = next((name for name, one in self._used.items() if one is host), None)
        if name is None and host not in self._spares:
            return
        log.warning("host.gone", host=host.name, node=host.node)
        self._lost += 1
        if name is None:
            self._spares.remove(host)
        else:
            del self._used[name]
        if host.node == HOME:
            self._restarts += host.restarts
        else:
            self._avoided[host.node] = time.monotonic() + _AVOIDED_S
            self._end(host)
            if name is not None:
                self._on_lost(name)

    async def keep_up(self, timeout_s: float, *, fill_vectors: bool) -> None:
        for host in list(self._used.values()):
            former = host.figures
            try:
                host.figures = await host.keep_up(timeout_s, fill_vectors=fill_vectors)
                self._count_calls(host, former)
            except MemoryAgentError as error:
                log.warning("host.not_kept_up", host=host.name, code=error.code)

    def figures(self) -> PoolFigures:
        """Sends no messages."""
        restarts = self._restarts + sum(host.restarts for host in (*self._used.values(), *self._spares))
        hosts = tuple(host.figures for host in self._used.values())
        return PoolFigures(hosts, len(self._spares), restarts, self._lost, self._calls)

    def _count_calls(self, host: Host, former: HostFigures) -> None:
        """Add the calls that a host has made since it reported the `former` figures. All hosts on a node report the
        calls of the same embedder.
        """
        self._add_calls("judge", former.judge, host.figures.judge)
        if host.figures.embedder is not None:
            self._add_calls("embedder", self._embedders.get(host.node), host.figures.embedder)
            self._embedders[host.node] = host.figures.embedder

    def _add_calls(self, part: str, former: ApiCounts | None, now: ApiCounts | None) -> None:
        if now is None:
            return
        if former is None or now.calls + now.refused < former.calls + former.refused:  # the process was restarted
            former = ApiCounts(provider=now.provider)
        for name in CALLS:
            self._calls[part, name] += getattr(now, name) - getattr(former, name)

    async def pids(self) -> dict[str, int]:
        """Hosts that do not answer are omitted."""
        hosts = self._used | {f"spare-{number}": host for number, host in enumerate(self._spares)}
        found = await asyncio.gather(*(host.pid(1.0) for host in hosts.values()), return_exceptions=True)
        silent = [name for name, pid in zip(hosts, found, strict=True) if not isinstance(pid, int)]
        if silent:
            log.warning("hosts.silent", hosts=silent)
        return {name: pid for name, pid in zip(hosts, found, strict=True) if isinstance(pid, int)}

    def close(self) -> None:
        """Stop the spares and cancel the leases. Hosts in use stop with the supervisor."""
        for lease in self._leases.values():
            lease.cancel()
        while self._spares:
            self._spares.pop().end()

    def _end(self, host: Host) -> None:
        lease = self._leases.pop(host, None)
        if lease is not None and lease is not asyncio.current_task():
            lease.cancel()
        host.is_gone = True
        self._restarts += host.restarts
        host.end()

    def _start(self, node: str, *, shared: bool = False) -> Host:
        host = self._supervisor.start_host(shared=shared, node=node)
        if node != HOME:
            self._leases[host] = asyncio.create_task(self._keep_lease(host))
        return host

    async def _keep_lease(self, host: Host) -> None:
        assert self._cluster is not None
        nodes = self._cluster.nodes

        async def renew(written_s: float, lease_s: float, timeout_s: float) -> float:
            was_full = host.node in self._full
            now_s, has_room = await host.renew(written_s, lease_s, was_full, timeout_s)
            if was_full or not has_room:  # after a disk has been full, more free space is required
                self._note_room(host.node, has_room=has_room)
            return now_s

        await keep_lease(
            renew, self._cluster.lease_s, is_gone=lambda: host.is_gone, may_start=lambda: host.node in nodes()
        )
        self._forget(host)

    def _note_room(self, node: str, *, has_room: bool) -> None:
        if has_room and node in self._full:
            log.info("node.has_room", node=node)
            self._full.remove(node)
        elif not has_room and node not in self._full:
            log.warning("node.full", node=node)
            self._full.add(node)
            self._on_full(node)
