"""Reacts to events of the journal: asks the memory of their user, and publishes the block (`memory.recalled`).

It delays nothing else: it runs few recalls at a time and none while callers or events wait, and what it cannot do in
time it drops and counts. A cause has at most one block, also after a crash: its event id follows from the cause's, and
the journal has each id once. A crash may cost the block.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial

from memory_agent.daemon.hosts import Hosts
from memory_agent.daemon.latency import LatencyWindow
from memory_agent.errors import MemoryAgentError, UnavailableError
from memory_agent.settings import TriggerSettings
from memory_agent.triggers.block import Block
from memory_agent.triggers.queue import Cause, TriggerQueue
from memory_agent.triggers.table import TriggerTable
from memory_agent.verbs.params import ReactParams
from memory_agent.verbs.protocol import decode_reply, encode
from memory_agent.verbs.table import BY_NAME
from relay import Publisher, RelayError, read_event
from relay.log import log

_OF_ONE_USER = 8
_RETRY_S = 0.02
_FLUSH_S = 10.0


class Reactor:
    """Reacts to the events of all users. Lives in one event loop."""

    def __init__(
        self,
        hosts: Hosts,
        publisher: Publisher,
        settings: TriggerSettings,
        table: TriggerTable,
        calls_at_once: int,
        waiting: Callable[[], int] = lambda: 0,
    ) -> None:
        """Wait while `calls_at_once` requests of callers run. `waiting` says how many events wait to be ingested.

        The `publisher` stays the caller's to close.
        """
        self._hosts = hosts
        self._publisher = publisher
        self._settings = settings
        self._table = table
        self._calls_at_once = calls_at_once
        self._waiting = waiting
        self._off_for = frozenset(settings.off_for)
        self._queue = TriggerQueue(settings.waiting, _OF_ONE_USER)
        self._running: dict[str, asyncio.Task[None]] = {}
        self._paused: Counter[str] = Counter()
        self._changed = asyncio.Event()
        self._counts = self._queue.counts
        self._latency = LatencyWindow()

    def notice(self, user_id: str, seq: int, event_type: str, data: bytes, received_ms: int) -> None:
        """Queue the recall that an event of this user calls for, if any. Does not wait."""
        trigger = self._table.name_of(event_type) if self._settings.enabled else None
        if trigger is None or user_id in self._off_for or user_id in self._paused:
            return
        row = self._table.rows[trigger]
        now_s = time.monotonic()
        left_s = (row.deadline_ms - max(0.0, time.time() * 1000 - received_ms)) / 1000
        if left_s <= 0:  # read again after a restart, or its owner became known late
            self._counts["late"] += 1
            return
        document = self._table.document_of(read_event(data), trigger) if row.debounce_s else None
        pause_s = 0.0 if document is None else row.debounce_s
        self._queue.offer(Cause(user_id, seq, trigger, data, now_s + left_s, received_ms, document, pause_s), now_s)
        self._changed.set()

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._changed.clear()
                wait_s = self._start_due(tasks)
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._changed.wait()

    @asynccontextmanager
    async def paused(self, user_id: str) -> AsyncIterator[None]:
        """Publish nothing for this user within this, for an erasure; what was published before is in the journal.

        Raises `UnavailableError` while the relay takes no events.
        """
        self._paused[user_id] += 1
        try:
            self._queue.drop(user_id)
            if user_id in self._running:
                self._running[user_id].cancel()
                await asyncio.wait((self._running[user_id],))
            if (await asyncio.to_thread(self._publisher.flush, _FLUSH_S)).pending:
                raise UnavailableError("relay: blocks wait for its acknowledgement")
            yield
        finally:
            self._paused[user_id] -= 1
            self._paused += Counter()  # forgets zeros

    def status(self) -> dict[str, float]:
        """Return how many blocks were published, how many causes were dropped by reason, and how long blocks took.

        `silent`: the event says nothing. `p50_ms` and `p99_ms` are from the event's arrival in the journal until its
        block was sent, of the last thousand.
        """
        took = {name: value for name, value in self._latency.summary().items() if name != "count"}
        return {**self._counts, "waiting": len(self._queue), **took}

    def _start_due(self, tasks: asyncio.TaskGroup) -> float | None:
        """Start the recalls that are due; return when to look again, None for at the next change."""
        while len(self._running) < self._settings.at_once:
            if self._is_crowded():
                return _RETRY_S if len(self._queue) else None
            now_s = time.monotonic()
            cause = self._queue.take(now_s)
            if cause is None:
                due_s = self._queue.next_due_s()
                return None if due_s is None else max(0.0, due_s - now_s)
            task = self._running[cause.user_id] = tasks.create_task(self._react(cause))
            task.add_done_callback(partial(self._ended, cause.user_id))
        return None

    def _is_crowded(self) -> bool:
        calls = self._hosts.calls_under_way - len(self._running)
        return calls >= self._calls_at_once or self._waiting() > self._settings.lag_events

    def _ended(self, user_id: str, _task: asyncio.Task[None]) -> None:
        del self._running[user_id]
        self._queue.done(user_id)
        self._changed.set()

    async def _react(self, cause: Cause) -> None:
        params = encode(ReactParams(event=cause.data, trigger=cause.trigger))
        left_ms = (cause.deadline_s - time.monotonic()) * 1000
        try:
            reply = await self._hosts.call(cause.user_id, "react", params, left_ms)
            block: Block | None = decode_reply(reply, BY_NAME["react"].result)
            is_late = time.monotonic() > cause.deadline_s
            outcome = "silent" if block is None else "late" if is_late else self._publish(cause, block)
        except (MemoryAgentError, RelayError) as error:
            outcome = "failed"
            log.warning("trigger.failed", user_id=cause.user_id, trigger=cause.trigger, code=error.code)
        self._counts[outcome] += 1

    def _publish(self, cause: Cause, block: Block) -> str:
        if self._publisher.try_publish(block.to_event(cause.user_id)) is None:
            return "unpublished"  # the relay has not acknowledged earlier ones
        took_ms = time.time() * 1000 - cause.received_ms
        self._latency.add(took_ms)
        log.info(
            "block.published",
            user_id=cause.user_id,
            trigger=cause.trigger,
            memories=len(block.memories),
            degraded=block.degraded,
            took_ms=round(took_ms, 1),
        )
        return "published"
