"""One user's memories at one moment, for recall to search, filter and group. `Columns` publishes each view.

n = number of slots, including dead ones; m = number of slots or rows passed.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, Self

import msgspec
import numpy as np
import numpy.typing as npt

from memory_agent.errors import InvalidInputError
from memory_agent.records import memories
from memory_agent.records.embedded import Embedding
from memory_agent.records.metadata import wanted_numbers
from memory_agent.storage.changes import Rows
from memory_agent.storage.column import Mask, RowSlots, Slots, Sorted, are_any
from memory_agent.storage.indexed_vectors import IndexedView
from memory_agent.storage.passages import PassageView, WordBitsView
from memory_agent.storage.postings import PostingsView

Span = tuple[datetime | None, datetime | None]
"""A time range from since (inclusive) to until (exclusive); None means unbounded."""

LINKS = ("previous", "following")  # columns: the slots before and after a memory in its session, or -1
NAMED = ("sessions", "runs", "channels", "agents", "types", "phases")
NO_NAME = -1
_PLAN = memories.SOURCES.index("conductor_plan")
_MOST_PARTS = 16  # cached `among` results, 9 n bytes each
_MOST_MATCHING = 1_000  # cached `matching` results; an author of shared items needs few


class View:
    """The columns at one moment: arrays (n,) by slot, `vectors`, `words` and `word_bits`. Immutable and thread-safe.

    `asks` is true for texts that end with a question. `qualities` are NaN for a memory without a quality; `kinds` and
    `sources` are positions in `records.KINDS` and `records.SOURCES`; `runs`, `sessions` and `channels` are name
    numbers, or `NO_NAME`. Dead slots have neither vector nor words. The view includes all changes up to `applied`.
    """

    def __init__(
        self,
        arrays: Mapping[str, npt.NDArray[Any]],
        names: Mapping[str, int],
        rows: RowSlots,
        equal: Sorted,
        indexes: tuple[PassageView | IndexedView, PostingsView, WordBitsView],
        counts: tuple[int, int],
        stamps: tuple[str, str],
    ) -> None:
        self.rows: Rows = rows.rows
        self.alive: Mask = arrays["alive"]
        self.times_us: npt.NDArray[np.int64] = arrays["times_us"]
        self.updated_us: npt.NDArray[np.int64] = arrays["updated_us"]
        self.fingerprints: npt.NDArray[np.int64] = arrays["fingerprints"]
        self.qualities: npt.NDArray[np.float64] = arrays["qualities"]
        self.kinds: npt.NDArray[np.uint8] = arrays["kinds"]
        self.sources: npt.NDArray[np.uint8] = arrays["sources"]
        self.runs: npt.NDArray[np.int32] = arrays["runs"]
        self.asks: Mask = arrays["asks"]
        self.sessions: npt.NDArray[np.int32] = arrays["sessions"]
        self.channels: npt.NDArray[np.int32] = arrays["channels"]
        self.vectors, self.words, self.word_bits = indexes
        self.live, self.applied = counts
        self.stamp, self.words_stamp = stamps
        self._arrays = arrays
        self._names = names
        self._row_slots = rows
        self._equal = equal
        self._is_part = False
        self._parts: dict[bytes, tuple[Self | None]] = {}
        self._matching: dict[bytes, Slots] = {}
        self._of_types: dict[re.Pattern[str], Mask] = {}

    @property
    def count(self) -> int:
        return len(self.rows)

    @property
    def is_last(self) -> Mask:
        """Which slots (n,) are alive and either have no session or are the last in their session."""
        is_last: Mask = (self._arrays["following"] < 0) & self.alive
        return is_last

    def slots(self, rows: Sequence[int] | Rows) -> Slots:
        """Return the slot (m,) of each row, or -1 for a row without a memory."""
        return self._row_slots.slots(rows)

    def mask(self, filter: memories.MemoryFilter | None, excluded: Sequence[int] = ()) -> Mask | None:
        """Return which slots (n,) are alive and pass the filter, or None if the filter excludes nothing.

        Ignores `min_score`. `excluded` contains the rows of the events and records that the filter excludes
        (`Store.excluded_rows`). Raises `InvalidInputError` if a time has no time zone.
        """
        passing: Mask | None = None
        for part in () if filter is None else self._conditions(filter, excluded):
            passing = part & self.alive if passing is None else np.logical_and(passing, part, out=passing)
        return self.alive if passing is None and self._is_part else passing

    def among(self, filter: memories.MemoryFilter | None, excluded: Sequence[int] = ()) -> Self:
        """Return a view restricted to the memories that pass the filter. Cached. `excluded` is as for `mask`."""
        if filter is None:
            return self
        key = msgspec.msgpack.encode((filter, excluded))
        kept = self._parts.get(key)
        if kept is None:
            if len(self._parts) >= _MOST_PARTS:
                self._parts.clear()
            kept = self._parts[key] = (self._part(self.mask(filter, excluded)),)
        return self if kept[0] is None else kept[0]

    def matching(self, filter: memories.MemoryFilter) -> Slots:
        """Return the live slots that pass a filter, in ascending order. Cached."""
        key = msgspec.msgpack.encode(filter)
        kept = self._matching.get(key)
        if kept is None:
            if len(self._matching) >= _MOST_MATCHING:
                self._matching.clear()
            mask = self.mask(filter)
            kept = self._matching[key] = np.flatnonzero(self.alive if mask is None else mask)
        return kept

    def within(self, spans: Iterable[Span]) -> Mask:
        found = np.zeros(self.count, dtype=np.bool_)
        for since, until in spans:
            inside = self.alive.copy()
            if since is not None:
                inside &= self.times_us >= memories.microseconds(since, "since")
            if until is not None:
                inside &= self.times_us < memories.microseconds(until, "until")
            found |= inside
        return found

    def of_run(self, run_id: str) -> Slots:
        return np.flatnonzero(self._is_named("runs", run_id) & self.alive)

    def of_type(self, pattern: re.Pattern[str]) -> Mask:
        """Return which slots (n,) are alive and have a type that fully matches the pattern. Cached."""
        kept = self._of_types.get(pattern)
        if kept is None:
            types = self._arrays["types"]
            held = set(np.bincount(types[types != NO_NAME]).nonzero()[0].tolist())
            names = self._names.items()
            numbers = [number for name, number in names if number in held and pattern.fullmatch(name)]
            kept = self._of_types[pattern] = are_any(types, numbers) & self.alive
        return kept

    def of_session(self, session_id: str, since_us: int, until_us: int) -> Slots:
        """Return the live slots of a session in a time range (`until_us` exclusive), in ascending order."""
        slots = np.flatnonzero(self._is_named("sessions", session_id) & self.alive)
        times_us = self.times_us[slots]
        found: Slots = slots[(times_us >= since_us) & (times_us < until_us)]
        return found

    def qualities_with_runs(self, slots: Slots) -> npt.NDArray[np.float64]:
        """Return each slot's quality (m,): its own, else that of its run (stored with the run's plan), else NaN."""
        found, runs = self.qualities[slots], self.runs[slots]
        unknown = np.isnan(found) & (runs != NO_NAME)
        if unknown.any():
            plans = np.flatnonzero((self.sources == _PLAN) & self.alive)
            plans = plans[are_any(self.runs[plans], np.unique(runs[unknown]).tolist())]
            plans = plans[~np.isnan(self.qualities[plans])]
            of_run = dict(zip(self.runs[plans].tolist(), self.qualities[plans].tolist(), strict=True))
            found[unknown] = [of_run.get(run, np.nan) for run in runs[unknown].tolist()]
        return found

    def windows(self, slots: Slots, reach: int) -> Slots:
        """Return each slot with its neighbours in its session (-1 for none), by time and row: (m, 2 * reach + 1)."""
        found: Slots = np.empty((2 * reach + 1, len(slots)), dtype=np.int64)
        found[reach] = slots
        for link, step in zip(LINKS, (-1, 1), strict=True):
            beside = self._arrays[link]
            for place in range(reach + step, reach + step * (reach + 1), step):
                last = found[place - step]
                found[place] = np.where(last >= 0, beside.take(last), -1)
        return found.T

    def distinct(self, slots: Slots) -> Slots:
        """Return the distinct non-negative slots in `slots` (m,), in ascending order. Faster than `np.unique`."""
        is_there = np.zeros(self.count, dtype=np.bool_)
        is_there[slots[slots >= 0]] = True
        return is_there.nonzero()[0]

    def same(self, fingerprints: npt.NDArray[np.int64]) -> list[Slots]:
        """For each of `fingerprints` (m,), return the live slots that have it, in ascending order."""
        return [found[self.alive[found]] for found in self._equal.find(self.fingerprints, fingerprints)]

    def vectors_of(self, rows: Sequence[int]) -> Embedding:
        """Return the vectors (m, d) of the rows' first passages, with zeros for a row without one."""
        slots = self.slots(rows)
        found = np.zeros((len(slots), self.vectors.ndim), dtype=np.float32)
        found[slots >= 0] = self.vectors.vectors(slots[slots >= 0])
        return found

    def metadata_of(self, slots: Slots) -> list[set[int]]:
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
            raise InvalidInputError("column", f"must be kind or source, not {column!r}")
        places, names = (self.kinds, memories.KINDS) if column == "kind" else (self.sources, memories.SOURCES)
        counts = np.bincount(places[self.alive], minlength=len(names)).tolist()
        return {name: count for name, count in sorted(zip(names, counts, strict=True)) if count}

    def time_span(self) -> tuple[datetime | None, datetime | None]:
        """Return the times of the oldest and the newest memory, or (None, None) if there are no memories."""
        times = self.times_us[self.alive]
        return (
            (None, None) if not len(times) else (memories.time_of(int(times.min())), memories.time_of(int(times.max())))
        )

    def _part(self, mask: Mask | None) -> Self | None:
        if mask is None or np.count_nonzero(mask) == self.live:
            return None
        part = copy.copy(self)
        part._is_part, part._parts, part._matching, part._of_types = True, {}, {}, {}
        part.alive = mask
        part.words, part.live = self.words.among(mask), int(np.count_nonzero(mask))
        return part

    def _conditions(self, chosen: memories.MemoryFilter, excluded: Sequence[int]) -> Iterator[Mask]:
        if chosen.kinds:
            yield _is_any(self.kinds, memories.KINDS, chosen.kinds)
        if chosen.sources:
            yield _is_any(self.sources, memories.SOURCES, chosen.sources)
        if chosen.provenance:
            wanted = [one for one in memories.STATED_PROVENANCES if memories.is_of_provenance(one, chosen.provenance)]
            yield _is_any(self._arrays["provenances"], memories.STATED_PROVENANCES, wanted)
        if chosen.since is not None or chosen.until is not None:
            yield self.within([(chosen.since, chosen.until)])
        named = (chosen.session_id, chosen.run_id, chosen.channel_id, chosen.agent_id, chosen.type, chosen.phase)
        for column, name in zip(NAMED, named, strict=True):
            if name is not None:
                yield self._is_named(column, name)
        if chosen.in_channel is not None:
            yield self._is_named("channels", chosen.in_channel) | (self.channels == NO_NAME)
        if chosen.tags:
            tags = [number for tag in chosen.tags if (number := self._names.get(tag)) is not None]
            yield self._has_any("tag_slots", self._arrays["tag_names"], tags)
        for numbers in wanted_numbers(chosen.metadata):
            yield self._has_any("metadata_slots", self._arrays["metadata_values"], list(numbers))
        if chosen.min_quality is not None:
            yield self.qualities >= chosen.min_quality
        if chosen.exclude is not None:
            yield from self._exclusions(chosen.exclude, excluded)

    def _exclusions(self, exclude: memories.Exclusion, excluded: Sequence[int]) -> Iterator[Mask]:
        if exclude.since is not None:
            yield self.times_us < memories.microseconds(exclude.since, "exclude.since")
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

    def _has_any(self, slots: str, values: npt.NDArray[Any], chosen: list[int]) -> Mask:
        found = np.zeros(self.count, dtype=np.bool_)
        found[self._arrays[slots][are_any(values, chosen)]] = True
        return found


def _is_any(places: npt.NDArray[np.uint8], names: Sequence[str], chosen: Sequence[str]) -> Mask:
    found = np.zeros(len(places), dtype=np.bool_)
    for name in set(chosen).intersection(names):
        found |= places == names.index(name)
    return found
