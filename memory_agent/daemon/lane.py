"""One user's events between journal and memory: in order, limited in size, and retried until they are handled.

A full lane drops further events and reads them from the journal later, so a slow user delays no other user. An event
leaves the lane once it is durable in the memory or in quarantine, or if its encryption key was destroyed. If the memory
is on another node, the lane keeps the event's number until the memory is archived (`save`). If that node is lost, the
lane delivers the event again (`lost`).
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from typing import Protocol, TypeVar

import msgspec

from memory_agent.daemon.hosts import Hosts
from memory_agent.errors import (
    EncryptionKeyMissingError,
    HostDiedError,
    MemoryAgentError,
    StoreError,
    UnhandledEventError,
)
from memory_agent.records.memories import IngestReport
from memory_agent.settings import DaemonSettings
from memory_agent.verbs.protocol import IngestBatch
from relay.log import log

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 5.0
_WAKE_DEADLINE_MS = 10_000.0
_MOST_UNSAVED = 100_000
_LOST_WEIGHT = 0.25
"""The loss of a host whose lease ended counts as this fraction of a crash, because its machine may have failed instead.
"""
_SAVED_POLL_S = 0.2

T = TypeVar("T")


@dataclass(frozen=True)
class Pending:
    """An unhandled journal entry. `late`: whether its owner became known only after later events were handled.

    `received_ms` is as in `relay.JournalEntry`.
    """

    seq: int
    data: bytes
    late: bool = False
    received_ms: int = 0


class Budget:
    """Limits the bytes of events that all lanes hold in memory."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._used_bytes = 0

    def has_room(self, size_bytes: int) -> bool:
        return self._used_bytes + size_bytes <= self._limit_bytes

    def take(self, size_bytes: int) -> None:
        """A lane's only event may exceed the limit."""
        self._used_bytes += size_bytes

    def give(self, size_bytes: int) -> None:
        self._used_bytes -= size_bytes


class Journal(Protocol):
    """The journal, and what the dispatcher records about its events."""

    async def backlog(self, user_id: str, after_seq: int) -> Sequence[Pending]:
        """Return the user's next journal entries after `after_seq`, or nothing at the end."""

    async def content(self, seq: int) -> Pending | None:
        """Return a journal entry, or None if it was erased or has expired."""

    def is_erased(self, seq: int) -> bool:
        """Whether this event was erased after it was read, and must not be ingested."""

    async def quarantine(self, user_id: str, event: Pending, code: str, reason: str) -> None:
        """Quarantine an event. Durable on return."""

    def report(self, user_id: str, report: IngestReport, batch: Sequence[Pending], took_ms: float) -> None:
        """Count the outcome of a batch that the host ingested in `took_ms`."""


class Lane:
    """The events of one user. Must be used from a single event loop."""

    def __init__(self, user_id: str, hosts: Hosts, journal: Journal, budget: Budget, settings: DaemonSettings) -> None:
        self._user_id = user_id
        self._hosts = hosts
        self._journal = journal
        self._budget = budget
        self._settings = settings
        self._queue: deque[Pending] = deque()
        self._late: deque[Pending] = deque()
        self._late_numbers = array("Q")  # late events beyond `lane_events`: 8 bytes each
        self._unsaved = array("Q")
        self._least_unsaved: int | None = None
        self._redelivered: asyncio.Future[None] | None = None
        self._held_through = 0
        self._skipped_through = 0
        self._task: asyncio.Task[None] | None = None
        self._handling = asyncio.Lock()
        self._is_failing = False

    async def read_again(self) -> None:
        """Reread the waiting events from the journal once the batch in progress is finished."""
        async with self._handling:
            self._drop_bytes()

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Pause the lane inside the context. Events that are still waiting are then reread from the journal."""
        async with self._handling:
            try:
                yield
            finally:
                self._drop_bytes()

    def _drop_bytes(self) -> None:
        for queue in (self._queue, self._late):
            for place, event in enumerate(queue):
                self._budget.give(len(event.data))
                queue[place] = replace(event, data=b"")

    def offer(self, event: Pending) -> None:
        """Add the next event. A full lane leaves the event in the journal and fetches it later."""
        if event.late:
            self._offer_late(event)
        elif event.seq <= self._held_through:
            return
        elif self._behind or not self._fits(event):
            self._skipped_through = event.seq
        else:
            self._hold(event)
        self._start()

    async def save(self) -> None:
        """Archive the memory; events ingested before this call are then durable. Raises the same errors as `Hosts`."""
        ingested, unsaved = len(self._unsaved), self._unsaved
        if ingested:
            await self._hosts.archive(self._user_id)
            if self._unsaved is unsaved:
                self._keep_unsaved(unsaved[ingested:])

    def saved(self) -> None:
        self._keep_unsaved(array("Q"))

    def _keep_unsaved(self, seqs: array[int]) -> None:
        self._unsaved = seqs
        self._least_unsaved = min(seqs, default=None)

    def lost(self) -> Awaitable[None]:
        """Deliver all unsaved events again, because the memory's node was lost. The returned awaitable completes when
        the events are delivered.
        """
        self._late_numbers.extend(self._unsaved)
        self.saved()
        if self._redelivered is None:
            self._redelivered = asyncio.get_running_loop().create_future()
        redelivered = asyncio.shield(self._redelivered)
        self._start()
        return redelivered

    def is_done(self, through_seq: int) -> bool:
        """Whether the lane is idle and has read nothing above `through_seq`, so that a new lane could replace it."""
        is_idle = (self._task is None or self._task.done()) and not self._handling.locked()
        return is_idle and self.oldest_unsaved is None and self._held_through <= through_seq

    @property
    def oldest_unsaved(self) -> int | None:
        """The lowest journal number that is unhandled or not archived yet, or None."""
        pending, unsaved = self.oldest_pending, self._least_unsaved
        return min((seq for seq in (pending, unsaved) if seq is not None), default=None)

    @property
    def oldest_pending(self) -> int | None:
        """The lowest unhandled journal number, or None."""
        waiting = [event.seq for event in self._late]
        if self._late_numbers:
            waiting.append(min(self._late_numbers))
        if self._queue:
            waiting.append(self._queue[0].seq)
        elif self._behind:
            waiting.append(self._held_through + 1)
        return min(waiting, default=None)

    @property
    def waiting(self) -> int:
        """The number of waiting events, or 0 while errors delay them."""
        return 0 if self._is_failing else len(self._queue) + len(self._late)

    async def close(self) -> None:
        """Stop. Unhandled events stay in the journal."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work())

    @property
    def _behind(self) -> bool:
        return self._skipped_through > self._held_through

    def _fits(self, event: Pending) -> bool:
        crowded = len(self._queue) >= self._settings.lane_events or not self._budget.has_room(len(event.data))
        return not self._queue or not crowded

    def _hold(self, event: Pending) -> None:
        self._budget.take(len(event.data))
        self._queue.append(event)
        self._held_through = event.seq

    def _offer_late(self, event: Pending) -> None:
        if self._late_numbers or len(self._late) >= self._settings.lane_events:
            self._late_numbers.append(event.seq)
        else:
            if not self._budget.has_room(len(event.data)):
                event = replace(event, data=b"")  # the data is read again from the journal
            self._budget.take(len(event.data))
            self._late.append(event)

    async def _work(self) -> None:
        """Handle events until none is left. Logs an unexpected exception and retries."""
        pauses = _pauses()
        self._note_redelivery()
        while self._late or self._late_numbers or self._queue or self._behind:
            try:
                await self._step()
                pauses = _pauses()
                self._note_redelivery()
            except Exception:
                log.exception("lane.failed", user_id=self._user_id)
                await asyncio.sleep(next(pauses))

    def _note_redelivery(self) -> None:
        if self._redelivered is not None and not self._late and not self._late_numbers:
            self._redelivered.set_result(None)
            self._redelivered = None

    async def _step(self) -> None:
        if self._late:
            await self._handle_all(self._late)
        elif self._late_numbers:
            next_ones = self._late_numbers[: self._settings.lane_events]
            self._late.extend(Pending(seq, b"", late=True) for seq in next_ones)
            del self._late_numbers[: len(next_ones)]
        elif self._queue:
            if self._behind and len(self._queue) < 2 * self._settings.batch_events:  # this batch and the next one
                with suppress(MemoryAgentError):  # retried once the queue is empty
                    await self._refill()
            await self._handle_all(self._queue)
        else:
            await self._persist(self._refill)

    async def _refill(self) -> None:
        """Read further events while the lane has room. An empty lane always has room for one event."""
        goal = self._skipped_through  # may grow during the read
        events = await self._journal.backlog(self._user_id, self._held_through)
        for event in takewhile(self._fits, events):
            self._hold(event)
        if not events:
            self._held_through = goal

    async def _handle_all(self, queue: deque[Pending]) -> None:
        while len(self._unsaved) >= _MOST_UNSAVED:  # the archive is unavailable
            await asyncio.sleep(_SAVED_POLL_S)
        async with self._handling:
            batch = self._first_of(queue)
            loaded = [event if event.data else await self._loaded(event) for event in batch]
            wanted = [event for event in loaded if event is not None and not self._journal.is_erased(event.seq)]
            if wanted:
                await self._handle(wanted, self._full_batch_after(batch))
            for event in batch:
                queue.popleft()
                self._budget.give(len(event.data))

    async def _loaded(self, event: Pending) -> Pending | None:
        async def load() -> Pending | None:
            found = await self._journal.content(event.seq)
            return None if found is None else replace(found, late=event.late)

        return await self._persist(load)

    def _first_of(self, queue: Iterable[Pending]) -> list[Pending]:
        batch: list[Pending] = []
        size_bytes = 0
        for event in queue:
            size_bytes += len(event.data)
            full = len(batch) >= self._settings.batch_events or size_bytes > self._settings.batch_bytes
            if batch and full:
                break
            batch.append(event)
        return batch

    def _full_batch_after(self, batch: list[Pending]) -> list[Pending]:
        """Return the next batch, which the host embeds in advance, or an empty list if that batch is not full."""
        if batch[0].late:
            return []
        following = list(islice(self._queue, len(batch), len(batch) + self._settings.batch_events + 1))
        ahead = self._first_of(following)
        is_full = len(ahead) < len(following) or len(ahead) == self._settings.batch_events
        is_usable = all(event.data and not self._journal.is_erased(event.seq) for event in ahead)
        return ahead if is_full and is_usable else []

    async def _handle(self, batch: list[Pending], ahead: Sequence[Pending] = ()) -> None:
        """Deliver the batch. If delivery fails permanently, bisect the batch until the offending event is isolated."""
        fault = await self._deliver(batch, ahead)
        if fault is None:
            return
        if isinstance(fault, EncryptionKeyMissingError):
            await self._pass_without_key(batch)
            return
        if len(batch) == 1:
            await self._quarantine(batch[0], fault.code, str(fault))
            return
        middle = len(batch) // 2
        await self._handle(batch[:middle])
        await self._handle(batch[middle:])

    async def _pass_without_key(self, batch: list[Pending]) -> None:
        """Drop events that the journal cannot decrypt either; quarantine events published after the key was destroyed.

        Do not ingest the bytes held in memory: they would be stored under another key. Events that the journal can
        decrypt are tried once more, in case the key folder was missing.
        """
        for event in batch:
            readable = await self._loaded(event)
            if readable is not None and (fault := await self._deliver([readable])) is not None:
                await self._quarantine(readable, fault.code, str(fault))

    async def _deliver(self, batch: list[Pending], ahead: Sequence[Pending] = ()) -> MemoryAgentError | None:
        """Deliver the batch; return None, or the permanent error that prevented delivery.

        The first message contains `ahead`. If the host crashes on that message, the crash does not count against the
        batch, since `ahead` may have caused it.
        """
        plain = IngestBatch(events=_numbered(batch), replay=batch[0].late)
        message = msgspec.structs.replace(plain, ahead=_numbered(ahead))
        crashes = 0.0
        pauses = _pauses()
        while True:
            sent_s = time.monotonic()
            try:
                report = await self._hosts.ingest(self._user_id, message)
            except HostDiedError as error:
                if not message.ahead:
                    crashes += _LOST_WEIGHT if error.is_lost else 1
                message = plain
                if crashes >= self._settings.crashes_before_quarantine:
                    return error
                await self._persist(lambda: self._hosts.wake(self._user_id, _WAKE_DEADLINE_MS))
            except MemoryAgentError as error:
                if isinstance(error, EncryptionKeyMissingError):
                    return error
                if not error.retryable and not isinstance(error, StoreError):
                    return error
                message = plain
                await self._pause(next(pauses), error)
            else:
                if self._hosts.is_away(self._user_id):
                    self._unsaved.extend(event.seq for event in batch)
                    self._least_unsaved = min(self._least_unsaved or batch[0].seq, *(event.seq for event in batch))
                await self._settle(batch, report, (time.monotonic() - sent_s) * 1000)
                return None

    async def _settle(self, batch: list[Pending], report: IngestReport, took_ms: float) -> None:
        self._is_failing = False
        for rejected in report.rejected:
            await self._quarantine(batch[rejected.position], UnhandledEventError.code, rejected.reason)
        self._journal.report(self._user_id, report, batch, took_ms)

    async def _quarantine(self, event: Pending, code: str, reason: str) -> None:
        await self._persist(lambda: self._journal.quarantine(self._user_id, event, code, reason))

    async def _persist(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Retry until the attempt succeeds or the daemon ends."""
        pauses = _pauses()
        while True:
            try:
                return await attempt()
            except MemoryAgentError as error:
                await self._pause(next(pauses), error)

    async def _pause(self, pause_s: float, error: MemoryAgentError) -> None:
        self._is_failing = True
        log.warning("lane.waits", user_id=self._user_id, code=error.code, pause_s=round(pause_s, 2))
        await asyncio.sleep(pause_s)


def _numbered(events: Iterable[Pending]) -> tuple[tuple[int, bytes], ...]:
    return tuple((event.seq, event.data) for event in events)


def _pauses() -> Iterator[float]:
    pause_s = _FIRST_PAUSE_S
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
