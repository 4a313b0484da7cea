"""What memory says and hears, as server-sent events read from the journal.

The id of an event is its number in the journal, so a client that reconnects with `Last-Event-ID` misses only what the
journal no longer keeps, and is told so (`gap`). Nothing is held for a subscriber: one that stops reading is not read
for. Each stream reads the relay with the caller's own key, so the relay's rules on who may read what hold; when to read
on it hears from `journal_watch`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime

import msgspec

from memory_agent.doors.http.journal_watch import JournalWatch
from memory_agent.doors.http.problems import problem
from memory_agent.errors import InvalidInputError, ProtocolError, UnavailableError
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
"""Returns what a stream says of an entry, as JSON; None to pass it over."""
Owner = Callable[[], Awaitable[str | None]]

EVENT_STREAM = "text/event-stream"
_AT_ONCE = 200
_MOST_BYTES = 1 << 20
_RETRY_MS = 1_000
_PAUSE_S = 0.2
_LARGEST_SEQ = 1 << 62


class JournaledEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event, its number in the journal, and when the relay received it."""

    seq: int
    received_at: datetime | None
    event: Event


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of the journal, first and last, that it no longer keeps and the stream has not said."""

    first: int
    last: int


def blocks_for(wanted: Wanted) -> Take:
    """Return what says the blocks that are wanted."""

    def take(entry: JournalEntry) -> bytes | None:
        with suppress(ProtocolError):  # an event of that type that carries no block, by a key for all users
            block = wanted.block_in(entry)
            return None if block is None else msgspec.json.encode(block)
        return None

    return take


def events_of(patterns: tuple[str, ...]) -> Take:
    """Return what says the events whose types match a pattern; all of them without patterns."""

    def take(entry: JournalEntry) -> bytes | None:
        if patterns and not matches_any(patterns, entry.event_type):
            return None
        received_at = datetime.fromtimestamp(entry.received_ms / 1000, UTC) if entry.received_ms else None
        return msgspec.json.encode(JournaledEvent(seq=entry.seq, received_at=received_at, event=read_event(entry.data)))

    return take


def read_place(last_event_id: str | None) -> int | None:
    """Return the number in a `Last-Event-ID`, or None without one. Raises `InvalidInputError`."""
    if not last_event_id:
        return None
    if not (last_event_id.isascii() and last_event_id.isdecimal() and int(last_event_id) < _LARGEST_SEQ):
        raise InvalidInputError("Last-Event-ID", "is not the id of an event of this stream")
    return int(last_event_id)


class Stream:
    """One subscriber's stream. For one task."""

    def __init__(
        self, relay: Endpoints, watch: JournalWatch, token: str, name: str, take: Take, heartbeat_s: float
    ) -> None:
        """Say what `take` makes of the journal's entries, under the event name `name`."""
        self._subscriber = AsyncSubscriber(relay.ingest, None, identity=Identity(token=token))
        self._watch = watch
        self._name = name
        self._take = take
        self._heartbeat_s = heartbeat_s
        self._user_id: str | None = None
        self._owner: Owner | None = None
        self._seq = 0
        self._said_s = 0.0

    async def begin(self, user_id: str | None, after: int | None, owner: Owner | None = None) -> None:
        """Follow a user's entries, those of all users (None), or those of the user that `owner` returns once known.

        They begin after number `after`, or with the next one. Raises `UnavailableError`, and what the relay refuses the
        key: `UnauthorizedError`, `ScopeMissingError`, `UserNotAllowedError`.
        """
        self._user_id, self._owner = user_id, owner
        try:
            last_seq = (await self._subscriber.fetch(0, 0, max_bytes=_MOST_BYTES, user_id=user_id)).last_seq
        except RelayUnavailableError as error:
            raise UnavailableError(f"relay: {error}") from error
        self._seq = last_seq if after is None else min(after, last_seq)  # a restored journal may end before

    async def frames(self) -> AsyncGenerator[bytes]:
        """Yield the frames, for ever: what there is to say, and a heartbeat where there is nothing."""
        yield self._said(f"retry: {_RETRY_MS}\nid: {self._seq}\n\n".encode())
        while True:
            try:
                async for frame in self._next():
                    yield self._said(frame)
            except (RelayUnavailableError, UnavailableError):
                await asyncio.sleep(_PAUSE_S)
            except RelayError as error:
                yield event_frame("problem", msgspec.json.encode(problem(error)), self._seq)
                return
            if time.monotonic() - self._said_s >= self._heartbeat_s:
                yield self._said(f": still here\nid: {self._seq}\n\n".encode())

    async def close(self) -> None:
        """Close the connection to the relay."""
        await self._subscriber.close()

    async def _next(self) -> AsyncIterator[bytes]:
        """Read on and yield what is to be said, or wait for more."""
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
            rest_s = self._heartbeat_s - (time.monotonic() - self._said_s)
            await self._watch.wait(self._user_id, batch.last_seq, max(0.0, rest_s))

    def _said(self, frame: bytes) -> bytes:
        self._said_s = time.monotonic()
        return frame


def event_frame(name: str, data: bytes, seq: int | None = None) -> bytes:
    """Return an event as it is sent: JSON `data`, which has no line breaks, under an id where `seq` is one."""
    place = b"" if seq is None else b"id: %d\n" % seq
    return b"event: %s\n%sdata: %s\n\n" % (name.encode(), place, data)
