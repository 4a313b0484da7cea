"""Records the runs that events report, in the transaction that stores the events.

Recording is idempotent and independent of order: each event adds a mark to its run's set, and everything else about the
run is derived from the set (`run_writer`). A batch is applied in four steps: add the events' marks, link recalls to
runs, relate runs to each other, and update their memories. `signals/runs` reads the events.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec

from memory_agent.learning.run_links import link, link_asked, link_named, link_same_request, relate, unlink
from memory_agent.learning.run_writer import RunWriter
from memory_agent.records.memories import MemoryRecord, microseconds
from memory_agent.settings import LearningSettings
from memory_agent.signals import RunSign
from memory_agent.storage.batch import Batch
from memory_agent.storage.snapshot import Snapshot
from memory_agent.storage.stored_runs import CITING, FORMER_ENTRIES, OPEN, Again, Mark, StoredTrajectory, again_id

UNKNOWN_MEMORY = "runs.unknown_memory"
UNKNOWN_RECALL = "runs.unknown_recall"
_MOST_OTHERS = 20  # memories per event


class Entry(NamedTuple):
    """What an event reports about a run, and the row and record of the event's memory, if any."""

    sign: RunSign
    row: int | None = None
    record: MemoryRecord | None = None


class RunRecords:
    """Records the runs of one user. Stateless, and therefore thread-safe."""

    def __init__(self, settings: LearningSettings) -> None:
        self.settings = settings

    def enter(self, batch: Batch, entries: Sequence[Entry]) -> None:
        writer = RunWriter(batch)
        self._follow(writer, [*link_asked(writer), *self._mark(writer, entries)])
        began = [microseconds(entry.sign.at, "timestamp") for entry in entries if entry.sign.role == "begin"]
        if began:
            self._expire(writer, max(began))
        writer.finish()
        if batch.waiting_count > self.settings.keep_recalls:
            batch.prune_notes(self.settings.keep_recalls, oldest_us=0)

    def has_upkeep(self, snapshot: Snapshot, now: datetime) -> bool:
        """Return whether `expire` would change anything, to avoid a needless flush."""
        now_us = microseconds(now, "now")
        silent = snapshot.run_keys(OPEN, until_us=now_us - _us(self.settings.expire_after_s))
        old = snapshot.notes_between(0, now_us - _us(self.settings.keep_recalls_s))
        return any(silent) or any(note.run_id is None for note in old) or any(_with_former_signs(snapshot))

    def expire(self, batch: Batch, now: datetime) -> int:
        """Expire runs without recent events, and delete old recalls without a run; return how many runs expired."""
        writer, now_us = RunWriter(batch), microseconds(now, "now")
        self._follow(writer, link_asked(writer))
        expired = self._expire(writer, now_us)
        self._clear_former_signs(writer, _with_former_signs(batch))
        writer.finish()
        batch.prune_notes(self.settings.keep_recalls, now_us - _us(self.settings.keep_recalls_s))
        return expired

    def infer(self, batch: Batch, run_id: str, rows: Iterable[tuple[int, str | None]]) -> None:
        """Set the uses inferred from a run's output, each as a memory's row and the id of the recall that showed it."""
        writer = RunWriter(batch)
        run = writer.get(run_id)
        if run is not None:
            writer.put(msgspec.structs.replace(run, inferred=tuple(sorted(set(rows)))))
            self._follow(writer, [run_id])
            writer.finish()

    def forget_rows(self, batch: Batch, rows: Sequence[int]) -> None:
        """Remove memories from runs and recalls. Call this before the rows are deleted."""
        batch.use_reserve()
        writer, gone = RunWriter(batch), frozenset(rows)
        self._clear_former_signs(writer, (key for row in rows for key in batch.run_keys(CITING, row, row + 1)))
        for note in list(batch.recall_notes()):
            if gone.intersection(note.said_rows):
                left = tuple(shown.without(gone) for shown in note.shown if shown.row not in gone)
                batch.put_note(msgspec.structs.replace(note, shown=left))
                batch.change_lessons()
        for run_id in self._runs_with(writer, rows):
            run = writer.get(run_id)
            if run is not None:
                writer.put(_without_rows(run, gone))
        self._relate(writer)
        writer.finish()

    def rows_of_session(self, batch: Snapshot, session_id: str) -> set[int]:
        """Return the rows of memories that belong to a session only through their run."""
        runs = (run for run in batch.newest_trajectories() if run.session_id == session_id)
        rows = {row for run in runs for row in run.rows}
        return {row for row in rows if (record := batch.record(row)) is not None and record.session_id is None}

    def forget_session(self, batch: Batch, session_id: str) -> None:
        """Delete a session's recalls, and replace its runs with tombstones."""
        batch.use_reserve()
        writer = RunWriter(batch)
        doomed = [run.id for run in batch.newest_trajectories() if run.session_id == session_id]
        for run_id in doomed:
            unlink(writer, run_id)
            writer.forget(run_id)
        for note in list(batch.recall_notes()):
            by_run = note.by_run is not None and writer.batch.run_at(note.by_run, note.at_us)
            if note.session_id == session_id or note.run_id in doomed or by_run in doomed:
                batch.delete_note(note.recall_id)
                batch.change_lessons()
                run = None if note.run_id is None else writer.get(note.run_id)
                if run is not None:
                    writer.put(run)
        self._relate(writer)
        writer.finish()

    def _mark(self, writer: RunWriter, entries: Sequence[Entry]) -> list[str]:
        """Add the events' marks to their runs; return the ids of the runs that changed."""
        marks_of: dict[str, dict[str, Mark]] = {}
        for entry in entries:
            run_id = entry.sign.run_id or self._run_of_recall(writer, entry.sign)
            if run_id is not None:
                mark = _mark_of(writer.batch, entry)
                is_placed = mark.role != "begin" and run_id != (writer.stored(run_id).name if entry.sign.run_id else "")
                placed = msgspec.structs.replace(mark, is_placed=is_placed)
                marks_of.setdefault(run_id, {}).setdefault(mark.event_id, placed)
        return [changed for run_id, marks in marks_of.items() for changed in add_marks(writer, run_id, marks.values())]

    def _run_of_recall(self, writer: RunWriter, sign: RunSign) -> str | None:
        """Return the run id of the first known recall or, if it has no run, the recall's own id."""
        for recall_id in sign.recall_ids:
            note = writer.batch.recall_note(recall_id)
            if note is not None:
                by_run = None if note.by_run is None else writer.batch.run_at(note.by_run, note.at_us)
                return note.run_id or by_run or recall_id
        writer.batch.count(UNKNOWN_RECALL)
        return None

    def _follow(self, writer: RunWriter, run_ids: Sequence[str]) -> None:
        """Link and relate these runs, whose marks have changed."""
        for run_id in dict.fromkeys(run_ids):
            before = writer.before(run_id)
            link_named(writer, run_id)
            run = writer.get(run_id)
            if run is not None and (before is None or before.began_us != run.began_us):
                link_same_request(writer, run_id, self.settings)
        self._relate(writer)

    def _relate(self, writer: RunWriter) -> None:
        changed = [
            run_id for run_id in writer.changed() if _relevant(writer.before(run_id)) != _relevant(writer.get(run_id))
        ]
        relate(writer, changed, self.settings)

    def _expire(self, writer: RunWriter, now_us: int) -> int:
        silent_since = now_us - _us(self.settings.expire_after_s)
        silent = list(writer.batch.open_trajectories(silent_since))
        for run in silent:
            writer.put(msgspec.structs.replace(writer.get(run.id) or run, expired_us=now_us))
        return len(silent)

    def _clear_former_signs(self, writer: RunWriter, keys: Iterable[bytes]) -> None:
        """Remove what a former version with implicit feedback stored in these runs and in their memories."""
        for run in filter(None, map(writer.by_key, dict.fromkeys(keys))):
            writer.put(msgspec.structs.replace(run, former_signs=(), was_watched=False))
            for record in filter(None, map(writer.batch.record, sorted(run.rows))):
                writer.batch.update(record)  # encodes it without the inferred quality
            writer.batch.change_lessons(run.id)

    def _runs_with(self, writer: RunWriter, rows: Sequence[int]) -> list[str]:
        found: dict[str, None] = {}
        for row in rows:
            record = writer.batch.record(row)
            run = None if record is None else writer.batch.run_of(record)
            if record is not None and record.run_id is not None:
                found |= dict.fromkeys((record.run_id, *(() if run is None else (run.id,))))
            keys = [use.run_key for use in writer.batch.uses(row)]
            found |= dict.fromkeys(run.id for run in map(writer.by_key, keys) if run is not None)
        return list(found)


def _with_former_signs(snapshot: Snapshot) -> Iterator[bytes]:
    return (key for kind in FORMER_ENTRIES for key in snapshot.run_keys(kind))


def _us(seconds: float) -> int:
    return round(seconds * 1_000_000)


def _mark_of(batch: Batch, entry: Entry) -> Mark:
    sign, record = entry.sign, entry.record
    rows = {memory_id: batch.row_of_id(memory_id) for memory_id in sign.memory_ids}
    named = {row for row in rows.values() if row is not None}
    others = sorted(memory_id for memory_id, row in rows.items() if row is None)
    if others:
        batch.count(UNKNOWN_MEMORY, len(others))
    said_at = -1 if record is None or not sign.words else record.text.find(sign.words)
    return Mark(
        at_us=microseconds(sign.at, "timestamp"),
        event_id=sign.event_id,
        event_type=sign.event_type,
        role=sign.role,
        row=entry.row,
        session_id=sign.session_id,
        outcome=sign.outcome,
        quality=None if sign.verdict is None else sign.verdict.quality,
        reason=None if sign.verdict is None else sign.verdict.reason,
        named=tuple(sorted(named)),
        named_count=len(named),
        recalls=tuple(sorted(set(sign.recall_ids))),
        parents=tuple(sorted(set(sign.parents))),
        retries=tuple(sorted(set(sign.retries))),
        is_judged=record is not None and record.quality_score is not None,
        said_chars=0 if said_at < 0 else len(sign.words),
        said_at=max(said_at, 0),
        others=tuple(others[:_MOST_OTHERS]),
    )


def _relevant(run: StoredTrajectory | None) -> object:
    if run is None:
        return None
    rows = {used.row for used in run.used}
    return run.began_us, run.begin_row, run.ended_us, run.outcome, run.quality, run.parents, run.retries, rows


def _without_rows(run: StoredTrajectory, gone: frozenset[int]) -> StoredTrajectory:
    marks = tuple(
        msgspec.structs.replace(
            mark,
            row=None if mark.row in gone else mark.row,
            named=tuple(row for row in mark.named if row not in gone),
        )
        for mark in run.marks
    )
    inferred = tuple(pair for pair in run.inferred if pair[0] not in gone)
    return msgspec.structs.replace(run, marks=marks, inferred=inferred)


# Reused ids. A begin event after an end event with the same id starts a new run; a repeated begin event before the end
# does not. An event's time determines its run, so neither order nor repetition matters.


def add_marks(writer: RunWriter, run_id: str, marks: Iterable[Mark]) -> list[str]:
    """Add marks to the runs with this id; return the ids of the runs that changed.

    A mark with `is_placed` is added to the run `run_id` itself. Any other mark is added to the run that had the name at
    the time of the mark.
    """
    marks, changed = list(marks), list[str]()
    placed = [mark for mark in marks if mark.is_placed]
    if placed:
        changed += _add(writer, run_id, placed)
    timed = [mark for mark in marks if not mark.is_placed]
    if timed:
        name = writer.stored(run_id).name
        for series in _series_of(writer, name, timed):
            changed += _divide(writer, series, [mark for mark in timed if series.covers(mark.at_us)])
    return changed


class _Series(NamedTuple):
    """Consecutive runs with the same name that are not forgotten, and the run after them, if any."""

    name: str
    runs: tuple[StoredTrajectory, ...]
    following: StoredTrajectory | None

    def covers(self, at_us: int) -> bool:
        """Return whether the name referred to one of these runs at `at_us`."""
        is_before_end = self.following is None or at_us < self.following.since_us
        return self.runs[0].since_us <= at_us and is_before_end


def _series_of(writer: RunWriter, name: str, marks: Sequence[Mark]) -> Iterator[_Series]:
    """Yield the runs that these marks may change: those with this name when the marks were made, and the next run."""
    first_us, last_us = min(mark.at_us for mark in marks), max(mark.at_us for mark in marks)
    known: list[StoredTrajectory] = []
    for run in writer.batch.runs_named(name):
        known.insert(0, run)
        if run.since_us <= first_us:
            break
    known = known or [StoredTrajectory(name)]
    meant = sum(run.since_us <= last_us for run in known)
    near: list[StoredTrajectory] = []
    for run in known[: meant + 1]:
        if not run.is_forgotten:
            near.append(run)
        elif near:
            yield _Series(name, tuple(near), run)
            near = []
    if near:
        yield _Series(name, tuple(near), next(iter(known[meant + 1 :]), None))


def _divide(writer: RunWriter, series: _Series, marks: Iterable[Mark]) -> list[str]:
    """Distribute old and new marks among the runs of a series; return the ids of the runs that changed."""
    name, runs, first = series.name, series.runs, series.runs[0]
    new = _new_marks(marks, runs)
    if not new:
        return []
    timed = [mark for run in runs for mark in run.marks if not mark.is_placed]
    begins = _later_begins([*timed, *new])
    if not begins and len(runs) == 1:
        return _add(writer, first.id, new)
    ids = {first.since_us: first.id} | {us: again_id(name, us) for us in begins}
    divided: dict[str, list[Mark]] = {run_id: [] for run_id in ids.values()}
    for run in runs:
        for mark in run.marks:
            divided[_run_for(ids, run, mark.at_us, is_placed=mark.is_placed)].append(mark)
    for mark in new:
        divided[_run_at(ids, mark.at_us)].append(mark)
        writer.claim(mark.row, name)
    before = first.again
    for began_us, run_id in ids.items():
        again = first.again if run_id == first.id else Again(name, began_us, None if before is None else before.at_us)
        writer.put(msgspec.structs.replace(writer.stored(run_id), marks=tuple(divided[run_id]), again=again))
        before = again
    _link_following(writer, series, None if before is None else before.at_us)
    _move_recalls(writer, series, ids, divided)
    for run in runs:
        if run.id not in divided:
            unlink(writer, run.id)
            writer.remove(run.id)
    return list(dict.fromkeys((*divided, *(run.id for run in runs))))


def _later_begins(marks: Iterable[Mark]) -> list[int]:
    begins, has_begun, ended_us = list[int](), False, None
    for mark in sorted(marks, key=lambda mark: (mark.at_us, mark.role != "begin")):
        if mark.role == "begin":
            if ended_us is not None and ended_us < mark.at_us:
                begins.append(mark.at_us)
                ended_us = None
            has_begun = True
        elif mark.role == "end" and has_begun:
            ended_us = mark.at_us
    return begins


def _run_at(ids: Mapping[int, str], at_us: int) -> str:
    """Return the id of the run that the name referred to at `at_us`; `ids` maps start times to run ids."""
    return ids[max(since_us for since_us in ids if since_us <= at_us)]


def _run_for(ids: Mapping[int, str], run: StoredTrajectory, at_us: int, *, is_placed: bool) -> str:
    """Return the id of the run to which a mark or recall of `run` belongs: `run` if `is_placed` and possible."""
    if is_placed and run.id in ids.values():
        return run.id
    return _run_at(ids, run.since_us if is_placed else at_us)


def _link_following(writer: RunWriter, series: _Series, before_us: int | None) -> None:
    """Store the start of a series' last run in the run that follows the series or, if there is none, in the first run
    with that name.
    """
    following = series.following
    if following is None:
        writer.put(msgspec.structs.replace(writer.stored(series.name), last_us=before_us))
    elif following.again is not None:
        again = msgspec.structs.replace(following.again, before_us=before_us)
        writer.put(msgspec.structs.replace(writer.stored(following.id), again=again))


def _move_recalls(
    writer: RunWriter, series: _Series, ids: Mapping[int, str], divided: Mapping[str, Sequence[Mark]]
) -> None:
    """Link each recall to the run whose events name it, or else to the run that had the recall's run name at that
    time.
    """
    for run in series.runs:
        for recall_id in run.recalls:
            note = writer.batch.recall_note(recall_id)
            if note is None:
                continue
            naming = (run_id for run_id, marks in divided.items() if any(_names(mark, recall_id) for mark in marks))
            is_by_name = note.by_run == series.name and series.covers(note.at_us)
            owner = next(naming, None) or _run_for(ids, run, note.at_us, is_placed=not is_by_name)
            if owner != run.id:
                link(writer, note, owner, is_guess=note.is_guess)


def _names(mark: Mark, recall_id: str) -> bool:
    return mark.role != "feedback" and recall_id in mark.recalls


def _add(writer: RunWriter, run_id: str, marks: Iterable[Mark]) -> list[str]:
    """Add marks to one run unless it has been forgotten; return its id if any mark is new."""
    run = writer.get_or_new(run_id)
    new = [] if run is None else _new_marks(marks, [run])
    if run is None or not new:
        return []
    for mark in new:
        writer.claim(mark.row, run_id)
    writer.put(msgspec.structs.replace(run, marks=(*run.marks, *new)))
    return [run_id]


def _new_marks(marks: Iterable[Mark], runs: Iterable[StoredTrajectory]) -> list[Mark]:
    known = {mark.event_id for run in runs for mark in run.marks}
    return [mark for mark in marks if mark.event_id not in known]
