"""Checks the files of the columns and of the learner against the records.

The columns may be behind, by changes that the change log still holds; rows that changed since are skipped. A fault here
loses no memory: the file is rebuilt from the records at the next open, or now by `memory-agent rebuild`.

m = number of memories compared at once, w = number of words.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from memory_agent.errors import IndexDamagedError, StoreDamagedError
from memory_agent.learning.learner_file import LEARNER_FILE, look_at_learner
from memory_agent.records.memories import KINDS, SOURCES, MemoryFilter, MemoryRecord, microseconds
from memory_agent.records.metadata import numbers_of
from memory_agent.storage.changes import texts_of
from memory_agent.storage.columns import record_fingerprint
from memory_agent.storage.derived import COLUMNS_FILE, ColumnsHeader
from memory_agent.storage.indexes import Slots
from memory_agent.storage.snapshot import Snapshot
from memory_agent.storage.terms import LONGEST_WORD, stems, text_words
from memory_agent.storage.user_key import UserKey
from memory_agent.storage.view import View
from relay.disk import Findings, Report
from sona.errors import DamagedStateError

_LEAST_COSINE = 0.9999  # of a vector in float16 and in the columns
_NAMED = ("session_id", "run_id", "channel_id", "agent_id", "provenance", "type", "phase")
_STEP = 500

Numbered = Sequence[tuple[int, MemoryRecord]]


def check_columns(snapshot: Snapshot, header: ColumnsHeader, view: View, findings: Findings, report: Report) -> None:
    """Compare columns loaded from their file with the records: 2 s per 10,000."""
    if not _is_of_store(snapshot, header.lineage, COLUMNS_FILE, findings):
        return
    changed = _changed_since(snapshot, header.applied)
    if not findings.require(changed is not None, COLUMNS_FILE, "are further behind than the change log reaches"):
        return
    assert changed is not None
    is_of_embedder = not view.vectors.count or header.stamp == (snapshot.state.stamp or "")
    if not findings.require(is_of_embedder, COLUMNS_FILE, "are of another embedder"):
        return
    total, done = snapshot.counts().memories, 0
    strange = set(view.rows[view.alive].tolist()) - changed
    records = ((row, record) for row, record in snapshot.scan() if row not in changed)
    while part := list(islice(records, _STEP)):
        report(COLUMNS_FILE, done, total)
        done += len(part)
        slots = view.slots([row for row, _ in part])
        findings.add(COLUMNS_FILE, "lack a row", int(np.count_nonzero(slots < 0)))
        known = [numbered for numbered, slot in zip(part, slots.tolist(), strict=True) if slot >= 0]
        strange.difference_update(row for row, _ in known)
        if known:
            _compare(snapshot, known, view, slots[slots >= 0], findings)
    findings.add(COLUMNS_FILE, "hold a row that is not a record", len(strange))
    report(COLUMNS_FILE, total, total)


def check_learner(snapshot: Snapshot, folder: Path, key: UserKey | None, findings: Findings) -> None:
    """Check the checksum of the saved learner, and that it belongs to this store. It may be older than the records."""
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
        "implicit qualities": (
            view.implicit,
            [nan if one.implicit_quality is None else one.implicit_quality for one in records],
        ),
    }
    for name, (column, values) in expected.items():
        held, told = column[slots], np.array(values, dtype=column.dtype)
        is_other = (held != told) & ((held == held) | (told == told))  # NaN, which is none, equals NaN
        findings.add(COLUMNS_FILE, f"hold other {name} than the records", int(np.count_nonzero(is_other)))
    for chosen, places in _filters(records):
        mask = view.mask(chosen)
        passing = np.zeros(len(records), dtype=np.bool_)
        passing[places] = True
        wrong = 0 if mask is None else int(np.count_nonzero(mask[slots] != passing))
        findings.add(COLUMNS_FILE, "hold other names than the records", wrong)
    numbers = [numbers_of(record.metadata) for record in records]
    wrong = sum(one != other for one, other in zip(view.metadata_of(slots), numbers, strict=True))
    findings.add(COLUMNS_FILE, "hold other metadata than the records", wrong)
    findings.add(COLUMNS_FILE, "find other words than the records have", _wrong_words(records, view, slots))
    stored, found = snapshot.vectors([row for row, _ in part]), view.vectors.vectors(slots)
    if not findings.require(stored.shape == found.shape or not view.vectors.count, COLUMNS_FILE, "are of other ndim"):
        return
    is_there, is_found = stored.any(axis=1), found.any(axis=1)
    is_wrong = is_there != is_found
    if stored.shape == found.shape:
        lengths = np.linalg.norm(stored, axis=1)  # within .0005 of one after float16
        is_wrong |= is_there & (np.einsum("ij,ij->i", stored, found) < _LEAST_COSINE * lengths)
    findings.add(COLUMNS_FILE, "hold another vector than the records", int(np.count_nonzero(is_wrong)))
    findings.add(COLUMNS_FILE, "hold other passages than the records", _wrong_passages(snapshot, part, view, slots))


def _wrong_passages(snapshot: Snapshot, part: Numbered, view: View, slots: Slots) -> int:
    """Return how many of `slots` (m,) have other further passages than their memories."""
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
    """Yield filters by each name in `records`, with the places of those that have it."""
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
    """Return how many of `slots` (m,) are found by other words than their memories have."""
    words_of = [text_words("\n".join(texts_of(record))) for record in records]
    word_of_stem: dict[str, str] = {}
    stems_of = []
    for words in words_of:
        pairs = [(stem, word) for stem, word in zip(stems(words), words, strict=True) if len(stem) <= LONGEST_WORD]
        word_of_stem |= {stem: word for stem, word in pairs if stem not in word_of_stem}
        stems_of.append({stem for stem, _ in pairs})
    numbers = {stem: number for number, stem in enumerate(word_of_stem)}
    expected = np.zeros((len(numbers), len(records)), dtype=np.bool_)  # (w, m)
    for place, held in enumerate(stems_of):
        expected[[numbers[stem] for stem in held], place] = True
    hits = view.words.hits(list(word_of_stem.values()), slots)
    return int(np.count_nonzero((hits != expected).any(axis=0)))


def _is_of_store(snapshot: Snapshot, lineage: str, place: str, findings: Findings) -> bool:
    return findings.require(lineage == snapshot.state.lineage, place, "is of another store")


def _changed_since(snapshot: Snapshot, applied: int) -> set[int] | None:
    changes = snapshot.changes_after(applied)
    try:
        return None if changes is None else {change.row for change in changes.rows}
    except (StoreDamagedError, IndexDamagedError):
        return None
