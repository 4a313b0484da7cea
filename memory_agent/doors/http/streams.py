"""Server-sent events: journal entries, and the progress of long requests.

The id of an event is its journal number, so that a client can continue with `Last-Event-ID`. The client receives a
`gap` for events that are no longer in the journal. A stream stops reading the journal when its client stops reading.
Each stream reads from the relay with the caller's own key, and `JournalWatch` wakes it when there is more to read.

Compacting, erasing and rebuilding take a long time. With `Accept: text/event-stream`, they send `progress` events and
finally the result. These events also keep proxies from closing the connection.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from memory_agent.doors.http.problems import problem
from memory_agent.errors import InvalidInputError, MemoryAgentError, ProtocolError, UnavailableError
from memory_agent.triggers.block import Wanted
from relay import (
    AsyncSubscriber,
    Endpoints,
    Event,
    Identity,
    JournalEntry,
    RelayError,
    RelayUnavailableError,
    matches_any,
    read_event,
)

Take = Callable[[JournalEntry], bytes | None]
"""Returns the JSON that a stream sends for a journal entry, or None to skip the entry."""
Owner = Callable[[], Awaitable[str | None]]

EVENT_STREAM = "text/event-stream"
MOST_PAUSE_S = 1.0
_AT_ONCE = 200
_MOST_BYTES = 1 << 20
_RETRY_MS = 1_000
_PAUSE_S = 0.2
_PACE_S = 0.02
_IDLE_S = 1.0
_LARGEST_SEQ = 1 << 62


def event_frame(name: str, data: bytes, seq: int | None = None) -> bytes:
    """Encode an event. `data` is JSON without line breaks; `seq` becomes the event's id."""
    place = b"" if seq is None else b"id: %d\n" % seq
    return b"event: %s\n%sdata: %s\n\n" % (name.encode(), place, data)


class JournaledEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event, its journal number, and the time at which the relay received it."""

    seq: int
    received_at: datetime | None
    event: Event


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """The first and last numbers of journal entries that were deleted before this stream sent them."""

    first: int
    last: int


def blocks_for(wanted: Wanted) -> Take:
    """Return a `Take` that sends the wanted blocks."""

    def take(entry: JournalEntry) -> bytes | None:
        with suppress(ProtocolError):  # a key for all users can publish such an event without a block
            block = wanted.block_in(entry)
            return None if block is None else msgspec.json.encode(block)
        return None

    return take


def events_of(patterns: tuple[str, ...]) -> Take:
    """Return a `Take` that sends the events whose type matches a pattern, or all events if there are no patterns."""

    def take(entry: JournalEntry) -> bytes | None:
        if patterns and not matches_any(patterns, entry.event_type):
            return None
        received_at = datetime.fromtimestamp(entry.received_ms / 1000, UTC) if entry.received_ms else None
        return msgspec.json.encode(JournaledEvent(seq=entry.seq, received_at=received_at, event=read_event(entry.data)))

    return take


def read_place(last_event_id: str | None) -> int | None:
    """Raises `InvalidInputError`."""
    if not last_event_id:
        return None
    if not (last_event_id.isascii() and last_event_id.isdecimal() and int(last_event_id) < _LARGEST_SEQ):
        raise InvalidInputError("Last-Event-ID", "is not an event id of this stream")
    return int(last_event_id)


class Stream:
    """One subscriber's stream, for use by one task."""

    def __init__(
        self, relay: Endpoints, watch: JournalWatch, token: str, name: str, take: Take, heartbeat_s: float
    ) -> None:
        self._subscriber = AsyncSubscriber(relay.ingest, None, identity=Identity(token=token))
        self._watch = watch
        self._name = name
        self._take = take
        self._heartbeat_s = heartbeat_s
        self._user_id: str | None = None
        self._owner: Owner | None = None
        self._seq = 0
        self._sent_s = 0.0

    async def begin(self, user_id: str | None, after: int | None, owner: Owner | None = None) -> None:
        """Follow the entries of one user (None: all users) after number `after`; default: only new entries.

        `owner` returns the user to follow, or None while it is unknown. Raises `UnavailableError` or, if the relay
        rejects the key, `UnauthorizedError`, `ScopeMissingError` or `UserNotAllowedError`.
        """
        self._user_id, self._owner = user_id, owner
        try:
            last_seq = (await self._subscriber.fetch(0, 0, max_bytes=_MOST_BYTES, user_id=user_id)).last_seq
        except RelayUnavailableError as error:
            raise UnavailableError(f"relay: {error}") from error
        self._seq = (
            last_seq if after is None else min(after, last_seq)
        )  # a journal restored from a backup may be shorter

    async def frames(self) -> AsyncGenerator[bytes]:
        """Yield events forever, and heartbeats while there are none."""
        yield self._sent(f"retry: {_RETRY_MS}\nid: {self._seq}\n\n".encode())
        while True:
            try:
                async for frame in self._next():
                    yield self._sent(frame)
            except (RelayUnavailableError, UnavailableError):
                await asyncio.sleep(_PAUSE_S)
            except RelayError as error:
                yield event_frame("problem", msgspec.json.encode(problem(error)), self._seq)
                return
            if time.monotonic() - self._sent_s >= self._heartbeat_s:
                yield self._sent(f": still here\nid: {self._seq}\n\n".encode())

    async def close(self) -> None:
        await self._subscriber.close()

    async def _next(self) -> AsyncIterator[bytes]:
        """Yield the events of the next journal entries; if there are none, wait for some."""
        if self._owner is not None:
            user_id = await self._owner()
            if user_id is None:
                await asyncio.sleep(_PAUSE_S)
                return
            self._user_id, self._owner = user_id, None
        batch = await self._subscriber.fetch(self._seq, _AT_ONCE, max_bytes=_MOST_BYTES, user_id=self._user_id)
        if batch.first_seq > self._seq + 1 and batch.last_seq > self._seq:
            gap = Gap(first=self._seq + 1, last=batch.first_seq - 1)
            self._seq = gap.last
            yield event_frame("gap", msgspec.json.encode(gap), self._seq)
        for entry in batch.entries:
            data = self._take(entry)
            self._seq = entry.seq
            if data is not None:
                yield event_frame(self._name, data, entry.seq)
        if not batch.entries:
            self._seq = batch.last_seq
        if not batch.entries and not batch.has_more:
            rest_s = self._heartbeat_s - (time.monotonic() - self._sent_s)
            await self._watch.wait(self._user_id, batch.last_seq, max(0.0, rest_s))

    def _sent(self, frame: bytes) -> bytes:
        self._sent_s = time.monotonic()
        return frame


class _Awaited(NamedTuple):
    """What a stream waits for: an entry for this user (None: any user) after number `after`."""

    user_id: str | None
    after: int


class JournalWatch:
    """Wakes the streams whose users have new journal entries. Must be used from a single event loop.

    The relay signals each new event without naming its user. Therefore, one task reads the journal for all streams,
    with the data folder's token, and wakes the streams of each event's user (decision 0028).
    """

    def __init__(self, relay: Endpoints) -> None:
        self._relay = relay
        self._seq = 0
        self._waiting: dict[asyncio.Future[None], _Awaited] = {}
        self._called = asyncio.Event()

    async def run(self) -> None:
        async with AsyncSubscriber(*self._relay) as journal:
            while True:
                if not self._waiting:
                    self._called.clear()
                    await self._called.wait()
                try:
                    await self._look(journal)
                except RelayError:  # each stream handles this error itself
                    await asyncio.sleep(_PAUSE_S)

    async def wait(self, user_id: str | None, after: int, timeout_s: float) -> None:
        """Wait until the user (None: any user) may have entries beyond `after`, the last number the caller read."""
        self._called.set()
        if after < self._seq:  # these entries were read while no stream waited for this user
            await asyncio.sleep(_PACE_S)
            return
        if not self._waiting:
            self._seq = after
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[woken] = _Awaited(user_id, after)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await woken
        finally:
            del self._waiting[woken]

    async def _look(self, journal: AsyncSubscriber) -> None:
        begin = self._seq
        batch = await journal.fetch(begin, _AT_ONCE, max_bytes=_MOST_BYTES)
        self._seq = batch.entries[-1].seq if batch.entries else batch.last_seq
        newest = {entry.user_id: entry.seq for entry in batch.entries}
        is_replaced = batch.last_seq < begin  # a journal restored from a backup
        for woken, wanted in self._waiting.items():
            seq = self._seq if wanted.user_id is None else newest.get(wanted.user_id, 0)
            if not woken.done() and (is_replaced or seq > wanted.after):
                woken.set_result(None)
        if batch.entries:
            await asyncio.sleep(_PACE_S)  # the relay signals every event, so read several at once
        else:
            await journal.wait(_IDLE_S)


_under_way: set[asyncio.Task[bytes]] = set()


class WorkProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Reports that work continues. `waiting`: the number of memories still without a vector, or None for work that
    computes no vectors.
    """

    elapsed_ms: int
    waiting: int | None = None


class Work:
    """A request in progress. It is completed even if its client disconnects."""

    def __init__(self, answer: Coroutine[Any, Any, bytes], pause_s: float) -> None:
        """`answer` returns the result as JSON, or raises `MemoryAgentError`."""
        self._started_s = time.monotonic()
        self._pause_s = min(pause_s, MOST_PAUSE_S)
        self._answer = asyncio.create_task(answer)
        _under_way.add(self._answer)  # the event loop keeps only weak references to tasks
        self._answer.add_done_callback(_done)

    async def raise_early(self) -> None:
        """Raise an error that occurs within `MOST_PAUSE_S`, so that the response has that error's status."""
        done, _ = await asyncio.wait({self._answer}, timeout=MOST_PAUSE_S)
        if done:
            self._answer.result()

    async def frames(self, waiting: Callable[[], Awaitable[int]] | None) -> AsyncGenerator[bytes]:
        """Yield progress events, then the result or the problem. If `waiting` is not None, wait until it returns 0."""
        try:
            while not self._answer.done():
                yield self._progress(None)
                await asyncio.wait({self._answer}, timeout=self._pause_s)
            result = self._answer.result()
            while waiting is not None and (count := await waiting()):
                yield self._progress(count)
                await asyncio.sleep(self._pause_s)
            yield event_frame("result", result)
        except MemoryAgentError as error:
            yield event_frame("problem", msgspec.json.encode(problem(error)))

    def _progress(self, waiting: int | None) -> bytes:
        elapsed_ms = round((time.monotonic() - self._started_s) * 1000)
        return event_frame("progress", msgspec.json.encode(WorkProgress(elapsed_ms=elapsed_ms, waiting=waiting)))


def _done(work: asyncio.Task[bytes]) -> None:
    """Retrieve the task's exception; otherwise, asyncio would log its text if the client has disconnected."""
    _under_way.discard(work)
    if not work.cancelled():
        work.exception()
