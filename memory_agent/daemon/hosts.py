"""Users as virtual actors: each always exists by name, wakes at its first message and sleeps when idle.

Callers name a user and never see which process answers. A host that died is asked again once Ray has started it
anew, for as long as the caller's deadline allows. What this does not do: decide who may ask (`gateway`).
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import structlog

from memory_agent.config import DaemonSettings
from memory_agent.daemon.actors import NAMESPACE, Cluster, Host
from memory_agent.daemon.placement import Directory
from memory_agent.errors import DeadlineExceededError, HostDiedError, MemoryAgentError
from memory_agent.protocol import HostAddress, IngestBatch, NoParams, decode_reply, encode
from memory_agent.records import IngestReport, MemoryStats

log = structlog.get_logger()

_RETRY_PAUSE_S = 0.1
_SLEEP_TIMEOUT_S = 30.0


@dataclass
class _Gate:
    """One at a time, for one user; there only while somebody is in it or waits."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    people: int = 0


class Hosts:
    """The processes that host memories, and who is awake in them. Lives in one event loop."""

    def __init__(self, cluster: Cluster, settings: DaemonSettings) -> None:
        self._cluster = cluster
        self._settings = settings
        self._directory = Directory(settings.dedicated_hosts, settings.shared_hosts)
        self._hosts: dict[str, Host] = {}
        self._gates: defaultdict[str, _Gate] = defaultdict(_Gate)
        self._busy: defaultdict[str, int] = defaultdict(int)

    async def call(self, user_id: str, method: str, params: bytes, deadline_ms: float) -> bytes:
        """Return the encoded reply of the user's memory. Raises `DeadlineExceededError`, `HostDiedError`."""
        deadline_s = time.monotonic() + deadline_ms / 1000
        host = await self._enter(user_id)
        try:
            while True:
                remaining_ms = (deadline_s - time.monotonic()) * 1000
                if remaining_ms <= 0:
                    raise DeadlineExceededError(f"{method} of {user_id} did not finish within {deadline_ms:.0f} ms")
                try:
                    return await host.call(user_id, method, params, remaining_ms)
                except HostDiedError:
                    if method not in _REPEATABLE:
                        raise
                    await asyncio.sleep(_RETRY_PAUSE_S)
        finally:
            self._leave(user_id)

    async def ingest(self, user_id: str, batch: IngestBatch) -> IngestReport:
        """Hand journal entries to the user's memory; durable on return. Raises what the memory raises."""
        host = await self._enter(user_id)
        try:
            reply = await host.ingest(user_id, encode(batch), self._settings.ingest_timeout_s)
        finally:
            self._leave(user_id)
        return decode_reply(reply, IngestReport)

    async def address(self, user_id: str, deadline_ms: float) -> HostAddress:
        """Wake the user and tell where it lives. Raises what waking raises."""
        decode_reply(await self.call(user_id, "stats", encode(NoParams()), deadline_ms), MemoryStats)
        return HostAddress(actor=self._directory.seat(user_id, time.monotonic()), namespace=NAMESPACE)

    async def sleep_idle(self) -> None:
        """Put users to sleep that were not spoken to for a while."""
        for user_id in self._directory.idle(time.monotonic(), self._settings.idle_sleep_s):
            await self._sleep(user_id)

    async def fill_vectors(self) -> int:
        """Have every host embed what was stored without a model; return how many vectors were filled in."""
        filled = 0
        for host in list(self._hosts.values()):
            try:
                filled += await host.fill_vectors(self._settings.ingest_timeout_s)
            except MemoryAgentError as error:
                log.warning("vectors.not_filled", host=host.name, code=error.code)
        return filled

    async def keep_up(self) -> None:
        """Have every host expire abandoned runs and consolidate what was learned."""
        for host in list(self._hosts.values()):
            try:
                await host.keep_up(self._settings.ingest_timeout_s)
            except MemoryAgentError as error:
                log.warning("host.not_kept_up", host=host.name, code=error.code)

    async def pids(self) -> dict[str, int]:
        """Return the process id of each host that answers."""
        found = {}
        for name, host in list(self._hosts.items()):
            try:
                found[name] = await host.pid(1.0)
            except MemoryAgentError:
                log.warning("host.silent", host=name)
        return found

    def awake(self) -> tuple[str, ...]:
        """Return the users that are awake."""
        return self._directory.awake()

    async def close(self) -> None:
        """Put everybody to sleep and end the hosts."""
        await asyncio.gather(*(self._sleep(user_id, force=True) for user_id in self._directory.awake()))

    @asynccontextmanager
    async def _alone(self, user_id: str) -> AsyncIterator[None]:
        gate = self._gates[user_id]
        gate.people += 1
        try:
            async with gate.lock:
                yield
        finally:
            gate.people -= 1
            if not gate.people:
                del self._gates[user_id]

    async def _enter(self, user_id: str) -> Host:
        async with self._alone(user_id):
            self._busy[user_id] += 1
            name = self._directory.seat(user_id, time.monotonic())
            if name not in self._hosts:
                self._hosts[name] = self._cluster.host(name)
            return self._hosts[name]

    def _leave(self, user_id: str) -> None:
        self._busy[user_id] -= 1
        if not self._busy[user_id]:
            del self._busy[user_id]

    async def _sleep(self, user_id: str, *, force: bool = False) -> None:
        async with self._alone(user_id):
            if user_id in self._busy and not force:
                return
            host = self._hosts[self._directory.seat(user_id, time.monotonic())]
            try:
                await host.sleep(user_id, _SLEEP_TIMEOUT_S)
            except MemoryAgentError as error:
                log.warning("memory.not_slept", user_id=user_id, code=error.code)
            unused = self._directory.leave(user_id)
            if unused is not None:
                self._hosts.pop(unused).end()


_READS = {"recall", "get", "stats", "run_get", "run_list", "sona_status", "sona_export"}
_RECOGNISED = {"run_begin", "run_step", "run_end", "feedback"}
"""What carries the id of its event."""
_IDEMPOTENT = {"forget", "forget_session", "erase_begin", "erase_finish", "sona_reset", "sona_import"}
_REPEATABLE = frozenset(_READS | _RECOGNISED | _IDEMPOTENT)
