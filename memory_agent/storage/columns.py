"""One user's memories as columns in memory: what recall searches, filters and groups. Derived from the store.

A memory has a *slot*, numbered from 0 in order of arrival, beside its *row* in the store. A deleted memory, and one
whose words, metadata or vector were replaced, leaves a dead slot until the columns are compacted. One thread writes
(`Columns`); after each batch it publishes an immutable `View`, which any thread reads without a lock.

Rejected: SQLite with FTS5 (a recall of 100,000 memories took 53 ms there and 21 statements, decision 0028).

n = number of slots, dead ones included, m = number of slots or rows given.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from math import nan
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from memory_agent.errors import IndexDamagedError, InvalidInputError
from memory_agent.metadata import numbers_of, wanted_numbers
from memory_agent.records import KINDS, PROVENANCES, SOURCES, Embedding, Exclusion, MemoryFilter, MemoryRecord
from memory_agent.storage.changes import Change, Changes, Rows, StoredWords, Words, texts_of
from memory_agent.storage.codec import microseconds, time_of
from memory_agent.storage.column import Column, Sorted, are_any
from memory_agent.storage.indexes import Arrays, LoadedArrays, Mask, Slots, WordIndex, WordView
from memory_agent.storage.passage_vectors import PassageVectors, PassageView
from memory_agent.storage.terms import asks, fingerprint, fingerprint_of_said, said
from memory_agent.storage.word_bits import WordBits, WordBitsView

Span = tuple[datetime | None, datetime | None]
"""A time range: since (inclusive), until (exclusive); None where it is open."""

_TYPES: dict[str, type[np.generic]] = {
    "rows": np.int64,
    "times_us": np.int64,
    "fingerprints": np.int64,
    "qualities": np.float64,  # as in the record, so that min_quality compares exactly; NaN for none
    "kinds": np.uint8,
    "sources": np.uint8,
    "provenances": np.uint8,
    "sessions": np.int32,
    "runs": np.int32,
    "channels": np.int32,
    "agents": np.int32,
    "types": np.int32,
    "phases": np.int32,
    "updated_us": np.int64,  # the time of the memory where it was never replaced
    "asks": np.bool_,
}
"""The columns that hold a memory's fields, in the order of `Columns._values_of`."""

_LINKS = ("previous", "following")
"""The slots beside a memory in its session, -1 for none."""

_NAMED = ("sessions", "runs", "channels", "agents", "types", "phases")
_PAIRS: dict[str, type[np.generic]] = {
    "tag_slots": np.int32,
    "tag_names": np.int32,
    "metadata_slots": np.int32,
    "metadata_values": np.int64,  # of `metadata.number_of`
}
_BESIDE = (("tag_slots", "tag_names"), ("metadata_slots", "metadata_values"))
"""Tags, and values at paths of metadata: each with the slot of the memory that has it."""
_NO_NAME = -1
_NO_PROVENANCE = 255
_FINGERPRINT = list(_TYPES).index("fingerprints")

_STEP = 1_000  # memories applied, and published, at a time
_MOST_UNSORTED = 4_096  # fingerprints at the end that are compared one by one: 2 us
_WORN_FROM = 1_000  # slots
_WORN_SHARE = 0.3  # of dead slots, from which on they cost more than to compact

_names_of = msgspec.msgpack.Decoder(list[str])


class View:
    """The columns at one moment: arrays (n,) by slot, `vectors`, `words` and `word_bits`. Immutable and thread-safe.

    `asks` says whose texts end with a question. `qualities` are NaN where there is none; `kinds` and `sources` are
    places in `records.KINDS` and `records.SOURCES`.
    Dead slots are those not `alive`; they have neither vector nor words. All changes through `applied` are in it;
    `stamp` names the embedder of the vectors, `words_stamp` that of the word bits.
    """

    def __init__(
        self,
        arrays: Mapping[str, npt.NDArray[Any]],
        names: Mapping[str, int],
        slot_of: tuple[int, npt.NDArray[np.int32]],
        equal: Sorted,
        indexes: tuple[PassageView, WordView, WordBitsView],
        counts: tuple[int, int],
        stamps: tuple[str, str],
    ) -> None:
        self.rows: Rows = arrays["rows"]
        self.alive: Mask = arrays["alive"]
        self.times_us: npt.NDArray[np.int64] = arrays["times_us"]
        self.updated_us: npt.NDArray[np.int64] = arrays["updated_us"]
        self.fingerprints: npt.NDArray[np.int64] = arrays["fingerprints"]
        self.qualities: npt.NDArray[np.float64] = arrays["qualities"]
        self.kinds: npt.NDArray[np.uint8] = arrays["kinds"]
        self.sources: npt.NDArray[np.uint8] = arrays["sources"]
        self.asks: Mask = arrays["asks"]
        self.vectors, self.words, self.word_bits = indexes
        self.live, self.applied = counts
        self.stamp, self.words_stamp = stamps
        self._arrays = arrays
        self._names = names
        self._first_row, self._slot_of = slot_of
        self._equal = equal

    @property
    def count(self) -> int:
        """n, dead slots included."""
        return len(self.rows)

    def slots(self, rows: Sequence[int] | Rows) -> Slots:
        """Return the slot (m,) of each row, -1 where there is no memory."""
        positions = np.asarray(rows, dtype=np.int64) - self._first_row
        is_known = (positions >= 0) & (positions < len(self._slot_of))
        found: Slots = np.full(positions.shape, -1, dtype=np.int64)
        found[is_known] = self._slot_of[positions[is_known]]
        return found

    def mask(self, filter: MemoryFilter | None, excluded: Sequence[int] = ()) -> Mask | None:
        """Return which slots (n,) are alive and pass the filter, exactly; None where the filter restricts nothing.

        `min_score` is left to the caller, and so is the search for the rows of the events and records that the filter
        excludes: `excluded` (`Store.excluded_rows`). Raises `InvalidInputError` for a time without zone.
        """
        passing: Mask | None = None
        for part in () if filter is None else self._conditions(filter, excluded):
            passing = part & self.alive if passing is None else np.logical_and(passing, part, out=passing)
        return passing

    def within(self, spans: Iterable[Span]) -> Mask:
        """Return which slots (n,) are alive and in any of the spans. Raises `InvalidInputError` as `mask` does."""
        found = np.zeros(self.count, dtype=np.bool_)
        for since, until in spans:
            inside = self.alive.copy()
            if since is not None:
                inside &= self.times_us >= microseconds(since, "since")
            if until is not None:
                inside &= self.times_us < microseconds(until, "until")
            found |= inside
        return found

    def of_run(self, run_id: str) -> Slots:
        """Return the live slots of a run, ascending."""
        return np.flatnonzero(self._is_named("runs", run_id) & self.alive)

    def of_session(self, session_id: str, since_us: int, until_us: int) -> Slots:
        """Return the live slots of a session in a time range (`until_us` exclusive), ascending."""
        slots = np.flatnonzero(self._is_named("sessions", session_id) & self.alive)
        times_us = self.times_us[slots]
        found: Slots = slots[(times_us >= since_us) & (times_us < until_us)]
        return found

    def windows(self, slots: Slots, reach: int) -> Slots:
        """Return each slot among its neighbours in its session, by time and row: (m, 2 * reach + 1).

        The slot is in the middle; -1 where there is no neighbour.
        """
        found: Slots = np.full((len(slots), 2 * reach + 1), -1, dtype=np.int64)
        found[:, reach] = slots
        for link, step in zip(_LINKS, (-1, 1), strict=True):
            beside = self._arrays[link]
            for place in range(reach + step, reach + step * (reach + 1), step):
                last = found[:, place - step]
                found[:, place] = np.where(last >= 0, beside[last], -1)
        return found

    def same(self, fingerprints: npt.NDArray[np.int64]) -> list[Slots]:
        """Return, for each of `fingerprints` (m,), the live slots that have it (`record_fingerprint`), ascending."""
        return [found[self.alive[found]] for found in self._equal.find(self.fingerprints, fingerprints)]

    def metadata_of(self, slots: Slots) -> list[set[int]]:
        """Return the metadata of each slot (m,), as `metadata.numbers_of` does."""
        places = np.full(self.count, -1, dtype=np.int64)
        places[slots] = np.arange(len(slots))
        at = places[self._arrays["metadata_slots"]]
        held: list[set[int]] = [set() for _ in slots]
        for place, number in zip(at[at >= 0].tolist(), self._arrays["metadata_values"][at >= 0].tolist(), strict=True):
            held[place].add(number)
        return held

    def count_by(self, column: Literal["kind", "source"]) -> dict[str, int]:
        """Return the number of memories of each `kind` or `source`. Raises `InvalidInputError` for other columns."""
        if column not in ("kind", "source"):
            raise InvalidInputError("column", f"{column!r} is neither kind nor source")
        places, names = (self.kinds, KINDS) if column == "kind" else (self.sources, SOURCES)
        counts = np.bincount(places[self.alive], minlength=len(names)).tolist()
        return {name: count for name, count in sorted(zip(names, counts, strict=True)) if count}

    def time_span(self) -> tuple[datetime | None, datetime | None]:
        """Return the times of the oldest and the newest memory, None without memories."""
        times = self.times_us[self.alive]
        return (None, None) if not len(times) else (time_of(int(times.min())), time_of(int(times.max())))

    def _conditions(self, chosen: MemoryFilter, excluded: Sequence[int]) -> Iterator[Mask]:
        if chosen.kinds:
            yield _is_any(self.kinds, KINDS, chosen.kinds)
        if chosen.sources:
            yield _is_any(self.sources, SOURCES, chosen.sources)
        if chosen.provenance:
            yield _is_any(self._arrays["provenances"], PROVENANCES, chosen.provenance)
        if chosen.since is not None or chosen.until is not None:
            yield self.within([(chosen.since, chosen.until)])
        named = (chosen.session_id, chosen.run_id, chosen.channel_id, chosen.agent_id, chosen.type, chosen.phase)
        for column, name in zip(_NAMED, named, strict=True):
            if name is not None:
                yield self._is_named(column, name)
        if chosen.tags:
            yield self._is_tagged(chosen.tags)
        for numbers in wanted_numbers(chosen.metadata):
            yield self._has_any("metadata_slots", self._arrays["metadata_values"], list(numbers))
        if chosen.min_quality is not None:
            yield self.qualities >= chosen.min_quality
        if chosen.exclude is not None:
            yield from self._exclusions(chosen.exclude, excluded)

    def _exclusions(self, exclude: Exclusion, excluded: Sequence[int]) -> Iterator[Mask]:
        if exclude.since is not None:
            yield self.times_us < microseconds(exclude.since, "exclude.since")
        for column, names in (("sessions", exclude.sessions), ("runs", exclude.runs)):
            numbers = [number for name in names if (number := self._names.get(name)) is not None]
            yield ~np.isin(self._arrays[column], numbers)
        slots = self.slots(excluded)
        others = np.ones(self.count, dtype=np.bool_)
        others[slots[slots >= 0]] = False
        yield others

    def _is_named(self, column: str, name: str) -> Mask:
        number = self._names.get(name)
        if number is None:
            return np.zeros(self.count, dtype=np.bool_)
        is_named: Mask = self._arrays[column] == number
        return is_named

    def _is_tagged(self, tags: Sequence[str]) -> Mask:
        numbers = [number for tag in tags if (number := self._names.get(tag)) is not None]
        return self._has_any("tag_slots", self._arrays["tag_names"], numbers)

    def _has_any(self, slots: str, values: npt.NDArray[Any], chosen: list[int]) -> Mask:
        """Return which slots (n,) stand beside any of the `chosen` values."""
        found = np.zeros(self.count, dtype=np.bool_)
        found[self._arrays[slots][are_any(values, chosen)]] = True
        return found


class Columns:
    """The columns of one store. One thread changes them; `view` is for all."""

    def __init__(self, vectors: PassageVectors, words: WordIndex) -> None:
        """Begin without memories, with empty indexes."""
        self.applied = 0
        self.stamp = self.words_stamp = ""
        self.vectors = vectors
        self._words = words
        self._word_bits = WordBits()
        self._columns: dict[str, Column[Any]] = {name: _column(type_) for name, type_ in _TYPES.items()}
        self._links: dict[str, Column[np.int32]] = {name: _column(np.int32) for name in _LINKS}
        self._alive: Column[np.bool_] = _column(np.bool_)
        self._pairs: dict[str, Column[Any]] = {name: _column(type_) for name, type_ in _PAIRS.items()}
        self._names: dict[str, int] = {}
        self._dead = 0
        self._equal = Sorted.of(np.empty(0, dtype=np.int64))
        self._first_row = 0
        self._slot_of: Column[np.int32] = _column(np.int32)  # by row, from the first; -1 for none
        self._publish()

    @classmethod
    def from_arrays(
        cls, arrays: LoadedArrays, vectors: PassageVectors, words: WordIndex, applied: int, stamp: str
    ) -> Columns:
        """Continue from what `arrays` returned after change `applied`, with the indexes of its sections.

        No word bits are among them: `take_words` brings those. The arrays may be mapped. Raises `IndexDamagedError`
        where they do not fit together.
        """
        columns = cls(vectors, words)
        try:
            columns._take(arrays)
        except (KeyError, ValueError, IndexError, msgspec.DecodeError) as error:
            columns.close()
            raise IndexDamagedError(f"columns: {error}") from error
        columns.applied, columns.stamp = applied, stamp
        columns._publish()
        return columns

    @property
    def dead(self) -> int:
        """Number of dead slots."""
        return self._dead

    def arrays(self) -> Arrays:
        """Return the content, to be saved: own arrays, and those of the indexes, which `indexes.section` returns."""
        names = np.frombuffer(msgspec.msgpack.encode(list(self._names)), dtype=np.uint8)
        equal = self._equal.with_all(self._columns["fingerprints"].view())
        own = {name: column.view() for name, column in self._named_columns()}
        indexes = {
            f"{part}.{name}": array
            for part, index in (("vectors", self.vectors), ("words", self._words))
            for name, array in index.arrays().items()
        }
        return own | {"names": names, "by_fingerprint": equal.positions} | indexes

    def apply(self, changes: Changes) -> None:
        """Apply a range of the change log and publish the view, that of a long range every 1,000 memories; idempotent.

        Raises `IndexDamagedError` when the range does not continue what was applied, a change does not fit its row, or
        the vectors are of another embedder now; the columns must then be rebuilt.
        """
        if changes.through >= self.applied and changes.words_stamp != self.words_stamp:
            self._word_bits, self.words_stamp = WordBits(len(self._alive)), changes.words_stamp
            if changes.through == self.applied:
                self._publish()
        if changes.through <= self.applied:
            return
        if changes.after != self.applied:
            raise IndexDamagedError(f"changes follow {changes.after}, the columns are at {self.applied}")
        if self.stamp != changes.stamp and self.view.vectors.count:
            raise IndexDamagedError("the vectors are of another embedder")
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
            self.applied = -1  # with half of the range: no other one continues it
            raise
        self.applied = changes.through
        if self._dead > _WORN_SHARE * len(self._alive) and len(self._alive) > _WORN_FROM:
            self.compact()
        self._publish()

    def take_words(self, words: StoredWords) -> None:
        """Take the words of rows as the store has them, where they are not known yet, and publish the view."""
        slots = self.view.slots(words.rows)
        is_new = (slots >= 0) & ~self.view.word_bits.known[slots]
        bits = words.bits if is_new.all() else words.bits[np.repeat(is_new, words.counts)]
        self._word_bits.set(slots[is_new], words.lengths[is_new], words.counts[is_new], bits)
        self._publish()

    def compact(self) -> None:
        """Drop dead slots, and all that is left of deleted and changed memories: words, names, tags, vectors.

        Publishes the view.
        """
        alive = self._alive.view()
        kept: Slots = np.flatnonzero(alive)
        moved = (np.cumsum(alive) - 1).astype(np.int32)
        values = {name: self._columns[name].view()[kept] for name in _TYPES}
        pairs: dict[str, npt.NDArray[Any]] = {}
        for to, of in _BESIDE:
            slots = self._pairs[to].view()
            pairs |= {to: moved[slots[alive[slots]]], of: self._pairs[of].view()[alive[slots]]}
        used = np.unique(np.concatenate([pairs["tag_names"], *(values[name] for name in _NAMED)]))
        used = used[used != _NO_NAME]
        renumbered = np.full(len(self._names) + 1, _NO_NAME, dtype=np.int32)  # the last is that of no name
        renumbered[used] = np.arange(len(used))
        names = list(self._names)
        self._names = {names[number]: place for place, number in enumerate(used.tolist())}
        for name in _NAMED:
            values[name] = renumbered[values[name]]
        self._columns = {name: Column(values[name]) for name in _TYPES}
        self._alive = Column(np.ones(len(kept), dtype=np.bool_))
        pairs["tag_names"] = renumbered[pairs["tag_names"]]
        self._pairs = {name: Column(pairs[name]) for name in _PAIRS}
        self._links = {name: Column(np.full(len(kept), -1, dtype=np.int32)) for name in _LINKS}
        self._link(np.flatnonzero(values["sessions"] != _NO_NAME))
        self._equal = Sorted.of(values["fingerprints"])
        self.vectors.close()
        self.vectors, self._words = self.vectors.keep(kept), self._words.keep(kept)
        self._word_bits = self._word_bits.keep(kept)
        self._dead = 0
        self._locate()
        self._publish()

    def close(self) -> None:
        """Stop work in the background; views go on answering. Idempotent."""
        self.vectors.close()

    def _take(self, arrays: LoadedArrays) -> None:
        count = len(arrays["rows"])
        own = [*_TYPES, *_LINKS, "alive"]
        pairs_differ = any(len(arrays[to]) != len(arrays[of]) for to, of in _BESIDE)
        if pairs_differ or any(arrays[name].shape != (count,) for name in own):
            raise ValueError("the arrays differ in length")
        self._columns = {name: _column(type_, arrays[name]) for name, type_ in _TYPES.items()}
        self._links = {name: _column(np.int32, arrays[name]) for name in _LINKS}
        self._alive = _column(np.bool_, arrays["alive"])
        self._pairs = {name: _column(type_, arrays[name]) for name, type_ in _PAIRS.items()}
        self._names = {name: number for number, name in enumerate(_names_of.decode(arrays["names"].tobytes()))}
        self._dead = count - int(np.count_nonzero(arrays["alive"]))
        self._word_bits = WordBits(count)
        order = arrays["by_fingerprint"].astype(np.int32)
        self._equal = Sorted(arrays["fingerprints"][order], order)
        self._locate()

    def _locate(self) -> None:
        """Rebuild the map from rows to slots."""
        alive = np.flatnonzero(self._alive.view())
        rows = self._columns["rows"].view()[alive]
        self._first_row = int(rows.min(initial=np.iinfo(np.int64).max)) if len(rows) else 0
        self._slot_of = _column(np.int32)
        if len(rows):
            self._point(rows, alive)

    def _point(self, rows: Rows, slots: Slots | int) -> None:
        """Let `rows` (m,) be in `slots`; rows beyond the last known one are added."""
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
        """Apply one change per row."""
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
                raise IndexDamagedError(f"row {change.row} does not fit its change")
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
        """Overwrite the fields of slots; return the sessions whose order may have changed."""
        if not updated:
            return set()
        slots: Slots = np.array([slot for slot, _ in updated])
        sessions = set(self._columns["sessions"].view()[slots].tolist())
        for (name, type_), values in zip(_TYPES.items(), zip(*(one for _, one in updated), strict=True), strict=True):
            now, column = np.array(values, dtype=type_), self._columns[name]
            if not np.array_equal(column.view()[slots], now):
                column.set(slots, now)
        self._link(slots[self._columns["sessions"].view()[slots] == _NO_NAME])
        return sessions | set(self._columns["sessions"].view()[slots].tolist())

    def _set_vectors(self, vectored: list[tuple[int, Change]]) -> list[tuple[int, Change]]:
        """Give slots their vectors; return those that have another one, which cannot be replaced in place."""
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
        """Give slots their words, None where they are not known any more."""
        known = {slot: words for slot, words in worded.items() if words is not None}
        if known:
            counts, lengths = zip(*((len(words.bits), words.length) for words in known.values()), strict=True)
            bits = np.concatenate([words.bits for words in known.values()])
            self._word_bits.set(np.array(list(known)), lengths, counts, bits)
        self._word_bits.remove(np.array([slot for slot in worded if slot not in known], dtype=np.int64))

    def _remove(self, removed: list[int]) -> set[int]:
        """Let slots be dead; return their sessions."""
        if not removed:
            return set()
        slots: Slots = np.array(removed)
        self._alive.set(slots, False)
        self._dead += len(slots)
        self._point(self._columns["rows"].view()[slots], -1)
        self.vectors.remove(slots)
        self._words.remove(slots)
        self._word_bits.remove(slots)
        return set(self._columns["sessions"].view()[slots].tolist())

    def _append(self, added: list[Change]) -> set[int]:
        """Add slots; return their sessions."""
        if not added:
            return set()
        start = len(self._alive)
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
            self._pairs[to].append([slot for slot, _ in pairs])
            self._pairs[of].append([value for _, value in pairs])
        self._alive.append(np.ones(len(added), dtype=np.bool_))
        for link in self._links.values():
            link.append(np.full(len(added), -1, dtype=np.int32))
        self.vectors.append(self._vectors_of(added), [change.passages for change in added])
        self._word_bits.append([change.words for change in added])
        self._words.append([texts_of(record) for _, record in records])
        rows = self._columns["rows"].view()[start:]
        if rows.min() < self._first_row and len(self._slot_of):
            raise IndexDamagedError(f"row {int(rows.min())} comes before the first")
        self._point(rows, slots)
        return set(self._columns["sessions"].view()[start:].tolist())

    def _vectors_of(self, changes: list[Change]) -> Embedding:
        """Return the vectors (m, d), zeros for none."""
        ndim = self.view.vectors.ndim or next((len(one.vector) for one in changes if one.vector is not None), 0)
        vectors = np.zeros((len(changes), ndim), dtype=np.float32)
        for place, change in enumerate(changes):
            if change.vector is not None:
                if len(change.vector) != ndim:
                    raise IndexDamagedError(f"a vector has {len(change.vector)} dimensions, expected {ndim}")
                vectors[place] = change.vector
        return vectors

    def _values_of(self, row: int, record: MemoryRecord) -> tuple[Any, ...]:
        """Return the values of a memory, one for each of `_TYPES`."""
        return (
            row,
            microseconds(record.timestamp, "timestamp"),
            record_fingerprint(record),
            nan if record.quality_score is None else record.quality_score,
            KINDS.index(record.kind),
            SOURCES.index(record.source),
            _NO_PROVENANCE if record.provenance is None else PROVENANCES.index(record.provenance),
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
        return _NO_NAME if name is None else self._names.setdefault(name, len(self._names))

    def _relink(self, sessions: set[int]) -> None:
        """Rebuild the links of these sessions."""
        sessions.discard(_NO_NAME)
        if not sessions:
            return
        is_changed = np.zeros(len(self._names) + 1, dtype=np.bool_)  # the last is that of no session
        is_changed[list(sessions)] = True
        slots = np.flatnonzero(is_changed.take(self._columns["sessions"].view()))
        self._link(slots[self._alive.view()[slots]])

    def _link(self, slots: Slots) -> None:
        """Link `slots` (m,), all live ones of some sessions, or ones of no session, which have no neighbours."""
        if not len(slots):
            return
        rows, times, sessions = (self._columns[name].view()[slots] for name in ("rows", "times_us", "sessions"))
        order = np.lexsort((rows, times, sessions))
        slots, sessions = slots[order], sessions[order]
        is_next = (sessions[1:] == sessions[:-1]) & (sessions[1:] != _NO_NAME)
        for name, step in zip(_LINKS, (1, -1), strict=True):
            beside = np.full(len(slots), -1, dtype=np.int32)
            to, of = (beside[1:], slots[:-1]) if step > 0 else (beside[:-1], slots[1:])
            to[is_next] = of[is_next]
            self._links[name].set(slots, beside)

    def _named_columns(self) -> Iterator[tuple[str, Column[Any]]]:
        yield from self._columns.items()
        yield from self._links.items()
        yield "alive", self._alive
        yield from self._pairs.items()

    def _publish(self) -> None:
        arrays = {name: column.view() for name, column in self._named_columns()}
        if len(self._alive) - len(self._equal.values) > _MOST_UNSORTED:
            self._equal = self._equal.with_all(arrays["fingerprints"])
        self.view = View(
            arrays,
            self._names,
            (self._first_row, self._slot_of.view()),
            self._equal,
            (self.vectors.view(), self._words.view(), self._word_bits.view()),
            (len(self._alive) - self._dead, self.applied),
            (self.stamp, self.words_stamp),
        )


def record_fingerprint(record: MemoryRecord) -> int:
    """Return a number that is equal for memories of one kind and title whose texts say the same."""
    return fingerprint(record.kind, record.title or "", record.text)


def untitled_fingerprints(text: str) -> list[int]:
    """Return the fingerprints of memories of any kind without a title that say `text`."""
    said_text = said(text)
    return [fingerprint_of_said(kind, "", said_text) for kind in KINDS]


def _column(type_: type[np.generic], values: npt.NDArray[Any] | None = None) -> Column[Any]:
    return Column(np.empty(0, dtype=type_) if values is None else np.asarray(values, dtype=type_))


def _is_any(places: npt.NDArray[np.uint8], names: Sequence[str], chosen: Sequence[str]) -> Mask:
    found = np.zeros(len(places), dtype=np.bool_)
    for name in set(chosen).intersection(names):
        found |= places == names.index(name)
    return found
