"""Every value of one store against its checksum, and whatever points to something against what points back.

LMDB sees no flipped bit inside a value or a key, so keys are checked by what they lead to: an id to its record and the
record to its id, and so on. What this does not do: mend. What is damaged here is the truth, and comes from a backup.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

import numpy as np

from memory_agent.care.findings import Findings, Report
from memory_agent.errors import InvalidInputError, StoreDamagedError
from memory_agent.storage.codec import (
    StoreState,
    Usage,
    decode_entry,
    decode_record,
    name_key,
    row_key,
    row_number,
    unseal,
    unseal_vector,
    vectors_of,
)
from memory_agent.storage.recall_notes import decode_note, note_entries
from memory_agent.storage.snapshot import (
    BLOB_PREFIX,
    CHANGES,
    EVENTS,
    IDS,
    META,
    PENDING,
    RECALL_INDEX,
    RECALLS,
    RECORDS,
    RUN_INDEX,
    RUN_RECALLS,
    RUNS,
    USAGE,
    VECTORS,
    Snapshot,
)
from memory_agent.storage.trajectories import decode_trajectory, index_entries
from relay.disk import Transaction

_UNREADABLE = "does not match its checksum"
_ROW_BYTES = 8
_STEP = 1_000  # values between two reports
_LENGTH_ERROR = 0.01  # of a unit vector in float16; .0005 is usual


class RecordsCheck:
    """One look at one store, through one read transaction."""

    def __init__(self, transaction: Transaction, findings: Findings, report: Report) -> None:
        self._transaction = transaction
        self._findings = findings
        self._report = report
        self._state = StoreState()
        self._names: dict[int, bytes] = {}  # of the records that can be read

    def run(self) -> None:
        """Check everything."""
        try:
            self._state = Snapshot(self._transaction).state
        except StoreDamagedError:
            self._findings.add(META, "the state " + _UNREADABLE)
            return
        self._records()
        self._vectors()
        self._by_row(USAGE, lambda row, value: unseal(row, value, USAGE))
        self._pending()
        self._ids()
        self._events()
        self._changes()
        self._blobs()
        self._runs()
        self._index_of(RUN_INDEX, {RUNS: lambda key, value: index_entries(decode_trajectory(key, value))})
        notes = dict.fromkeys((RECALLS, RUN_RECALLS), lambda key, value: note_entries(decode_note(key, value)))
        self._index_of(RECALL_INDEX, notes)

    def _records(self) -> None:
        for row, value in self._values(RECORDS):
            try:
                record = decode_record(row, value, Usage())
                name = name_key(record.id, "id")
            except (StoreDamagedError, InvalidInputError, IndexError):
                self._findings.add(RECORDS, _UNREADABLE)
                continue
            self._names[row] = name
            self._require(self._row(IDS, name) == row, RECORDS, "its id does not lead to it")
            if record.event_id is not None:
                event = name_key(record.event_id, "event_id")
                self._require(self._row(EVENTS, event) == row, RECORDS, "its event does not lead to it")
            held = [self._transaction.get(database, row_key(row)) is not None for database in (VECTORS, PENDING)]
            self._require(sum(held) == 1, RECORDS, "has a vector and waits for one, or neither")
            self._require(row < self._state.next_row, RECORDS, "lies beyond the last row")

    def _vectors(self) -> None:
        ndim = self._state.ndim or 0
        for row, value in self._values(VECTORS):
            self._require_record(VECTORS, row)
            try:
                vector = vectors_of([unseal_vector(row, value, ndim)], ndim)[0]
            except StoreDamagedError:
                self._findings.add(VECTORS, _UNREADABLE)
                continue
            self._require(abs(float(np.linalg.norm(vector)) - 1) < _LENGTH_ERROR, VECTORS, "is not of unit length")

    def _by_row(self, database: str, read: Callable[[int, bytes], object]) -> None:
        for row, value in self._values(database):
            self._require_record(database, row)
            try:
                read(row, value)
            except StoreDamagedError:
                self._findings.add(database, _UNREADABLE)

    def _pending(self) -> None:
        for row, _ in self._values(PENDING):
            self._require_record(PENDING, row)

    def _ids(self) -> None:
        for key, value in self._transaction.scan(IDS):
            row = _row_of(value)
            if self._transaction.get(RECORDS, row_key(row)) is None:
                self._findings.add(IDS, "leads to no record")
            elif row in self._names:
                self._require(self._names[row] == key, IDS, "leads to a record of another id")

    def _events(self) -> None:
        for _, value in self._transaction.scan(EVENTS):
            self._require(0 < _row_of(value) < self._state.next_row, EVENTS, "leads to a row that never was")

    def _changes(self) -> None:
        kept = 0
        for change, value in self._values(CHANGES):
            kept += change > self._state.forgotten_through
            self._require(change <= self._state.last_change, CHANGES, "lies beyond the last change")
            try:
                decode_entry(change, value)
            except (StoreDamagedError, IndexError):
                self._findings.add(CHANGES, _UNREADABLE)
        missing = self._state.last_change - self._state.forgotten_through - kept
        self._findings.add(CHANGES, "is missing", max(0, missing))

    def _blobs(self) -> None:
        for _, value in self._transaction.scan(META, BLOB_PREFIX, BLOB_PREFIX[:-1] + b";"):
            try:
                unseal(0, value, "blob")
            except StoreDamagedError:
                self._findings.add(META, "a blob " + _UNREADABLE)

    def _runs(self) -> None:
        """Require that runs name memories that are there, or were and are forgotten."""
        for key, value in self._transaction.scan(RUNS):
            with suppress(StoreDamagedError, InvalidInputError):  # named where the index is made of it
                for row in decode_trajectory(key, value).named_rows:
                    self._require(0 < row < self._state.next_row, RUNS, "names a row that never was")

    def _index_of(self, index: str, sources: Mapping[str, Callable[[bytes, bytes], dict[bytes, bytes]]]) -> None:
        """Compare an index with what it should hold, both ways."""
        expected: dict[bytes, bytes] = {}
        for database, entries in sources.items():
            for key, value in self._transaction.scan(database):
                try:
                    expected |= entries(key, value)
                except (StoreDamagedError, InvalidInputError):
                    self._findings.add(database, _UNREADABLE)
        for key, value in self._transaction.scan(index):
            known = expected.pop(key, None)
            if known is None:
                self._findings.add(index, "leads to nothing that says so")
            else:
                self._require(known == value, index, "says something else than what it leads to")
        self._findings.add(index, "an entry is missing", len(expected))

    def _values(self, database: str) -> Iterator[tuple[int, bytes]]:
        """Go over the values of a database whose keys are numbers, and tell how far that is."""
        total = self._transaction.count(database)
        for done, (key, value) in enumerate(self._transaction.scan(database)):
            if done % _STEP == 0:
                self._report(database, done, total)
            if self._findings.require(len(key) == _ROW_BYTES, database, "has a key that is no number"):
                yield row_number(key), value
        self._report(database, total, total)

    def _row(self, database: str, key: bytes) -> int | None:
        value = self._transaction.get(database, key)
        return None if value is None else _row_of(value)

    def _require_record(self, database: str, row: int) -> None:
        self._require(self._transaction.get(RECORDS, row_key(row)) is not None, database, "belongs to no record")

    def _require(self, holds: bool, place: str, fault: str) -> None:
        self._findings.require(holds, place, fault)


def _row_of(value: bytes) -> int:
    """Return the row that a value names; 0, which is no row, for what can be none."""
    return row_number(value) if len(value) <= _ROW_BYTES else 0
