"""Publishes blocks (`memory.recalled`) for the events that a trigger names: queues them, recalls, publishes the answer.

Reactions never delay other work: few run at a time, none while callers or events wait, and late ones are dropped and
counted. An event causes at most one block, even after a crash, because the block's event id is derived from that of the
event.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial

from memory_agent.daemon.hosts import Hosts
from memory_agent.daemon.latency import LatencyWindow
from memory_agent.errors import MemoryAgentError, UnavailableError
from memory_agent.settings import TriggerSettings
from memory_agent.triggers.block import Block
from memory_agent.triggers.table import TriggerTable
from memory_agent.verbs.params import ReactParams
from memory_agent.verbs.protocol import decode_reply, encode
from memory_agent.verbs.table import BY_NAME
from relay import Histogram, JournalEntry, Publisher, RelayError, read_event
from relay.log import log

_MOST_BYTES = 16 << 20
_MOST_PAUSES = 10_000
_OF_ONE_USER = 8
_RETRY_S = 0.02
_FLUSH_S = 10.0


class Reactor:
    """Reacts to the events of all users. Must be used from a single event loop."""

    def __init__(
        self,
        hosts: Hosts,
        publisher: Publisher,
        settings: TriggerSettings,
        table: TriggerTable,
        calls_at_once: int,
        waiting: Callable[[], int],
    ) -> None:
        """React only while callers have fewer than `calls_at_once` running requests. `waiting` counts events."""
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

    def notice(self, user_id: str, event: JournalEntry) -> None:
        trigger = self._table.name_of(event.event_type) if self._settings.enabled else None
        if trigger is None or user_id in self._off_for or user_id in self._paused:
            return
        row = self._table.rows[trigger]
        now_s = time.monotonic()
        left_s = (row.deadline_ms - max(0.0, time.time() * 1000 - event.received_ms)) / 1000
        if left_s <= 0:  # the event was read again after a restart, or waited for its owner
            self._counts["late"] += 1
            return
        document = self._table.document_of(read_event(event.data), trigger) if row.debounce_s else None
        pause_s = 0.0 if document is None else row.debounce_s
        deadline_s, received_ms = now_s + left_s, event.received_ms
        cause = Cause(user_id, event.seq, trigger, event.data, deadline_s, received_ms, document, pause_s)
        self._queue.offer(cause, now_s)
        self._changed.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._changed.clear()
                wait_s = self._start_due(tasks)
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._changed.wait()

    @asynccontextmanager
    async def paused(self, user_id: str) -> AsyncIterator[None]:
        """Publish no blocks for this user inside the context. On entry, all earlier blocks are in the journal."""
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
            self._paused += Counter()  # removes zeros

    @property
    def histogram(self) -> Histogram:
        """The time from an event's arrival to the publication of its block."""
        return self._latency.histogram

    def status(self) -> dict[str, float]:
        """Return the number of published blocks, the number of dropped causes by reason, and the latency of blocks."""
        took = {name: value for name, value in self._latency.summary().items() if name != "count"}
        return {**self._counts, "waiting": len(self._queue), **took}

    def _start_due(self, tasks: asyncio.TaskGroup) -> float | None:
        """Start due recalls; return the seconds until the next check, or None to wait for a change."""
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
            return "unpublished"  # the relay has not acknowledged earlier blocks
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


@dataclass(frozen=True)
class Cause:
    """An event that causes a recall. The block is due by the deadline. Later causes of the same `document` wait for
    `pause_s`.
    """

    user_id: str
    seq: int
    trigger: str
    data: bytes = field(repr=False)
    deadline_s: float
    received_ms: int = 0
    document: str | None = None
    pause_s: float = 0.0

    @property
    def _place(self) -> tuple[str, str | int]:
        return self.trigger, self.seq if self.document is None else self.document


@dataclass
class _Waiting:
    cause: Cause
    due_s: float


class TriggerQueue:
    """A bounded queue of waiting causes. Users take turns, and messages precede documents. Times: monotonic seconds."""

    def __init__(self, limit: int, user_limit: int) -> None:
        """Hold at most `limit` causes, `user_limit` per user, and 16 MB of events; beyond that, drop the oldest."""
        self._limit = limit
        self._user_limit = user_limit
        self._users: OrderedDict[str, OrderedDict[tuple[str, str | int], _Waiting]] = OrderedDict()
        self._paused_until: OrderedDict[tuple[str, str, str | int], float] = OrderedDict()
        self._busy: set[str] = set()
        self._bytes = 0
        self.counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return sum(map(len, self._users.values()))

    def offer(self, cause: Cause, now_s: float) -> None:
        """Add a cause. If its document is paused, its deadline is extended by the remainder of the pause."""
        own = self._users.setdefault(cause.user_id, OrderedDict())
        former = own.pop(cause._place, None)
        if former is not None:
            self._forget(former)
            self.counts["debounced"] += 1
        due_s = self._paused_until.get((cause.user_id, *cause._place), now_s)
        delay_s = max(0.0, due_s - now_s)
        own[cause._place] = _Waiting(replace(cause, deadline_s=cause.deadline_s + delay_s), now_s + delay_s)
        self._bytes += len(cause.data)
        if len(own) > self._user_limit:
            self._drop_oldest(cause.user_id)
        while len(self) > self._limit or self._bytes > _MOST_BYTES:
            self._drop_oldest(max(self._users, key=lambda user_id: len(self._users[user_id])))

    def take(self, now_s: float) -> Cause | None:
        """Return a due cause of the next user who has no running recall, or None. Call `done` when its recall ends."""
        for user_id in list(self._users):
            self._drop_late(user_id, now_s)
            if user_id in self._busy:
                continue
            own = self._users.get(user_id, OrderedDict())
            due = [place for place, waiting in own.items() if waiting.due_s <= now_s]
            if due:  # an agent waits for the block for a message; a recall for a document takes longer
                first = min(due, key=lambda place: own[place].cause.document is not None)
                return self._taken(user_id, first, now_s)
        return None

    def done(self, user_id: str) -> None:
        self._busy.discard(user_id)

    def drop(self, user_id: str) -> None:
        for waiting in self._users.pop(user_id, OrderedDict()).values():
            self._forget(waiting)

    def next_due_s(self) -> float | None:
        """Return the earliest due time among the causes of users without a running recall, or None."""
        return min(self._due(), default=None)

    def _due(self) -> Iterator[float]:
        for user_id, own in self._users.items():
            if user_id not in self._busy:
                yield from (waiting.due_s for waiting in own.values())

    def _taken(self, user_id: str, place: tuple[str, str | int], now_s: float) -> Cause:
        own = self._users[user_id]
        waiting = own.pop(place)
        self._forget(waiting)
        if own:
            self._users.move_to_end(user_id)
        else:
            del self._users[user_id]
        self._busy.add(user_id)
        if waiting.cause.pause_s:
            self._pause((user_id, *place), now_s + waiting.cause.pause_s, now_s)
        return waiting.cause

    def _pause(self, place: tuple[str, str, str | int], until_s: float, now_s: float) -> None:
        self._paused_until[place] = until_s
        self._paused_until.move_to_end(place)
        while len(self._paused_until) > _MOST_PAUSES or next(iter(self._paused_until.values())) <= now_s:
            self._paused_until.popitem(last=False)

    def _drop_late(self, user_id: str, now_s: float) -> None:
        own = self._users[user_id]
        for place in [place for place, waiting in own.items() if waiting.cause.deadline_s <= now_s]:
            self._forget(own.pop(place))
            self.counts["late"] += 1
        if not own:
            del self._users[user_id]

    def _drop_oldest(self, user_id: str) -> None:
        _, waiting = self._users[user_id].popitem(last=False)
        self._forget(waiting)
        self.counts["full"] += 1
        if not self._users[user_id]:
            del self._users[user_id]

    def _forget(self, waiting: _Waiting) -> None:
        self._bytes -= len(waiting.cause.data)
