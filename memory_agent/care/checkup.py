"""Verify a data folder or a backup: every user's store with its derived files, the owners of runs, and the journal.

Checks are read-only and use one snapshot of each file, so they may run while a daemon runs. LMDB does not detect a
flipped bit in a value or a key, so values are checked against their checksums, and keys against the entries they refer
to: an id against its record, the record against its id, and so on. The columns may be missing changes that are still in
the change log; the rows of these changes are skipped. Nothing is repaired: records are restored from a backup, and
derived files are rebuilt from the records.

m = number of memories compared at once, w = number of words.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from itertools import islice
from math import nan
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from memory_agent.archiving import current_files
from memory_agent.errors import EncryptionKeyMissingError, IndexDamagedError, InvalidInputError, StoreDamagedError
from memory_agent.indexes import Hits, Where
from memory_agent.knowledge import faults_of_knowledge
from memory_agent.layout import Layout
from memory_agent.learning import LEARNER_FILE, look_at_learner
from memory_agent.records.embedded import Embedding
from memory_agent.records.memories import KINDS, SOURCES, MemoryFilter, MemoryRecord, microseconds
from memory_agent.records.metadata import numbers_of
from memory_agent.settings import Settings, StoreSettings
from memory_agent.storage.array_file import read_arrays
from memory_agent.storage.changes import Rows, texts_of
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
from memory_agent.storage.column import Slots
from memory_agent.storage.columns import record_fingerprint
from memory_agent.storage.derived import COLUMNS_FILE, GRAPH_FILE, ColumnsHeader, columns_cipher, read_columns
from memory_agent.storage.environment import RECORDS_FOLDER, UserKey, open_environment, open_records, open_user_key
from memory_agent.storage.folders import known_users
from memory_agent.storage.index_follower import ENGINE_BLOB
from memory_agent.storage.languages import language_of
from memory_agent.storage.owners import MAP_SIZE_BYTES, ORDER, PAIRS, decode_owner, owners_encryption
from memory_agent.storage.passages import graph_files
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
from memory_agent.storage.terms import LONGEST_WORD, text_terms, text_words
from memory_agent.storage.view import View
from relay import SHARED_USER, SYSTEM_USER, JournalSettings, check_journal, journal_folder
from relay.disk import DATA_FILE, UNREADABLE, Checkup, Finding, Findings, Report, Transaction
from sona import DamagedStateError

PAGES = f"{RECORDS_FOLDER}/{DATA_FILE}"
ITEMS = "items"
_ATTEMPTS = 3  # attempts to read columns that their owner keeps replacing
_FEW_USERS = 3
_ROW_BYTES = 8
_LENGTH_ERROR = 0.01  # maximum length error of a unit vector in float16; typically .0005
_LEAST_COSINE = 0.9999  # smallest cosine between a vector in float16 and in the columns
_NAMED = ("session_id", "run_id", "channel_id", "agent_id", "provenance", "type", "phase")
_STEP = 500

Numbered = Sequence[tuple[int, MemoryRecord]]

OnMissingKey = Callable[[EncryptionKeyMissingError], None]
"""Called with the error if a user is skipped because of a missing key."""


def verify_folder(
    data_dir: Path,
    settings: Settings,
    report: Report,
    user_id: str | None = None,
    on_missing_key: OnMissingKey | None = None,
    backup: Path | None = None,
) -> Iterator[PartReport]:
    """Check each store of a data folder or of its `backup`, or only one user's store.

    May run while a daemon runs. A user whose key is missing is reported to `on_missing_key` and skipped; if it is None,
    `EncryptionKeyMissingError` is raised. Progress within a part is reported for up to three users. Raises `StoreError`
    and `JournalError`.
    """
    root = backup or data_dir
    users = [user_id] if user_id is not None else list(known_users(root))
    for done, one in enumerate(users):
        report("users", done, len(users))
        progress = partial(_report_part, report, one) if len(users) <= _FEW_USERS else _report_nothing
        try:
            key = open_user_key(settings.encryption, data_dir, one)
            with current_files(root, settings, one) as (folder, is_copy):
                yield check_user(folder, one, settings.store, progress, key, is_copy=is_copy or backup is not None)
        except EncryptionKeyMissingError as error:
            if on_missing_key is None:
                raise
            on_missing_key(error)
    report("users", len(users), len(users))
    owners, journal = Layout(root).owners, journal_folder(root)
    if user_id is None and owners.exists():
        yield check_owners(owners, open_user_key(settings.encryption, data_dir, SYSTEM_USER))
    if user_id is None and journal.exists():
        yield check_events(journal, settings.relay.journal, partial(_report_part, report, "journal"))


class PartReport(msgspec.Struct, frozen=True, kw_only=True):
    """The findings in one part. `entries` counts memories, pairs or events.

    `unbuilt` names derived files that do not exist. This is not a fault: a restored store has none at first.
    """

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
) -> PartReport:
    """Check a user's folder. For a copy, which has no derived files, check only the records.

    Raises `StoreError` if the files cannot be read at all, such as encrypted files without their `key`.
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
            _check_columns(folder, settings, key, findings, report, is_sound=is_sound)
    except StoreDamagedError as error:
        findings.add(PAGES, str(error))
    return PartReport(part=f"user {user_id}", entries=entries, findings=findings.listed(), unbuilt=unbuilt)


def check_events(folder: Path, settings: JournalSettings, report: Report) -> PartReport:
    """Check a journal. Raises `JournalError` if the journal cannot be read at all."""
    findings = Findings()
    entries = check_journal(folder, settings, findings, report)
    return PartReport(part="journal", entries=entries, findings=findings.listed())


def check_owners(folder: Path, key: UserKey | None = None) -> PartReport:
    """Check the map of owners of runs and sessions, which may be encrypted with the system's `key`.

    Raises `StoreError` if the map cannot be read at all.
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


def _check_columns(
    folder: Path, settings: StoreSettings, key: UserKey | None, findings: Findings, report: Report, *, is_sound: bool
) -> None:
    """Check the saved columns, and compare them with the records if the records are sound.

    The columns are read before the records, so they can only be behind. They are read again if the owner has since
    saved newer columns and deleted the changes in between from the log.
    """
    for attempt in range(_ATTEMPTS):
        with closing(open_records(folder, settings, key)) as environment, environment.read() as transaction:
            source = None if Snapshot(transaction).blob(ENGINE_BLOB) is None else _RecordedVectors()
        columns = _columns(folder, key, findings, source)
        if columns is None or not is_sound:
            return
        with closing(open_records(folder, settings, key)) as environment, environment.read() as transaction:
            snapshot = Snapshot(transaction)
            if source is not None:
                source.snapshot = snapshot
            if columns[0].applied >= snapshot.state.forgotten_through or attempt == _ATTEMPTS - 1:
                check_columns(snapshot, *columns, findings, report)
                return


class _RecordedVectors:
    """The records' vectors, for columns without vectors, because another engine has them (`Source`)."""

    is_approximate = False
    snapshot: Snapshot

    def nearest(self, query: Embedding, limit: int, where: Where) -> Hits:
        raise NotImplementedError

    def vectors(self, rows: Rows) -> Embedding:
        return self.snapshot.vectors(rows)

    def further(self, rows: Rows) -> list[Embedding]:
        none = self.snapshot.vectors([])
        found = map(self.snapshot.passages, rows.tolist())
        return [none if one is None else one[1] for one in found]


def _columns(
    folder: Path, key: UserKey | None, findings: Findings, source: _RecordedVectors | None
) -> tuple[ColumnsHeader, View] | None:
    """Return the saved columns without their graph, whose file is only checked against its checksums."""
    cipher = columns_cipher(key)
    try:
        for graph in graph_files(folder / GRAPH_FILE):
            if graph.exists():
                read_arrays(graph, dict, cipher)
    except IndexDamagedError as error:
        findings.add(GRAPH_FILE, str(error))
    try:
        header, columns = read_columns(folder, StoreSettings(exact_search_limit=sys.maxsize), cipher, source)
    except IndexDamagedError as error:
        findings.add(COLUMNS_FILE, str(error))
        return None
    return header, columns.view


class RecordsCheckup(Checkup):
    """Checks the databases of one store."""

    def __init__(self, transaction: Transaction, findings: Findings, report: Report) -> None:
        super().__init__(transaction, findings, report)
        self._state = StoreState()
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
            self._word_bits,
            partial(self._checksummed, USAGE),
            partial(self._checksummed, NEXT),
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
            self.findings.require(self._row(IDS, name) == row, RECORDS, "is not found by its id")
            if record.event_id is not None:
                event = name_key(record.event_id, "event_id")
                self.findings.require(self._row(EVENTS, event) == row, RECORDS, "is not found by its event")
            held = {
                name: self.transaction.get(name, row_key(row)) is not None for name in (VECTORS, WORD_BITS, PENDING)
            }
            is_whole = held[VECTORS] and (held[WORD_BITS] or self._state.words_stamp is None)
            fault = "is complete but pending, or incomplete but not pending"
            self.findings.require(is_whole != held[PENDING], RECORDS, fault)
            self.findings.require(row < self._state.next_row, RECORDS, "is beyond the last row")

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
            self.findings.require(bool((spans[:, 0] <= spans[:, 1]).all()), PASSAGES, "end before they start")

    def _word_bits(self) -> None:
        for row, value in self._rows(WORD_BITS):
            self._require_record(WORD_BITS, row)
            try:
                words_body(row, value, self._state.word_bytes or 0)
            except StoreDamagedError:
                self.findings.add(WORD_BITS, UNREADABLE)

    def _checksummed(self, database: str) -> None:
        for row, value in self._rows(database):
            self._require_record(database, row)
            try:
                without_checksum(row, value, database)
            except StoreDamagedError:
                self.findings.add(database, UNREADABLE)

    def _pending(self) -> None:
        for row, _ in self._rows(PENDING):
            self._require_record(PENDING, row)

    def _ids(self) -> None:
        for key, value in self.walk(IDS):
            row = _row_of(value)
            if self.transaction.get(RECORDS, row_key(row)) is None:
                self.findings.add(IDS, "refers to no record")
            elif row in self._names:
                self.findings.require(self._names[row] == key, IDS, "refers to a record with a different id")

    def _events(self) -> None:
        for _, value in self.walk(EVENTS):
            self.findings.require(0 < _row_of(value) < self._state.next_row, EVENTS, "refers to a row never allocated")

    def _changes(self) -> None:
        kept = 0
        for change, value in self._rows(CHANGES):
            kept += change > self._state.forgotten_through
            self.findings.require(change <= self._state.last_change, CHANGES, "is beyond the last change")
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
        """Check that runs refer only to memories that exist or were forgotten."""
        for key, value in self.walk(RUNS):
            with suppress(StoreDamagedError, InvalidInputError):  # reported by the index check
                for row in decode_trajectory(key, value).named_rows:
                    self.findings.require(0 < row < self._state.next_row, RUNS, "names a row never allocated")

    def _index_of(self, index: str, sources: Mapping[str, Callable[[bytes, bytes], dict[bytes, bytes]]]) -> None:
        """Compare an index with its source, in both directions."""
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
                self.findings.add(index, "has an entry without a source")
            else:
                self.findings.require(known == value, index, "has an entry that differs from its source")
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
    """Return the row in a value, or 0 (which is not a row) for a value that is too long."""
    return row_number(value) if len(value) <= _ROW_BYTES else 0


def check_columns(snapshot: Snapshot, header: ColumnsHeader, view: View, findings: Findings, report: Report) -> None:
    """Compare columns loaded from their file with the records: 2 s per 10,000 memories."""
    if not _is_of_store(snapshot, header.lineage, COLUMNS_FILE, findings):
        return
    changed = _changed_since(snapshot, header.applied)
    if not findings.require(changed is not None, COLUMNS_FILE, "are too old for the change log"):
        return
    assert changed is not None
    is_of_embedder = not view.vectors.count or header.stamp == (snapshot.state.stamp or "")
    if not findings.require(is_of_embedder, COLUMNS_FILE, "are from a different embedder"):
        return
    total, done = snapshot.counts().memories, 0
    strange = set(view.rows[view.alive].tolist()) - changed
    records = ((row, record) for row, record in snapshot.scan() if row not in changed)
    while part := list(islice(records, _STEP)):
        report(COLUMNS_FILE, done, total)
        done += len(part)
        slots = view.slots([row for row, _ in part])
        findings.add(COLUMNS_FILE, "are missing a row", int(np.count_nonzero(slots < 0)))
        known = [numbered for numbered, slot in zip(part, slots.tolist(), strict=True) if slot >= 0]
        strange.difference_update(row for row, _ in known)
        if known:
            _compare(snapshot, known, view, slots[slots >= 0], findings)
    findings.add(COLUMNS_FILE, "contain a row without a record", len(strange))
    report(COLUMNS_FILE, total, total)


def check_learner(snapshot: Snapshot, folder: Path, key: UserKey | None, findings: Findings) -> None:
    """Check the saved learner's checksum and store; the learner may be older than the records."""
    try:
        lineage = look_at_learner(folder, key)
    except DamagedStateError as error:
        findings.add(LEARNER_FILE, str(error))
        return
    if lineage is not None:
        _is_of_store(snapshot, lineage, LEARNER_FILE, findings)


def _compare(snapshot: Snapshot, part: Numbered, view: View, slots: Slots, findings: Findings) -> None:
    """Compare memories with their `slots` (m,)."""
    records = [record for _, record in part]
    _compare_fields(records, view, slots, findings)
    wrong = sum(
        one != numbers_of(record.metadata) for one, record in zip(view.metadata_of(slots), records, strict=True)
    )
    findings.add(COLUMNS_FILE, "differ from the records in metadata", wrong)
    findings.add(COLUMNS_FILE, "differ from the records in indexed words", _wrong_words(records, view, slots))
    stored, found = snapshot.vectors([row for row, _ in part]), view.vectors.vectors(slots)
    if not findings.require(stored.shape == found.shape or not view.vectors.count, COLUMNS_FILE, "differ in ndim"):
        return
    is_there, is_found = stored.any(axis=1), found.any(axis=1)
    is_wrong = is_there != is_found
    if stored.shape == found.shape:
        lengths = np.linalg.norm(stored, axis=1)  # within .0005 of 1 after rounding to float16
        is_wrong |= is_there & (np.einsum("ij,ij->i", stored, found) < _LEAST_COSINE * lengths)
    findings.add(COLUMNS_FILE, "differ from the records in vectors", int(np.count_nonzero(is_wrong)))
    findings.add(COLUMNS_FILE, "differ from the records in passages", _wrong_passages(snapshot, part, view, slots))


def _compare_fields(records: Sequence[MemoryRecord], view: View, slots: Slots, findings: Findings) -> None:
    expected: dict[str, tuple[npt.NDArray[Any], list[Any]]] = {
        "words": (view.fingerprints, [record_fingerprint(record) for record in records]),
        "times": (view.times_us, [microseconds(record.timestamp, "timestamp") for record in records]),
        "kinds": (view.kinds, [KINDS.index(record.kind) for record in records]),
        "sources": (view.sources, [SOURCES.index(record.source) for record in records]),
        "updates": (
            view.updated_us,
            [microseconds(record.updated_at or record.timestamp, "updated_at") for record in records],
        ),
        "qualities": (view.qualities, [nan if one.quality_score is None else one.quality_score for one in records]),
    }
    for name, (column, values) in expected.items():
        held, told = column[slots], np.array(values, dtype=column.dtype)
        is_other = (held != told) & ((held == held) | (told == told))  # NaN means no value, so NaN equals NaN here
        findings.add(COLUMNS_FILE, f"differ from the records in {name}", int(np.count_nonzero(is_other)))
    for chosen, places in _filters(records):
        mask = view.mask(chosen)
        passing = np.zeros(len(records), dtype=np.bool_)
        passing[places] = True
        wrong = 0 if mask is None else int(np.count_nonzero(mask[slots] != passing))
        findings.add(COLUMNS_FILE, "differ from the records in names", wrong)


def _wrong_passages(snapshot: Snapshot, part: Numbered, view: View, slots: Slots) -> int:
    """Return the number of `slots` (m,) whose further passages differ from their memories."""
    wrong = 0
    for (row, _), slot in zip(part, slots.tolist(), strict=True):
        stored, found = snapshot.passages(row), view.vectors.further(slot)
        if stored is None or stored[1].shape != found.shape:
            wrong += stored is not None or len(found) > 0
        else:
            lengths = np.linalg.norm(stored[1], axis=1)
            wrong += bool((np.einsum("ij,ij->i", stored[1], found) < _LEAST_COSINE * lengths).any())
    return wrong


def _filters(records: Sequence[MemoryRecord]) -> Iterator[tuple[MemoryFilter, list[int]]]:
    """Yield a filter for each name in `records`, with the positions of the records that have this name."""
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    for place, record in enumerate(records):
        for field in _NAMED:
            if (name := getattr(record, field)) is not None:
                found[field, name].append(place)
        for tag in set(record.tags):
            found["tags", tag].append(place)
    for (field, name), places in found.items():
        wanted: Any = {field: (name,) if field in ("tags", "provenance") else name}
        yield MemoryFilter(**wanted), places


def _wrong_words(records: Sequence[MemoryRecord], view: View, slots: Slots) -> int:
    """Return the number of `slots` (m,) whose indexed words differ from the words of their memories."""
    words_of = [text_words("\n".join(texts_of(record))) for record in records]
    languages = [language_of(words) for words in words_of]
    word_of_term: dict[str, str] = {}
    terms_of = []
    for words, language in zip(words_of, languages, strict=True):
        short = [word for word in words if len(word) <= LONGEST_WORD]
        terms = dict(zip(text_terms(short, language), short, strict=True))
        word_of_term = terms | word_of_term
        terms_of.append(terms.keys())
    words = list(dict.fromkeys(word_of_term.values()))
    numbers: defaultdict[str, list[int]] = defaultdict(list)
    for language in set(languages):
        for number, term in enumerate(text_terms(words, language)):
            numbers[term].append(number)
    expected = np.zeros((len(words), len(records)), dtype=np.bool_)  # (w, m)
    for place, held in enumerate(terms_of):
        expected[[number for term in held for number in numbers[term]], place] = True
    hits = view.words.hits(words, slots)
    return int(np.count_nonzero((hits != expected).any(axis=0)))


def _is_of_store(snapshot: Snapshot, lineage: str, place: str, findings: Findings) -> bool:
    return findings.require(lineage == snapshot.state.lineage, place, "belongs to another store")


def _changed_since(snapshot: Snapshot, applied: int) -> set[int] | None:
    changes = snapshot.changes_after(applied)
    try:
        return None if changes is None else {change.row for change in changes.rows}
    except (StoreDamagedError, IndexDamagedError):
        return None


def _report_part(report: Report, part: str, what: str, done: int, total: int) -> None:
    report(f"{part}: {what}", done, total)


def _report_nothing(_what: str, _done: int, _total: int) -> None:
    """Report nothing, because a progress bar for each part of many users would fill the screen."""
