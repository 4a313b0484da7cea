"""Reads the journal by cursor, passes each event to its user's lane, and then commits the cursor.

The cursor is the low-water mark: every earlier event is durable in a memory or in quarantine. If the memory is on
another node, the event must also be archived. After a crash, later events are read again, and each user's store
recognises the events that it already contains. An event published under `system` waits in `Parking` until the owner of
its run or session is known (setting `daemon.owner_claims`).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from memory_agent.daemon.hosts import Hosts
from memory_agent.daemon.lane import Budget, Lane, Pending
from memory_agent.errors import (
    DeadlineExceededError,
    MemoryAgentError,
    StoreError,
    UnavailableError,
    UnhandledEventError,
)
from memory_agent.records.memories import IngestReport
from memory_agent.settings import DaemonSettings
from memory_agent.signals import is_own
from memory_agent.storage.owners import Owners, named_owner, owner_keys, ownership_keys, quarantined_traces
from relay import SHARED_USER, SYSTEM_USER, AsyncSubscriber, Histogram, JournalEntry, RelayError
from relay.log import log

_FETCH_EVENTS = 100  # routing them takes 2 ms, during which recalls wait
_FETCH_BYTES = 4 << 20
_BUFFER_BYTES = 64 << 20
_IDLE_WAIT_S = 1.0
_COMMIT_INTERVAL_S = 0.2
_COUNTED_OF_ONE_USER = 200
_NO_OWNER = (
    "no client with a key for all users has named the owner of the event's run or session: "
    "see daemon.owner_claims, on_behalf_of"
)

Notice = Callable[[str, JournalEntry], None]


class Dispatcher:
    """Dispatches the events of all users. Must be used from a single event loop."""

    def __init__(
        self,
        journal: AsyncSubscriber,
        hosts: Hosts,
        owners: Owners,
        settings: DaemonSettings,
        notice: Notice = lambda *_: None,
        archive_interval_s: float = 5.0,
    ) -> None:
        """`notice` receives each event once its user is known; uncommitted events are repeated after a restart."""
        self._archive_interval_s = archive_interval_s
        self._journal = journal
        self._hosts = hosts
        self._owners = owners
        self._settings = settings
        self._notice = notice
        self._lanes: dict[str, Lane] = {}
        self._saving: dict[str, asyncio.Task[None]] = {}
        self._parking = Parking(settings.parked_events)
        self._budget = Budget(_BUFFER_BYTES)
        self._erased: set[int] = set()
        self.read_through = 0
        """The journal number of the last event that was read."""
        self._committed = 0
        self._progress = asyncio.Event()
        self.counts: Counter[str] = Counter()
        self.ingestion = Histogram()
        self.lags = Histogram()
        """The time from the receipt of each event by the relay to its ingestion."""
        hosts.watch(self)

    async def run(self) -> None:
        """Run until cancelled; waits for an unavailable relay."""
        await self._start()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._read_on())
                tasks.create_task(self._commit_on())
                tasks.create_task(self._save_on())
        finally:
            for saving in self._saving.values():
                saving.cancel()
            await asyncio.gather(*self._saving.values(), return_exceptions=True)
            await asyncio.gather(*(lane.close() for lane in self._lanes.values()))

    async def wait(self, through: dict[str, int], timeout_s: float) -> None:
        """Wait until each user's events up to a journal number have been handled. Raises `DeadlineExceededError`."""
        try:
            async with asyncio.timeout(timeout_s):
                while not all(self._handled(user_id, seq) for user_id, seq in through.items()):
                    self._progress.clear()
                    await self._progress.wait()
        except TimeoutError as error:
            raise DeadlineExceededError(f"not all events were handled within {timeout_s:.3g} s") from error

    def owner_of(self, user_id: str, event: bytes) -> str:
        """Return the user that an event belongs to. Raises `UnhandledEventError` if the owner is unknown."""
        if user_id != SYSTEM_USER:
            return user_id
        owner = self._owners.owner_of(event)
        if owner is None:
            raise UnhandledEventError("", _NO_OWNER)
        return owner

    def owner(self, run_id: str | None, session_id: str | None) -> str | None:
        """Return the owner of the run or else of the session, or None if both are unknown."""
        return self._owners.owner(owner_keys(run_id, session_id))

    async def system_events_of(self, user_id: str, among: frozenset[str] | None) -> frozenset[int]:
        """Return the numbers of this user's `system` events; with `among`, only the numbers of events about runs and
        sessions with these keys.
        """
        found: set[int] = set()
        after = 0
        while among is None or among:
            batch = await self._journal.fetch(after, _FETCH_EVENTS, max_bytes=_FETCH_BYTES, user_id=SYSTEM_USER)
            if not batch.entries:
                break
            found.update(entry.seq for entry in batch.entries if self._owners.has(user_id, entry.data, among))
            after = batch.entries[-1].seq
            await asyncio.sleep(0)
        return frozenset(found)

    async def system_quarantine_of(self, user_id: str, among: frozenset[str] | None) -> frozenset[int]:
        """Like `system_events_of`, but for quarantined events without a journal number; returns entry ids."""
        found: set[int] = set()
        after = 0
        while (among is None or among) and (page := await self._journal.quarantined(after, _FETCH_EVENTS)):
            traced = {entry.id: quarantined_traces(entry) for entry in page}
            found.update(id_ for id_, traces in traced.items() if traces and self._owners.has(user_id, traces, among))
            after = page[-1].id
        return frozenset(found)

    def claim_run(self, run_id: str, user_id: str, *, is_vouched: bool) -> None:
        """Assign a run's events published under `system` to the user whose client began the run.

        Becomes durable with the next commit.

        `is_vouched`: whether the run was published with a key for all users. Releases the events that were waiting for
        this owner.
        """
        if self._counts(is_vouched):
            self._learn(owner_keys(run_id, None), user_id)

    def lag(self) -> int:
        """Return the lag: the number of the last event read, minus the number up to which all events are handled."""
        return self.read_through - self._handled_through()

    def waiting(self) -> int:
        """Return how many events wait to be ingested, counting at most 200 per user and none in lanes delayed by
        errors."""
        return sum(min(lane.waiting, _COUNTED_OF_ONE_USER) for lane in self._lanes.values())

    @property
    def parked(self) -> int:
        return len(self._parking)

    async def commit(self) -> None:
        """Commit the low-water mark as the cursor. Durable on return. Raises `RelayError` and `StoreError`."""
        low_water = self._low_water()
        if low_water > self._committed:
            self._owners.save()
            await self._journal.commit(low_water)
            self._committed = low_water

    # For hosts: see `hosts.Watcher`.

    def saved(self, user_id: str) -> None:
        if user_id in self._lanes:
            self._lanes[user_id].saved()

    def lost(self, user_id: str) -> Awaitable[None] | None:
        return self._lanes[user_id].lost() if user_id in self._lanes else None

    # For lanes: see `lane.Journal`.

    async def backlog(self, user_id: str, after_seq: int) -> Sequence[Pending]:
        while True:
            with _relay_errors():
                batch = await self._journal.fetch(after_seq, _FETCH_EVENTS, max_bytes=_FETCH_BYTES, user_id=user_id)
            found = [_pending(entry) for entry in batch.entries if not is_own(entry.event_type)]
            if found or not batch.entries:
                return found
            after_seq = batch.entries[-1].seq

    async def content(self, seq: int) -> Pending | None:
        with _relay_errors():
            batch = await self._journal.fetch(seq - 1, 1, max_bytes=_FETCH_BYTES)
        if batch.entries and batch.entries[0].seq == seq:
            return _pending(batch.entries[0])
        log.info("event.gone", seq=seq)  # erased, set aside as damaged, or expired
        return None

    def is_erased(self, seq: int) -> bool:
        return seq in self._erased

    async def forget(self, user_id: str, seqs: Iterable[int]) -> None:
        """Drop events erased from the journal; return once none of them is being ingested.

        Waiting events are always read again, because a repeated erasure no longer returns the numbers of the erased
        events.
        """
        self._note_erased(seqs)
        for name in (user_id, SYSTEM_USER):
            if name in self._lanes:
                await self._lanes[name].read_again()

    @asynccontextmanager
    async def holding(self, user_id: str) -> AsyncIterator[Callable[[Iterable[int]], None]]:
        """Pause the user's lane within the context. Yields a function that takes the numbers of erased events."""
        async with self._lane(user_id).held():
            yield self._note_erased

    def forget_owner(self, user_id: str) -> None:
        self._owners.forget(user_id)

    def _note_erased(self, seqs: Iterable[int]) -> None:
        low_water = self._low_water()
        self._erased = {seq for seq in self._erased if seq > low_water}
        self._erased.update(seq for seq in seqs if seq > low_water)

    async def quarantine(self, user_id: str, event: Pending, code: str, reason: str) -> None:
        with _relay_errors():
            entry_id = await self._journal.quarantine(
                event.data, code, reason, source=f"memory:{user_id}", seq=event.seq
            )
        if not entry_id:
            raise UnavailableError("relay: the quarantine is full; see `memory-agent quarantine list`")
        self.counts["quarantined"] += 1
        self._progress.set()
        log.warning("event.quarantined", user_id=user_id, seq=event.seq, code=code)

    def report(self, user_id: str, report: IngestReport, batch: Sequence[Pending], took_ms: float) -> None:
        self.counts["kept"] += report.kept
        self.counts["duplicates"] += report.duplicates
        self.counts["dropped"] += sum(report.dropped.values())
        self._progress.set()
        self.ingestion.add(took_ms / 1000)
        now_ms = time.time() * 1000
        for event in batch:
            if event.received_ms:
                self.lags.add((now_ms - event.received_ms) / 1000)
        log.info(
            "events.ingested",
            user_id=user_id,
            kept=report.kept,
            duplicates=report.duplicates,
            dropped=sum(report.dropped.values()),
            rejected=len(report.rejected),
            took_ms=round(took_ms, 1),
        )

    async def _start(self) -> None:
        while True:
            try:
                self.read_through = self._committed = await self._journal.cursor()
                return
            except RelayError as error:
                await self._pause(error)

    async def _read_on(self) -> None:
        while True:
            try:
                batch = await self._journal.fetch(self.read_through, _FETCH_EVENTS, max_bytes=_FETCH_BYTES)
                for entry in batch.entries:
                    self._route(entry)
                await self._wait_for_parking()
                await self._wait_for_owners()
                if not batch.entries:  # the remaining events were erased, or their key was destroyed
                    self.read_through = max(self.read_through, batch.last_seq)
                    await self._journal.wait(_IDLE_WAIT_S)
            except StoreError:  # raised by `Owners`; a missing key is also a `RelayError`
                raise
            except RelayError as error:
                await self._pause(error)
            await asyncio.sleep(0)

    async def _wait_for_parking(self) -> None:
        """Wait while too many events are parked, since quarantining events is slower than reading them."""
        while self._parking.surplus > 0:
            self._progress.clear()
            await self._progress.wait()

    async def _wait_for_owners(self) -> None:
        """Wait while new owners cannot be saved."""
        while self._owners.is_crowded:
            try:
                self._owners.save()
            except MemoryAgentError as error:
                log.warning("owners.not_saved", code=error.code)
                await asyncio.sleep(_IDLE_WAIT_S)

    async def _commit_on(self) -> None:
        while True:
            await asyncio.sleep(_COMMIT_INTERVAL_S)
            try:
                await self._expire_parked()
                await self.commit()
                self._drop_done_lanes()
            except (RelayError, MemoryAgentError) as error:
                log.warning("cursor.not_committed", code=error.code)

    async def _save_on(self) -> None:
        """Archive each memory that is on another node and contains events not yet archived."""
        while True:
            await asyncio.sleep(self._archive_interval_s)
            for user_id, lane in self._lanes.items():
                if user_id not in self._saving:
                    self._saving[user_id] = asyncio.create_task(self._save(user_id, lane))

    async def _save(self, user_id: str, lane: Lane) -> None:
        try:
            await lane.save()
        except MemoryAgentError as error:
            log.warning("memory.not_archived", user_id=user_id, code=error.code)
        finally:
            self._saving.pop(user_id, None)

    def _route(self, entry: JournalEntry) -> None:
        self.counts["read"] += 1
        # A block names the run of the event that caused it, but does not prove ownership. Events about shared items do
        # not become memories.
        if not is_own(entry.event_type) and entry.user_id != SHARED_USER:
            self._route_to_owner(entry)
        self.read_through = entry.seq
        self._progress.set()

    def _route_to_owner(self, entry: JournalEntry) -> None:
        keys = ownership_keys(entry.data)
        if entry.user_id != SYSTEM_USER:
            if self._counts(entry.is_vouched):
                self._learn(keys, entry.user_id)
            self._offer(entry.user_id, entry)
        elif (owner := self._owner(entry, keys)) is not None:
            self._offer(owner, entry, late=True)
        else:
            self._parking.park(Parked(entry, keys, time.monotonic() + self._settings.owner_wait_s))

    def _offer(self, user_id: str, entry: JournalEntry, *, late: bool = False) -> None:
        self._lane(user_id).offer(_pending(entry, late=late))
        self._notice(user_id, entry)

    def _owner(self, entry: JournalEntry, keys: tuple[str, ...]) -> str | None:
        """Return the owner of a `system` event, or None. A user whom it names becomes the owner of its run and
        session.
        """
        named = named_owner(entry.data)
        if named is None:
            return self._owners.owner(keys)
        self._learn(keys, named)
        return named

    def _counts(self, is_vouched: bool) -> bool:
        return is_vouched or self._settings.owner_claims == "any"

    def _learn(self, keys: tuple[str, ...], user_id: str) -> None:
        if keys and self._owners.learn(keys, user_id):
            self._release(keys)

    def _release(self, keys: tuple[str, ...]) -> None:
        for parked in self._parking.claim(keys):
            owner = self._owners.owner(parked.keys)
            if owner is None:
                self._parking.park(parked)
            else:
                self._offer(owner, parked.entry, late=True)

    async def _expire_parked(self) -> None:
        for parked in self._parking.expired(time.monotonic()):
            seq = parked.entry.seq
            if seq in self._parking and seq not in self._erased:  # its owner may be known by now
                await self.quarantine(SYSTEM_USER, Pending(seq, parked.entry.data), "owner_unknown", _NO_OWNER)
            self._parking.leave(seq)

    def _drop_done_lanes(self) -> None:
        done = [user_id for user_id, lane in self._lanes.items() if lane.is_done(self.read_through)]
        for user_id in done:
            del self._lanes[user_id]

    def _lane(self, user_id: str) -> Lane:
        lane = self._lanes.get(user_id)
        if lane is None:
            lane = self._lanes[user_id] = Lane(user_id, self._hosts, self, self._budget, self._settings)
        return lane

    def _handled(self, user_id: str, seq: int) -> bool:
        if self.read_through < seq:
            return False
        if user_id == SYSTEM_USER:
            return self._handled_through() >= seq
        lane = self._lanes.get(user_id)
        oldest = lane.oldest_pending if lane is not None else None
        return oldest is None or oldest > seq

    def _low_water(self) -> int:
        return self._below(lane.oldest_unsaved for lane in self._lanes.values())

    def _handled_through(self) -> int:
        """Like `_low_water`, but events need not be archived yet."""
        return self._below(lane.oldest_pending for lane in self._lanes.values())

    def _below(self, oldest: Iterable[int | None]) -> int:
        """Return the highest number that has been read and is below every number in `oldest` and every parked event."""
        below = [seq - 1 for seq in (*oldest, self._parking.oldest()) if seq is not None]
        return min([self.read_through, *below])

    async def _pause(self, error: RelayError) -> None:
        log.warning("relay.unavailable", code=error.code)
        await asyncio.sleep(_IDLE_WAIT_S)


def _pending(entry: JournalEntry, *, late: bool = False) -> Pending:
    return Pending(entry.seq, entry.data, late, entry.received_ms)


@contextlib.contextmanager
def _relay_errors() -> Iterator[None]:
    try:
        yield
    except RelayError as error:
        raise UnavailableError(f"relay: {error}") from error


@dataclass(frozen=True)
class Parked:
    """A waiting event, the keys of its run and session, and when the wait ends (seconds, monotonic clock)."""

    entry: JournalEntry
    keys: tuple[str, ...]
    until_s: float


class Parking:
    """Events published under `system` whose owner is unknown. Their number and waiting time are limited."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parked: dict[int, Parked] = {}
        self._by_key: defaultdict[str, set[int]] = defaultdict(set)

    def __len__(self) -> int:
        return len(self._parked)

    def __contains__(self, seq: int) -> bool:
        return seq in self._parked

    @property
    def surplus(self) -> int:
        return max(0, len(self._parked) - self._limit)

    def park(self, event: Parked) -> None:
        self._parked[event.entry.seq] = event
        for key in event.keys:
            self._by_key[key].add(event.entry.seq)

    def claim(self, keys: tuple[str, ...]) -> list[Parked]:
        """Remove and return the events with any of `keys`, in journal order."""
        seqs = {seq for key in keys for seq in self._by_key.get(key, ())}
        return [self._take(seq) for seq in sorted(seqs)]

    def expired(self, now_s: float) -> list[Parked]:
        """Return the events that have waited long enough, and the oldest events in excess of the limit. They stay until
        `leave`.
        """
        surplus = self.surplus
        waiting = enumerate(self._parked.values())
        return [event for place, event in waiting if event.until_s <= now_s or place < surplus]

    def leave(self, seq: int) -> None:
        """Idempotent."""
        if seq in self._parked:
            self._take(seq)

    def oldest(self) -> int | None:
        return min(self._parked, default=None)

    def _take(self, seq: int) -> Parked:
        event = self._parked.pop(seq)
        for key in event.keys:
            self._by_key[key].discard(seq)
            if not self._by_key[key]:
                del self._by_key[key]
        return event
