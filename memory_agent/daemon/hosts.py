"""Users as virtual actors: each always exists by name, wakes at its first request and sleeps when idle.

A user is awake if its memory is open in a host process. Callers name a user, and `Hosts` finds or starts the process.
At most `daemon.most_awake` users are awake; a further user waits until the least recently used idle user is put to
sleep. `Directory` assigns awake users to host processes.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import xxhash

from memory_agent.daemon.capacity import Capacity
from memory_agent.daemon.supervisor import Host, Supervisor
from memory_agent.errors import DeadlineExceededError, HostDiedError, MemoryAgentError, UnavailableError
from memory_agent.records.memories import IngestReport, MemoryStats
from memory_agent.records.shared_requests import NO_RIGHTS, Rights
from memory_agent.settings import DaemonSettings
from memory_agent.verbs.params import NoParams
from memory_agent.verbs.protocol import HostAddress, HostRequest, IngestBatch, decode_reply, encode
from memory_agent.verbs.table import BY_NAME
from relay import SHARED_USER
from relay.log import log

_RETRY_PAUSE_S = 0.1
_SLEEP_TIMEOUT_S = 30.0
_MOVE_PATIENCE_S = 0.5

_OF_SHARED = "shared-knowledge"
"""The name of the host of shared items, a separate process."""


@dataclass
class _UserLock:
    """The lock of one user, which exists while a task holds it or waits for it."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    holders: int = 0


class Hosts:
    """The host processes and the users awake in them. Must be used from a single event loop.

    If a host dies, a request is repeated after Ray has restarted the host, within the deadline, and only if it had not
    been sent or if its verb may be repeated. Processes without awake users are kept as spares, up to
    `daemon.spare_hosts`: starting a process takes a second of processor time, on a busy machine longer than a caller
    waits.
    """

    def __init__(self, supervisor: Supervisor, settings: DaemonSettings, capacity: Capacity) -> None:
        self._supervisor = supervisor
        self._settings = settings
        self._spares_kept = capacity.spare_hosts
        apart = {SHARED_USER: _OF_SHARED}
        self._directory = Directory(capacity.dedicated_hosts, capacity.shared_hosts, apart)
        self._hosts: dict[str, Host] = {}
        self._spares: list[Host] = []
        self._user_locks: defaultdict[str, _UserLock] = defaultdict(_UserLock)
        self.calls_under_way = 0
        """The number of running and waiting calls, without batches of events."""
        self._busy: defaultdict[str, int] = defaultdict(int)
        self._seating = asyncio.Lock()
        self._changed = asyncio.Event()

    async def call(
        self, user_id: str, method: str, params: bytes, deadline_ms: float, rights: Rights = NO_RIGHTS
    ) -> bytes:
        """Return the encoded reply of the user's memory. Raises `DeadlineExceededError` and `HostDiedError`."""
        deadline_s = time.monotonic() + deadline_ms / 1000
        request = HostRequest(user_id=user_id, method=method, rights=rights)
        self.calls_under_way += 1
        try:
            async with self._busy_user(user_id, deadline_s):
                return await self._send(request, params, deadline_s, is_repeatable=BY_NAME[method].is_repeatable)
        except DeadlineExceededError as error:
            raise DeadlineExceededError(f"{method} of {user_id}: {error}") from error
        finally:
            self.calls_under_way -= 1

    async def ingest(self, user_id: str, batch: IngestBatch) -> IngestReport:
        """Ingest journal entries into the user's memory. Durable on return. Raises the errors of the memory."""
        deadline_s = time.monotonic() + self._settings.ingest_timeout_s
        async with self._busy_user(user_id):
            reply = await self._send(HostRequest(user_id=user_id), encode(batch), deadline_s, is_repeatable=False)
        return decode_reply(reply, IngestReport)

    async def wake(self, user_id: str, deadline_ms: float) -> None:
        """Wake the user, or do nothing if it is awake. Raises the same errors as `call`, and errors from opening the
        memory.
        """
        decode_reply(await self.call(user_id, "stats", encode(NoParams()), deadline_ms), MemoryStats)

    async def address(self, user_id: str, deadline_ms: float) -> HostAddress:
        """Wake the user and return its actor. Raises the same errors as `call`."""
        await self.wake(user_id, deadline_ms)
        return self._host_of(user_id).address

    async def sleep(self, user_id: str, *, force: bool = False) -> None:
        """Put a user to sleep, unless it has a running request. With `force`, do so even then."""
        if user_id in self._directory:
            async with self._locked(user_id):
                if force or user_id not in self._busy:
                    await self._close(user_id)

    @asynccontextmanager
    async def kept_asleep(self, user_id: str, patience_s: float | None = None) -> AsyncIterator[None]:
        """Keep the user asleep inside the context. Waits for running calls; new calls wait for the end of the context.

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
        """Put users without a request for `daemon.idle_sleep_s` to sleep."""
        for user_id in self._directory.idle(time.monotonic(), self._settings.idle_sleep_s):
            await self.sleep(user_id)

    async def balance(self) -> None:
        """Move one busy user from a shared host with several busy users to an idle shared host, if both exist.

        Waits for the user's running requests; its next request wakes it on the least loaded host. If a request takes
        longer than a recall may wait, the user stays until the next round.
        """
        user_id = self._directory.misplaced(time.monotonic())
        if user_id is None:
            return
        with suppress(TimeoutError):
            async with self.kept_asleep(user_id, _MOVE_PATIENCE_S):
                log.info("user.moved", user_id=user_id)

    async def keep_up(self, *, fill_vectors: bool) -> None:
        """Run the upkeep of every host, one after another: expire runs and memories, learn, compute missing vectors."""
        for host in list(self._hosts.values()):
            try:
                await host.keep_up(self._settings.ingest_timeout_s, fill_vectors=fill_vectors)
            except MemoryAgentError as error:
                log.warning("host.not_kept_up", host=host.name, code=error.code)

    async def pids(self) -> dict[str, int]:
        """Return the process id of each host that answers."""
        hosts = self._hosts | {f"spare-{number}": host for number, host in enumerate(self._spares)}
        found = await asyncio.gather(*(host.pid(1.0) for host in hosts.values()), return_exceptions=True)
        silent = [name for name, pid in zip(hosts, found, strict=True) if not isinstance(pid, int)]
        if silent:
            log.warning("hosts.silent", hosts=silent)
        return {name: pid for name, pid in zip(hosts, found, strict=True) if isinstance(pid, int)}

    def awake(self) -> tuple[str, ...]:
        """Return the awake users."""
        return self._directory.awake()

    def is_awake(self, user_id: str) -> bool:
        """Whether the user is awake."""
        return user_id in self._directory

    async def close(self) -> None:
        """Put all users to sleep and end the hosts."""
        await asyncio.gather(*(self.sleep(user_id, force=True) for user_id in self._directory.awake()))
        while self._spares:
            self._spares.pop().end()

    async def _send(self, request: HostRequest, body: bytes, deadline_s: float, *, is_repeatable: bool) -> bytes:
        """Send a request to the user's host. Retry if the host was not up or, for a repeatable request, if it died."""
        while (left_s := deadline_s - time.monotonic()) > 0:
            host = self._host_of(request.user_id)
            try:
                return await host.request(request, body, left_s)
            except UnavailableError as error:
                self._forget_if_gone(request.user_id, host)
                if isinstance(error, HostDiedError) and not is_repeatable:
                    raise
                await asyncio.sleep(_RETRY_PAUSE_S)
        raise DeadlineExceededError("its host did not start in time")

    @asynccontextmanager
    async def _busy_user(self, user_id: str, deadline_s: float | None = None) -> AsyncIterator[None]:
        """Keep the user awake inside the context. Raises `DeadlineExceededError` if no seat is free by `deadline_s`."""
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
            self._busy[user_id] -= 1
            if not self._busy[user_id]:
                del self._busy[user_id]
                self._changed.set()

    async def _seat(self, user_id: str) -> None:
        """Seat a user who is asleep, and count one request. Users without a seat wait in order of arrival."""
        async with self._locked(user_id):
            if user_id not in self._directory:
                async with self._seating:
                    while len(self._directory) >= self._settings.most_awake:
                        await self._make_room()
                    self._directory.seat(user_id, time.monotonic())
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
        """Put the least recently used idle user to sleep, or wait for one to become idle."""
        idle = next((user for user in self._directory if user not in self._busy and user not in self._user_locks), None)
        if idle is not None:
            await self.sleep(idle)
            return
        self._changed.clear()
        await self._changed.wait()

    def _host_of(self, user_id: str) -> Host:
        name = self._directory.seat(user_id, time.monotonic())
        if name not in self._hosts:
            is_spare = self._spares and name != _OF_SHARED
            self._hosts[name] = (
                self._spares.pop() if is_spare else self._supervisor.start_host(shared=name == _OF_SHARED)
            )
        return self._hosts[name]

    def _forget_if_gone(self, user_id: str, host: Host) -> None:
        """Use another process for the next call if Ray will not restart this one."""
        name = self._directory.seat(user_id, time.monotonic())
        if host.is_gone and self._hosts.get(name) is host:
            log.warning("host.gone", host=host.name)
            del self._hosts[name]

    async def _close(self, user_id: str) -> None:
        if user_id not in self._directory:
            return
        host = self._hosts.get(self._directory.seat(user_id, time.monotonic()))
        is_usable = host is not None and await self._sleeps(host, user_id)
        unused = self._directory.leave(user_id)
        if unused is None or unused not in self._hosts:
            return
        empty = self._hosts.pop(unused)
        if not empty.can_be_killed or (is_usable and len(self._spares) < self._spares_kept):
            self._spares.append(empty)
        else:
            empty.end()

    async def _sleeps(self, host: Host, user_id: str) -> bool:
        """Close the memory of `user_id`; return whether this succeeded."""
        try:
            await host.sleep(user_id, _SLEEP_TIMEOUT_S)
        except MemoryAgentError as error:
            log.warning("memory.not_slept", user_id=user_id, code=error.code)
            return False
        return True


_BUSY_S = 30.0
"""How long after a request a user counts as busy."""


@dataclass
class Seat:
    """The host of an awake user, and the time of its last request (seconds, monotonic clock).

    `is_apart`: whether the user has a fixed host, and stays awake while the daemon runs.
    """

    host: str
    dedicated: bool
    last_used_s: float
    is_apart: bool = False

    def is_busy(self, now_s: float) -> bool:
        """Whether the user had a request recently."""
        return now_s - self.last_used_s < _BUSY_S


class Directory:
    """The awake users and the names of their hosts. Pure.

    The first users to wake get their own hosts, up to `dedicated_limit`; the others share `shared_hosts` hosts. A
    waking user gets the host with the fewest busy users, then the fewest users; rendezvous hashing breaks ties, so that
    a user tends to return to the same host. An awake user keeps its host. Rejected: rendezvous hashing by itself, with
    which two of eight users share one of eight hosts in 99.8 of 100 cases, while other hosts are idle. One process per
    user does not scale: a Ray process uses 53 MB and, when idle, half a percent of a core (measured).
    """

    def __init__(self, dedicated_limit: int, shared_hosts: int, apart: Mapping[str, str] = {}) -> None:
        """`shared_hosts` is at least 1. `apart` maps some users to fixed hosts; these users count towards no limit."""
        self._apart = apart
        self._dedicated_limit = dedicated_limit
        self._shared = tuple(f"shared-{number}" for number in range(shared_hosts))
        self._seats: dict[str, Seat] = {}  # least recently used first

    def __contains__(self, user_id: str) -> bool:
        return user_id in self._seats

    def __len__(self) -> int:
        return sum(not seat.is_apart for seat in self._seats.values())

    def __iter__(self) -> Iterator[str]:
        """Iterate over the awake users that may be put to sleep, least recently used first."""
        return iter([user for user, seat in self._seats.items() if not seat.is_apart])

    def seat(self, user_id: str, now_s: float) -> str:
        """Return the user's host, assigning one if the user was asleep."""
        seat = self._seats.pop(user_id, None) or self._assign(user_id, now_s)
        seat.last_used_s = now_s
        self._seats[user_id] = seat
        return seat.host

    def leave(self, user_id: str) -> str | None:
        """Remove the user; return its host if no other user is on it."""
        seat = self._seats.pop(user_id, None)
        if seat is None or any(other.host == seat.host for other in self._seats.values()):
            return None
        return seat.host

    def idle(self, now_s: float, idle_s: float) -> tuple[str, ...]:
        """Return the users without a request for `idle_s`."""
        return tuple(user for user in self if now_s - self._seats[user].last_used_s >= idle_s)

    def misplaced(self, now_s: float) -> str | None:
        """Return a busy user who shares a host with busy users while another shared host has none; else None."""
        busy = self._busy(now_s)
        if all(busy[host] for host in self._shared):
            return None
        shared = (user for user, seat in self._seats.items() if not seat.dedicated and busy[seat.host] > 1)
        return next((user for user in shared if self._seats[user].is_busy(now_s)), None)

    def awake(self) -> tuple[str, ...]:
        """Return the awake users, least recently used first."""
        return tuple(self._seats)

    def _assign(self, user_id: str, now_s: float) -> Seat:
        if user_id in self._apart:
            return Seat(self._apart[user_id], True, now_s, is_apart=True)
        dedicated = sum(self._seats[user].dedicated for user in self)
        if dedicated < self._dedicated_limit:
            return Seat(f"user-{user_id}", True, now_s)
        busy, users = self._busy(now_s), Counter(seat.host for seat in self._seats.values())
        load = {host: (busy[host], users[host]) for host in self._shared}
        least = min(load.values())
        return Seat(rendezvous(user_id, tuple(host for host in self._shared if load[host] == least)), False, now_s)

    def _busy(self, now_s: float) -> Counter[str]:
        return Counter(seat.host for seat in self._seats.values() if seat.is_busy(now_s))


def rendezvous(key: str, nodes: tuple[str, ...]) -> str:
    """Return the node of `key`. Removing a node moves only its own keys (Thaler, Ravishankar 1998)."""
    return max(nodes, key=lambda node: xxhash.xxh3_64_intdigest(f"{node}\0{key}".encode()))
