"""The durable event log: ordered (`seq`, from 1), unique by user and `event_id`, with durable consumers.

Events are on disk when `append` returns (`sync` and `metasync` are on). One process writes; others may open the journal
`readonly`. See `ops/decisions/0007-event-journal-and-acknowledgements.md`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple, Self

import msgspec

from relay import errors
from relay.access import Origin
from relay.config import JournalSettings
from relay.crypto import KeyRing
from relay.disk import Environment, Pair, Transaction, keep_reserve
from relay.event import Event, audience_of, encode_event
from relay.journal import entries
from relay.journal.copies import JournalCopy
from relay.journal.erasure import Erasure
from relay.journal.file import open_file, require_encryption
from relay.journal.quarantine import Quarantine, Suspect
from relay.journal.retention import Retention, RetentionReport
from relay.journal.sealing import Reading, Sealing
from relay.wire import Batch, ConsumerState, Erasable, Erased, JournalEntry, JournalStats, QuarantineEntry

_COMPACTION_TRIES = 3  # 10 s
_MOST_SKIPPED = 10_000  # 40 ms
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


class Appended(NamedTuple):
    """The number of an event in the journal, and whether the journal already contained it."""

    seq: int
    duplicate: bool


class Journal:
    """A journal in one folder. Thread-safe; writes run one at a time.

    In the examples, `journal` is empty, and `events` contains alice's events `e-1` to `e-3`.
    """

    def __init__(
        self,
        environment: Environment,
        settings: JournalSettings,
        keys: KeyRing | None = None,
        ring: bytes | None = None,
        copy: JournalCopy | None = None,
    ) -> None:
        self._copy = copy
        self._uncopied = "" if copy is None else "it has not begun"
        self._environment = environment
        self._settings = settings
        self._sealing = Sealing(keys, ring)
        self._reading = Reading(environment.path, self._sealing)
        self._quarantine = Quarantine(settings, self._sealing)
        self._retention = Retention(environment, settings)
        self._erasure = Erasure(environment, self._retention, self._quarantine, self._sealing, self._reading)
        self._reserve_bytes = min(settings.reserve_bytes, settings.map_size_bytes // 2)

    @classmethod
    def open(
        cls,
        path: Path,
        settings: JournalSettings | None = None,
        *,
        readonly: bool = False,
        keys: KeyRing | None = None,
        copy: JournalCopy | None = None,
    ) -> Self:
        """Open the journal in folder `path`. A writer creates it if needed and owns it. With `keys`, it is encrypted.

        `copy` receives everything that is written; call `flush_copy` before the first `append`. Raises `JournalError`s,
        `EncryptionMismatchError` and `EncryptionKeyMissingError`.

        >>> with Journal.open(Path("journal")) as journal:
        ...     journal.append(events, now)[-1].seq
        3
        >>> with Journal.open(Path("journal"), readonly=True) as journal:
        ...     journal.last_seq
        3
        """
        settings = settings or JournalSettings()
        on_commit = None if copy is None else copy.note
        environment = open_file(path, settings, readonly=readonly, on_commit=on_commit)
        try:
            ring = require_encryption(environment, keys, readonly=readonly)
            if copy is not None:
                copy.begin(path, partial(environment.copy, clears_unused=True))
        except BaseException:
            environment.close()
            raise
        if not readonly and settings.disk_reserve_bytes:
            keep_reserve(path, settings.disk_reserve_bytes)
        return cls(environment, settings, keys, ring, copy)

    def append(
        self,
        events: Sequence[Event],
        now: datetime,
        *,
        origins: Sequence[Origin] = (),
        suspects: Sequence[Suspect] = (),
        source: tuple[str, int] | None = None,
    ) -> list[Appended]:
        """Append events in order, in one transaction; return their numbers. Durable on return, but not copied.

        `origins` holds the origin of each event, if known. In the same transaction, `suspects` are quarantined, and the
        read position of a `source` (name and position) is stored. Raises `JournalPausedError` (nothing was written) and
        `JournalError`.

        >>> journal.append(events[:2], now)
        [Appended(seq=1, duplicate=False), Appended(seq=2, duplicate=False)]
        >>> journal.append(events[1:], now)
        [Appended(seq=2, duplicate=True), Appended(seq=3, duplicate=False)]
        """
        self._require_copy()
        with self._writing() as transaction:
            if events:
                self._require_room(transaction)
            appended = self._append(transaction, events, origins, entries.milliseconds(now))
            for suspect in suspects:
                self._quarantine.add(transaction, suspect, now)
            if source is not None:
                transaction.put("sources", source[0].encode(), entries.number_key(source[1]))
        return appended

    def read(
        self, after_seq: int, limit: int, max_bytes: int = 4 << 20, user_id: str | None = None
    ) -> list[JournalEntry]:
        """Like `fetch`, but return only the entries.

        >>> appended = journal.append(events, now)
        >>> [(entry.seq, read_event(entry.data).event_id) for entry in journal.read(after_seq=1, limit=10)]
        [(2, 'e-2'), (3, 'e-3')]
        """
        return self.fetch(after_seq, limit, max_bytes, user_id).entries

    def fetch(
        self,
        after_seq: int,
        limit: int,
        max_bytes: int = 4 << 20,
        user_id: str | None = None,
        audiences: frozenset[str] | None = None,
    ) -> Batch:
        """Return at most `limit` entries after `after_seq`, in order and from one snapshot; optionally, only those of
        one user.

        With `audiences`, only entries for these audiences are returned; at most 10,000 other entries are skipped
        (`Batch.has_more`). Stops before the event data would exceed `max_bytes`, but always returns the first entry.
        Skips entries whose key is missing. Raises `EntryDamagedError` if the first entry is damaged, and
        `KeysUnavailableError`.

        >>> appended = journal.append(events, now)
        >>> batch = journal.fetch(after_seq=0, limit=2)
        >>> [entry.seq for entry in batch.entries], batch.last_seq
        ([1, 2], 3)
        """
        self._sealing.require_keys()
        found: list[JournalEntry] = []
        size_bytes, skipped, has_more = 0, 0, False
        with self._environment.read() as transaction:
            last_seq = entries.counter(transaction, "last_seq")
            first_seq = self._first_seq(transaction, last_seq)
            for entry in self._reading.entries(transaction, after_seq, user_id) if limit > 0 else ():
                if audiences is not None and audience_of(entry.data) not in audiences:
                    skipped += 1
                    if skipped < _MOST_SKIPPED:
                        continue
                    if not found:
                        last_seq, has_more = entry.seq, True
                    break
                size_bytes += len(entry.data)
                if found and size_bytes > max_bytes:
                    break
                found.append(entry)
                if len(found) >= limit:
                    break
        self._sealing.require_keys()  # without this check, keys that have just become unavailable would seem destroyed
        return Batch(entries=found, last_seq=last_seq, first_seq=first_seq, has_more=has_more)

    @property
    def last_seq(self) -> int:
        """The last assigned number, 0 in a new journal."""
        with self._environment.read() as transaction:
            return entries.counter(transaction, "last_seq")

    @property
    def first_seq(self) -> int:
        """The number of the oldest entry, or `last_seq + 1` if there are no entries."""
        with self._environment.read() as transaction:
            return self._first_seq(transaction, entries.counter(transaction, "last_seq"))

    def cursor(self, name: str) -> int:
        """Return the cursor of the consumer `name`, or 0 if the consumer is unknown.

        >>> appended = journal.append(events, now)
        >>> journal.commit("indexer", 2), journal.cursor("indexer"), journal.cursor("other")
        (2, 2, 0)
        """
        with self._environment.read() as transaction:
            return self._cursor(transaction, name) or 0

    def commit(self, name: str, seq: int) -> int:
        """Move the cursor of the consumer `name` to `seq`, and return it. Durable on return.

        A cursor never moves back. Committing 0 registers a consumer; retention then waits for it. Raises
        `CursorError` for a number that was never assigned, or an invalid name.

        >>> appended = journal.append(events, now)
        >>> journal.commit("indexer", 2), journal.commit("indexer", 1)
        (2, 2)
        """
        key = _consumer_key(name)
        with self._environment.write() as transaction:
            last_seq = entries.counter(transaction, "last_seq")
            if not 0 <= seq <= last_seq:
                raise errors.CursorError(
                    f"consumer {name}: cursor {seq} is beyond the journal's last number {last_seq}"
                )
            known = self._cursor(transaction, name)
            if known is None or seq > known:
                transaction.put("consumers", key, entries.number_key(seq))
            return max(seq, known or 0)

    def consumers(self) -> list[ConsumerState]:
        """Return the durable consumers, by name.

        >>> appended = journal.append(events, now)
        >>> journal.commit("indexer", 2), journal.consumers()
        (2, [ConsumerState(name='indexer', seq=2, lag=1)])
        """
        with self._environment.read() as transaction:
            return self._consumers(transaction)

    def require_read(self, max_lag: int) -> None:
        """Raise `ConsumerBehindError` if a durable consumer has more than `max_lag` unread entries (0: no limit).

        >>> appended, cursor = journal.append(events, now), journal.commit("indexer", 0)
        >>> journal.require_read(max_lag=2)
        Traceback (most recent call last):
        relay.errors.ConsumerBehindError: ...
        """
        behind = max(self.consumers(), key=lambda consumer: consumer.lag, default=None) if max_lag else None
        if behind is not None and behind.lag > max_lag:
            raise errors.ConsumerBehindError(behind.name, behind.lag, max_lag)

    def remove_consumer(self, name: str) -> bool:
        """Remove a consumer, so that retention stops waiting for it; return whether it existed. Durable on return.

        >>> journal.commit("indexer", 0), journal.remove_consumer("indexer"), journal.remove_consumer("indexer")
        (0, True, False)
        """
        with self._environment.write() as transaction:
            return transaction.delete("consumers", _consumer_key(name))

    def source_cursor(self, name: str) -> int | None:
        """Return the read position of a source (`append`), or None if the source is new.

        >>> appended = journal.append(events, now, source=("app", 30))
        >>> journal.source_cursor("app"), journal.source_cursor("other")
        (30, None)
        """
        with self._environment.read() as transaction:
            value = transaction.get("sources", name.encode())
        return None if value is None else entries.number(value)

    def quarantine(
        self, data: bytes, code: str, reason: str, source: str, now: datetime, seq: int | None = None
    ) -> int:
        """Quarantine bytes that could not be handled; return the id of the entry, or 0 if the quarantine is full.
        Durable.

        >>> journal.quarantine(b"{", "malformed_event", "is not JSON", "intake", now)
        1
        """
        with self._writing() as transaction:
            return self._quarantine.add(transaction, Suspect(data, code, reason, source, seq), now)

    def quarantined(self, after: int = 0, limit: int = 100) -> list[QuarantineEntry]:
        """Return at most `limit` quarantine entries with an id above `after`, in order.

        >>> entry_id = journal.quarantine(b"{", "malformed_event", "is not JSON", "intake", now)
        >>> [(entry.id, entry.code, entry.data) for entry in journal.quarantined()]
        [(1, 'malformed_event', b'{')]
        """
        with self._environment.read() as transaction:
            return self._quarantine.after(transaction, after, limit)

    def quarantined_entry(self, entry_id: int) -> QuarantineEntry:
        """Return one quarantined entry. Raises `QuarantineEntryError` if it does not exist.

        >>> entry_id = journal.quarantine(b"{", "malformed_event", "is not JSON", "intake", now)
        >>> journal.quarantined_entry(entry_id).reason
        'is not JSON'
        """
        with self._environment.read() as transaction:
            entry = self._quarantine.get(transaction, entry_id)
        if entry is None:
            raise errors.QuarantineEntryError(entry_id, "no such entry")
        return entry

    def drop(self, entry_id: int) -> None:
        """Delete a quarantined entry permanently. Durable on return. Raises `QuarantineEntryError`.

        >>> entry_id = journal.quarantine(b"{", "malformed_event", "is not JSON", "intake", now)
        >>> journal.drop(entry_id)
        >>> journal.quarantined()
        []
        """
        with self._environment.write() as transaction:
            if not self._quarantine.remove(transaction, entry_id):
                raise errors.QuarantineEntryError(entry_id, "no such entry")

    def release(self, entry_id: int, event: Event, origin: Origin, now: datetime) -> Appended:
        """Append the event of a quarantine entry, and remove the entry, in one transaction. Durable on return.

        >>> entry_id = journal.quarantine(b"{", "malformed_event", "is not JSON", "intake", now)
        >>> journal.release(entry_id, events[0], Origin("local", for_all=True), now)
        Appended(seq=1, duplicate=False)
        """
        self._require_copy()
        with self._writing() as transaction:
            if not self._quarantine.remove(transaction, entry_id):
                raise errors.QuarantineEntryError(entry_id, "no such entry")
            self._require_room(transaction)
            return self._append(transaction, [event], [origin], entries.milliseconds(now))[0]

    def set_aside(self, seq: int, now: datetime) -> int:
        """Move a damaged entry to the quarantine and return its new id. Durable on return."""
        with self._writing() as transaction:
            raw = transaction.get("events", entries.number_key(seq)) or b""
            transaction.delete("events", entries.number_key(seq))  # readers skip references to a missing entry
            suspect = Suspect(raw, errors.EntryDamagedError.code, "does not match its checksum", "journal", seq)
            return self._quarantine.add(transaction, suspect, now)

    def retain(self, now: datetime) -> RetentionReport:
        """Delete entries that exceed the configured age or size and that every consumer has read. Durable on return.

        >>> appended = journal.append(events, now)
        >>> journal.retain(now).deleted
        0
        """
        return self._retention.retain(now)

    def discard(self, through_seq: int, consumer: str, now: datetime) -> None:
        """Move a consumer's cursor and delete all entries up to it, in one transaction. Durable on return.

        >>> appended = journal.append(events, now)
        >>> journal.discard(2, "indexer", now)
        >>> journal.first_seq, journal.cursor("indexer")
        (3, 2)
        """
        with self._environment.write() as transaction:
            transaction.put("consumers", _consumer_key(consumer), entries.number_key(through_seq))
            self._retention.delete_through(transaction, through_seq, now)

    def erase(self, wanted: Erasable, now: datetime, *, dry_run: bool = False) -> Erased:
        """Erase the next part of a selection (`Erasure.erase`). Durable on return. Raises `KeysUnavailableError`.

        >>> appended = journal.append(events, now)
        >>> journal.erase(Erasable(user_id="alice", event_ids=frozenset({"e-2"})), now).seqs
        [2]
        """
        self._sealing.require_keys()
        return self._erasure.erase(wanted, now, dry_run=dry_run)

    def erase_all(self, wanted: Erasable, now: datetime, *, dry_run: bool = False) -> Erased:
        """Erase all parts of a selection, one transaction per part. Durable on return.

        >>> appended = journal.append(events, now)
        >>> journal.erase_all(Erasable(user_id="alice", everything=True), now).seqs
        [1, 2, 3]
        """
        seqs: list[int] = []
        while True:
            part = self.erase(wanted, now, dry_run=dry_run)
            seqs += part.seqs
            if part.next_after is None:
                return Erased(seqs=seqs, quarantined=part.quarantined)
            wanted = msgspec.structs.replace(wanted, after_seq=part.next_after)

    def flush_copy(self) -> None:
        """Copy everything committed before the call. The copy is durable on return. Does nothing without a copy.

        Raises `JournalSupersededError` and `CopyUnavailableError`. After a `CopyUnavailableError`, appends also raise
        this error until a later call succeeds.

        >>> journal.flush_copy()
        """
        if self._copy is None:
            return
        try:
            self._copy.flush()
        except errors.CopyUnavailableError as error:
            self._uncopied = str(error)
            raise
        self._uncopied = ""

    def compact(self) -> None:
        """Rewrite the file, and then its copy, without deleted data. Durable on return.

        Writers wait while the copy is made and verified. Readers wait only while the files are swapped. Raises
        `JournalFullError` if the disk has no room for a second copy of the file, `TimeoutError` if a transaction does
        not end, and `CopyUnavailableError`.

        >>> appended = journal.append(events, now)
        >>> erased = journal.erase_all(Erasable(user_id="alice", everything=True), now)
        >>> journal.uncompacted, journal.compact(), journal.uncompacted
        (3, None, 0)
        """
        self._environment.compact(_COMPACTION_TRIES)
        if self._copy is not None:
            self._copy.renew()
        with self._environment.write() as transaction:
            entries.set_counter(transaction, "uncompacted", 0)

    @property
    def uncompacted(self) -> int:
        """The number of erased entries whose bytes may still be in the file."""
        with self._environment.read() as transaction:
            return entries.counter(transaction, "uncompacted")

    def clear_dead_readers(self) -> int:
        """Free the slots of readers whose processes have died; return their number. Call it periodically.

        >>> journal.clear_dead_readers()
        0
        """
        return self._environment.clear_dead_readers()

    def stats(self) -> JournalStats:
        """Return statistics of the journal, from one snapshot.

        >>> appended = journal.append(events, now)
        >>> stats = journal.stats()
        >>> stats.entries, stats.last_seq, stats.quarantined
        (3, 3, 0)
        """
        with self._environment.read() as transaction:
            last_seq = entries.counter(transaction, "last_seq")
            return JournalStats(
                first_seq=self._first_seq(transaction, last_seq),
                last_seq=last_seq,
                entries=transaction.count("events"),
                event_bytes=entries.counter(transaction, "event_bytes"),
                used_bytes=transaction.used_bytes(),
                file_bytes=self._environment.file_bytes,
                quarantined=transaction.count("quarantine"),
                quarantined_bytes=entries.counter(transaction, "quarantine_bytes"),
                quarantine_refused=entries.counter(transaction, "quarantine_refused"),
                consumers=self._consumers(transaction),
                uncompacted=entries.counter(transaction, "uncompacted"),
                locked=self._reading.locked,
            )

    def close(self) -> None:
        """Close, and release the lock. Must not be called while another thread is using the journal. Idempotent.

        >>> journal.close()
        """
        self._environment.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _writing(self) -> Iterator[Transaction]:
        """Open a write transaction that may encrypt. If the keys folder disappears or is replaced, the transaction is
        rolled back.
        """
        self._sealing.require_keys()
        with self._environment.write() as transaction:
            yield transaction
            self._sealing.require_keys()

    def _require_copy(self) -> None:
        """Raise `CopyUnavailableError` if the last `flush_copy` failed, to limit the number of uncopied events."""
        if self._uncopied:
            raise errors.CopyUnavailableError(f"the copy of the journal cannot be written: {self._uncopied}")

    def _require_room(self, transaction: Transaction) -> None:
        """Raise `JournalFullError` before the map is completely full, because deletions also need pages."""
        limit = self._settings.map_size_bytes - self._reserve_bytes
        if transaction.used_bytes() > limit:
            raise errors.JournalFullError(str(self._environment.path), limit)

    def _append(
        self, transaction: Transaction, events: Sequence[Event], origins: Sequence[Origin], received_ms: int
    ) -> list[Appended]:
        seq = entries.counter(transaction, "last_seq")
        sealing = self._sealing.at_once()
        appended: list[Appended] = []
        ids: dict[bytes, bytes] = {}
        pairs: list[Pair] = []
        users: list[Pair] = []
        size_bytes = 0
        for event, origin in zip_longest(events, origins):
            event_key = sealing.id_key(event.user_id, event.event_id)
            known = ids.get(event_key) or transaction.get("ids", event_key)
            if known is not None:
                appended.append(Appended(entries.number(known), duplicate=True))
                continue
            seq += 1
            key = ids[event_key] = entries.number_key(seq)
            data = encode_event(event)
            stored = entries.StoredEvent(received_ms, event.user_id, event.event_id, event.event_type, data, origin)
            sealed = sealing.event(key, stored, event_key)
            pairs.append((key, entries.dump_entry(key, sealed)))
            users.append((entries.user_key(event.user_id, seq), b""))
            size_bytes += sealed.size_bytes
            appended.append(Appended(seq, duplicate=False))
        if pairs:
            transaction.append_all("events", pairs)
            transaction.put_all("users", users)
            transaction.put_all("ids", ids.items())
            entries.set_counter(transaction, "last_seq", seq)
            entries.add_to_counter(transaction, "event_bytes", size_bytes)
        return appended

    def _first_seq(self, transaction: Transaction, last_seq: int) -> int:
        first = transaction.first_key("events")
        return last_seq + 1 if first is None else entries.number(first)

    def _cursor(self, transaction: Transaction, name: str) -> int | None:
        value = transaction.get("consumers", _consumer_key(name))
        return None if value is None else entries.number(value)

    def _consumers(self, transaction: Transaction) -> list[ConsumerState]:
        last = transaction.last_key("events")  # higher numbers were erased, or skipped after a restore
        last_seq = 0 if last is None else entries.number(last)
        states = [(name.decode(), entries.number(seq)) for name, seq in transaction.scan("consumers")]
        return [ConsumerState(name=name, seq=seq, lag=max(0, last_seq - seq)) for name, seq in states]


def _consumer_key(name: str) -> bytes:
    if not _NAME.fullmatch(name):
        raise errors.CursorError(f"consumer {name[:40]!r}: a name must be 1 to 128 letters, digits or _.:-")
    return name.encode()
