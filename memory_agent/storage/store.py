"""The authoritative data of one user: records, vectors, known events, runs, counters, cursor and change log.

Each user has one LMDB environment with one owner at a time. The record, the vector, `event_id -> row` and the journal
cursor become durable in one transaction (`batch`). Therefore, an event that is delivered several times takes effect
exactly once. Search uses `columns`, which follow the change log.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Self

import msgspec
from ulid import ULID

from memory_agent.errors import EncryptionKeyMissingError, StoreDamagedError, StoreError, StoreFullError
from memory_agent.records.embedded import Embedding
from memory_agent.records.memories import MemoryFilter, MemoryRecord
from memory_agent.settings import StoreSettings
from memory_agent.storage.batch import Batch
from memory_agent.storage.changes import Rows
from memory_agent.storage.codec import FORMAT, StoreState
from memory_agent.storage.environment import RECORDS_FOLDER, UserKey, compact, own, records_at, settle_key
from memory_agent.storage.snapshot import META, Counts, Snapshot
from memory_agent.storage.stored_runs import RecallNote
from relay.disk import Environment, OnCommit, OwnerLock, Role, Transaction, free_bytes

_MOST_WAITING = 2_000  # maximum number of recalls waiting to be written; about 2 MB


class Store:
    """An open store. Thread-safe; batches are written one at a time."""

    def __init__(
        self, folder: Path, settings: StoreSettings, environment: Environment, lock: OwnerLock, key: UserKey | None
    ) -> None:
        self.folder = folder
        self.key = key
        self._settings = settings
        self._environment = environment
        self._lock = lock
        self._writing = threading.Lock()
        self._touching = threading.Lock()
        self._touches: dict[int, tuple[int, datetime]] = {}
        self._notes: dict[str, RecallNote] = {}
        self._tallies = Counter[str]()
        self._taught: dict[str | None, None] = {}
        self._refusal: StoreError | None = None
        self.state = self._prepare()

    @classmethod
    def open(
        cls,
        folder: Path,
        settings: StoreSettings | None = None,
        role: Role = "library",
        key: UserKey | None = None,
        on_commit: OnCommit | None = None,
    ) -> Self:
        """Open the store in a user's folder, or create it, and own it until `close`.

        A `host` waits for an earlier host for a limited time, and then takes over (`OwnerLock`). With a `key` the store
        is encrypted; creating a store creates the key. `on_commit` receives every committed change as stored
        (`Environment.open`). Raises `StoreOwnedElsewhereError`, `StoreDamagedError`, `StoreFullError`, `StoreError`,
        `StoreEncryptedError`, `StoreNotEncryptedError` and `EncryptionKeyMissingError`.
        """
        settings = settings or StoreSettings()
        settle_key(folder, key)
        lock = own(folder, role, settings.takeover_after_s)
        try:
            environment = records_at(folder / RECORDS_FOLDER, settings, key, lock, on_commit)
            try:
                lock.claim(environment.write, META)
                return cls(folder, settings, environment, lock, key)
            except BaseException:
                environment.close()
                raise
        except BaseException:
            lock.release()
            raise

    @contextmanager
    def batch(self) -> Iterator[Batch]:
        """Open a batch, which becomes durable when the block ends and is rolled back if it raises.

        Waits for another thread's batch. Raises `FencedError` if a newer owner took over, `StoreFullError` (the store
        remains usable, and deleting works), and `StoreError` after an I/O error (close and reopen the store).
        """
        with (
            self._writing,
            self._refusing_after_failure(),
            self._taking_touches() as touches,
            self._taking_notes() as notes,
        ):
            with self._environment.write() as transaction:
                self._lock.check(transaction, META)
                batch = Batch(transaction, self._require_room)
                batch.touch(touches)
                batch.take_notes(notes.values())
                with self._touching:
                    tallies = self._tallies.copy()
                for counter, number in tallies.items():
                    batch.count(counter, number)
                yield batch
                batch.finish()
            with self._touching:  # set before `state`, because a reader of a new `lessons_version` must find its runs
                self._taught |= dict.fromkeys(batch.taught)
                self._tallies -= tallies
                self.state = batch.state

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        """Open a consistent snapshot for the block. Keep the block short: an open snapshot keeps old pages alive."""
        with self._environment.read() as transaction:
            yield Snapshot(transaction)

    def touch(self, rows: Iterable[int], now: datetime) -> None:
        """Count one recall for each row. Does no I/O: the counts are written with the next batch, or by `close`."""
        with self._touching:
            for row in rows:
                self._touches[row] = (self._touches.get(row, (0, now))[0] + 1, now)

    def note_recall(self, note: RecallNote) -> None:
        """Add a recall's note. Does no I/O, like `touch`."""
        with self._touching:
            self._notes[note.recall_id] = note
            if len(self._notes) > _MOST_WAITING:
                del self._notes[next(iter(self._notes))]

    def tally(self, counts: Mapping[str, int]) -> None:
        """Increase counters. Does no I/O, like `touch`."""
        with self._touching:
            self._tallies.update(counts)

    @property
    def counters(self) -> dict[str, int]:
        """The counters, including increments that are not written yet."""
        with self._touching:
            return dict(Counter(self.state.counters) + self._tallies)

    def recall_note(self, recall_id: str) -> RecallNote | None:
        with self._touching:
            waiting = self._notes.get(recall_id)
        if waiting is not None:
            return waiting
        with self.snapshot() as snapshot:
            return snapshot.recall_note(recall_id)

    @property
    def has_waiting_notes(self) -> bool:
        return bool(self._notes)

    def record(self, row: int, with_embedding: bool = False) -> MemoryRecord | None:
        """Return the memory in `row`, or None; its recalls include those not yet written."""
        return self.records((row,), with_embedding)[0]

    def records(self, rows: Iterable[int], with_embedding: bool = False) -> list[MemoryRecord | None]:
        """Return the memory in each row, in order, or None for a row without a memory."""
        with self.snapshot() as snapshot:
            found = [(int(row), snapshot.record(int(row), with_embedding)) for row in rows]
        return [record and self._with_touches(row, record) for row, record in found]

    def record_of_id(self, record_id: str) -> MemoryRecord | None:
        row = self.row_of_id(record_id)
        return None if row is None else self.record(row)

    def row_of_id(self, record_id: str) -> int | None:
        with self.snapshot() as snapshot:
            return snapshot.row_of_id(record_id)

    def row_of_event(self, event_id: str) -> int | None:
        with self.snapshot() as snapshot:
            return snapshot.row_of_event(event_id)

    def excluded_rows(self, filter: MemoryFilter | None) -> list[int]:
        """Return the known rows of the events and records that a filter excludes, for `View.mask`."""
        exclude = None if filter is None else filter.exclude
        if exclude is None or not (exclude.events or exclude.records):
            return []
        with self.snapshot() as snapshot:
            rows = [*map(snapshot.row_of_event, exclude.events), *map(snapshot.row_of_id, exclude.records)]
        return [row for row in rows if row is not None]

    def vectors(self, rows: Sequence[int] | Rows) -> Embedding:
        """Return the vectors, (n, d) float32 of unit length, or all zeros for a row without a vector."""
        with self.snapshot() as snapshot:
            return snapshot.vectors(rows)

    def scan(self) -> Iterator[tuple[int, MemoryRecord]]:
        """Yield all memories, oldest first, from one snapshot."""
        with self.snapshot() as snapshot:
            yield from snapshot.scan()

    def pending_rows(self, limit: int, after: int = 0) -> list[int]:
        """Return the first `limit` rows above `after` that still need a vector or words."""
        with self.snapshot() as snapshot:
            return snapshot.pending_rows(limit, after)

    def forget_changes_through(self, seq: int) -> None:
        """Delete the change log up to `seq`; the saved columns must already contain these changes."""
        with self.batch() as batch:
            batch.forget_changes_through(seq)

    def blob(self, name: str) -> bytes | None:
        with self.snapshot() as snapshot:
            return snapshot.blob(name)

    def compact(self) -> tuple[int, int]:
        """Rewrite the file without deleted data; return the file size in bytes before and after. Durable on return.

        Reads continue; batches wait. Raises `DeadlineExceededError` if a reader does not finish. Also raises
        `StoreFullError`, `StoreDamagedError` and `FencedError`.
        """
        with self._writing:
            if self._refusal is not None:
                raise self._refusal
            before = self._environment.file_bytes
            compact(self._environment)
            return before, self._environment.file_bytes

    def copy(self, folder: Path) -> None:
        """Write a compact copy of the records into an empty folder. Not fsynced. Raises `StoreError` and `OSError`."""
        self._environment.copy(folder, clears_unused=True)

    def counts(self) -> Counts:
        with self.snapshot() as snapshot:
            return snapshot.counts()

    @property
    def log_length(self) -> int:
        return self.state.last_change - self.state.forgotten_through

    def take_taught(self) -> list[str | None]:
        """Return the runs whose lessons changed since the last call; None stands for lessons that belong to no run."""
        with self._touching:
            taken, self._taught = list(self._taught), {}
        return taken

    @property
    def epoch(self) -> int:
        return self._lock.epoch

    @property
    def disk_bytes(self) -> int:
        """Disk usage of the user's folder in bytes, including derived files."""
        used = 0
        for folder, _, names in os.walk(self.folder):
            for name in names:
                with suppress(FileNotFoundError):  # a derived file was replaced after it was listed
                    used += os.stat(os.path.join(folder, name)).st_blocks * 512
        return used

    def close(self) -> None:
        """Write waiting recalls, close, and release the folder. Idempotent."""
        with suppress(StoreError):  # recalls may be lost, but a fenced or full store must still close
            if (self._touches or self._notes or self._tallies) and self._refusal is None:
                with self.batch():
                    pass
        self._refusal = StoreError(f"{self.folder} is closed")
        self._environment.close()
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _prepare(self) -> StoreState:
        with self.snapshot() as snapshot:
            state = snapshot.state
        if state.format > FORMAT:
            raise StoreError(f"{self.folder} has format {state.format}; this version supports up to {FORMAT}")
        if not state.lineage:
            with self._environment.write() as transaction:
                batch = Batch(transaction, self._require_room)
                batch.state.lineage = str(ULID())
                batch.finish()
            state = batch.state
        return state

    def _with_touches(self, row: int, record: MemoryRecord) -> MemoryRecord:
        waiting = self._touches.get(row)
        if waiting is None:
            return record
        times, now = waiting
        return msgspec.structs.replace(record, times_recalled=record.times_recalled + times, last_recalled_at=now)

    @contextmanager
    def _taking_touches(self) -> Iterator[dict[int, tuple[int, datetime]]]:
        with self._touching:
            taken, self._touches = self._touches, {}
        try:
            yield taken
        except BaseException:
            with self._touching:
                for row, (times, now) in taken.items():
                    later, last = self._touches.get(row, (0, now))
                    self._touches[row] = (times + later, last)
            raise

    @contextmanager
    def _taking_notes(self) -> Iterator[dict[str, RecallNote]]:
        """Yield the waiting notes, and remove them after the block unless it raises. Until then, readers still see the
        notes.
        """
        with self._touching:
            taken = dict(self._notes)
        yield taken
        with self._touching:
            self._notes = {key: note for key, note in self._notes.items() if taken.get(key) is not note}

    @contextmanager
    def _refusing_after_failure(self) -> Iterator[None]:
        """Refuse batches after an I/O error or a takeover: LMDB's state in memory is no longer reliable."""
        if self._refusal is not None:
            raise self._refusal.with_traceback(None)  # the traceback would grow with each refusal
        try:
            yield
        except (StoreFullError, StoreDamagedError, EncryptionKeyMissingError):
            raise
        except StoreError as error:
            self._refusal = error
            raise

    def _require_room(self, transaction: Transaction) -> None:
        """Raise `StoreFullError` unless `reserve_bytes` are free for deletions, on the disk and in the map."""
        free = free_bytes(self.folder)
        if free is not None and free < self._settings.reserve_bytes:
            raise StoreFullError(str(self.folder), shutil.disk_usage(self.folder).total)
        limit = self._settings.map_size_bytes
        room = limit - min(self._settings.reserve_bytes, limit // 4)
        if self._environment.file_bytes > room and transaction.used_bytes() > room:
            raise StoreFullError(str(self.folder), limit)
