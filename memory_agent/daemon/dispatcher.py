"""Reads the journal by cursor, gives each event to its user's lane, and commits the cursor behind them.

The cursor is the low-water mark: everything up to it is on disk in some memory or in quarantine. After a crash the
events above it are read again, and each user's store recognises those it has. An event published under `system` goes to
the user it names, or to the owner of its run or session. Only keys for all users establish an owner, since any user can
name any run (setting `daemon.owner_claims`).

Events published under `system` that wait until the owner of their run or session is known. Pure.

Bounded in number and time; the dispatcher quarantines what stays unclaimed.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
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
from memory_agent.records.memories import IngestReport, MemoryStats
from memory_agent.settings import DaemonSettings
from memory_agent.signals.table import is_own
from memory_agent.storage.owners import Owners, named_owner, owner_keys, ownership_keys, quarantined_traces
from memory_agent.verbs.params import NoParams
from memory_agent.verbs.protocol import IngestBatch, decode_reply, encode
from relay import SHARED_USER, SYSTEM_USER, AsyncSubscriber, JournalEntry, RelayError
from relay.log import log

_FETCH_EVENTS = 100  # routing them takes 2 ms, during which recalls wait
_FETCH_BYTES = 4 << 20
_BUFFER_BYTES = 64 << 20
_IDLE_WAIT_S = 1.0
_COMMIT_INTERVAL_S = 0.2
_COUNTED_OF_ONE_USER = 200
_READY_DEADLINE_MS = 10_000.0
_NO_OWNER = "no key for all users has named the user whose its run or session is: see daemon.owner_claims, on_behalf_of"


Notice = Callable[[str, int, str, bytes, int], None]
"""Takes user, journal number, type, bytes and time of arrival (ms since 1970) of an event; returns at once."""


class Dispatcher:
    """Dispatches the journal's events of all users. Lives in one event loop."""

    def __init__(
        self,
        journal: AsyncSubscriber,
        hosts: Hosts,
        owners: Owners,
        settings: DaemonSettings,
        notice: Notice = lambda *_: None,
    ) -> None:
        """`notice` is called with each event whose user is known, and after a restart again from the cursor on."""
        self._journal = journal
        self._hosts = hosts
        self._owners = owners
        self._settings = settings
        self._notice = notice
        self._lanes: dict[str, Lane] = {}
        self._parking = Parking(settings.parked_events)
        self._budget = Budget(_BUFFER_BYTES)
        self._erased: set[int] = set()
        self._read_through = 0
        self._committed = 0
        self._progress = asyncio.Event()
        self.counts: Counter[str] = Counter()

    async def run(self) -> None:
        """Work until cancelled; waits for an unavailable relay."""
        await self._start()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._read_on())
                tasks.create_task(self._commit_on())
        finally:
            await asyncio.gather(*(lane.close() for lane in self._lanes.values()))

    async def wait(self, through: dict[str, int], timeout_s: float) -> None:
        """Return when every user's events up to the given journal number are recallable or in quarantine.

        Raises `DeadlineExceededError`.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while not all(self._handled(user_id, seq) for user_id, seq in through.items()):
                    self._progress.clear()
                    await self._progress.wait()
        except TimeoutError as error:
            raise DeadlineExceededError(f"not all events were handled within {timeout_s:.3g} s") from error

    def owner_of(self, user_id: str, event: bytes) -> str:
        """Return the user whose memory an event belongs to. Raises `UnhandledEventError` while there is none."""
        if user_id != SYSTEM_USER:
            return user_id
        owner = self._owners.owner_of(event)
        if owner is None:
            raise UnhandledEventError("", _NO_OWNER)
        return owner

    def owner(self, run_id: str | None, session_id: str | None) -> str | None:
        """Return the user that owns a run and session, the run being more specific, or None."""
        return self._owners.owner(owner_keys(run_id, session_id))

    async def system_events_of(self, user_id: str, among: frozenset[str] | None) -> frozenset[int]:
        """Return the numbers of the `system` events of this user, of these runs and sessions (None: of all)."""
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
        """As `system_events_of`, for quarantined events without a journal number; returns entry ids."""
        found: set[int] = set()
        after = 0
        while (among is None or among) and (page := await self._journal.quarantined(after, _FETCH_EVENTS)):
            told = {entry.id: quarantined_traces(entry) for entry in page}
            found.update(id_ for id_, traces in told.items() if traces and self._owners.has(user_id, traces, among))
            after = page[-1].id
        return frozenset(found)

    def claim_run(self, run_id: str, user_id: str, *, is_vouched: bool) -> None:
        """Record that this user began a run through a client, and so owns its events under `system`.

        `is_vouched`: with a key for all users. Durable with the next commit; events waiting for an owner are released.
        """
        if self._counts(is_vouched):
            self._learn(owner_keys(run_id, None), user_id)

    def lag(self) -> int:
        """Return how many journal numbers lie between the low-water mark and the last one read."""
        return self._read_through - self._low_water()

    def waiting(self) -> int:
        """Return how many events wait to be ingested; of one user at most 200 count, and none that errors hold up."""
        return sum(min(lane.waiting, _COUNTED_OF_ONE_USER) for lane in self._lanes.values())

    async def commit(self) -> None:
        """Commit the low-water mark as the journal's cursor. Durable on return. Raises `RelayError`, `StoreError`."""
        low_water = self._low_water()
        if low_water > self._committed:
            self._owners.save()
            await self._journal.commit(low_water)
            self._committed = low_water

    # What a lane needs: see `lane.Surroundings`.

    async def ingest(self, user_id: str, batch: IngestBatch) -> IngestReport:
        return await self._hosts.ingest(user_id, batch)

    async def ready(self, user_id: str) -> None:
        decode_reply(await self._hosts.call(user_id, "stats", encode(NoParams()), _READY_DEADLINE_MS), MemoryStats)

    async def backlog(self, user_id: str, after_seq: int) -> Sequence[Pending]:
        while True:
            with _relay_errors():
                batch = await self._journal.fetch(after_seq, _FETCH_EVENTS, max_bytes=_FETCH_BYTES, user_id=user_id)
            found = [Pending(entry.seq, entry.data) for entry in batch.entries if not is_own(entry.event_type)]
            if found or not batch.entries:
                return found
            after_seq = batch.entries[-1].seq

    async def content(self, seq: int) -> bytes | None:
        with _relay_errors():
            batch = await self._journal.fetch(seq - 1, 1, max_bytes=_FETCH_BYTES)
        if batch.entries and batch.entries[0].seq == seq:
            return batch.entries[0].data
        log.info("event.gone", seq=seq)  # erased, set aside as damaged, or deleted by age
        return None

    def is_erased(self, seq: int) -> bool:
        return seq in self._erased

    async def forget(self, user_id: str, seqs: Iterable[int]) -> None:
        """Drop these events, which the journal erased; return when none of them is being handled.

        Their numbers are kept until the low-water mark passes them; after a restart the journal has no bytes of them.
        Waiting events are read again in any case: a repeated erasure has no numbers the second time.
        """
        self._note_erased(seqs)
        for name in (user_id, SYSTEM_USER):
            if name in self._lanes:
                await self._lanes[name].read_again()

    @asynccontextmanager
    async def holding(self, user_id: str) -> AsyncIterator[Callable[[Iterable[int]], None]]:
        """Pause the user's lane within this; yields a function that takes the numbers the journal erased."""
        async with self._lane(user_id).held():
            yield self._note_erased

    def forget_owner(self, user_id: str) -> None:
        """Forget the user's runs and sessions. Raises `StoreError`."""
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

    def report(self, user_id: str, report: IngestReport) -> None:
        self.counts["kept"] += report.kept
        self.counts["duplicates"] += report.duplicates
        self.counts["dropped"] += sum(report.dropped.values())
        self._progress.set()
        log.info(
            "events.ingested",
            user_id=user_id,
            kept=report.kept,
            duplicates=report.duplicates,
            dropped=sum(report.dropped.values()),
            rejected=len(report.rejected),
        )

    async def _start(self) -> None:
        while True:
            try:
                self._read_through = self._committed = await self._journal.cursor()
                return
            except RelayError as error:
                await self._pause(error)

    async def _read_on(self) -> None:
        while True:
            try:
                batch = await self._journal.fetch(self._read_through, _FETCH_EVENTS, max_bytes=_FETCH_BYTES)
                for entry in batch.entries:
                    self._route(entry)
                await self._wait_for_parking()
                await self._wait_for_owners()
                if not batch.entries:  # the rest was erased, or its key is gone
                    self._read_through = max(self._read_through, batch.last_seq)
                    await self._journal.wait(_IDLE_WAIT_S)
            except StoreError:  # of the owners; one of a missing key is a `RelayError` too
                raise
            except RelayError as error:
                await self._pause(error)
            await asyncio.sleep(0)

    async def _wait_for_parking(self) -> None:
        """Stop reading while too many events are parked; quarantine is slower than reading."""
        while self._parking.surplus > 0:
            self._progress.clear()
            await self._progress.wait()

    async def _wait_for_owners(self) -> None:
        """Stop reading while new owners cannot be saved."""
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

    def _route(self, entry: JournalEntry) -> None:
        self.counts["read"] += 1
        # A block names the run of its cause, which proves nothing; what users share is nobody's memory.
        if not is_own(entry.event_type) and entry.user_id != SHARED_USER:
            self._route_to_owner(entry)
        self._read_through = entry.seq
        self._progress.set()

    def _route_to_owner(self, entry: JournalEntry) -> None:
        keys = ownership_keys(entry.data)
        if entry.user_id != SYSTEM_USER:
            if self._counts(entry.is_vouched):
                self._learn(keys, entry.user_id)
            self._lane(entry.user_id).offer(Pending(entry.seq, entry.data))
            self._notice(entry.user_id, entry.seq, entry.event_type, entry.data, entry.received_ms)
        elif (owner := self._owner(entry, keys)) is not None:
            self._lane(owner).offer(Pending(entry.seq, entry.data, late=True))
            self._notice(owner, entry.seq, entry.event_type, entry.data, entry.received_ms)
        else:
            until_s = time.monotonic() + self._settings.owner_wait_s
            self._parking.park(Parked(entry.seq, entry.data, keys, until_s, entry.event_type, entry.received_ms))

    def _owner(self, entry: JournalEntry, keys: tuple[str, ...]) -> str | None:
        """Return the owner of a `system` event; a user named in it owns its run and session from now on."""
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
        for event in self._parking.claim(keys):
            owner = self._owners.owner(event.keys)
            if owner is None:
                self._parking.park(event)
            else:
                self._lane(owner).offer(Pending(event.seq, event.data, late=True))
                self._notice(owner, event.seq, event.event_type, event.data, event.received_ms)

    async def _expire_parked(self) -> None:
        for event in self._parking.expired(time.monotonic()):
            if event.seq in self._erased:
                self._parking.leave(event.seq)
                continue
            if event.seq not in self._parking:
                continue  # its owner became known meanwhile
            pending = Pending(event.seq, event.data)
            await self.quarantine(SYSTEM_USER, pending, "owner_unknown", _NO_OWNER)
            self._parking.leave(event.seq)

    def _drop_done_lanes(self) -> None:
        done = [user_id for user_id, lane in self._lanes.items() if lane.is_done(self._read_through)]
        for user_id in done:
            del self._lanes[user_id]

    def _lane(self, user_id: str) -> Lane:
        lane = self._lanes.get(user_id)
        if lane is None:
            lane = self._lanes[user_id] = Lane(user_id, self, self._budget, self._settings)
        return lane

    def _handled(self, user_id: str, seq: int) -> bool:
        if self._read_through < seq:
            return False
        if user_id == SYSTEM_USER:
            return self._low_water() >= seq
        lane = self._lanes.get(user_id)
        oldest = lane.oldest_pending if lane is not None else None
        return oldest is None or oldest > seq

    def _low_water(self) -> int:
        """Never above what was read: a lane that refills itself may be ahead, but other users' lanes are not."""
        oldest = [lane.oldest_pending for lane in self._lanes.values()]
        oldest.append(self._parking.oldest())
        return min([self._read_through, *(seq - 1 for seq in oldest if seq is not None)])

    async def _pause(self, error: RelayError) -> None:
        log.warning("relay.unavailable", code=error.code)
        await asyncio.sleep(_IDLE_WAIT_S)


@contextlib.contextmanager
def _relay_errors() -> Iterator[None]:
    try:
        yield
    except RelayError as error:
        raise UnavailableError(f"relay: {error}") from error


@dataclass(frozen=True)
class Parked:
    """A waiting event: journal number, bytes, keys of its run and session, and when waiting ends (monotonic s).

    `event_type` and `received_ms` are as in the journal.
    """

    seq: int
    data: bytes
    keys: tuple[str, ...]
    until_s: float
    event_type: str = ""
    received_ms: int = 0


class Parking:
    """Waiting events, indexed by their keys."""

    def __init__(self, limit: int) -> None:
        """Hold at most `limit` events."""
        self._limit = limit
        self._parked: dict[int, Parked] = {}
        self._by_key: defaultdict[str, set[int]] = defaultdict(set)

    def __len__(self) -> int:
        return len(self._parked)

    def __contains__(self, seq: int) -> bool:
        return seq in self._parked

    @property
    def surplus(self) -> int:
        """How many events exceed the limit."""
        return max(0, len(self._parked) - self._limit)

    def park(self, event: Parked) -> None:
        """Add an event."""
        self._parked[event.seq] = event
        for key in event.keys:
            self._by_key[key].add(event.seq)

    def claim(self, keys: tuple[str, ...]) -> list[Parked]:
        """Remove and return the events with any of `keys`, in journal order."""
        seqs = {seq for key in keys for seq in self._by_key.get(key, ())}
        return [self._take(seq) for seq in sorted(seqs)]

    def expired(self, now_s: float) -> list[Parked]:
        """Return the events past their time and the oldest above the limit; they stay until `leave`."""
        surplus = self.surplus
        waiting = enumerate(self._parked.values())
        return [event for place, event in waiting if event.until_s <= now_s or place < surplus]

    def leave(self, seq: int) -> None:
        """Remove an event, if it is still there."""
        if seq in self._parked:
            self._take(seq)

    def oldest(self) -> int | None:
        """Return the lowest waiting journal number, or None."""
        return min(self._parked, default=None)

    def _take(self, seq: int) -> Parked:
        event = self._parked.pop(seq)
        for key in event.keys:
            self._by_key[key].discard(seq)
            if not self._by_key[key]:
                del self._by_key[key]
        return event
