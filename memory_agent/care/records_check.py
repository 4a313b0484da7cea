"""Checks one store: every value against its checksum, and every reference both ways.

LMDB does not notice a flipped bit in a value or a key, so keys are checked by what they refer to: an id to its record,
the record to its id, and so on. Nothing is repaired: records are the source of truth, and come back from a backup.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

import numpy as np

from memory_agent.errors import InvalidInputError, StoreDamagedError
from memory_agent.storage.codec import (
    StoreState,
    Usage,
    decode_entry,
    decode_record,
    name_key,
    passages_body,
    passages_of,
    row_key,
    row_number,
    vector_body,
    vectors_of,
    without_checksum,
    words_body,
)
from memory_agent.storage.recall_notes import decode_note, note_entries
from memory_agent.storage.snapshot import (
    BLOB_PREFIX,
    CHANGES,
    EVENTS,
    IDS,
    META,
    PASSAGES,
    PENDING,
    RECALL_INDEX,
    RECALLS,
    RECORDS,
    RUN_INDEX,
    RUN_RECALLS,
    RUNS,
    USAGE,
    VECTORS,
    WORD_BITS,
    Snapshot,
)
from memory_agent.storage.trajectories import decode_trajectory, index_entries
from relay.disk import UNREADABLE, Checkup, Findings, Report, Transaction

_ROW_BYTES = 8
_LENGTH_ERROR = 0.01  # of a unit vector in float16; .0005 is usual


class RecordsCheckup(Checkup):
    """Checks the databases of one store."""

    def __init__(self, transaction: Transaction, findings: Findings, report: Report) -> None:
        super().__init__(transaction, findings, report)
        self._state = StoreState()
        self._names: dict[int, bytes] = {}  # by row, of the records that can be read

    def checks(self) -> Sequence[Callable[[], None]]:
        try:
            self._state = Snapshot(self.transaction).state
        except StoreDamagedError:
            self.findings.add(META, "the state " + UNREADABLE)
            return ()
        return (
            self._records,
            self._vectors,
            self._passages,
            self._word_bits,
            self._usage,
            self._pending,
            self._ids,
            self._events,
            self._changes,
            self._blobs,
            self._runs,
            self._run_index,
            self._recall_index,
        )

    def _records(self) -> None:
        for row, value in self._rows(RECORDS):
            try:
                record = decode_record(row, value, Usage())
                name = name_key(record.id, "id")
            except (StoreDamagedError, InvalidInputError, IndexError):
                self.findings.add(RECORDS, UNREADABLE)
                continue
            self._names[row] = name
            self.findings.require(self._row(IDS, name) == row, RECORDS, "its id does not lead to it")
            if record.event_id is not None:
                event = name_key(record.event_id, "event_id")
                self.findings.require(self._row(EVENTS, event) == row, RECORDS, "its event does not lead to it")
            held = {
                name: self.transaction.get(name, row_key(row)) is not None for name in (VECTORS, WORD_BITS, PENDING)
            }
            is_whole = held[VECTORS] and (held[WORD_BITS] or self._state.words_stamp is None)
            fault = "waits for what it has, or does not wait for what it lacks"
            self.findings.require(is_whole != held[PENDING], RECORDS, fault)
            self.findings.require(row < self._state.next_row, RECORDS, "lies beyond the last row")

    def _vectors(self) -> None:
        ndim = self._state.ndim or 0
        for row, value in self._rows(VECTORS):
            self._require_record(VECTORS, row)
            try:
                vector = vectors_of([vector_body(row, value, ndim)], ndim)[0]
            except StoreDamagedError:
                self.findings.add(VECTORS, UNREADABLE)
                continue
            error = abs(float(np.linalg.norm(vector)) - 1)
            self.findings.require(error < _LENGTH_ERROR, VECTORS, "is not of unit length")

    def _passages(self) -> None:
        ndim = self._state.ndim or 0
        for row, value in self._rows(PASSAGES):
            self._require_record(PASSAGES, row)
            try:
                spans, further = passages_of(passages_body(row, value, ndim), ndim)
            except StoreDamagedError:
                self.findings.add(PASSAGES, UNREADABLE)
                continue
            errors = np.abs(np.linalg.norm(further, axis=1) - 1)
            self.findings.require(bool((errors < _LENGTH_ERROR).all()), PASSAGES, "are not of unit length")
            self.findings.require(bool((spans[:, 0] <= spans[:, 1]).all()), PASSAGES, "end before they begin")

    def _word_bits(self) -> None:
        for row, value in self._rows(WORD_BITS):
            self._require_record(WORD_BITS, row)
            try:
                words_body(row, value, self._state.word_bytes or 0)
            except StoreDamagedError:
                self.findings.add(WORD_BITS, UNREADABLE)

    def _usage(self) -> None:
        for row, value in self._rows(USAGE):
            self._require_record(USAGE, row)
            try:
                without_checksum(row, value, USAGE)
            except StoreDamagedError:
                self.findings.add(USAGE, UNREADABLE)

    def _pending(self) -> None:
        for row, _ in self._rows(PENDING):
            self._require_record(PENDING, row)

    def _ids(self) -> None:
        for key, value in self.walk(IDS):
            row = _row_of(value)
            if self.transaction.get(RECORDS, row_key(row)) is None:
                self.findings.add(IDS, "leads to no record")
            elif row in self._names:
                self.findings.require(self._names[row] == key, IDS, "leads to a record of another id")

    def _events(self) -> None:
        for _, value in self.walk(EVENTS):
            self.findings.require(0 < _row_of(value) < self._state.next_row, EVENTS, "leads to a row that never was")

    def _changes(self) -> None:
        kept = 0
        for change, value in self._rows(CHANGES):
            kept += change > self._state.forgotten_through
            self.findings.require(change <= self._state.last_change, CHANGES, "lies beyond the last change")
            try:
                decode_entry(change, value)
            except (StoreDamagedError, IndexError):
                self.findings.add(CHANGES, UNREADABLE)
        missing = self._state.last_change - self._state.forgotten_through - kept
        self.findings.add(CHANGES, "is missing", max(0, missing))

    def _blobs(self) -> None:
        for _, value in self.transaction.scan(META, BLOB_PREFIX, BLOB_PREFIX[:-1] + b";"):
            try:
                without_checksum(0, value, "blob")
            except StoreDamagedError:
                self.findings.add(META, "a blob " + UNREADABLE)

    def _runs(self) -> None:
        """Require that runs refer to memories that exist, or existed and are forgotten."""
        for key, value in self.walk(RUNS):
            with suppress(StoreDamagedError, InvalidInputError):  # reported by the check of the index
                for row in decode_trajectory(key, value).named_rows:
                    self.findings.require(0 < row < self._state.next_row, RUNS, "names a row that never was")

    def _index_of(self, index: str, sources: Mapping[str, Callable[[bytes, bytes], dict[bytes, bytes]]]) -> None:
        """Compare an index with its source, both ways."""
        expected: dict[bytes, bytes] = {}
        for database, entries in sources.items():
            for key, value in self.walk(database):
                try:
                    expected |= entries(key, value)
                except (StoreDamagedError, InvalidInputError):
                    self.findings.add(database, UNREADABLE)
        for key, value in self.walk(index):
            known = expected.pop(key, None)
            if known is None:
                self.findings.add(index, "leads to nothing that says so")
            else:
                self.findings.require(known == value, index, "says something else than what it leads to")
        self.findings.add(index, "an entry is missing", len(expected))

    def _run_index(self) -> None:
        self._index_of(RUN_INDEX, {RUNS: lambda key, value: index_entries(decode_trajectory(key, value))})

    def _recall_index(self) -> None:
        notes = dict.fromkeys((RECALLS, RUN_RECALLS), lambda key, value: note_entries(decode_note(key, value)))
        self._index_of(RECALL_INDEX, notes)

    def _rows(self, database: str) -> Iterator[tuple[int, bytes]]:
        """Yield the rows and values of a database whose keys are numbers."""
        for key, value in self.walk(database):
            if self.findings.require(len(key) == _ROW_BYTES, database, "has a key that is not a number"):
                yield row_number(key), value

    def _row(self, database: str, key: bytes) -> int | None:
        value = self.transaction.get(database, key)
        return None if value is None else _row_of(value)

    def _require_record(self, database: str, row: int) -> None:
        self.findings.require(self.transaction.get(RECORDS, row_key(row)) is not None, database, "belongs to no record")


def _row_of(value: bytes) -> int:
    """Return the row in a value; 0, which is not a row, for a value that is too long."""
    return row_number(value) if len(value) <= _ROW_BYTES else 0
