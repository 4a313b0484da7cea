"""Users as virtual actors: each can always be addressed by name, wakes at its first request and sleeps when idle.

A user is awake if its memory is open in a host process. Callers name a user, and `Hosts` finds or starts the process.
At most `daemon.most_awake` users are awake; a further user waits until the least recently used idle user is asleep.

In a cluster, a user is on one node at a time, and a waking user may first be moved to another node. A host on another
node works only while it holds a lease (`lease`). Once the lease has expired, the host's users may be placed elsewhere.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol
from weakref import WeakValueDictionary

import msgspec

from memory_agent.daemon.capacity import Capacity
from memory_agent.daemon.directory import Directory, chosen_node
from memory_agent.daemon.host_pool import HostPool, PoolFigures, Topology
from memory_agent.daemon.supervisor import Host, Supervisor
from memory_agent.errors import DeadlineExceededError, HostDiedError, MemoryAgentError, StoreError, UnavailableError
from memory_agent.records.memories import IngestReport, MemoryStats
from memory_agent.records.placement import HOME
from memory_agent.records.shared_requests import NO_RIGHTS, Rights
from memory_agent.settings import DaemonSettings
from memory_agent.tracing import client_span
from memory_agent.verbs.params import NoParams
from memory_agent.verbs.protocol import (
    NOT_DONE,
    OUTCOME_UNKNOWN,
    HostAddress,
    HostRequest,
    IngestBatch,
    decode_reply,
    encode,
)
from memory_agent.verbs.table import BY_NAME
from relay import SHARED_USER
from relay.log import log

_RETRY_PAUSE_S = 0.1
_SLEEP_TIMEOUT_S = 30.0
_WAKE_DEADLINE_MS = 10_000.0
_MOVE_PATIENCE_S = 0.5
_MOVES_A_ROUND = 32  # maximum number of users moved between nodes in one round of upkeep
_OF_SHARED = "shared-knowledge"  # the host of shared items, a separate process


@dataclass
class _UserLock:
    """A user's lock, which exists while a task holds it or waits for it."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    holders: int = 0


class Watcher(Protocol):
    """Is notified about memories on other nodes. Its methods must return at once."""

    def saved(self, user_id: str) -> None:
        """The memory was archived and closed."""

    def lost(self, user_id: str) -> Awaitable[None] | None:
        """The memory's host was lost, with everything that was not archived.

        Requests wait for the returned awaitable, which completes once the lost events have been ingested again.
        """


class Hosts:
    """The host processes and the users awake in them. Must be used from a single event loop.

    When a host dies, a request that was not sent, or whose verb may be repeated, is retried within its deadline.
    """

    def __init__(
        self, supervisor: Supervisor, settings: DaemonSettings, capacity: Capacity, cluster: Topology | None = None
    ) -> None:
        self._cluster = cluster
        self._pinned: Counter[str] = Counter()
        self._watchers: list[Watcher] = []
        self._recoveries: dict[str, asyncio.Future[Any]] = {}
        self._settings = settings
        self._pool = HostPool(supervisor, capacity.spare_hosts, cluster, self._lose_users, self._leave_full)
        self._leaving: dict[str, asyncio.Task[None]] = {}
        self._drains: set[asyncio.Task[None]] = set()
        self._is_closing = False
        apart = {SHARED_USER: _OF_SHARED}
        self._directory = Directory(capacity.dedicated_hosts, capacity.shared_hosts, apart)
        self._user_locks: defaultdict[str, _UserLock] = defaultdict(_UserLock)
        self._lost_users: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.calls_under_way = 0
        """The number of running and waiting calls, excluding batches of events."""
        self._busy: defaultdict[str, int] = defaultdict(int)
        self._seating = asyncio.Lock()
        self._changed = asyncio.Event()

    async def call(
        self, user_id: str, method: str, params: bytes, deadline_ms: float, rights: Rights = NO_RIGHTS
    ) -> bytes:
        """Return the encoded reply of the user's memory. Raises `DeadlineExceededError` and `HostDiedError`."""
        return await self._call(user_id, method, params, deadline_ms, rights, waits=True)

    async def _call(
        self, user_id: str, method: str, params: bytes, deadline_ms: float, rights: Rights, *, waits: bool
    ) -> bytes:
        deadline_s = time.monotonic() + deadline_ms / 1000
        self.calls_under_way += 1
        try:
            with client_span("daemon", method) as span:
                request = HostRequest(user_id=user_id, method=method, rights=rights, traceparent=span.traceparent)
                if waits:
                    await self._recovery(user_id, deadline_s)
                async with self._busy_user(user_id, deadline_s):
                    is_repeatable = BY_NAME[method].is_repeatable
                    return await self._send(request, params, deadline_s, is_repeatable=is_repeatable, waits=waits)
        except DeadlineExceededError as error:
            raise DeadlineExceededError(f"{method} of {user_id}: {error}") from error
        finally:
            self.calls_under_way -= 1

    async def ingest(self, user_id: str, batch: IngestBatch) -> IngestReport:
        """Ingest journal entries into the user's memory. Durable on return. Raises the errors of the memory."""
        deadline_s = time.monotonic() + self._settings.ingest_timeout_s
        async with self._busy_user(user_id):
            request = HostRequest(user_id=user_id)
            reply = await self._send(request, encode(batch), deadline_s, is_repeatable=False, waits=False)
        return decode_reply(reply, IngestReport)

    def watch(self, watcher: Watcher) -> None:
        self._watchers.append(watcher)

    def is_away(self, user_id: str) -> bool:
        return self._directory.node_of(user_id) not in (HOME, None)

    def count_on(self, node: str) -> int:
        return self._directory.awake_by_node()[node]

    async def archive(self, user_id: str) -> None:
        """Archive everything that was written to the memory of a user on another node before this call.

        Raises `UnavailableError` if the user is not awake there, and the errors of the archive.
        """
        host = self._host_now(user_id) if self.is_away(user_id) else None
        if host is None:
            raise UnavailableError(f"{user_id} is not awake on another node")
        position = await host.archive(user_id, self._settings.ingest_timeout_s)
        if host.is_gone:
            raise HostDiedError(host.name)
        self._in_cluster.placements.note_archived(user_id, position)

    @asynccontextmanager
    async def kept_home(self, user_id: str) -> AsyncIterator[None]:
        """Keep the user on the daemon's own machine while the context is open. Waits for running calls.

        During that time, no other node holds files of the user. Raises the errors of the archive.
        """
        self._pinned[user_id] += 1
        try:
            if self._cluster is not None and self._cluster.placements.of(user_id).epoch:
                await self._bring_home(user_id)
            yield
        finally:
            self._pinned[user_id] -= 1
            if not self._pinned[user_id]:
                del self._pinned[user_id]

    async def _bring_home(self, user_id: str) -> None:
        async with self.kept_asleep(user_id):
            if self._in_cluster.placements.of(user_id).node != HOME:
                await self._move(user_id, HOME)
        epoch = self._in_cluster.placements.of(user_id).epoch
        for node in self._in_cluster.nodes():  # which may have files from an earlier placement
            await self._pool.any_on(node).discard(user_id, epoch, self._settings.ingest_timeout_s)

    async def erase_archive(self, user_id: str) -> None:
        if self._cluster is not None:
            epoch = self._cluster.placements.of(user_id).epoch + 1
            await self._pool.any_on(HOME).discard_archive(user_id, epoch, self._settings.ingest_timeout_s)
            self._cluster.placements.forget_erased(user_id)

    async def drain(self, node: str) -> None:
        """Put a node's users to sleep. If the node no longer accepts users, its users wake on another node.

        Busy users move one after another, because concurrent moves make all of them wait longer. Raises
        `UnavailableError` if a user cannot be archived; that user stays on the node.
        """
        if not self._is_closing:
            moves = asyncio.create_task(self._move_all(node))
            self._drains.add(moves)
            moves.add_done_callback(self._drains.discard)
            await moves

    async def vacate(self, node: str) -> None:
        """Drain a node that is leaving the cluster, and stop its spare hosts. Raises the same errors as `drain`."""
        await self.drain(node)
        self._pool.end_spares(node)

    async def _move_all(self, node: str) -> None:
        users, now_s = self._directory.users_on(node), time.monotonic()
        busy = [user_id for user_id in users if self._directory.is_busy(user_id, now_s)]
        outcomes = await asyncio.gather(*(self._leave(one) for one in users if one not in busy), return_exceptions=True)
        for user_id in busy:
            target = chosen_node(user_id, None, self._pool.nodes(), self._directory.awake_by_node())
            outcomes += await asyncio.gather(self._relocate(user_id, target), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _leave(self, user_id: str) -> None:
        async with self.kept_asleep(user_id):
            pass

    async def _relocate(self, user_id: str, node: str, patience_s: float | None = None) -> None:
        """Move an awake user to `node`, and wake a busy user there at once, so that few requests wait.

        Raises `TimeoutError` like `kept_asleep`, and `UnavailableError` if the user could not be archived.
        """
        is_busy = self._directory.is_busy(user_id, time.monotonic())
        await self._start_host(user_id, node)
        async with self.kept_asleep(user_id, patience_s):
            if user_id not in self._pinned:
                await self._move(user_id, node)
                log.info("user.moved", user_id=user_id, node=node)
        if is_busy:
            with suppress(MemoryAgentError):
                await self.wake(user_id, _WAKE_DEADLINE_MS)

    async def _start_host(self, user_id: str, node: str) -> None:
        """Start the host first: a process takes a second to start."""
        host = self._pool.started(self._directory.host_on(user_id, time.monotonic(), node), node)
        with suppress(TimeoutError, MemoryAgentError):
            async with asyncio.timeout(_WAKE_DEADLINE_MS / 1000):
                await host.endpoints()

    def full_nodes(self) -> set[str]:
        return self._pool.full_nodes()

    def _leave_full(self, node: str) -> None:
        if node not in self._leaving:
            self._leaving[node] = asyncio.create_task(self._drain_full(node))
            self._leaving[node].add_done_callback(lambda _: self._leaving.pop(node))

    async def _drain_full(self, node: str) -> None:
        try:
            await self.drain(node)
        except MemoryAgentError as error:
            log.warning("node.not_drained", node=node, code=error.code)
        if node in self.full_nodes():
            self._pool.any_on(node)  # this host reports when the disk has room again

    async def wake(self, user_id: str, deadline_ms: float) -> None:
        """Raises the errors of `call` and of opening the memory."""
        reply = await self._call(user_id, "stats", encode(NoParams()), deadline_ms, NO_RIGHTS, waits=False)
        decode_reply(reply, MemoryStats)

    async def address(self, user_id: str, deadline_ms: float) -> HostAddress:
        await self.wake(user_id, deadline_ms)
        return (await self._host_of(user_id)).address

    async def sleep(self, user_id: str, *, force: bool = False) -> None:
        """Put a user to sleep, unless one of the user's requests is running. With `force`, ignore running requests."""
        if user_id in self._directory:
            async with self._locked(user_id):
                if force or user_id not in self._busy:
                    try:
                        await self._close(user_id)
                    except MemoryAgentError as error:
                        log.warning("user.not_asleep", user_id=user_id, code=error.code)

    @asynccontextmanager
    async def kept_asleep(self, user_id: str, patience_s: float | None = None) -> AsyncIterator[None]:
        """Keep the user asleep while the context is open. Waits for running calls; new calls wait until the context is
        closed.

        Raises `TimeoutError` if the running calls take longer than `patience_s`.
        """
        async with self._locked(user_id):
            async with asyncio.timeout(patience_s):
                while user_id in self._busy:
                    self._changed.clear()
                    await self._changed.wait()
            await self._close(user_id)
            yield

    async def sleep_idle(self) -> None:
        """Put to sleep all users that have had no request for `daemon.idle_sleep_s`."""
        for user_id in self._directory.idle(time.monotonic(), self._settings.idle_sleep_s):
            await self.sleep(user_id)

    async def balance(self) -> None:
        """Balance the nodes. Then, if possible, move one user from a host with several busy users to a host without
        any.

        The next request for this user wakes the user on the least loaded host. If a running request takes longer than a
        recall may wait, the user stays until the next round.
        """
        await self._balance_nodes()
        for node in self.full_nodes():
            self._leave_full(node)
        user_id = self._directory.misplaced(time.monotonic())
        if user_id is None:
            return
        with suppress(TimeoutError, MemoryAgentError):
            async with self.kept_asleep(user_id, _MOVE_PATIENCE_S):
                log.info("user.moved", user_id=user_id)

    async def _balance_nodes(self) -> None:
        """Move users, the least recently used first, until the awake users per core are balanced.

        Also starts a spare host on each node, in case a node is lost.
        """
        if self._cluster is None:
            return
        for node in self._pool.nodes():
            self._pool.started(self._directory.host_on("", time.monotonic(), node), node)
        for _ in range(_MOVES_A_ROUND):
            crowded = self._directory.crowded(self._pool.nodes())
            if crowded is None:
                return
            user_id, node = crowded
            try:
                await self._relocate(user_id, node, _MOVE_PATIENCE_S)
            except (MemoryAgentError, TimeoutError) as error:
                log.warning("user.not_moved", user_id=user_id, reason=type(error).__name__)
                return

    async def keep_up(self, *, fill_vectors: bool) -> None:
        await self._pool.keep_up(self._settings.ingest_timeout_s, fill_vectors=fill_vectors)

    def figures(self) -> PoolFigures:
        return self._pool.figures()

    async def pids(self) -> dict[str, int]:
        return await self._pool.pids()

    def awake(self) -> tuple[str, ...]:
        return self._directory.awake()

    def is_awake(self, user_id: str) -> bool:
        return user_id in self._directory

    async def close(self) -> None:
        self._is_closing = True
        for moves in self._drains:
            moves.cancel()  # they may hold a user's lock for as long as a request runs
        await asyncio.gather(*self._drains, return_exceptions=True)
        await asyncio.gather(*(self.sleep(user_id, force=True) for user_id in self._directory.awake()))
        self._pool.close()

    async def _send(
        self, request: HostRequest, body: bytes, deadline_s: float, *, is_repeatable: bool, waits: bool
    ) -> bytes:
        """Retry if the host was not up or, for a repeatable request, if it died.

        `waits`: whether the request waits until the unarchived events of a lost host have been ingested again.
        """
        while deadline_s > time.monotonic():
            if waits and request.user_id in self._recoveries:  # the host was lost during this request
                await self._recover_in_between(request.user_id, deadline_s)
            host = await self._host_of(request.user_id)
            try:
                reply = await host.request(self._placed(request), body, deadline_s - time.monotonic())
                if reply == NOT_DONE:
                    raise UnavailableError(f"{host.name} has no lease")
                if host.is_gone or reply == OUTCOME_UNKNOWN:
                    raise HostDiedError(f"the lease of {host.name} ended")
                return reply
            except UnavailableError as error:
                self._pool.forget_if_gone(host)
                if isinstance(error, HostDiedError) and not is_repeatable:
                    error.is_lost = host.is_gone and host.node != HOME
                    raise
                await asyncio.sleep(_RETRY_PAUSE_S)
        raise DeadlineExceededError("its host did not start in time")

    async def _recovery(self, user_id: str, deadline_s: float) -> None:
        """Wait until the unarchived events of a lost host have been ingested again."""
        recovery = self._recoveries.get(user_id)
        if recovery is not None:
            await asyncio.wait((recovery,), timeout=deadline_s - time.monotonic())

    async def _recover_in_between(self, user_id: str, deadline_s: float) -> None:
        """Like `_recovery`, inside `_busy_user`. During the wait, the user does not count as busy, so that events can
        wake the user.
        """
        self._count_out(user_id)
        try:
            await self._recovery(user_id, deadline_s)
            await self._seat(user_id)
        except BaseException:
            self._busy[user_id] += 1  # because `_busy_user` stops counting the user when its context is closed
            raise

    @asynccontextmanager
    async def _busy_user(self, user_id: str, deadline_s: float | None = None) -> AsyncIterator[None]:
        """Keep the user awake while the context is open. Raises `DeadlineExceededError` if no seat is free by
        `deadline_s`.
        """
        if user_id in self._directory and user_id not in self._user_locks:  # awake, and not being put to sleep
            self._busy[user_id] += 1
        else:
            try:
                async with asyncio.timeout(None if deadline_s is None else deadline_s - time.monotonic()):
                    await self._seat(user_id)
            except TimeoutError as error:
                raise DeadlineExceededError("it did not wake in time") from error
        try:
            yield
        finally:
            self._count_out(user_id)

    async def _seat(self, user_id: str) -> None:
        """Seat a user who is asleep, and count one request. Users without a seat wait in order of arrival.

        In a cluster, this continues even if the caller gives up, because a move must not stop halfway.
        """
        if self._cluster is None:
            await self._seat_now(user_id)
            return
        seating = asyncio.create_task(self._seat_now(user_id))
        try:
            await asyncio.shield(seating)
        except asyncio.CancelledError:
            seating.add_done_callback(partial(self._give_up, user_id))
            raise

    def _give_up(self, user_id: str, seating: asyncio.Task[None]) -> None:
        if not seating.cancelled() and seating.exception() is None:
            self._count_out(user_id)

    def _count_out(self, user_id: str) -> None:
        self._busy[user_id] -= 1
        if not self._busy[user_id]:
            del self._busy[user_id]
            self._changed.set()

    async def _seat_now(self, user_id: str) -> None:
        async with self._locked(user_id):
            if user_id not in self._directory:
                node = await self._place(user_id)
                async with self._seating:
                    while len(self._directory) >= self._settings.most_awake:
                        await self._make_room()
                    self._directory.seat(user_id, time.monotonic(), node)
            self._busy[user_id] += 1

    @asynccontextmanager
    async def _locked(self, user_id: str) -> AsyncIterator[None]:
        user_lock = self._user_locks[user_id]
        user_lock.holders += 1
        try:
            async with user_lock.lock:
                yield
        finally:
            user_lock.holders -= 1
            if not user_lock.holders:
                del self._user_locks[user_id]
                self._changed.set()

    async def _make_room(self) -> None:
        """Put the least recently used idle user to sleep, or wait until a user becomes idle."""
        idle = next((user for user in self._directory if user not in self._busy and user not in self._user_locks), None)
        if idle is not None:
            await self.sleep(idle)
            if idle in self._directory:  # it cannot be archived now
                await asyncio.sleep(_RETRY_PAUSE_S)
            return
        self._changed.clear()
        await self._changed.wait()

    async def _host_of(self, user_id: str) -> Host:
        if user_id not in self._directory:  # its host was lost during a request
            await asyncio.shield(asyncio.create_task(self._reseat(user_id)))
        name = self._directory.seat(user_id, time.monotonic())
        return self._pool.use(name, self._directory.node_of(user_id) or HOME, shared=name == _OF_SHARED)

    async def _reseat(self, user_id: str) -> None:
        async with self._lost_users.setdefault(user_id, asyncio.Lock()):
            if user_id not in self._directory:
                self._directory.seat(user_id, time.monotonic(), await self._place(user_id))

    def _host_now(self, user_id: str) -> Host | None:
        name = self._directory.host_of(user_id)
        return None if name is None else self._pool.find(name)

    def _lose_users(self, host_name: str) -> None:
        for user_id in self._directory.users_of(host_name):
            self._directory.leave(user_id)
            self._recover(user_id)
        self._changed.set()

    def _recover(self, user_id: str) -> None:
        """Start redelivering a user's events that were not archived."""
        waits = [awaitable for watcher in self._watchers if (awaitable := watcher.lost(user_id)) is not None]
        if waits:
            recovery = self._recoveries[user_id] = asyncio.gather(*waits, return_exceptions=True)
            recovery.add_done_callback(partial(self._recovered, user_id))

    def _recovered(self, user_id: str, recovery: asyncio.Future[Any]) -> None:
        if self._recoveries.get(user_id) is recovery:
            del self._recoveries[user_id]

    @property
    def _in_cluster(self) -> Topology:
        assert self._cluster is not None
        return self._cluster

    async def _place(self, user_id: str) -> str:
        """Move a waking user to the node chosen for it, and return that node."""
        if self._cluster is None or user_id == SHARED_USER:
            return HOME
        former = self._cluster.placements.known(user_id)
        current = None if former is None else former.node
        node = chosen_node(user_id, current, self._pool.nodes(), self._directory.awake_by_node())
        if user_id in self._pinned:
            node = HOME
        if node == (HOME if current is None else current):
            return node
        try:
            await self._move(user_id, node)
        except MemoryAgentError as error:
            if current not in self._pool.nodes() or user_id in self._pinned:
                raise
            log.warning("user.not_moved", user_id=user_id, code=error.code)
            return current
        return node

    async def _move(self, user_id: str, node: str) -> None:
        """Move a user who is asleep.

        Files on the daemon's machine are archived first. Files on other nodes were archived when the user fell asleep.
        """
        placements, timeout_s = self._in_cluster.placements, self._settings.ingest_timeout_s
        former = placements.known(user_id)
        if former is not None and former.node == HOME:
            if not former.epoch:  # it was never placed on another node
                former = placements.move(user_id, HOME)
            position = await self._pool.any_on(HOME).release(user_id, former, timeout_s)
            if position is not None:
                placements.note_archived(user_id, position)
        moved = placements.move(user_id, node)
        reached = self._pool.nodes().keys() | self.full_nodes()
        if former is not None and former.node in reached and former.node != node:  # that node was not lost
            try:
                await self._pool.any_on(former.node).discard(user_id, moved.epoch, timeout_s)
            except MemoryAgentError as error:  # the files are already outdated
                log.warning("files.not_discarded", user_id=user_id, node=former.node, code=error.code)

    def _placed(self, request: HostRequest) -> HostRequest:
        """Add the placement, from which a host determines whether its files are current."""
        if self._cluster is None:
            return request
        return msgspec.structs.replace(request, placement=self._cluster.placements.of(request.user_id))

    async def _close(self, user_id: str) -> None:
        """Put a user to sleep. Raises `UnavailableError` if the user is on another node and cannot be archived.

        If that node's disk is too full for archiving, the user's files there are abandoned, as after the loss of the
        node.
        """
        if user_id not in self._directory:
            return
        host, is_away = self._host_now(user_id), self.is_away(user_id)
        fault = None if host is None else await self._sleep(host, user_id)
        is_given_up = isinstance(fault, StoreError) and host is not None and host.node in self.full_nodes()
        if is_away and host is not None and (host.is_gone or (fault is not None and not is_given_up)):
            raise UnavailableError(f"{user_id} could not be archived")
        if self._cluster is not None:
            self._cluster.placements.save(user_id)
        unused = self._directory.leave(user_id)
        if is_given_up:
            self._recover(user_id)
        elif is_away and host is not None:
            for watcher in self._watchers:
                watcher.saved(user_id)
        if unused is not None:
            self._pool.release(unused, is_usable=host is not None and fault is None)

    async def _sleep(self, host: Host, user_id: str) -> MemoryAgentError | None:
        try:
            position = await host.sleep(user_id, _SLEEP_TIMEOUT_S)
        except MemoryAgentError as error:
            log.warning("memory.not_slept", user_id=user_id, code=error.code)
            return error
        if position is not None:
            self._in_cluster.placements.note_archived(user_id, position)
        return None
