"""Stores events, and memories that have no event: reads, deduplicates and embeds them, and commits them together with
the journal cursor.

Events are delivered at least once, but take effect exactly once. A known event id adds nothing, and an event that
produced no memory is counted only if its number is above the cursor. The id and the cursor are checked within the write
transaction. The next batch (`ahead`) can be sent to the embedder before the current one is committed.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from hashlib import blake2b

import msgspec

from memory_agent.errors import InvalidInputError, UnhandledEventError
from memory_agent.learning import Entry, RunRecords
from memory_agent.memory.quota import OVER_QUOTA, MemoryQuota
from memory_agent.memory.vectors import MemoryVectors, PendingTexts
from memory_agent.records.embedded import Embedded, embedded_text
from memory_agent.records.memories import IngestReport, MemoryRecord, RejectedEvent
from memory_agent.signals import Dropped, EventReader, RunSign, read_run_sign
from memory_agent.storage.archive import Archive
from memory_agent.storage.batch import Batch, is_same
from relay import Event, masked_kinds, read_event
from relay.errors import MalformedEventError

_MOST_TYPES = 50
_PROGRESS_BLOB = "progress"
_PROGRESS_SCOPES = 64

Admission = AbstractContextManager[Callable[[], None] | None]
"""A context manager held for the whole transaction. If it yields a function, the function is called before a new id is
stored.
"""


@dataclass(frozen=True)
class EncodedEvent:
    """Decodes a journal event. Instances with equal bytes are equal."""

    data: bytes = field(repr=False)

    def __call__(self) -> Event:
        return read_event(self.data)


NumberedEvents = Sequence[tuple[int, bytes]]
"""Encoded events, with their numbers in the journal."""


@dataclass(frozen=True)
class Arrival:
    """An event of a batch: its position, its journal number or None, and a function that decodes it."""

    position: int
    seq: int | None
    read: Callable[[], Event]


def arrivals_of(readers: Sequence[Callable[[], Event]], seqs: Sequence[int] | None) -> list[Arrival]:
    """Return the arrivals of a batch, with their journal numbers. Raises `InvalidInputError` for invalid `seqs`."""
    if seqs is not None and len(seqs) != len(readers):
        raise InvalidInputError("seqs", f"has {len(seqs)} numbers for {len(readers)} events")
    if seqs is not None and not all(isinstance(seq, int) for seq in seqs):
        raise InvalidInputError("seqs", "must be integers")
    numbers: Sequence[int | None] = [None] * len(readers) if seqs is None else seqs
    return [Arrival(place, seq, read) for place, (seq, read) in enumerate(zip(numbers, readers, strict=True))]


@dataclass(frozen=True)
class _Draft:
    """The memory that an event becomes, unless it is a duplicate."""

    position: int
    record: MemoryRecord
    event_id: str
    is_progress: bool


@dataclass(frozen=True)
class _Read:
    """A decoded event: its outcome, and what it reports about a run, if anything."""

    arrival: Arrival
    outcome: _Draft | Dropped | RejectedEvent
    sign: RunSign | None = None
    event_type: str = ""
    masked: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Prepared:
    """A batch with decoded events and texts that are being embedded."""

    arrivals: Sequence[Arrival]
    reads: Sequence[_Read]
    vectors: PendingTexts


class Intake:
    """Stores the events of one user, and memories without events."""

    def __init__(
        self,
        archive: Archive,
        vectors: MemoryVectors,
        reader: EventReader,
        run_records: RunRecords,
        quota: MemoryQuota,
    ) -> None:
        self._archive = archive
        self._quota = quota
        self._vectors = vectors
        self._reader = reader
        self._run_records = run_records
        self._preparing = threading.Lock()
        self._ahead: _Prepared | None = None

    def ingest(
        self, arrivals: Sequence[Arrival], *, ahead: Sequence[Arrival] = (), is_awaited: bool = False
    ) -> IngestReport:
        """Store the memories that events contain, atomically. Durable on return. Raises `StoreError`.

        The events in `ahead` are prepared for the next call, which reuses this work if it receives exactly these
        events. Set `is_awaited` if a caller is waiting for the result.
        """
        with self._preparing:
            prepared, self._ahead = self._ahead, None
        if prepared is None or prepared.arrivals != arrivals:
            prepared = self._prepare(arrivals, is_awaited=is_awaited)
        if ahead:
            self._prepare_ahead(ahead)
        first_new = self._archive.store.state.next_row
        report = self._commit(prepared)
        self._quota.make_room(first_new)
        return report

    def remember(self, record: MemoryRecord, admission: Admission, *, is_dated: bool) -> MemoryRecord:
        """Store and return a memory without an event, replacing any memory with the same id. Durable on return.

        A replaced memory keeps its time unless `is_dated` is true. Raises `QuotaExceededError`.
        """
        text = embedded_text(record)
        vectors = self._vectors.embed((text,), is_awaited=True)
        masked = masked_kinds(record.text, record.title, record.tags, record.metadata)
        with admission as admit, self._archive.batch() as batch:
            row = batch.row_of_id(record.id)
            old = None if row is None else batch.record(row)
            if old is None:
                self._quota.check(batch)
                if admit is not None:
                    admit()
                record = msgspec.structs.replace(record, updated_at=None)
            elif not is_dated:
                record = msgspec.structs.replace(record, timestamp=old.timestamp)
            if old is not None and is_same(record, old):
                return old
            first_new = batch.state.next_row
            stored = batch.upsert(record, vectors.admitted(batch).get(text))
            _count_masked(batch, masked)
        self._quota.make_room(first_new)
        return stored

    def _prepare_ahead(self, arrivals: Sequence[Arrival]) -> None:
        try:
            prepared = self._prepare(arrivals, is_awaited=False)
        except Exception:  # noqa: BLE001 - the next call raises it again
            return
        with self._preparing:
            self._ahead = prepared

    def _prepare(self, arrivals: Sequence[Arrival], *, is_awaited: bool) -> _Prepared:
        reads = [self._read(arrival) for arrival in arrivals]
        drafts = [read.outcome for read in reads if isinstance(read.outcome, _Draft)]
        with self._archive.store.snapshot() as snapshot:
            texts = [embedded_text(one.record) for one in drafts if snapshot.row_of_event(one.event_id) is None]
        return _Prepared(arrivals, reads, self._vectors.begin(texts, is_awaited=is_awaited))

    def _read(self, arrival: Arrival) -> _Read:
        event_id = ""
        try:
            event = arrival.read()
            event_id = event.event_id
            record = self._reader.read(event)
        except (MalformedEventError, UnhandledEventError) as error:
            reason = error.reason if isinstance(error, UnhandledEventError) else str(error)
            return _Read(arrival, RejectedEvent(position=arrival.position, event_id=event_id, reason=reason))
        sign = read_run_sign(event, self._reader.table)
        masked = masked_kinds(event.payload, event.extra)
        if isinstance(record, Dropped):
            return _Read(arrival, record, sign, event.event_type, masked)
        signal = self._reader.table.match(event.event_type)
        is_progress = signal is not None and signal.progress
        return _Read(arrival, _Draft(arrival.position, record, event_id, is_progress), sign, masked=masked)

    def _commit(self, prepared: _Prepared) -> IngestReport:
        fresh, handled = self._divided(prepared.reads)
        tally = _Tally()
        if fresh:
            vectors = prepared.vectors.result()
            with self._archive.batch() as batch:
                settlement = _Settlement(batch, vectors.admitted(batch), tally, self._quota)
                entries = [entry for read in fresh if (entry := settlement.settle(read)) is not None]
                batch.state.cursor = max(
                    [batch.state.cursor, *(read.arrival.seq for read in fresh if read.arrival.seq is not None)]
                )
                settlement.progress.save()
                self._run_records.enter(batch, entries)
                tally.add_to(batch)
        for read in handled:  # report rejected events again, in case the first report was lost
            if isinstance(read.outcome, RejectedEvent):
                tally.rejected.append(read.outcome)
            else:
                tally.duplicates += 1
        return tally.report()

    def _divided(self, reads: Sequence[_Read]) -> tuple[list[_Read], list[_Read]]:
        """Return the new events, and those that have already been handled.

        An event at or below the cursor has already been handled. The exception is an event that produces a memory and
        has an unknown id: its number is from a different journal.
        """
        fresh: list[_Read] = []
        handled: list[_Read] = []
        with self._archive.store.snapshot() as snapshot:
            cursor = snapshot.state.cursor
            for read in reads:
                seq, outcome = read.arrival.seq, read.outcome
                is_past = seq is not None and seq <= cursor
                is_news = isinstance(outcome, _Draft) and snapshot.row_of_event(outcome.event_id) is None
                (handled if is_past and not is_news else fresh).append(read)
        return fresh, handled


@dataclass
class _Tally:
    """Counts of the outcomes in one batch."""

    duplicates: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    dropped_types: Counter[str] = field(default_factory=Counter)
    masked: Counter[str] = field(default_factory=Counter)
    rejected: list[RejectedEvent] = field(default_factory=list)
    record_ids: list[str] = field(default_factory=list)

    def report(self) -> IngestReport:
        return IngestReport(
            kept=len(self.record_ids),
            duplicates=self.duplicates,
            dropped=dict(self.dropped),
            rejected=tuple(self.rejected),
            record_ids=tuple(self.record_ids),
        )

    def add_to(self, batch: Batch) -> None:
        counts = {f"dropped.{reason}": number for reason, number in self.dropped.items()}
        counts |= {"kept": len(self.record_ids), "duplicates": self.duplicates, "rejected": len(self.rejected)}
        for counter, number in counts.items():
            if number:
                batch.count(counter, number)
        _count_masked(batch, self.masked)
        for event_type, number in self.dropped_types.items():
            batch.count_among("dropped_type", event_type, number, _MOST_TYPES)


def _count_masked(batch: Batch, kinds: Mapping[str, int]) -> None:
    for kind, number in kinds.items():
        batch.count(f"masked.{kind}", number)


class _Settlement:
    """Writes events into one batch, and recognises duplicates inside its transaction."""

    def __init__(self, batch: Batch, vectors: Mapping[str, Embedded], tally: _Tally, quota: MemoryQuota) -> None:
        self._batch = batch
        self._quota = quota
        self._vectors = vectors
        self._tally = tally
        self.progress = _LastProgress(batch)

    def settle(self, read: _Read) -> Entry | None:
        """Store, drop or reject one event; if it is new, return what it reports about a run, if anything."""
        outcome, seq = read.outcome, read.arrival.seq
        is_news, row, record = False, None, None
        if isinstance(outcome, _Draft):
            is_news, row = self._keep(outcome)
            record = None if row is None else outcome.record
        elif seq is not None and seq <= self._batch.state.cursor:  # another thread has stored it since
            self._tally.duplicates += 1
        elif isinstance(outcome, Dropped):
            is_news = True
            self._tally.dropped[outcome.reason] += 1
            self._tally.dropped_types[read.event_type] += 1
        else:
            self._tally.rejected.append(outcome)
        if not is_news:
            return None
        self._tally.masked.update(read.masked)
        return None if read.sign is None else Entry(read.sign, row, record)

    def _keep(self, draft: _Draft) -> tuple[bool, int | None]:
        """Store a memory unless it is a duplicate; return whether the event is new, and the row of its memory."""
        if self._batch.row_of_event(draft.event_id) is not None:
            self._tally.duplicates += 1
            return False, None
        if draft.is_progress and (row := self.progress.row_of_repeat(draft.record)) is not None:
            self._batch.link_event(draft.event_id, row)
            self._tally.dropped["repeated_progress"] += 1
            return True, None
        if self._quota.is_full(self._batch):
            self._tally.dropped[OVER_QUOTA] += 1
            return True, None
        try:
            row = self._batch.put(draft.record, self._vectors.get(embedded_text(draft.record)))
        except InvalidInputError as error:
            reason = str(error)
            self._tally.rejected.append(RejectedEvent(position=draft.position, event_id=draft.event_id, reason=reason))
            return False, None
        self._tally.record_ids.append(draft.record.id)
        if draft.is_progress:
            self.progress.follow(draft.record, row)
        return True, row


class _LastProgress:
    """The last progress text of each of the latest 64 runs or sessions, saved so that a replay has the same outcome."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        blob = batch.blob(_PROGRESS_BLOB)
        self._last: dict[bytes, tuple[bytes, int]] = _progress_decoder.decode(blob) if blob else {}
        self._is_changed = False

    def row_of_repeat(self, record: MemoryRecord) -> int | None:
        """Return the row of the last progress text in the record's run or session if the texts are equal, else None."""
        digest, row = self._last.get(_scope(record), (b"", 0))
        return row if digest == _digest(record.text) else None

    def follow(self, record: MemoryRecord, row: int) -> None:
        self._last.pop(_scope(record), None)
        self._last[_scope(record)] = (_digest(record.text), row)
        self._is_changed = True

    def save(self) -> None:
        if self._is_changed:
            latest = dict(list(self._last.items())[-_PROGRESS_SCOPES:])
            self._batch.set_blob(_PROGRESS_BLOB, msgspec.msgpack.encode(latest))


_progress_decoder = msgspec.msgpack.Decoder(dict[bytes, tuple[bytes, int]])


def _scope(record: MemoryRecord) -> bytes:
    return _digest(f"run {record.run_id}" if record.run_id else f"session {record.session_id}")


def _digest(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=8).digest()
