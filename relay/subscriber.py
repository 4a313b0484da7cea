"""Subscribers read the journal by cursor, are woken by a doorbell, and send other requests to the relay.

Doorbells may be lost, but entries are not: a slow, late or restarted subscriber continues from its cursor. Delivery is
at least once, so commit the cursor after handling an event.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Self, TypeVar

import msgspec

from relay import wire
from relay.access import Identity, TokenSource, check_endpoint, local_identity
from relay.errors import DeadlineExceededError, RelayUnavailableError, UnauthorizedError, UnavailableError
from relay.event import matches_any
from relay.net import (
    AsyncClientSocket,
    AsyncDoorbellSocket,
    AsyncRequestSocket,
    ClientSocket,
    DoorbellSocket,
    RequestSocket,
)
from relay.wire import Batch, ConsumerState, Erasable, Erased, JournalEntry, QuarantineEntry, RelayStats

_Result = TypeVar("_Result")

_TRIES = 2
_ERASE_TIMEOUT_S = 60.0  # for one part of 20,000 events, some of which must be decoded
_ITERATION_EVENTS = 500
_MAX_BYTES = 4 << 20


class Subscriber:
    """A consumer of one relay. Thread-safe, except for `wait` and iteration.

    Every request raises `RelayUnavailableError` if no reply arrives within `timeout_s`. In this case, the request was
    sent twice and may have taken effect, so a repeated removal may find nothing to remove.

    In the examples, the journal holds alice's events `e-1` to `e-3`, with the numbers 1 to 3.

    >>> with Subscriber(*relay_endpoints(data_dir), consumer="indexer") as subscriber:
    ...     [entry.seq for entry in subscriber.fetch(subscriber.cursor(), limit=100).entries]
    [1, 2, 3]
    """

    def __init__(
        self, ingest: str, feed: str, consumer: str = "", timeout_s: float = 5.0, *, identity: Identity | None = None
    ) -> None:
        """Connect to a relay's endpoints (`relay_endpoints(data_dir)`); the relay need not be running yet.

        `consumer` is the name of the durable cursor that `cursor` and `commit` use. `identity` defaults to the token
        beside the socket file. Raises `RelaySettingsError` and `RelayUnavailableError`.
        """
        shown = identity or local_identity(ingest)
        self._identity = shown
        self._socket = ClientSocket(check_endpoint("ingest", ingest), shown)
        self._doorbell = DoorbellSocket(check_endpoint("feed", feed), shown)
        self._ingest = ingest
        self._consumer = consumer
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._correlations = itertools.count(1)
        self._known_seq = 0

    def fetch(self, after: int, limit: int, *, max_bytes: int = _MAX_BYTES, user_id: str | None = None) -> Batch:
        """Return up to `limit` entries after the number `after`, of one user or of all users, and the journal's last
        number.

        >>> batch = subscriber.fetch(after=1, limit=100)
        >>> [(entry.seq, entry.event_type) for entry in batch.entries], batch.last_seq
        ([(2, 'user_input'), (3, 'user_input')], 3)
        """
        request = wire.Fetch(after_seq=after, limit=limit, max_bytes=max_bytes, user_id=user_id)
        batch = self._request(request, Batch)
        self._known_seq = max(self._known_seq, batch.last_seq)
        return batch

    def wait(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` for entries after the last `fetch`; return whether there are any.

        >>> batch = subscriber.fetch(after=0, limit=100)
        >>> subscriber.wait(timeout_s=0.1)
        False
        """
        deadline_s = time.monotonic() + timeout_s
        while (frame := self._doorbell.receive(deadline_s - time.monotonic())) is not None:
            if wire.decode_doorbell(frame) > self._known_seq:
                return True
        return False

    def follow(
        self, topics: Sequence[str] = ("*",), after: int | None = None, user_id: str | None = None
    ) -> Iterator[JournalEntry]:
        """Yield the entries that match `topics`, after the cursor or the number `after`, and keep waiting for more.

        With `user_id`, only this user's entries are yielded.

        >>> for entry in subscriber.follow(["user_input"]):
        ...     print(entry.seq, read_event(entry.data).payload["text"])
        ...     if subscriber.commit(entry.seq) == 2:
        ...         break
        1 Staging needs the VPN
        2 The deploy hangs
        """
        position = self.cursor() if after is None else after
        while True:
            batch = self.fetch(position, _ITERATION_EVENTS, user_id=user_id)
            for entry in batch.entries:
                position = entry.seq
                if matches_any(topics, entry.event_type):
                    yield entry
            if not batch.entries:
                position = max(position, batch.last_seq)  # the other entries were erased, or their keys destroyed
            if not batch.entries and not batch.has_more:
                self.wait(self._timeout_s)

    def __iter__(self) -> Iterator[JournalEntry]:
        return self.follow()

    def cursor(self) -> int:
        """Return the consumer's cursor. Registers a new consumer durably; retention then waits for it.

        >>> subscriber.cursor(), subscriber.commit(2), subscriber.cursor()
        (0, 2, 2)
        """
        return self._request(wire.Cursor(consumer=self._consumer), int)

    def commit(self, seq: int) -> int:
        """Advance the cursor to `seq`, but never move it back; return the cursor. Durable on return.

        >>> subscriber.commit(2), subscriber.commit(1)
        (2, 2)
        """
        return self._request(wire.Commit(consumer=self._consumer, seq=seq), int)

    def consumers(self) -> list[ConsumerState]:
        """Return the durable consumers, by name.

        >>> subscriber.commit(2), subscriber.consumers()
        (2, [ConsumerState(name='indexer', seq=2, lag=1)])
        """
        return self._request(wire.Consumers(), list[ConsumerState])

    def remove_consumer(self, name: str) -> bool:
        """Remove a consumer; return False if it is unknown. Retention no longer waits for a removed consumer.

        >>> subscriber.commit(2), subscriber.remove_consumer("indexer"), subscriber.remove_consumer("indexer")
        (2, True, False)
        """
        return self._request(wire.RemoveConsumer(consumer=name), bool)

    def quarantine(self, data: bytes, code: str, reason: str, *, source: str, seq: int | None = None) -> int:
        """Quarantine an event that cannot be handled; return the entry's id, or 0 if there is no room. Idempotent.
        Durable.

        >>> subscriber.quarantine(b"{", "malformed_event", "is not JSON", source="indexer")
        1
        """
        request = wire.Quarantine(data=data, code=code, reason=reason, source=source, seq=seq)
        return self._request(request, int)

    def quarantined(self, after: int = 0, limit: int = 100) -> list[QuarantineEntry]:
        """Return up to `limit` quarantined entries with an id above `after`, in order.

        >>> entry_id = subscriber.quarantine(b"{", "malformed_event", "is not JSON", source="indexer")
        >>> [(entry.id, entry.code, entry.data) for entry in subscriber.quarantined()]
        [(1, 'malformed_event', b'{')]
        """
        return self._request(wire.Quarantined(after=after, limit=limit), list[QuarantineEntry])

    def quarantined_entry(self, entry_id: int) -> QuarantineEntry:
        """Return one quarantined entry. Raises `QuarantineEntryError`.

        >>> entry_id = subscriber.quarantine(b"{", "malformed_event", "is not JSON", source="indexer")
        >>> subscriber.quarantined_entry(entry_id).reason
        'is not JSON'
        """
        return self._request(wire.QuarantinedEntry(id=entry_id), QuarantineEntry)

    def drop_quarantined(self, entry_id: int) -> None:
        """Delete a quarantined entry permanently. Raises `QuarantineEntryError`.

        >>> entry_id = subscriber.quarantine(b"{", "malformed_event", "is not JSON", source="indexer")
        >>> subscriber.drop_quarantined(entry_id)
        >>> subscriber.quarantined()
        []
        """
        self._request(wire.DropQuarantined(id=entry_id), type(None))

    def retry_quarantined(self, entry_id: int) -> bool:
        """Decode malformed bytes again; if they are now a valid event, journal it and return True. Durable on return.

        Raises `QuarantineEntryError` if the entry is unknown, or is an event from the journal, which its consumer must
        retry.

        >>> entry_id = subscriber.quarantine(b"{", "malformed_event", "is not JSON", source="indexer")
        >>> subscriber.retry_quarantined(entry_id)
        False
        """
        return self._request(wire.RetryQuarantined(id=entry_id), bool)

    def erase(self, wanted: Erasable, *, dry_run: bool = False) -> Erased:
        """Erase events in batches, which leaves gaps in their numbering. Each batch is durable when it completes.

        The bytes remain in the file until the relay compacts its journal (`JournalStats.uncompacted` is then 0). Each
        batch is requested only once, because a repeated request would report that nothing was erased. Raises
        `RelayUnavailableError` if the outcome is unknown; call it again to erase the remaining events.

        >>> subscriber.erase(Erasable(user_id="alice", event_ids=frozenset({"e-2"}))).seqs
        [2]
        >>> [entry.seq for entry in subscriber.fetch(after=0, limit=100).entries]
        [1, 3]
        """
        seqs: list[int] = []
        while True:
            part = self._erase(wire.Erase(wanted=wanted, dry_run=dry_run))
            seqs += part.seqs
            if part.next_after is None:
                return Erased(seqs=seqs, quarantined=part.quarantined)
            wanted = msgspec.structs.replace(wanted, after_seq=part.next_after)

    def stats(self) -> RelayStats:
        """Return the relay's statistics.

        >>> subscriber.stats().journal.entries
        3
        """
        return self._request(wire.Stats(), RelayStats)

    def ping(self) -> int:
        """Return the relay's protocol version.

        >>> subscriber.ping()
        1
        """
        return self._request(wire.Ping(), int)

    def close(self) -> None:
        """Close the connections. No request may be running.

        >>> subscriber = Subscriber(*relay_endpoints(data_dir))
        >>> subscriber.close()
        """
        self._socket.close()
        self._doorbell.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _erase(self, request: wire.Erase) -> Erased:
        """Use a separate connection: other requests do not wait, and a lost connection is noticed at once."""
        self.ping()  # waits if the relay is just restarting
        socket = RequestSocket(self._ingest, self._identity, once=True)
        try:
            (reply,) = socket.request([wire.encode(request), TokenSource(self._identity).current], _ERASE_TIMEOUT_S)
        except (UnavailableError, DeadlineExceededError) as error:
            raise RelayUnavailableError(str(error)) from error
        finally:
            socket.close()
        return wire.decode_reply(reply, Erased)

    def _request(self, request: wire.Request, result_type: type[_Result]) -> _Result:
        body = wire.encode(request)
        with self._lock:
            for _ in range(_TRIES):
                correlation = next(self._correlations).to_bytes(8, "big")
                self._socket.send([correlation, body])
                reply = self._await(correlation, self._timeout_s / _TRIES)
                if reply is None:
                    self._socket.reconnect()
                    continue
                try:
                    return wire.decode_reply(reply, result_type)
                except UnauthorizedError:
                    if not self._socket.reload_token():  # the relay may have created its token in the meantime
                        raise
        raise RelayUnavailableError(f"no reply from {self._ingest} within {self._timeout_s:.3g} s")

    def _await(self, correlation: bytes, timeout_s: float) -> bytes | None:
        deadline_s = time.monotonic() + timeout_s
        while (remaining_s := deadline_s - time.monotonic()) > 0:
            frames = self._socket.receive(remaining_s)
            if frames is not None and len(frames) == 2 and frames[0] == correlation:
                return frames[1]
        return None


class AsyncSubscriber:
    """`Subscriber` for an event loop, with the same methods. Requests from several tasks run in order."""

    def __init__(
        self,
        ingest: str,
        feed: str | None,
        consumer: str = "",
        timeout_s: float = 5.0,
        *,
        identity: Identity | None = None,
    ) -> None:
        """Connect; the arguments are those of `Subscriber`. Without a `feed`, `wait` is unavailable."""
        shown = identity or local_identity(ingest)
        self._identity = shown
        self._socket = AsyncClientSocket(check_endpoint("ingest", ingest), shown)
        self._doorbell = None if feed is None else AsyncDoorbellSocket(check_endpoint("feed", feed), shown)
        self._ingest = ingest
        self._consumer = consumer
        self._timeout_s = timeout_s
        self._lock = asyncio.Lock()
        self._correlations = itertools.count(1)
        self._known_seq = 0

    async def fetch(self, after: int, limit: int, *, max_bytes: int = _MAX_BYTES, user_id: str | None = None) -> Batch:
        request = wire.Fetch(after_seq=after, limit=limit, max_bytes=max_bytes, user_id=user_id)
        batch = await self._request(request, Batch)
        self._known_seq = max(self._known_seq, batch.last_seq)
        return batch

    async def wait(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` for entries after the last `fetch`; return whether there are any."""
        assert self._doorbell is not None, "created without a feed"
        try:
            async with asyncio.timeout(timeout_s):
                while wire.decode_doorbell(await self._doorbell.receive()) <= self._known_seq:
                    pass
        except TimeoutError:
            return False
        return True

    async def cursor(self) -> int:
        return await self._request(wire.Cursor(consumer=self._consumer), int)

    async def commit(self, seq: int) -> int:
        return await self._request(wire.Commit(consumer=self._consumer, seq=seq), int)

    async def consumers(self) -> list[ConsumerState]:
        return await self._request(wire.Consumers(), list[ConsumerState])

    async def remove_consumer(self, name: str) -> bool:
        return await self._request(wire.RemoveConsumer(consumer=name), bool)

    async def quarantine(self, data: bytes, code: str, reason: str, *, source: str, seq: int | None = None) -> int:
        request = wire.Quarantine(data=data, code=code, reason=reason, source=source, seq=seq)
        return await self._request(request, int)

    async def quarantined(self, after: int = 0, limit: int = 100) -> list[QuarantineEntry]:
        request = wire.Quarantined(after=after, limit=limit)
        return await self._request(request, list[QuarantineEntry])

    async def quarantined_entry(self, entry_id: int) -> QuarantineEntry:
        return await self._request(wire.QuarantinedEntry(id=entry_id), QuarantineEntry)

    async def drop_quarantined(self, entry_id: int) -> None:
        await self._request(wire.DropQuarantined(id=entry_id), type(None))

    async def retry_quarantined(self, entry_id: int) -> bool:
        return await self._request(wire.RetryQuarantined(id=entry_id), bool)

    async def erase(self, wanted: Erasable, *, dry_run: bool = False) -> Erased:
        seqs: list[int] = []
        while True:
            part = await self._erase(wire.Erase(wanted=wanted, dry_run=dry_run))
            seqs += part.seqs
            if part.next_after is None:
                return Erased(seqs=seqs, quarantined=part.quarantined)
            wanted = msgspec.structs.replace(wanted, after_seq=part.next_after)

    async def stats(self) -> RelayStats:
        return await self._request(wire.Stats(), RelayStats)

    async def ping(self) -> int:
        return await self._request(wire.Ping(), int)

    async def close(self) -> None:
        """Close the connections. No request may be running."""
        self._socket.close()
        if self._doorbell is not None:
            self._doorbell.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _erase(self, request: wire.Erase) -> Erased:
        await self.ping()
        socket = AsyncRequestSocket(self._ingest, self._identity)
        try:
            sent = [wire.encode(request), TokenSource(self._identity).current]
            (reply,) = await socket.request(sent, _ERASE_TIMEOUT_S)
        except (UnavailableError, DeadlineExceededError) as error:
            raise RelayUnavailableError(str(error)) from error
        finally:
            socket.close()
        return wire.decode_reply(reply, Erased)

    async def _request(self, request: wire.Request, result_type: type[_Result]) -> _Result:
        body = wire.encode(request)
        async with self._lock:
            for _ in range(_TRIES):
                correlation = next(self._correlations).to_bytes(8, "big")
                try:
                    async with asyncio.timeout(self._timeout_s / _TRIES):
                        return wire.decode_reply(await self._exchange(correlation, body), result_type)
                except UnauthorizedError:
                    if not self._socket.reload_token():
                        raise
                except TimeoutError:
                    self._socket.reconnect()
        raise RelayUnavailableError(f"no reply from {self._ingest} within {self._timeout_s:.3g} s")

    async def _exchange(self, correlation: bytes, body: bytes) -> bytes:
        await self._socket.send([correlation, body])
        while True:
            frames = await self._socket.receive()
            if len(frames) == 2 and frames[0] == correlation:
                return frames[1]
