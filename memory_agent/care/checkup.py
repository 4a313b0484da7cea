"""Verify a data folder or a backup: every user's store with its derived files, the owners of runs, and the journal.

Checks are read-only and may run while a daemon runs. LMDB does not detect flipped bits. Each value is therefore checked
against its checksum, and each key against the entry to which it refers. Nothing is repaired: records are restored from
a backup, and derived files (`derived_checkup`) are rebuilt from the records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from memory_agent.archiving import current_files
from memory_agent.care.derived_checkup import check_columns_file, check_index, check_learner
from memory_agent.errors import EncryptionKeyMissingError, InvalidInputError, StoreDamagedError
from memory_agent.indexes import IndexOf
from memory_agent.knowledge import faults_of_knowledge
from memory_agent.layout import Layout
from memory_agent.settings import Settings, StoreSettings
from memory_agent.storage import codec
from memory_agent.storage.derived import COLUMNS_FILE
from memory_agent.storage.environment import RECORDS_FOLDER, UserKey, open_environment, open_records, open_user_key
from memory_agent.storage.folders import known_users
from memory_agent.storage.owners import MAP_SIZE_BYTES, ORDER, PAIRS, decode_owner, owners_encryption
from memory_agent.storage.snapshot import (
    BLOB_PREFIX,
    CHANGES,
    EVENTS,
    IDS,
    META,
    NEXT,
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
from memory_agent.storage.stored_runs import decode_note, decode_trajectory, index_entries, note_entries
from relay import SHARED_USER, SYSTEM_USER, JournalSettings, check_journal, journal_folder
from relay.disk import DATA_FILE, UNREADABLE, Checkup, Finding, Findings, Report, Transaction

PAGES = f"{RECORDS_FOLDER}/{DATA_FILE}"
ITEMS = "items"
_FEW_USERS = 3
_ROW_BYTES = 8
_LENGTH_ERROR = 0.01  # maximum length error of a unit vector in float16; typically .0005


_Value = TypeVar("_Value")

OnMissingKey = Callable[[EncryptionKeyMissingError], None]
"""Called with the error if a user is skipped because of a missing key."""


@contextmanager
def skipping_without_key(on_missing_key: OnMissingKey | None) -> Iterator[None]:
    """Suppress an `EncryptionKeyMissingError` and pass it to `on_missing_key`; raise it if `on_missing_key` is None."""
    try:
        yield
    except EncryptionKeyMissingError as error:
        if on_missing_key is None:
            raise
        on_missing_key(error)


def verify_folder(
    data_dir: Path,
    settings: Settings,
    report: Report,
    user_id: str | None = None,
    on_missing_key: OnMissingKey | None = None,
    backup: Path | None = None,
) -> Iterator[PartReport]:
    """Check each store in a data folder or in its `backup`, or only one user's store. A daemon may be running.

    `on_missing_key` is as in `skipping_without_key`. Raises `StoreError` and `JournalError`.
    """
    root = backup or data_dir
    users = [user_id] if user_id is not None else list(known_users(root))
    for done, one in enumerate(users):
        report("users", done, len(users))
        progress = partial(_report_part, report, one) if len(users) <= _FEW_USERS else lambda *_: None
        with skipping_without_key(on_missing_key):
            key = open_user_key(settings.encryption, data_dir, one)
            with current_files(root, settings, one) as (folder, is_copy):
                is_copy = is_copy or backup is not None
                index = None if is_copy else IndexOf(settings.index, one, folder)
                yield check_user(folder, one, settings.store, progress, key, is_copy=is_copy, index=index)
    report("users", len(users), len(users))
    owners, journal = Layout(root).owners, journal_folder(root)
    if user_id is None and owners.exists():
        yield check_owners(owners, open_user_key(settings.encryption, data_dir, SYSTEM_USER))
    if user_id is None and journal.exists():
        yield check_events(journal, settings.relay.journal, partial(_report_part, report, "journal"))


class PartReport(msgspec.Struct, frozen=True, kw_only=True):
    """The findings in a store. `entries` counts memories, run owners or events. `unbuilt`: missing derived files."""

    part: str
    entries: int
    findings: tuple[Finding, ...] = ()
    unbuilt: tuple[str, ...] = ()


def check_user(
    folder: Path,
    user_id: str,
    settings: StoreSettings,
    report: Report,
    key: UserKey | None = None,
    *,
    is_copy: bool = False,
    index: IndexOf | None = None,
) -> PartReport:
    """Check a user's folder. For a copy, which has no derived files, check only the records.

    If `index` is given and belongs to another engine, also check the number of memories in it. Raises
    `StoreError` if the files cannot be read at all.
    """
    findings = Findings()
    unbuilt = () if is_copy or (folder / COLUMNS_FILE).exists() else (COLUMNS_FILE,)
    entries = 0
    try:
        with closing(open_records(folder, settings, key)) as environment, environment.read() as transaction:
            entries = transaction.count(RECORDS)
            RecordsCheckup(transaction, findings, report).run()
            is_sound = not findings.listed()
            if is_sound and user_id == SHARED_USER:
                for fault in faults_of_knowledge(Snapshot(transaction)):
                    findings.add(ITEMS, fault)
            if is_sound and not is_copy:
                check_learner(Snapshot(transaction), folder, key, findings)
        if not is_copy and not unbuilt:
            check_columns_file(folder, settings, key, findings, report, is_sound=is_sound)
        if index is not None and is_sound:
            check_index(index, settings, key, findings)
    except StoreDamagedError as error:
        findings.add(PAGES, str(error))
    return PartReport(part=f"user {user_id}", entries=entries, findings=findings.listed(), unbuilt=unbuilt)


def check_events(folder: Path, settings: JournalSettings, report: Report) -> PartReport:
    findings = Findings()
    entries = check_journal(folder, settings, findings, report)
    return PartReport(part="journal", entries=entries, findings=findings.listed())


def check_owners(folder: Path, key: UserKey | None = None) -> PartReport:
    """Check the map from runs and sessions to their owners. `key` is the key of `system`, with which the map may be
    encrypted. Raises `StoreError`.
    """
    findings = Findings()
    entries = 0
    encryption = owners_encryption(key)
    try:
        environment = open_environment(folder, MAP_SIZE_BYTES, (PAIRS, ORDER), readonly=True, encryption=encryption)
        with closing(environment), environment.read() as transaction:
            pairs = dict(transaction.scan(PAIRS))
            ordered = {key for _, key in transaction.scan(ORDER)}
            entries = len(pairs)
        damaged = sum(decode_owner(key, value) is None for key, value in pairs.items())
        findings.add(PAIRS, "do not match their checksum", damaged)
        findings.add(ORDER, "does not contain each pair exactly once", len(ordered ^ set(pairs)))
    except StoreDamagedError as error:
        findings.add(f"owners/{DATA_FILE}", str(error))
    return PartReport(part="owners", entries=entries, findings=findings.listed())


class RecordsCheckup(Checkup):
    """Checks the databases of one store."""

    def __init__(self, transaction: Transaction, findings: Findings, report: Report) -> None:
        super().__init__(transaction, findings, report)
        self._state = codec.StoreState()
        self._names: dict[int, bytes] = {}  # ids of the readable records, by row

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
            self._others,
            self._ids,
            self._events,
            self._changes,
            self._blobs,
            self._runs,
            partial(self._index_of, RUN_INDEX, (RUNS,), lambda *row: index_entries(decode_trajectory(*row))),
            partial(self._index_of, RECALL_INDEX, (RECALLS, RUN_RECALLS), lambda *row: note_entries(decode_note(*row))),
        )

    def _records(self) -> None:
        for row, value in self._rows(RECORDS):
            try:
                record = codec.decode_record(row, value, codec.Usage())
                name = codec.name_key(record.id, "id")
            except (StoreDamagedError, InvalidInputError, IndexError):
                self.findings.add(RECORDS, UNREADABLE)
                continue
            self._names[row] = name
            self.findings.require(self._row(IDS, name) == row, RECORDS, "is not found by its id")
            if record.event_id is not None:
                event = codec.name_key(record.event_id, "event_id")
                self.findings.require(self._row(EVENTS, event) == row, RECORDS, "is not found by its event")
            held = {
                name: self.transaction.get(name, codec.row_key(row)) is not None
                for name in (VECTORS, WORD_BITS, PENDING)
            }
            is_whole = held[VECTORS] and (held[WORD_BITS] or self._state.words_stamp is None)
            fault = "is complete but pending, or incomplete but not pending"
            self.findings.require(is_whole != held[PENDING], RECORDS, fault)
            self.findings.require(row < self._state.next_row, RECORDS, "is beyond the last row")

    def _vectors(self) -> None:
        ndim = self._state.ndim or 0
        for vector in self._decoded(
            VECTORS, lambda row, value: codec.vectors_of([codec.vector_body(row, value, ndim)], ndim)[0]
        ):
            error = abs(float(np.linalg.norm(vector)) - 1)
            self.findings.require(error < _LENGTH_ERROR, VECTORS, "is not of unit length")

    def _passages(self) -> None:
        ndim = self._state.ndim or 0
        read = partial(codec.passages_body, ndim=ndim)
        for spans, further in self._decoded(PASSAGES, lambda row, value: codec.passages_of(read(row, value), ndim)):
            errors = np.abs(np.linalg.norm(further, axis=1) - 1)
            self.findings.require(bool((errors < _LENGTH_ERROR).all()), PASSAGES, "are not of unit length")
            self.findings.require(bool((spans[:, 0] <= spans[:, 1]).all()), PASSAGES, "end before they start")

    def _others(self) -> None:
        """Verify the checksum or the size of values for which there is no other check."""
        width = self._state.word_bytes or 0
        decoders: dict[str, Callable[[int, bytes], object]] = {
            WORD_BITS: lambda row, value: codec.words_body(row, value, width),
            USAGE: lambda row, value: codec.without_checksum(row, value, USAGE),
            NEXT: lambda row, value: codec.without_checksum(row, value, NEXT),
            PENDING: lambda row, value: None,
        }
        for database, decode in decoders.items():
            for _ in self._decoded(database, decode):
                pass

    def _ids(self) -> None:
        for key, value in self.walk(IDS):
            row = _row_of(value)
            if self.transaction.get(RECORDS, codec.row_key(row)) is None:
                self.findings.add(IDS, "refers to no record")
            elif row in self._names:
                self.findings.require(self._names[row] == key, IDS, "refers to a record with a different id")

    def _events(self) -> None:
        for _, value in self.walk(EVENTS):
            self.findings.require(0 < _row_of(value) < self._state.next_row, EVENTS, "refers to an unallocated row")

    def _changes(self) -> None:
        kept = 0
        for change, value in self._rows(CHANGES):
            kept += change > self._state.forgotten_through
            self.findings.require(change <= self._state.last_change, CHANGES, "is beyond the last change")
            try:
                codec.decode_entry(change, value)
            except (StoreDamagedError, IndexError):
                self.findings.add(CHANGES, UNREADABLE)
        missing = self._state.last_change - self._state.forgotten_through - kept
        self.findings.add(CHANGES, "is missing", max(0, missing))

    def _blobs(self) -> None:
        for _, value in self.transaction.scan(META, BLOB_PREFIX, BLOB_PREFIX[:-1] + b";"):
            try:
                codec.without_checksum(0, value, "blob")
            except StoreDamagedError:
                self.findings.add(META, "a blob " + UNREADABLE)

    def _runs(self) -> None:
        """Check that runs refer only to memories that exist or were forgotten."""
        for key, value in self.walk(RUNS):
            with suppress(StoreDamagedError, InvalidInputError):  # reported by the index check
                for row in decode_trajectory(key, value).named_rows:
                    self.findings.require(0 < row < self._state.next_row, RUNS, "refers to an unallocated row")

    def _index_of(
        self, index: str, sources: Sequence[str], entries: Callable[[bytes, bytes], dict[bytes, bytes]]
    ) -> None:
        """Compare an index with its sources, in both directions."""
        expected: dict[bytes, bytes] = {}
        for database in sources:
            for key, value in self.walk(database):
                try:
                    expected |= entries(key, value)
                except (StoreDamagedError, InvalidInputError):
                    self.findings.add(database, UNREADABLE)
        for key, value in self.walk(index):
            known = expected.pop(key, None)
            if known is None:
                self.findings.add(index, "has an entry without a source")
            else:
                self.findings.require(known == value, index, "has an entry that differs from its source")
        self.findings.add(index, "an entry is missing", len(expected))

    def _rows(self, database: str) -> Iterator[tuple[int, bytes]]:
        """Yield the rows and values of a database whose keys are numbers."""
        for key, value in self.walk(database):
            if self.findings.require(len(key) == _ROW_BYTES, database, "has a key that is not a number"):
                yield codec.row_number(key), value

    def _decoded(self, database: str, decode: Callable[[int, bytes], _Value]) -> Iterator[_Value]:
        for row, value in self._rows(database):
            self.findings.require(
                self.transaction.get(RECORDS, codec.row_key(row)) is not None, database, "belongs to no record"
            )
            try:
                decoded = decode(row, value)
            except StoreDamagedError:
                self.findings.add(database, UNREADABLE)
            else:
                yield decoded

    def _row(self, database: str, key: bytes) -> int | None:
        value = self.transaction.get(database, key)
        return None if value is None else _row_of(value)


def _row_of(value: bytes) -> int:
    """Return the row number that a value contains, or 0 if the value is too long."""
    return codec.row_number(value) if len(value) <= _ROW_BYTES else 0


def _report_part(report: Report, part: str, what: str, done: int, total: int) -> None:
    report(f"{part}: {what}", done, total)
