"""Reads the journal by cursor, woken by the doorbell; also the other requests that a relay answers.

The doorbell may be lost, the journal not: whoever is slow, late or restarted reads on from its cursor. What this does
not do: move the cursor by itself; commit when an event is handled, so that delivery is at least once. Rejected: events
over PUB/SUB.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, Self

import msgspec

from relay import wire
from relay.access import Identity, check_endpoint, local_identity
from relay.errors import RelayUnavailableError, UnauthorizedError
from relay.net import AsyncClientSocket, AsyncDoorbellSocket, ClientSocket, DoorbellSocket
from relay.topics import matches_any
from relay.wire import Batch, ConsumerState, Erasable, Erased, JournalEntry, QuarantineEntry, RelayStats

_TRIES = 2
_ERASE_TIMEOUT_S = 60.0  # of one part: 20,000 events, of which some have to be read
_ITERATION_EVENTS = 500
_MAX_BYTES = 4 << 20


class Subscriber:
    """One consumer of one relay. Threads may share it, except `wait` and iteration."""

    def __init__(
        self, ingest: str, feed: str, consumer: str = "", timeout_s: float = 5.0, *, identity: Identity | None = None
    ) -> None:
        """Connect to a relay's endpoints (`relay_endpoints(data_dir)`); it need not be there yet.

        `identity` is what to show; without it the token beside the socket file (`local_identity`).
        `consumer` names the durable cursor that `cursor` and `commit` use. Every request raises
        `RelayUnavailableError` when there was no answer within `timeout_s`; it was sent twice until then, so it may
        have happened, and a repeat of a removal says that there is nothing to remove.
        """
        shown = identity or local_identity(ingest)
        self._socket = ClientSocket(check_endpoint("ingest", ingest), shown)
        self._doorbell = DoorbellSocket(check_endpoint("feed", feed), shown)
        self._ingest = ingest
        self._consumer = consumer
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._correlations = itertools.count(1)
        self._known_seq = 0

    def fetch(self, after: int, limit: int, *, max_bytes: int = _MAX_BYTES, user_id: str | None = None) -> Batch:
        """Return at most `limit` entries after a number, of one user when asked, and where the journal ends."""
        request = wire.Fetch(after_seq=after, limit=limit, max_bytes=max_bytes, user_id=user_id)
        batch: Batch = self._ask(request, Batch)
        self._known_seq = max(self._known_seq, batch.last_seq)
        return batch

    def wait(self, timeout_s: float) -> bool:
        """Return whether the journal grew since the last `fetch`; waits for it at most `timeout_s`."""
        deadline_s = time.monotonic() + timeout_s
        while (frame := self._doorbell.receive(deadline_s - time.monotonic())) is not None:
            if wire.decode_doorbell(frame) > self._known_seq:
                return True
        return False

    def follow(self, topics: Sequence[str] = ("*",), after: int | None = None) -> Iterator[JournalEntry]:
        """Go over the entries under `topics`, after the cursor or a number, and wait for more, without end."""
        position = self.cursor() if after is None else after
        while True:
            batch = self.fetch(position, _ITERATION_EVENTS)
            for entry in batch.entries:
                position = entry.seq
                if matches_any(topics, entry.event_type):
                    yield entry
            if not batch.entries:
                position = max(position, batch.last_seq)  # what lies behind was erased, or no key is left for it
                self.wait(self._timeout_s)

    def __iter__(self) -> Iterator[JournalEntry]:
        return self.follow()

    def cursor(self) -> int:
        """Return how far the consumer is; a new one is registered, so that retention waits for it."""
        result: int = self._ask(wire.Cursor(consumer=self._consumer), int)
        return result

    def commit(self, seq: int) -> int:
        """Note that everything up to `seq` is handled; return the cursor, which never goes back. Durable on return."""
        result: int = self._ask(wire.Commit(consumer=self._consumer, seq=seq), int)
        return result

    def consumers(self) -> list[ConsumerState]:
        result: list[ConsumerState] = self._ask(wire.Consumers(), list[ConsumerState])
        return result

    def remove_consumer(self, name: str) -> bool:
        """Forget a consumer, so that retention no longer waits for it; False when it was unknown."""
        result: bool = self._ask(wire.RemoveConsumer(consumer=name), bool)
        return result

    def quarantine(self, data: bytes, code: str, reason: str, *, source: str, seq: int | None = None) -> int:
        """Put what cannot be handled into quarantine, once; return its id (0: no room). Durable on return."""
        request = wire.Quarantine(data=data, code=code, reason=reason, source=source, seq=seq)
        result: int = self._ask(request, int)
        return result

    def quarantined(self, after: int = 0, limit: int = 100) -> list[QuarantineEntry]:
        """Return at most `limit` quarantined entries with an id above `after`, in order."""
        result: list[QuarantineEntry] = self._ask(wire.Quarantined(after=after, limit=limit), list[QuarantineEntry])
        return result

    def quarantined_entry(self, entry_id: int) -> QuarantineEntry:
        """Return one quarantined entry. Raises `QuarantineEntryError`."""
        result: QuarantineEntry = self._ask(wire.QuarantinedEntry(id=entry_id), QuarantineEntry)
        return result

    def drop_quarantined(self, entry_id: int) -> None:
        """Delete a quarantined entry for good. Raises `QuarantineEntryError`."""
        self._ask(wire.DropQuarantined(id=entry_id), None)

    def retry_quarantined(self, entry_id: int) -> bool:
        """Have the relay read bytes again that were no event; True when they are one now, which is then journaled.

        Raises `QuarantineEntryError`, also for an event of the journal, which its consumer retries.
        """
        result: bool = self._ask(wire.RetryQuarantined(id=entry_id), bool)
        return result

    def erase(self, wanted: Erasable, *, dry_run: bool = False) -> Erased:
        """Erase events for good, all parts of it; their numbers stay as holes. Durable on return.

        Their bytes leave the file with an upkeep of the relay, when it has rested since it last copied its journal
        (`JournalStats.uncompacted` is 0 then). Each part is
        asked for once, with patience: a repeat would be told that there is nothing left to erase. Raises
        `RelayUnavailableError` when it is not known whether it happened; said again, `seqs` are those of the rest.
        """
        seqs: list[int] = []
        while True:
            request = wire.Erase(wanted=wanted, dry_run=dry_run)
            part: Erased = self._ask(request, Erased, tries=1, timeout_s=_ERASE_TIMEOUT_S)
            seqs += part.seqs
            if part.next_after is None:
                return Erased(seqs=seqs, quarantined=part.quarantined)
            wanted = msgspec.structs.replace(wanted, after_seq=part.next_after)

    def stats(self) -> RelayStats:
        result: RelayStats = self._ask(wire.Stats(), RelayStats)
        return result

    def ping(self) -> int:
        """Return the version of the relay's protocol."""
        result: int = self._ask(wire.Ping(), int)
        return result

    def close(self) -> None:
        self._socket.close()
        self._doorbell.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(
        self, request: wire.Request, result_type: Any, *, tries: int = _TRIES, timeout_s: float | None = None
    ) -> Any:
        body = wire.encode(request)
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        with self._lock:
            for attempt in range(_TRIES):
                correlation = next(self._correlations).to_bytes(8, "big")
                self._socket.send([correlation, body])
                reply = self._await(correlation, timeout_s / tries)
                if reply is None:
                    self._socket.reconnect()
                    if attempt + 1 >= tries:
                        break
                    continue
                try:
                    return wire.decode_reply(reply, result_type)
                except UnauthorizedError:
                    if not self._socket.reload_token():  # the token of this machine may have been made meanwhile
                        raise
        raise RelayUnavailableError(f"no answer from {self._ingest} within {timeout_s:.3g} s")

    def _await(self, correlation: bytes, timeout_s: float) -> bytes | None:
        deadline_s = time.monotonic() + timeout_s
        while (remaining_s := deadline_s - time.monotonic()) > 0:
            frames = self._socket.receive(remaining_s)
            if frames is not None and len(frames) == 2 and frames[0] == correlation:
                return frames[1]
        return None


class AsyncSubscriber:
    """One consumer of one relay, for one event loop. Requests and errors as of `Subscriber`."""

    def __init__(
        self, ingest: str, feed: str, consumer: str = "", timeout_s: float = 5.0, *, identity: Identity | None = None
    ) -> None:
        """Connect to a relay's endpoints (`relay_endpoints(data_dir)`); it need not be there yet."""
        shown = identity or local_identity(ingest)
        self._socket = AsyncClientSocket(check_endpoint("ingest", ingest), shown)
        self._doorbell = AsyncDoorbellSocket(check_endpoint("feed", feed), shown)
        self._ingest = ingest
        self._consumer = consumer
        self._timeout_s = timeout_s
        self._lock = asyncio.Lock()
        self._correlations = itertools.count(1)
        self._known_seq = 0

    async def fetch(self, after: int, limit: int, *, max_bytes: int = _MAX_BYTES, user_id: str | None = None) -> Batch:
        """Return at most `limit` entries after a number, of one user when asked, and where the journal ends."""
        request = wire.Fetch(after_seq=after, limit=limit, max_bytes=max_bytes, user_id=user_id)
        batch: Batch = await self._ask(request, Batch)
        self._known_seq = max(self._known_seq, batch.last_seq)
        return batch

    async def wait(self, timeout_s: float) -> bool:
        """Return whether the journal grew since the last `fetch`; waits for it at most `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                while wire.decode_doorbell(await self._doorbell.receive()) <= self._known_seq:
                    pass
        except TimeoutError:
            return False
        return True

    async def cursor(self) -> int:
        """Return how far the consumer is; a new one is registered, so that retention waits for it."""
        result: int = await self._ask(wire.Cursor(consumer=self._consumer), int)
        return result

    async def commit(self, seq: int) -> int:
        """Note that everything up to `seq` is handled; return the cursor. Durable on return."""
        result: int = await self._ask(wire.Commit(consumer=self._consumer, seq=seq), int)
        return result

    async def consumers(self) -> list[ConsumerState]:
        result: list[ConsumerState] = await self._ask(wire.Consumers(), list[ConsumerState])
        return result

    async def remove_consumer(self, name: str) -> bool:
        """Forget a consumer, so that retention no longer waits for it; False when it was unknown."""
        result: bool = await self._ask(wire.RemoveConsumer(consumer=name), bool)
        return result

    async def quarantine(self, data: bytes, code: str, reason: str, *, source: str, seq: int | None = None) -> int:
        """Put what cannot be handled into quarantine, once; return its id (0: no room). Durable on return."""
        request = wire.Quarantine(data=data, code=code, reason=reason, source=source, seq=seq)
        result: int = await self._ask(request, int)
        return result

    async def quarantined(self, after: int = 0, limit: int = 100) -> list[QuarantineEntry]:
        """Return at most `limit` quarantined entries with an id above `after`, in order."""
        request = wire.Quarantined(after=after, limit=limit)
        result: list[QuarantineEntry] = await self._ask(request, list[QuarantineEntry])
        return result

    async def quarantined_entry(self, entry_id: int) -> QuarantineEntry:
        """Return one quarantined entry. Raises `QuarantineEntryError`."""
        result: QuarantineEntry = await self._ask(wire.QuarantinedEntry(id=entry_id), QuarantineEntry)
        return result

    async def drop_quarantined(self, entry_id: int) -> None:
        """Delete a quarantined entry for good. Raises `QuarantineEntryError`."""
        await self._ask(wire.DropQuarantined(id=entry_id), None)

    async def retry_quarantined(self, entry_id: int) -> bool:
        """Have the relay read bytes again that were no event; True when they are one now. As of `Subscriber`."""
        result: bool = await self._ask(wire.RetryQuarantined(id=entry_id), bool)
        return result

    async def erase(self, wanted: Erasable, *, dry_run: bool = False) -> Erased:
        """Erase events for good, all parts of it; their numbers stay as holes. Durable on return.

        Their bytes leave the file with an upkeep of the relay, when it has rested since it last copied its journal
        (`JournalStats.uncompacted` is 0 then). Each part is
        asked for once, with patience: a repeat would be told that there is nothing left to erase. Raises
        `RelayUnavailableError` when it is not known whether it happened; said again, `seqs` are those of the rest.
        """
        seqs: list[int] = []
        while True:
            request = wire.Erase(wanted=wanted, dry_run=dry_run)
            part: Erased = await self._ask(request, Erased, tries=1, timeout_s=_ERASE_TIMEOUT_S)
            seqs += part.seqs
            if part.next_after is None:
                return Erased(seqs=seqs, quarantined=part.quarantined)
            wanted = msgspec.structs.replace(wanted, after_seq=part.next_after)

    async def stats(self) -> RelayStats:
        result: RelayStats = await self._ask(wire.Stats(), RelayStats)
        return result

    async def ping(self) -> int:
        """Return the version of the relay's protocol."""
        result: int = await self._ask(wire.Ping(), int)
        return result

    async def close(self) -> None:
        """Close. No request may be under way."""
        self._socket.close()
        self._doorbell.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _ask(
        self, request: wire.Request, result_type: Any, *, tries: int = _TRIES, timeout_s: float | None = None
    ) -> Any:
        body = wire.encode(request)
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        async with self._lock:
            for attempt in range(_TRIES):
                correlation = next(self._correlations).to_bytes(8, "big")
                try:
                    async with asyncio.timeout(timeout_s / tries):
                        return wire.decode_reply(await self._exchange(correlation, body), result_type)
                except UnauthorizedError:
                    if not self._socket.reload_token():
                        raise
                except TimeoutError:
                    self._socket.reconnect()
                    if attempt + 1 >= tries:
                        break
        raise RelayUnavailableError(f"no answer from {self._ingest} within {timeout_s:.3g} s")

    async def _exchange(self, correlation: bytes, body: bytes) -> bytes:
        await self._socket.send([correlation, body])
        while True:
            frames = await self._socket.receive()
            if len(frames) == 2 and frames[0] == correlation:
                return frames[1]
