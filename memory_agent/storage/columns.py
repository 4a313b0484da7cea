"""Holds one user's memories as in-memory columns, derived from the store, which recall searches, filters and groups.

A memory has a *row* in the store and a *slot* here, numbered from 0 in order of arrival. Deleted and replaced memories
leave dead slots until the columns are compacted. One thread writes (`Columns`); after each batch it publishes an
immutable `View`, which any thread reads without a lock.

Shapes: n = all slots, including dead slots; m = slots or rows passed as an argument.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from itertools import islice
from math import nan
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from memory_agent.errors import IndexDamagedError
from memory_agent.records.embedded import Embedding
from memory_agent.records.memories import KINDS, SOURCES, STATED_PROVENANCES, MemoryRecord, microseconds
from memory_agent.records.metadata import numbers_of
from memory_agent.storage.changes import Change, Changes, Rows, StoredWords, Words, texts_of
from memory_agent.storage.column import Arrays, Column, LoadedArrays, RowSlots, Slots, Sorted, are_any
from memory_agent.storage.indexed_vectors import IndexedVectors
from memory_agent.storage.passages import PassageVectors, WordBits
from memory_agent.storage.postings import Postings
from memory_agent.storage.terms import asks, fingerprint, fingerprint_of_said, said
from memory_agent.storage.view import LINKS, NAMED, NO_NAME, View

_TYPES: dict[str, type[np.generic]] = {
    "rows": np.int64,
    "times_us": np.int64,
    "fingerprints": np.int64,
    "qualities": np.float64,  # float64, like the record, for exact comparison with min_quality; NaN if absent
    "kinds": np.uint8,
    "sources": np.uint8,
    "provenances": np.uint8,
    "sessions": np.int32,
    "runs": np.int32,
    "channels": np.int32,
    "agents": np.int32,
    "types": np.int32,
    "phases": np.int32,
    "updated_us": np.int64,  # the memory's own time if it was never replaced
    "asks": np.bool_,
}
"""The columns with one value per memory, in the order of `Columns._values_of`."""

_PAIRS: dict[str, type[np.generic]] = {
    "tag_slots": np.int32,
    "tag_names": np.int32,
    "metadata_slots": np.int32,
    "metadata_values": np.int64,  # results of `metadata.number_of`
}
_BESIDE = (("tag_slots", "tag_names"), ("metadata_slots", "metadata_values"))
_PER_SLOT = _TYPES | dict.fromkeys(LINKS, np.int32) | {"alive": np.bool_}
_ALL = _PER_SLOT | _PAIRS
_NO_PROVENANCE = 255
_FINGERPRINT = list(_TYPES).index("fingerprints")

_STEP = 1_000  # memories applied and published at a time
_MOST_UNSORTED = 4_096  # maximum number of unsorted fingerprints; comparing all of them takes 2 us
_WORN_FROM = 1_000  # slots
_WORN_SHARE = 0.3  # share of dead slots above which compacting costs less than keeping them

_names_of = msgspec.msgpack.Decoder(list[str])


class Columns:
    """The columns of one store. One thread changes them; any thread may use `view`."""

    def __init__(self, vectors: PassageVectors | IndexedVectors, words: Postings) -> None:
        """Start with no memories; both indexes must be empty."""
        self.applied = 0
        self.built_at: datetime | None = None
        self.stamp = self.words_stamp = ""
        self.vectors = vectors
        self._words = words
        self._word_bits = WordBits()
        self._columns: dict[str, Column[Any]] = {name: _column(type_) for name, type_ in _ALL.items()}
        self._names: dict[str, int] = {}
        self.dead = 0
        self._equal = Sorted.of(np.empty(0, dtype=np.int64))
        self._first_row = 0
        self._slot_of: Column[np.int32] = _column(np.int32)  # slots by row, from the first row; -1 for none
        self._publish()

    @classmethod
    def from_arrays(
        cls, arrays: LoadedArrays, vectors: PassageVectors | IndexedVectors, words: Postings, applied: int, stamp: str
    ) -> Columns:
        """Restore the columns as of change `applied`, without word bits. Raises `IndexDamagedError`."""
        columns = cls(vectors, words)
        try:
            columns._take(arrays)
        except (KeyError, ValueError, IndexError, msgspec.DecodeError) as error:
            columns.close()
            raise IndexDamagedError(f"columns: {error}") from error
        columns.applied, columns.stamp = applied, stamp
        columns._publish()
        return columns

    def arrays(self) -> Arrays:
        """Return the content as arrays. The names of an index's arrays begin with the name of the index."""
        names = np.frombuffer(msgspec.msgpack.encode(list(self._names)), dtype=np.uint8)
        equal = self._equal.with_all(self._columns["fingerprints"].view())
        own = {name: column.view() for name, column in self._columns.items()}
        indexes = {
            f"{part}.{name}": array
            for part, index in (("vectors", self.vectors), ("words", self._words))
            for name, array in index.arrays().items()
        }
        return own | {"names": names, "by_fingerprint": equal.positions} | indexes

    def apply(self, changes: Changes) -> None:
        """Apply a range of the change log; publish the view after every 1,000 memories and at the end. Idempotent.

        Raises `IndexDamagedError` if the range does not begin directly after change `applied`, a change does not match
        its row, or the embedder has changed. The columns must then be rebuilt.
        """
        if changes.through >= self.applied and changes.words_stamp != self.words_stamp:
            self._word_bits, self.words_stamp = WordBits(len(self._columns["alive"])), changes.words_stamp
            if changes.through == self.applied:
                self._publish()
        if changes.through <= self.applied:
            return
        if changes.after != self.applied:
            raise IndexDamagedError(f"the changes start after {changes.after}, but the columns are at {self.applied}")
        if self.stamp != changes.stamp and self.view.vectors.count:
            raise IndexDamagedError("the vectors are from a different embedder")
        self.stamp = changes.stamp
        rows = iter(changes.rows)
        try:
            part = list(islice(rows, _STEP))
            while part:
                self._follow(part)
                part = list(islice(rows, _STEP))
                if part:
                    self._publish()
        except BaseException:
            self.applied = -1  # only part of the range has been applied, so no later range can follow
            raise
        self.applied = changes.through
        slots = len(self._columns["alive"])
        if self.dead > _WORN_SHARE * slots and slots > _WORN_FROM:
            self.compact()
        self._publish()

    def take_words(self, words: StoredWords) -> None:
        """Set the words of rows whose words are still unknown, and publish the view."""
        slots = self.view.slots(words.rows)
        is_new = (slots >= 0) & ~self.view.word_bits.known[slots]
        bits = words.bits if is_new.all() else words.bits[np.repeat(is_new, words.counts)]
        self._word_bits.set(slots[is_new], words.lengths[is_new], words.counts[is_new], bits)
        self._publish()

    def compact(self) -> None:
        """Drop dead slots with all their values, and publish the view."""
        alive = self._columns["alive"].view()
        kept: Slots = np.flatnonzero(alive)
        moved = (np.cumsum(alive) - 1).astype(np.int32)
        values = {name: self._columns[name].view()[kept] for name in _PER_SLOT}
        for to, of in _BESIDE:
            slots = self._columns[to].view()
            values |= {to: moved[slots[alive[slots]]], of: self._columns[of].view()[alive[slots]]}
        used = np.unique(np.concatenate([values[name] for name in ("tag_names", *NAMED)]))
        used = used[used != NO_NAME]
        renumbered = np.full(len(self._names) + 1, NO_NAME, dtype=np.int32)  # the last position is for `NO_NAME`
        renumbered[used] = np.arange(len(used))
        names = list(self._names)
        self._names = {names[number]: place for place, number in enumerate(used.tolist())}
        for name in ("tag_names", *NAMED):
            values[name] = renumbered[values[name]]
        for name in LINKS:
            values[name][:] = -1
        self._columns = {name: Column(values[name]) for name in _ALL}
        self._link(np.flatnonzero(values["sessions"] != NO_NAME))
        self._equal = Sorted.of(values["fingerprints"])
        self.vectors.close()
        self.vectors, self._words = self.vectors.keep(kept), self._words.keep(kept)
        self._word_bits = self._word_bits.keep(kept)
        self.dead = 0
        self._locate()
        self._publish()

    def close(self) -> None:
        self.vectors.close()

    def _take(self, arrays: LoadedArrays) -> None:
        count = len(arrays["rows"])
        pairs_differ = any(len(arrays[to]) != len(arrays[of]) for to, of in _BESIDE)
        if pairs_differ or any(arrays[name].shape != (count,) for name in _PER_SLOT):
            raise ValueError("the arrays differ in length")
        self._columns = {name: _column(type_, arrays[name]) for name, type_ in _ALL.items()}
        self._names = {name: number for number, name in enumerate(_names_of.decode(arrays["names"].tobytes()))}
        self.dead = count - int(np.count_nonzero(arrays["alive"]))
        self._word_bits = WordBits(count)
        order = arrays["by_fingerprint"].astype(np.int32)
        self._equal = Sorted(arrays["fingerprints"][order], order)
        self._locate()

    def _locate(self) -> None:
        alive = np.flatnonzero(self._columns["alive"].view())
        rows = self._columns["rows"].view()[alive]
        self._first_row = int(rows.min(initial=np.iinfo(np.int64).max)) if len(rows) else 0
        self._slot_of = _column(np.int32)
        if len(rows):
            self._point(rows, alive)

    def _point(self, rows: Rows, slots: Slots | int) -> None:
        """Map `rows` (m,) to `slots`, adding rows beyond the last known one."""
        if not len(rows):
            return
        if not len(self._slot_of):
            self._first_row = int(rows.min())
        places, end = rows - self._first_row, len(self._slot_of)
        added = np.full(max(0, int(places.max()) + 1 - end), -1, dtype=np.int32)
        slots, is_new = np.broadcast_to(slots, rows.shape), places >= end
        added[places[is_new] - end] = slots[is_new]
        self._slot_of.append(added)
        if not is_new.all():
            self._slot_of.set(places[~is_new], slots[~is_new])

    def _follow(self, part: list[Change]) -> None:
        """Apply changes, at most one per row."""
        slots = self.view.slots([change.row for change in part]).tolist()
        removed: list[int] = []
        added: list[Change] = []
        updated: list[tuple[int, tuple[Any, ...]]] = []
        vectored: list[tuple[int, Change]] = []
        worded: dict[int, Words | None] = {}
        for slot, change in zip(slots, part, strict=True):
            if change.record is None:
                removed += [slot] if slot >= 0 else []
                continue
            if (slot < 0) != (change.op == "put"):
                raise IndexDamagedError(f"row {change.row} does not match its change")
            values = None if change.op in ("put", "vector") else self._values_of(change.row, change.record)
            is_reworded = change.op == "reword" or (
                values is not None and values[_FINGERPRINT] != self.view.fingerprints[slot]
            )
            if is_reworded:
                removed.append(slot)
            if slot < 0 or is_reworded:
                added.append(change)
                continue
            if values is not None:
                updated.append((slot, values))
            if change.new_vector:
                vectored.append((slot, change))
            if change.new_words:
                worded[slot] = change.words
        sessions = self._update(updated)
        replaced = self._set_vectors(vectored)
        self._set_words(worded)
        sessions |= self._remove([*removed, *(slot for slot, _ in replaced)])
        sessions |= self._append([*added, *(change for _, change in replaced)])
        self._relink(sessions)

    def _update(self, updated: list[tuple[int, tuple[Any, ...]]]) -> set[int]:
        """Overwrite the fields of slots; return the sessions whose order may change."""
        if not updated:
            return set()
        slots: Slots = np.array([slot for slot, _ in updated])
        sessions = set(self._columns["sessions"].view()[slots].tolist())
        for (name, type_), values in zip(_TYPES.items(), zip(*(one for _, one in updated), strict=True), strict=True):
            now, column = np.array(values, dtype=type_), self._columns[name]
            if not np.array_equal(column.view()[slots], now):
                column.set(slots, now)
        self._link(slots[self._columns["sessions"].view()[slots] == NO_NAME])
        return sessions | set(self._columns["sessions"].view()[slots].tolist())

    def _set_vectors(self, vectored: list[tuple[int, Change]]) -> list[tuple[int, Change]]:
        """Set the vectors of slots; return the slots whose vectors cannot be set in place."""
        if not vectored:
            return []
        slots: Slots = np.array([slot for slot, _ in vectored])
        changes = [change for _, change in vectored]
        vectors, further = self._vectors_of(changes), [change.passages for change in changes]
        if vectors.any(axis=1).all() and self.vectors.set(slots, vectors, further):
            return []
        return [
            one
            for one, slot, vector in zip(vectored, slots[:, None], vectors[:, None], strict=True)
            if not vector.any() or not self.vectors.set(slot, vector, [one[1].passages])
        ]

    def _set_words(self, worded: Mapping[int, Words | None]) -> None:
        """Set the words of slots; None stands for unknown words."""
        known = {slot: words for slot, words in worded.items() if words is not None}
        if known:
            counts, lengths = zip(*((len(words.bits), words.length) for words in known.values()), strict=True)
            bits = np.concatenate([words.bits for words in known.values()])
            self._word_bits.set(np.array(list(known)), lengths, counts, bits)
        self._word_bits.remove(np.array([slot for slot in worded if slot not in known], dtype=np.int64))

    def _remove(self, removed: list[int]) -> set[int]:
        if not removed:
            return set()
        slots: Slots = np.array(removed)
        self._columns["alive"].set(slots, False)
        self.dead += len(slots)
        self._point(self._columns["rows"].view()[slots], -1)
        self.vectors.remove(slots)
        self._words.remove(slots)
        self._word_bits.remove(slots)
        return set(self._columns["sessions"].view()[slots].tolist())

    def _append(self, added: list[Change]) -> set[int]:
        if not added:
            return set()
        start = len(self._columns["alive"])
        slots: Slots = np.arange(start, start + len(added))
        records = [(change.row, change.record) for change in added if change.record is not None]
        lines = [self._values_of(row, record) for row, record in records]
        for (name, type_), values in zip(_TYPES.items(), zip(*lines, strict=True), strict=True):
            self._columns[name].append(np.array(values, dtype=type_))
        tags = [(slot, self._number(tag)) for slot, (_, record) in enumerate(records, start) for tag in record.tags]
        told = [
            (slot, value) for slot, (_, record) in enumerate(records, start) for value in numbers_of(record.metadata)
        ]
        for (to, of), pairs in zip(_BESIDE, (tags, told), strict=True):
            self._columns[to].append([slot for slot, _ in pairs])
            self._columns[of].append([value for _, value in pairs])
        for name, value in (("alive", True), *((link, -1) for link in LINKS)):
            self._columns[name].append(np.full(len(added), value))
        self.vectors.append(self._vectors_of(added), [change.passages for change in added])
        self._word_bits.append([change.words for change in added])
        self._words.append([texts_of(record) for _, record in records])
        rows = self._columns["rows"].view()[start:]
        if rows.min() < self._first_row and len(self._slot_of):
            raise IndexDamagedError(f"row {int(rows.min())} precedes the first row")
        self._point(rows, slots)
        return set(self._columns["sessions"].view()[start:].tolist())

    def _vectors_of(self, changes: list[Change]) -> Embedding:
        """Return the vectors (m, d), with zeros for memories that have none."""
        ndim = self.view.vectors.ndim or next((len(one.vector) for one in changes if one.vector is not None), 0)
        vectors = np.zeros((len(changes), ndim), dtype=np.float32)
        for place, change in enumerate(changes):
            if change.vector is not None:
                if len(change.vector) != ndim:
                    raise IndexDamagedError(f"a vector has {len(change.vector)} dimensions, expected {ndim}")
                vectors[place] = change.vector
        return vectors

    def _values_of(self, row: int, record: MemoryRecord) -> tuple[Any, ...]:
        """Return a memory's values in the order of `_TYPES`."""
        return (
            row,
            microseconds(record.timestamp, "timestamp"),
            record_fingerprint(record),
            nan if record.quality_score is None else record.quality_score,
            KINDS.index(record.kind),
            SOURCES.index(record.source),
            _provenance_number(record.stated_provenance),
            self._number(record.session_id),
            self._number(record.run_id),
            self._number(record.channel_id),
            self._number(record.agent_id),
            self._number(record.type),
            self._number(record.phase),
            microseconds(record.updated_at or record.timestamp, "updated_at"),
            asks(record.text),
        )

    def _number(self, name: str | None) -> int:
        return NO_NAME if name is None else self._names.setdefault(name, len(self._names))

    def _relink(self, sessions: set[int]) -> None:
        """Rebuild the links between neighbours in these sessions."""
        sessions.discard(NO_NAME)
        if not sessions:
            return
        slots = np.flatnonzero(are_any(self._columns["sessions"].view(), list(sessions)))
        self._link(slots[self._columns["alive"].view()[slots]])

    def _link(self, slots: Slots) -> None:
        """Link `slots` (m,): all live slots of some sessions, or slots without a session."""
        if not len(slots):
            return
        rows, times, sessions = (self._columns[name].view()[slots] for name in ("rows", "times_us", "sessions"))
        order = np.lexsort((rows, times, sessions))
        slots, sessions = slots[order], sessions[order]
        is_next = (sessions[1:] == sessions[:-1]) & (sessions[1:] != NO_NAME)
        for name, step in zip(LINKS, (1, -1), strict=True):
            beside = np.full(len(slots), -1, dtype=np.int32)
            to, of = (beside[1:], slots[:-1]) if step > 0 else (beside[:-1], slots[1:])
            to[is_next] = of[is_next]
            self._columns[name].set(slots, beside)

    def _publish(self) -> None:
        arrays = {name: column.view() for name, column in self._columns.items()}
        if len(arrays["alive"]) - len(self._equal.values) > _MOST_UNSORTED:
            self._equal = self._equal.with_all(arrays["fingerprints"])
        rows = RowSlots(arrays["rows"], self._first_row, self._slot_of.view())
        self.view = View(
            arrays,
            self._names,
            rows,
            self._equal,
            (self.vectors.view(rows), self._words.view(), self._word_bits.view()),
            (len(arrays["alive"]) - self.dead, self.applied),
            (self.stamp, self.words_stamp),
        )


def record_fingerprint(record: MemoryRecord) -> int:
    """Return a hash of a memory's kind, title and `terms.said_words`; equal memories have equal hashes."""
    return fingerprint(record.kind, record.title or "", record.text)


def untitled_fingerprints(text: str) -> list[int]:
    """Return, for each kind, the fingerprint of an untitled memory with this text."""
    said_text = said(text)
    return [fingerprint_of_said(kind, "", said_text) for kind in KINDS]


def _provenance_number(stated: str | None) -> int:
    """Return the position in `STATED_PROVENANCES`. Only the first part of an unknown pair (from an import) is used."""
    if stated is None:
        return _NO_PROVENANCE
    names: tuple[str, ...] = STATED_PROVENANCES
    return names.index(stated) if stated in names else names.index(stated.partition(":")[0])


def _column(type_: type[np.generic], values: npt.NDArray[Any] | None = None) -> Column[Any]:
    return Column(np.empty(0, dtype=type_) if values is None else np.asarray(values, dtype=type_))
