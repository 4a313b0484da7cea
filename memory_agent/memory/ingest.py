"""Turn events and stated memories into stored memories: map, deduplicate, embed, and commit with the journal cursor.

Delivery is at least once, the effect exactly once: a known event id adds nothing, and an event that made no memory is
counted only above the cursor. Both are checked inside the writing transaction. Texts are embedded before it, outside
any lock, so recalls and other writers do not wait for the model. Without a model, memories are stored and get their
vectors later.

A caller that knows its next batch passes it along (`ahead`): it is read and sent to the embedder before this one is
committed, so the embedder works during the commit. Nothing of it is stored before it comes itself.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from hashlib import blake2b

import msgspec

from memory_agent.embedders import EmbedderInfo, Pending, comparable, comparable_words
from memory_agent.embedders.lazy_embedder import LazyEmbedder
from memory_agent.errors import InvalidInputError, MemoryAgentError, ModelError, UnhandledEventError
from memory_agent.learning.run_records import Entry, RunRecords
from memory_agent.records.embedded import Embedded, embedded_text, word_bytes
from memory_agent.records.memories import (
    IngestReport,
    MemoryRecord,
    RejectedEvent,
)
from memory_agent.signals.reader import Dropped, EventReader
from memory_agent.signals.runs import RunSign, read_run_sign
from memory_agent.storage.archive import Archive
from memory_agent.storage.batch import Batch, is_same
from memory_agent.storage.codec import StoreState
from relay import Event, masked_kinds, read_event
from relay.changes import holding
from relay.errors import MalformedEventError
from relay.log import log

_MOST_TYPES = 50
_PROGRESS_BLOB = "progress"
_PROGRESS_SCOPES = 64
_FILL_CHUNK = 256
_CATCH_UP_CHUNK, _CATCH_UP_S = 32, 2.0
_EMBED_TIMEOUT_S = 4.0  # shorter than a client's timeout, so that it receives the acknowledgement

Admission = AbstractContextManager[Callable[[], None] | None]
"""A context held for the whole transaction. If it yields a function, that is called before a new id is stored."""
Progress = Callable[[int, int], None]
"""Called with (done, total)."""


@dataclass(frozen=True)
class EncodedEvent:
    """Decodes an event of the journal. Equal for equal bytes."""

    data: bytes = field(repr=False)

    def __call__(self) -> Event:
        """Return the event. Raises `MalformedEventError`."""
        return read_event(self.data)


@dataclass(frozen=True)
class Arrival:
    """An event of a batch: its position, its journal number or None, and a function that decodes it."""

    position: int
    seq: int | None
    read: Callable[[], Event]


@dataclass(frozen=True)
class _Draft:
    """The memory that an event becomes unless it is a repeat."""

    position: int
    record: MemoryRecord
    event_id: str
    is_progress: bool


@dataclass(frozen=True)
class _Read:
    """A decoded event: its outcome and what it says about a run."""

    arrival: Arrival
    outcome: _Draft | Dropped | RejectedEvent
    sign: RunSign | None = None
    event_type: str = ""
    masked: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Prepared:
    """A batch that is read, with its texts at the embedder."""

    arrivals: Sequence[Arrival]
    reads: Sequence[_Read]
    vectors: PendingTexts


@dataclass
class _Tally:
    """Counts of the outcomes of one batch."""

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
        count_masked(batch, self.masked)
        for event_type, number in self.dropped_types.items():
            batch.count_among("dropped_type", event_type, number, _MOST_TYPES)


def count_masked(batch: Batch, kinds: Mapping[str, int]) -> None:
    """Add to the counts of masked secrets by kind."""
    for kind, number in kinds.items():
        batch.count(f"masked.{kind}", number)


class Vectors(msgspec.Struct, frozen=True):
    """What a model made of texts, by text, and its origin; empty without a model."""

    by_text: dict[str, Embedded] = {}
    info: EmbedderInfo | None = None

    def admitted(self, batch: Batch) -> dict[str, Embedded]:
        """Return `by_text` if its model is that of the store, or the store has none yet; else an empty dict.

        Words of the same model that are made in another way than those of the store replace them: all memories wait.
        What cannot be stored is left out, so that its memory waits and is not lost with it.
        """
        if self.info is None:
            return {}
        stamp, words_stamp = self.info.stamp, self.info.words_stamp
        if batch.state.stamp is None:
            batch.set_stamp(stamp)
        if not comparable(batch.state.stamp or "", stamp):
            return {}
        if words_stamp:
            batch.set_words_stamp(_kept(batch.state.words_stamp, words_stamp))
        return self._sound(batch.state)

    def _sound(self, state: StoreState) -> dict[str, Embedded]:
        assert self.info is not None
        ndim = state.ndim or self.info.ndim
        width = (state.word_bytes or word_bytes(ndim)) if self.info.words_stamp else None
        sound = {text: found for text, found in self.by_text.items() if found.is_sound(ndim, width)}
        if len(sound) < len(self.by_text):
            log.error("embedder.unusable", texts=len(self.by_text) - len(sound), stamp=self.info.stamp)
        return sound


def _kept(known: str | None, words_stamp: str) -> str:
    """Return the stamp of the words that a store keeps: the one it has, if the other is comparable."""
    return known if known is not None and comparable_words(known, words_stamp) else words_stamp


class PendingTexts:
    """Texts at the embedder. For one thread."""

    def __init__(self, texts: Iterable[str], embedder: LazyEmbedder, *, is_awaited: bool) -> None:
        """Begin to embed `texts`, each distinct one once. With `is_awaited` they go before bulk work, and have 4 s."""
        self._texts = list(dict.fromkeys(texts))
        self._embedder = embedder
        self._pending: Pending[list[Embedded]] | None = None
        if self._texts:
            timeout_s = _EMBED_TIMEOUT_S if is_awaited else None
            with suppress(ModelError):
                self._pending = embedder.get().begin_passages(self._texts, timeout_s=timeout_s)

    def result(self) -> Vectors:
        """Return what was made of the texts; empty without a model, or when it fails or is late."""
        if self._pending is None:
            return Vectors()
        try:
            found = self._pending.result()
            return Vectors(dict(zip(self._texts, found, strict=True)), self._embedder.get().info)
        except ModelError:
            return Vectors()


class Intake:
    """Stores the events and stated memories of one user."""

    def __init__(self, archive: Archive, embedder: LazyEmbedder, reader: EventReader, run_records: RunRecords) -> None:
        self._archive = archive
        self._embedder = embedder
        self._reader = reader
        self._run_records = run_records
        self._filling = threading.RLock()
        self._fill_thread: threading.Thread | None = None
        self._is_closing = False
        self._preparing = threading.Lock()
        self._ahead: _Prepared | None = None

    def take_in(
        self, arrivals: Sequence[Arrival], *, ahead: Sequence[Arrival] = (), is_awaited: bool = False
    ) -> IngestReport:
        """Store the events worth keeping, atomically. Durable on return.

        The report lists events that can never become a memory in `rejected`. Events in `ahead` are prepared for the
        next call, which uses that if it brings exactly them. Set `is_awaited` if a caller waits for the result. Raises
        `StoreError`.
        """
        with self._preparing:
            prepared, self._ahead = self._ahead, None
        if prepared is None or prepared.arrivals != arrivals:
            prepared = self._prepare(arrivals, is_awaited=is_awaited)
        if ahead:
            self._prepare_ahead(ahead)
        return self._commit(prepared)

    def _prepare_ahead(self, arrivals: Sequence[Arrival]) -> None:
        try:
            prepared = self._prepare(arrivals, is_awaited=False)
        except Exception:  # noqa: BLE001 - it is raised again when these events come themselves
            return
        with self._preparing:
            self._ahead = prepared

    def _prepare(self, arrivals: Sequence[Arrival], *, is_awaited: bool) -> _Prepared:
        """Read the events and begin to embed their texts. Stores nothing."""
        reads = [self._read(arrival) for arrival in arrivals]
        texts = self._unknown_texts(read.outcome for read in reads)
        return _Prepared(arrivals, reads, PendingTexts(texts, self._embedder, is_awaited=is_awaited))

    def _commit(self, prepared: _Prepared) -> IngestReport:
        fresh, handled = self._divided(prepared.reads)
        tally = _Tally()
        if fresh:
            vectors = prepared.vectors.result()
            with self._archive.batch() as batch:
                tally = self._settle(batch, fresh, vectors)
        self._pass_over(handled, tally)
        return tally.report()

    def _divided(self, reads: Sequence[_Read]) -> tuple[list[_Read], list[_Read]]:
        """Return the new events, and those handled before.

        An event at or below the cursor was handled before, unless it makes a memory and its id is unknown: then its
        number is from another journal (one was lost, or the store moved).
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

    def _pass_over(self, handled: Iterable[_Read], tally: _Tally) -> None:
        """Count events handled before as duplicates; report rejected ones again, in case the first report was lost."""
        for read in handled:
            if isinstance(read.outcome, RejectedEvent):
                tally.rejected.append(read.outcome)
            else:
                tally.duplicates += 1

    def embed(self, texts: Iterable[str], *, is_awaited: bool = False) -> Vectors:
        """Return what a model makes of `texts`, each distinct text embedded once; empty without a model.

        With `is_awaited` they take precedence over bulk work, and are empty after 4 s.
        """
        return PendingTexts(texts, self._embedder, is_awaited=is_awaited).result()

    def remember(self, record: MemoryRecord, admission: Admission, *, is_dated: bool) -> MemoryRecord:
        """Store one memory without an event, or replace the one with its id; return what is stored. Durable on return.

        A replaced memory keeps its time unless the record `is_dated`. One that says the same already stays as it is.
        """
        text = embedded_text(record)
        vectors = self.embed((text,), is_awaited=True)
        masked = masked_kinds(record.text, record.title, record.tags, record.metadata)
        with admission as admit, self._archive.batch() as batch:
            row = batch.row_of_id(record.id)
            old = None if row is None else batch.record(row)
            if old is None:
                if admit is not None:
                    admit()
                record = msgspec.structs.replace(record, updated_at=None)
            elif not is_dated:
                record = msgspec.structs.replace(record, timestamp=old.timestamp)
            if old is not None and is_same(record, old):
                return old
            stored = batch.upsert(record, vectors.admitted(batch).get(text))
            count_masked(batch, masked)
        return stored

    def fill_vectors(self, limit: int | None = None, progress: Progress | None = None) -> int:
        """Embed at most `limit` memories that lack a vector, or the words that the embedder makes; return how many.

        Each chunk of 256 is committed on its own, so the call may be interrupted and repeated. Returns 0 without a
        model, with another model than the store's, or while another thread does this.
        """
        self._embedder.look_again()
        with holding(self._filling, 0.0) as is_held:
            return self._fill_all(limit, progress) if is_held else 0

    def fill_in_background(self) -> None:
        """Begin to embed all memories that lack something, in a thread of their own, unless that is under way."""
        if not self._is_closing and (self._fill_thread is None or not self._fill_thread.is_alive()):
            self._fill_thread = threading.Thread(target=self._fill_quietly, name="vectors-fill")
            self._fill_thread.start()

    def begin_reembedding(self) -> int:
        """Drop all vectors if they are from another embedder; return how many memories wait for new ones.

        The rest is left to `fill_vectors`, also after a crash. Durable on return. Raises `ModelError` without a model.
        """
        self._embedder.look_again()
        info = self._embedder.get().info
        with self._archive.batch() as batch:
            batch.set_stamp(info.stamp)
            Vectors({}, info).admitted(batch)
        return self._archive.store.pending_count

    def reembed(self, progress: Progress | None = None) -> int:
        """Recompute all vectors if the store's are from another embedder; return how many.

        If it is interrupted, `fill_vectors` completes it. Raises `ModelError` without a model.
        """
        self.begin_reembedding()
        return self.fill_vectors(progress=progress)

    def close(self, *, catch_up: bool = False) -> None:
        """Stop the work in the background. Idempotent.

        With `catch_up`, first embed, for about 2 s, what was stored while there was no model, if one is open now.
        """
        if catch_up and self._embedder.is_open:
            self._catch_up()
        self._is_closing = True
        if self._fill_thread is not None:
            self._fill_thread.join()

    def _catch_up(self) -> None:
        store, until_s = self._archive.store, time.monotonic() + _CATCH_UP_S
        with suppress(MemoryAgentError):  # a store whose key is destroyed closes too
            if store.pending_count and (
                store.stamp is None or comparable(store.stamp, self._embedder.get().info.stamp)
            ):
                while self.fill_vectors(_CATCH_UP_CHUNK) and time.monotonic() < until_s:
                    pass

    def _fill_quietly(self) -> None:
        with suppress(MemoryAgentError):  # the next upkeep goes on, and meets an error of the store itself
            self.fill_vectors()

    def _fill_all(self, limit: int | None, progress: Progress | None) -> int:
        """Go through the waiting memories once."""
        makes_words = self._await_words()
        store, filled, last = self._archive.store, 0, 0
        total = store.pending_count if limit is None else min(limit, store.pending_count)
        while filled < total and not self._is_closing:
            rows = store.pending_rows(min(_FILL_CHUNK, total - filled), last)
            if not rows:
                break
            last = rows[-1]
            if not makes_words:  # then only vectors can be filled in
                rows = [row for row, vector in zip(rows, store.vectors(rows), strict=True) if not vector.any()]
            done = self._fill(rows) if rows else 0
            if done is None:
                break
            filled += done
            if progress is not None:
                progress(filled, total)
        return filled

    def _await_words(self) -> bool:
        """Let memories whose words were never made wait for them; return whether the embedder makes words."""
        try:
            info = self._embedder.get().info
        except ModelError:
            return False
        known, stamp = self._archive.store.words_stamp, self._archive.store.stamp
        is_needed = info.words_stamp and stamp is not None and comparable(stamp, info.stamp)
        if is_needed and known != _kept(known, info.words_stamp):
            with self._archive.batch() as batch:
                Vectors({}, info).admitted(batch)
        return bool(info.words_stamp)

    def _fill(self, rows: Sequence[int]) -> int | None:
        """Embed the memories in `rows` and store what came; return how many, None without the model of the store."""
        texts = [embedded_text(record) for record in self._archive.store.records(rows) if record is not None]
        vectors = self.embed(texts)
        if vectors.info is None or not comparable(self._archive.store.stamp or vectors.info.stamp, vectors.info.stamp):
            return None
        with self._archive.batch() as batch:
            admitted = vectors.admitted(batch)
            found = {row: embedded_text(record) for row in rows if (record := batch.record(row))}
            present = [(row, text) for row, text in found.items() if text in admitted]
            for row, text in present:
                batch.set_vector(row, admitted[text])
        return len(present)

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
        signal = self._reader.match(event.event_type)
        is_progress = signal is not None and signal.progress
        return _Read(arrival, _Draft(arrival.position, record, event_id, is_progress), sign, masked=masked)

    def _unknown_texts(self, outcomes: Iterable[_Draft | Dropped | RejectedEvent]) -> list[str]:
        drafts = [outcome for outcome in outcomes if isinstance(outcome, _Draft)]
        with self._archive.store.snapshot() as snapshot:
            return [embedded_text(draft.record) for draft in drafts if snapshot.row_of_event(draft.event_id) is None]

    def _settle(self, batch: Batch, reads: Sequence[_Read], vectors: Vectors) -> _Tally:
        """Write the batch, recognising repeats inside the transaction."""
        tally, admitted = _Tally(), vectors.admitted(batch)
        progress = _LastProgress(batch)
        entries: list[Entry] = []
        for read in reads:
            entry = self._settle_one(batch, read, admitted, progress, tally)
            if entry is not None:
                entries.append(entry)
        seqs = [read.arrival.seq for read in reads if read.arrival.seq is not None]
        batch.cursor = max([batch.cursor, *seqs])
        progress.save()
        self._run_records.enter(batch, entries)
        tally.add_to(batch)
        return tally

    def _settle_one(
        self, batch: Batch, read: _Read, vectors: dict[str, Embedded], progress: _LastProgress, tally: _Tally
    ) -> Entry | None:
        """Store, drop or reject one event; if it is new, return what it says about a run."""
        outcome, seq = read.outcome, read.arrival.seq
        row = None
        if isinstance(outcome, _Draft):
            is_news, row = self._keep(batch, outcome, vectors, progress, tally)
        elif seq is not None and seq <= batch.cursor:  # another thread has stored it since
            is_news = False
            tally.duplicates += 1
        elif isinstance(outcome, Dropped):
            is_news = True
            tally.dropped[outcome.reason] += 1
            tally.dropped_types[read.event_type] += 1
        else:
            is_news = False
            tally.rejected.append(outcome)
        if is_news:
            tally.masked.update(read.masked)
        if not is_news or read.sign is None:
            return None
        return Entry(read.sign, row, outcome.record if isinstance(outcome, _Draft) and row is not None else None)

    def _keep(
        self, batch: Batch, draft: _Draft, vectors: dict[str, Embedded], progress: _LastProgress, tally: _Tally
    ) -> tuple[bool, int | None]:
        """Store a memory unless it is a repeat; return whether the event is new, and the row of its memory."""
        if batch.row_of_event(draft.event_id) is not None:
            tally.duplicates += 1
            return False, None
        if draft.is_progress and (row := progress.row_of_repeat(draft.record)) is not None:
            batch.link_event(draft.event_id, row)
            tally.dropped["repeated_progress"] += 1
            return True, None
        try:
            row = batch.put(draft.record, vectors.get(embedded_text(draft.record)))
        except InvalidInputError as error:
            reason = str(error)
            tally.rejected.append(RejectedEvent(position=draft.position, event_id=draft.event_id, reason=reason))
            return False, None
        tally.record_ids.append(draft.record.id)
        if draft.is_progress:
            progress.follow(draft.record, row)
        return True, row


class _LastProgress:
    """The last progress text of each of the 64 latest runs or sessions.

    It is kept in the store, not in the process, so that a replay after a crash has the same outcome.
    """

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        blob = batch.blob(_PROGRESS_BLOB)
        self._last: dict[bytes, tuple[bytes, int]] = _progress_decoder.decode(blob) if blob else {}
        self._is_changed = False

    def row_of_repeat(self, record: MemoryRecord) -> int | None:
        """Return the row of the last progress of the record's run or session, if the text is the same; else None."""
        digest, row = self._last.get(_scope(record), (b"", 0))
        return row if digest == _digest(record.text) else None

    def follow(self, record: MemoryRecord, row: int) -> None:
        """Set the last progress of the record's run or session."""
        self._last.pop(_scope(record), None)
        self._last[_scope(record)] = (_digest(record.text), row)
        self._is_changed = True

    def save(self) -> None:
        """Write changes to the batch."""
        if self._is_changed:
            latest = dict(list(self._last.items())[-_PROGRESS_SCOPES:])
            self._batch.set_blob(_PROGRESS_BLOB, msgspec.msgpack.encode(latest))


_progress_decoder = msgspec.msgpack.Decoder(dict[bytes, tuple[bytes, int]])


def _scope(record: MemoryRecord) -> bytes:
    return _digest(f"run {record.run_id}" if record.run_id else f"session {record.session_id}")


def _digest(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=8).digest()
