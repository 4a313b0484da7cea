"""Stores patterns as memories: adds them, updates them in place as they grow, and removes obsolete ones.

A blob in the store lists the memories that are patterns, with the runs of each. Other memories of kind `pattern` are
never changed. Forgetting a run's memory removes the run's pattern in the same transaction; the remaining runs may form
the pattern again. If the pattern itself is forgotten, its runs are permanently excluded. A pattern that includes a run
older than the newest 1,000 is retained until a pattern of newer runs replaces it. A run is represented by the text and
vector of its begin event.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import NamedTuple, Protocol

import msgspec

from memory_agent.learning.patterns import MOST_RUNS, PastRun, Pattern, find_patterns
from memory_agent.learning.run_records import RunRecords
from memory_agent.learning.run_views import MOST_STEPS, RunRequest, request_of, words_of
from memory_agent.records.embedded import Embedded, Embedding, embedded_text
from memory_agent.records.memories import MemoryRecord, time_of
from memory_agent.storage.archive import Archive
from memory_agent.storage.batch import Batch
from memory_agent.storage.snapshot import Snapshot
from memory_agent.storage.stored_runs import ENDED, StoredTrajectory
from memory_agent.storage.view import View
from relay import described


@dataclass(frozen=True, eq=False)
class RunHistory:
    """The newest runs: the `numbers` of all, and the runs that may form patterns, as stored and as `PastRun`."""

    numbers: frozenset[int]
    stored: Mapping[int, StoredTrajectory]
    runs: Sequence[PastRun]
    is_whole: bool = True  # whether every request has its vector
    rows: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def numbers_of(self, pattern: Pattern) -> tuple[int, ...]:
        ids = {run.id for run in pattern.runs}
        return tuple(sorted(number for number, run in self.stored.items() if run.id in ids))

    def is_beyond(self, numbers: Iterable[int]) -> bool:
        return len(self.numbers) >= MOST_RUNS and not self.numbers.issuperset(numbers)

    def step_vectors(self, view: View, run: PastRun) -> Embedding:
        """Return the vectors (n, d) of a run's steps, with zeros for a step without a vector."""
        return view.vectors_of(self.rows[run.id])

    def holds(self, batch: Batch, numbers: Iterable[int]) -> bool:
        runs = (self.stored[number] for number in numbers)
        return all(batch.trajectory(run.id) == run for run in runs)


NOTHING = RunHistory(frozenset(), {}, ())


def read_history(snapshot: Snapshot, without: Collection[int]) -> RunHistory:
    """Return the newest runs. Runs whose numbers are in `without` do not form patterns."""
    reader = _Reader(snapshot)
    numbers: set[int] = set()
    stored: dict[int, StoredTrajectory] = {}
    runs: list[PastRun] = []
    is_whole = True
    for key in islice(snapshot.run_keys(ENDED, is_newest_first=True), MOST_RUNS):
        run = snapshot.run_of_key(key)
        if run is None or run.number is None:
            continue
        numbers.add(run.number)
        if run.number not in without and run.begin_row is not None:
            request = request_of(snapshot, run, with_vector=True)
            is_whole = is_whole and (request is None or request.vector is not None)
            past = None if request is None else reader.past_run(run, request)
            if past is not None:
                stored[run.number] = run
                runs.append(past)
    return RunHistory(frozenset(numbers), stored, runs, is_whole, reader.rows)


class _Reader:
    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._ids: dict[int, str | None] = {}
        self.rows: dict[str, tuple[int, ...]] = {}

    def past_run(self, run: StoredTrajectory, request: RunRequest) -> PastRun | None:
        """Return `run` as a `PastRun`, or None if it is open or cancelled, or if its request has no vector."""
        outcome = None if run.outcome == "cancelled" else run.outcome
        if request.vector is None or run.ended_us is None or outcome is None or run.quality is None:
            return None
        return PastRun(
            id=run.id,
            objective=request.text,
            vector=request.vector,
            session_id=run.session_id,
            ended_at=time_of(run.ended_us),
            outcome=outcome,
            quality=run.quality,
            steps=self._steps(run),
            result=self._result(run),
            used=tuple(name for use in run.used if (name := self._id(use.row)) is not None),
        )

    def _steps(self, run: StoredTrajectory) -> tuple[str, ...]:
        marks = [(mark, mark.row) for mark in run.marks if mark.role == "step" and mark.row is not None]
        if len(marks) > MOST_STEPS:
            marks = [*marks[: MOST_STEPS - 1], marks[-1]]
        read = ((mark, row, self._snapshot.record(row)) for mark, row in marks)
        steps = [(row, record.title or words_of(record, mark)) for mark, row, record in read if record is not None]
        self.rows[run.id] = tuple(row for row, _ in steps)
        return tuple(text for _, text in steps)

    def _result(self, run: StoredTrajectory) -> str:
        ends = [(mark, mark.row) for mark in run.marks if mark.role == "end" and mark.row is not None]
        record = self._snapshot.record(ends[-1][1]) if ends else None
        return "" if record is None else record.title or words_of(record, ends[-1][0])

    def _id(self, row: int) -> str | None:
        if row not in self._ids:
            record = self._snapshot.record(row)
            self._ids[row] = None if record is None else record.id
        return self._ids[row]


_BLOB = "patterns"


class Vectors(Protocol):
    @property
    def by_text(self) -> Mapping[str, Embedded]: ...

    def admitted(self, batch: Batch) -> Mapping[str, Embedded]:
        """Return the vectors if they come from the store's model; otherwise an empty mapping."""
        ...


Embed = Callable[[Iterable[str]], Vectors]


class _Kept(msgspec.Struct, frozen=True, array_like=True):
    """A stored pattern: its row, its run numbers, and whether its vector belongs to an earlier text."""

    row: int
    runs: tuple[int, ...]
    is_stale: bool = False


class _StoredPatterns(msgspec.Struct, frozen=True, array_like=True):
    """All stored patterns. `revision` counts changes. Runs in `left_out` never form a pattern again."""

    revision: int = 0
    kept: tuple[_Kept, ...] = ()
    left_out: tuple[int, ...] = ()


class _Change(NamedTuple):
    record: MemoryRecord
    runs: tuple[int, ...]
    kept: _Kept | None = None
    is_changed: bool = True
    needs_vector: bool = True


class _Plan(NamedTuple):
    same: list[_Kept]
    changes: list[_Change]
    gone: list[_Kept]

    @property
    def is_changed(self) -> bool:
        return bool(self.gone) or any(change.is_changed for change in self.changes)


class PatternStore:
    """The stored patterns of one user. Not thread-safe."""

    def __init__(self, archive: Archive, run_records: RunRecords, embed: Embed, *, are_wanted: bool) -> None:
        """If `are_wanted` is false, `keep` removes all stored patterns."""
        self._archive = archive
        self._run_records = run_records
        self._embed = embed
        self._are_wanted = are_wanted
        self._seen: tuple[int, int] | None = None

    def keep(self) -> bool:
        """Update the stored patterns to match the runs; return whether anything was written. Durable on return.

        Cheap if no run has changed. Does nothing while any request lacks its vector.
        """
        with self._archive.store.snapshot() as snapshot:
            stored_patterns, version = _read(snapshot), snapshot.state.lessons_version
            if self._seen == (version, stored_patterns.revision):
                return False
            past = read_history(snapshot, stored_patterns.left_out) if self._are_wanted else NOTHING
        self._seen = version, stored_patterns.revision
        if not past.is_whole:
            return False
        found = find_patterns(past.runs, partial(past.step_vectors, self._archive.view))
        with self._archive.store.snapshot() as snapshot:
            plan = _planned(snapshot, stored_patterns, past, found)
        vectors = self._embed(embedded_text(change.record) for change in plan.changes if change.needs_vector)
        if not plan.is_changed and not vectors.by_text:
            return False
        with self._archive.batch() as batch:
            return self._write(batch, stored_patterns, past, plan, vectors.admitted(batch), version)

    def _write(
        self,
        batch: Batch,
        stored_patterns: _StoredPatterns,
        past: RunHistory,
        plan: _Plan,
        vectors: Mapping[str, Embedded],
        version: int,
    ) -> bool:
        """Write the plan, unless its runs or the stored patterns have changed; the next call then plans again."""
        is_alone = batch.state.lessons_version == version
        runs = {number for change in plan.changes for number in change.runs}
        if _read(batch) != stored_patterns or not past.holds(batch, runs):
            self._seen = None
            return False
        rows = [kept.row for kept in plan.gone]
        if rows:
            self._run_records.forget_rows(batch, rows)
        for row in rows:
            batch.delete(row)
        kept = [*plan.same, *(_put(batch, change, vectors) for change in plan.changes)]
        left_out = tuple(number for number in stored_patterns.left_out if number in past.numbers)
        _save(
            batch, _StoredPatterns(stored_patterns.revision + 1, tuple(sorted(kept, key=lambda one: one.row)), left_out)
        )
        self._seen = (batch.state.lessons_version, stored_patterns.revision + 1) if is_alone else None
        return True


def remove_patterns(batch: Batch, rows: Sequence[int]) -> list[int]:
    """Return the rows of the patterns to delete with the memories in `rows`. The result does not include `rows`.

    These are the patterns formed from runs that contain one of the memories or have used one. If one of the memories is
    itself a pattern, its runs are excluded from then on. Call this before the rows are deleted.
    """
    stored_patterns = _read(batch)
    if not stored_patterns.kept:
        return []
    gone, runs = frozenset(rows), _runs_with(batch, rows)
    own = [kept for kept in stored_patterns.kept if kept.row in gone]
    made_of = [kept for kept in stored_patterns.kept if kept.row not in gone and runs.intersection(kept.runs)]
    if own or made_of:
        left_out = {*stored_patterns.left_out, *(number for kept in own for number in kept.runs)}
        rest = tuple(kept for kept in stored_patterns.kept if kept not in own and kept not in made_of)
        _save(batch, _StoredPatterns(stored_patterns.revision + 1, rest, tuple(sorted(left_out))))
    return [kept.row for kept in made_of]


def _runs_with(batch: Batch, rows: Iterable[int]) -> set[int]:
    keys = {use.run_key for row in rows for use in batch.uses(row)}
    records = (batch.record(row) for row in rows)
    runs = (*map(batch.run_of_key, keys), *(batch.run_of(record) for record in records if record is not None))
    return {run.number for run in runs if run is not None and run.number is not None}


def _planned(snapshot: Snapshot, stored_patterns: _StoredPatterns, past: RunHistory, found: Sequence[Pattern]) -> _Plan:
    stored = {kept.row: record for kept in stored_patterns.kept if (record := snapshot.record(kept.row)) is not None}
    waiting = {record.id: kept for kept in stored_patterns.kept if (record := stored.get(kept.row)) is not None}
    same: list[_Kept] = []
    changes: list[_Change] = []
    for pattern in found:
        runs = past.numbers_of(pattern)
        kept = waiting.pop(pattern.record.id, None) or _found_by_shared_runs(waiting, runs, past)
        if kept is None:
            changes.append(_Change(pattern.record, runs))
            continue
        waiting.pop(stored[kept.row].id, None)
        change = _changed(stored[kept.row], kept, pattern, runs, snapshot.vector(kept.row) is not None)
        if change.is_changed or change.needs_vector:
            changes.append(change)
        else:
            same.append(kept)
    taken = {number for pattern in found for number in past.numbers_of(pattern)}
    old = [kept for kept in waiting.values() if past.is_beyond(kept.runs) and taken.isdisjoint(kept.runs)]
    return _Plan([*same, *old], changes, [kept for kept in waiting.values() if kept not in old])


def _found_by_shared_runs(waiting: Mapping[str, _Kept], runs: Iterable[int], past: RunHistory) -> _Kept | None:
    """Return the stored pattern that has a run in common with `runs` and also a run older than the newest 1,000."""
    shared = set(runs)
    return next(
        (kept for kept in waiting.values() if past.is_beyond(kept.runs) and shared.intersection(kept.runs)), None
    )


def _changed(old: MemoryRecord, kept: _Kept, pattern: Pattern, runs: tuple[int, ...], has_vector: bool) -> _Change:
    record = msgspec.structs.replace(
        pattern.record,
        id=old.id,
        times_recalled=old.times_recalled,
        last_recalled_at=old.last_recalled_at,
        utility=old.utility,
    )
    is_changed = record != old or runs != kept.runs
    is_reworded = embedded_text(record) != embedded_text(old)
    return _Change(record, runs, kept, is_changed, has_vector and (kept.is_stale or is_reworded))


def _put(batch: Batch, change: _Change, vectors: Mapping[str, Embedded]) -> _Kept:
    """Write one pattern. Without a model, the pattern keeps its old vector or, like any memory, gets one later."""
    vector = vectors.get(embedded_text(change.record)) if change.needs_vector else None
    if change.kept is None:
        return _Kept(batch.put(change.record, vector), change.runs)
    row = batch.update(change.record)
    if vector is not None:
        batch.set_vector(row, vector)
    return _Kept(row, change.runs, is_stale=change.needs_vector and vector is None)


def _read(snapshot: Snapshot) -> _StoredPatterns:
    blob = snapshot.blob(_BLOB)
    return _decoder.decode(blob) if blob else _StoredPatterns()


def _save(batch: Batch, stored_patterns: _StoredPatterns) -> None:
    batch.set_blob(_BLOB, msgspec.msgpack.encode(stored_patterns))


_decoder = msgspec.msgpack.Decoder(described(_StoredPatterns))
