"""Verify the files that are derived from a user's records: the columns, their graph, and the learner.

Rows with changes that are still in the change log are skipped.

m = number of memories compared at once, w = number of words.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import islice
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from memory_agent.errors import (
    IndexDamagedError,
    IndexUnavailableError,
    IndexUnusableError,
    SettingsError,
    StoreDamagedError,
)
from memory_agent.indexes import SHARED, Hits, IndexOf, Where, open_index
from memory_agent.learning import LEARNER_FILE, look_at_learner
from memory_agent.records.embedded import Embedding
from memory_agent.records.memories import KINDS, SOURCES, MemoryFilter, MemoryRecord, microseconds
from memory_agent.records.metadata import numbers_of
from memory_agent.settings import StoreSettings
from memory_agent.storage.array_file import read_arrays
from memory_agent.storage.changes import Rows, texts_of
from memory_agent.storage.column import Slots
from memory_agent.storage.columns import record_fingerprint
from memory_agent.storage.derived import COLUMNS_FILE, GRAPH_FILE, ColumnsHeader, columns_cipher, read_columns
from memory_agent.storage.environment import UserKey, open_records
from memory_agent.storage.index_follower import engine_in, engine_named, position_of, with_key
from memory_agent.storage.languages import language_of
from memory_agent.storage.passages import graph_files
from memory_agent.storage.snapshot import (
    Snapshot,
)
from memory_agent.storage.terms import LONGEST_WORD, text_terms, text_words
from memory_agent.storage.view import View
from relay.disk import Findings, Report
from sona import DamagedStateError

_ATTEMPTS = 3  # maximum number of attempts to read the columns while their owner replaces them
_LEAST_COSINE = 0.9999  # smallest cosine between a vector in the columns and the same vector in float16
_NAMED = ("session_id", "run_id", "channel_id", "agent_id", "provenance", "type", "phase")
_STEP = 500

Numbered = Sequence[tuple[int, MemoryRecord]]


def check_columns_file(
    folder: Path, settings: StoreSettings, key: UserKey | None, findings: Findings, report: Report, *, is_sound: bool
) -> None:
    """Check the saved columns, and compare them with the records if the records are sound.

    The columns are read before the records, so they can only be older than the records. If the owner of the store saves
    newer columns in the meantime and deletes the intermediate changes from the log, the columns are read again.
    """
    for attempt in range(_ATTEMPTS):
        source = None if engine_in(folder, settings, key) == "builtin" else _RecordedVectors()
        columns = _columns(folder, key, findings, source)
        if columns is None or not is_sound:
            return
        with closing(open_records(folder, settings, key)) as environment, environment.read() as transaction:
            snapshot = Snapshot(transaction)
            if source is not None:
                source.snapshot = snapshot
            if columns[0].applied >= snapshot.state.forgotten_through or attempt == _ATTEMPTS - 1:
                _check_columns(snapshot, *columns, findings, report)
                return


class _RecordedVectors:
    """Reads vectors from the records if the vectors of the columns are in another engine (`Source`)."""

    is_approximate = False
    snapshot: Snapshot

    def nearest(self, _query: Embedding, _limit: int, _where: Where, _timeout_s: float | None) -> Hits:
        """Raise `IndexUnavailableError`, because the check reads vectors and does not search."""
        raise IndexUnavailableError("the records", "they contain vectors, but no index")

    def vectors(self, rows: Rows) -> Embedding:
        return self.snapshot.vectors(rows)

    def further(self, rows: Rows) -> list[Embedding]:
        none = self.snapshot.vectors([])
        found = map(self.snapshot.passages, rows.tolist())
        return [none if one is None else one[1] for one in found]


def _columns(
    folder: Path, key: UserKey | None, findings: Findings, source: _RecordedVectors | None
) -> tuple[ColumnsHeader, View] | None:
    """Return the saved columns without their graph; the graph's file is only checked against its checksums."""
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


def _check_columns(snapshot: Snapshot, header: ColumnsHeader, view: View, findings: Findings, report: Report) -> None:
    """Compare columns loaded from their file with the records. Takes 2 s per 10,000 memories."""
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


def check_index(of: IndexOf, settings: StoreSettings, key: UserKey | None, findings: Findings) -> None:
    """Compare the number of memories in another engine's index with the number of vectors in the records, unless the
    index is behind.
    """
    for _ in range(_ATTEMPTS):
        with closing(open_records(of.folder, settings, key)) as environment, environment.read() as transaction:
            snapshot = Snapshot(transaction)
            engine, before, expected = engine_named(snapshot), position_of(snapshot), snapshot.counts().vectors
        if engine == "builtin" or not (engine == SHARED or any(of.folder.glob("index.*"))):
            return
        place = f"index in {engine}"
        try:
            with closing(open_index(engine, with_key(of, key))) as index:
                is_current, counted = index.position == before, index.count()
        except IndexDamagedError as error:
            findings.add(place, str(error))
            return
        except (IndexUnavailableError, IndexUnusableError, SettingsError) as error:
            findings.add(place, f"was not compared: {error}")
            return
        with closing(open_records(of.folder, settings, key)) as environment, environment.read() as transaction:
            is_current = is_current and position_of(Snapshot(transaction)) == before
        if is_current:
            fault = f"contains vectors of {counted} memories instead of {expected}; run memory-agent rebuild"
            findings.require(counted == expected, place, fault)
            return


def check_learner(snapshot: Snapshot, folder: Path, key: UserKey | None, findings: Findings) -> None:
    """Check that the saved learner matches its checksum and belongs to this store. It may be older than the records."""
    try:
        lineage = look_at_learner(folder, key)
    except DamagedStateError as error:
        findings.add(LEARNER_FILE, str(error))
        return
    if lineage is not None:
        _is_of_store(snapshot, lineage, LEARNER_FILE, findings)


def _compare(snapshot: Snapshot, part: Numbered, view: View, slots: Slots, findings: Findings) -> None:
    records = [record for _, record in part]
    _compare_fields(records, view, slots, findings)
    wrong = sum(
        one != numbers_of(record.metadata) for one, record in zip(view.metadata_of(slots), records, strict=True)
    )
    findings.add(COLUMNS_FILE, "differ in metadata from the records", wrong)
    findings.add(COLUMNS_FILE, "differ in indexed words from the records", _wrong_words(records, view, slots))
    stored, found = snapshot.vectors([row for row, _ in part]), view.vectors.vectors(slots)
    if not findings.require(stored.shape == found.shape or not view.vectors.count, COLUMNS_FILE, "differ in ndim"):
        return
    is_there, is_found = stored.any(axis=1), found.any(axis=1)
    is_wrong = is_there != is_found
    if stored.shape == found.shape:
        lengths = np.linalg.norm(stored, axis=1)  # within .0005 of 1 after rounding to float16
        is_wrong |= is_there & (np.einsum("ij,ij->i", stored, found) < _LEAST_COSINE * lengths)
    findings.add(COLUMNS_FILE, "differ in vectors from the records", int(np.count_nonzero(is_wrong)))
    findings.add(COLUMNS_FILE, "differ in passages from the records", _wrong_passages(snapshot, part, view, slots))


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
        findings.add(COLUMNS_FILE, f"differ in {name} from the records", int(np.count_nonzero(is_other)))
    for chosen, places in _filters(records):
        mask = view.mask(chosen)
        passing = np.zeros(len(records), dtype=np.bool_)
        passing[places] = True
        wrong = 0 if mask is None else int(np.count_nonzero(mask[slots] != passing))
        findings.add(COLUMNS_FILE, "differ in names from the records", wrong)


def _wrong_passages(snapshot: Snapshot, part: Numbered, view: View, slots: Slots) -> int:
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
