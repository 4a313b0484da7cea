"""Keeps the runs that events report, in the transaction that stores the events.

Idempotent and independent of order: what an event says is added to a set, and everything else about the run is
derived from the set (`run_writer`). One batch is applied in four steps: add the events' marks, link recalls to runs,
relate runs to each other, update their memories. Events are read by `signals/runs`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec

from memory_agent.learning.implicit_signs import holds
from memory_agent.learning.repeated_ids import add_marks
from memory_agent.learning.run_links import link_asked, link_named, link_same_request, relate, unlink
from memory_agent.learning.run_writer import RunWriter
from memory_agent.records.memories import MemoryRecord, microseconds
from memory_agent.settings import LearningSettings
from memory_agent.signals import RunSign
from memory_agent.storage.batch import Batch
from memory_agent.storage.snapshot import Snapshot
from memory_agent.storage.stored_runs import CITING, OPEN, Mark, StoredSign, StoredTrajectory

UNKNOWN_MEMORY = "runs.unknown_memory"
UNKNOWN_RECALL = "runs.unknown_recall"
_MOST_OTHERS = 20  # of one event


class Entry(NamedTuple):
    """What an event says about a run, and the row and record of the memory it became, if any."""

    sign: RunSign
    row: int | None = None
    record: MemoryRecord | None = None


class RunRecords:
    """The runs of one user. Stateless, so threads may share it."""

    def __init__(self, settings: LearningSettings) -> None:
        self.settings = settings

    def enter(self, batch: Batch, entries: Sequence[Entry]) -> None:
        """Apply what events say about runs. Idempotent."""
        writer = RunWriter(batch)
        self._follow(writer, [*link_asked(writer), *self._mark(writer, entries)])
        began = [microseconds(entry.sign.at, "timestamp") for entry in entries if entry.sign.role == "begin"]
        if began:
            self._expire(writer, max(began))
        writer.finish()
        if batch.waiting_count > self.settings.keep_recalls:
            batch.prune_notes(self.settings.keep_recalls, oldest_us=0)

    def has_upkeep(self, snapshot: Snapshot, now: datetime) -> bool:
        """Return whether `expire` would change anything; checking first saves its flush."""
        now_us = microseconds(now, "now")
        silent = snapshot.run_keys(OPEN, until_us=now_us - _us(self.settings.expire_after_s))
        old = snapshot.notes_between(0, now_us - _us(self.settings.keep_recalls_s))
        return any(silent) or any(note.run_id is None for note in old)

    def expire(self, batch: Batch, now: datetime) -> int:
        """Expire silent runs and delete old recalls that belong to no run; return how many runs expired."""
        writer, now_us = RunWriter(batch), microseconds(now, "now")
        self._follow(writer, link_asked(writer))
        expired = self._expire(writer, now_us)
        writer.finish()
        batch.prune_notes(self.settings.keep_recalls, now_us - _us(self.settings.keep_recalls_s))
        return expired

    def infer(self, batch: Batch, run_id: str, rows: Iterable[tuple[int, str | None]]) -> None:
        """Set the uses inferred from a run's output: rows, each with the id of the recall that returned it."""
        writer = RunWriter(batch)
        run = writer.get(run_id)
        if run is not None:
            writer.put(msgspec.structs.replace(run, inferred=tuple(sorted(set(rows)))))
            self._follow(writer, [run_id])
            writer.finish()

    def follow_up(self, batch: Batch, run_id: str, signs: tuple[StoredSign, ...], *, is_watched: bool) -> None:
        """Set what followed a run, and whether more may follow."""
        writer = RunWriter(batch)
        run = writer.get(run_id)
        if run is not None:
            writer.put(msgspec.structs.replace(run, signs=signs, is_watched=is_watched))
            writer.finish()

    def forget_rows(self, batch: Batch, rows: Sequence[int]) -> None:
        """Remove memories from runs and recalls. Call before the rows are deleted."""
        batch.use_reserve()
        writer, gone = RunWriter(batch), frozenset(rows)
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
        """Delete the recalls of a session and replace its runs by tombstones."""
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
        """Add what events say to their runs; return the ids of the runs that gained a mark."""
        said: dict[str, dict[str, Mark]] = {}
        for entry in entries:
            run_id = entry.sign.run_id or self._run_of_recall(writer, entry.sign)
            if run_id is not None:
                mark = _mark_of(writer.batch, entry)
                is_placed = mark.role != "begin" and run_id != (writer.stored(run_id).name if entry.sign.run_id else "")
                placed = msgspec.structs.replace(mark, is_placed=is_placed)
                said.setdefault(run_id, {}).setdefault(mark.event_id, placed)
        return [changed for run_id, marks in said.items() for changed in add_marks(writer, run_id, marks.values())]

    def _run_of_recall(self, writer: RunWriter, sign: RunSign) -> str | None:
        """Return the run of the first known recall; a recall without one gets a run with its own id."""
        for recall_id in sign.recall_ids:
            note = writer.batch.recall_note(recall_id)
            if note is not None:
                by_run = None if note.by_run is None else writer.batch.run_at(note.by_run, note.at_us)
                return note.run_id or by_run or recall_id
        writer.batch.count(UNKNOWN_RECALL)
        return None

    def _follow(self, writer: RunWriter, run_ids: Sequence[str]) -> None:
        """Link and relate these runs after their marks changed."""
        for run_id in dict.fromkeys(run_ids):
            before = writer.before(run_id)
            link_named(writer, run_id)
            run = writer.get(run_id)
            if run is not None and (before is None or before.began_us != run.began_us):
                link_same_request(writer, run_id, self.settings)
        self._relate(writer)

    def _relate(self, writer: RunWriter) -> None:
        """Recompute the relations of runs whose relevant fields changed."""
        changed = [
            run_id for run_id in writer.changed() if _relevant(writer.before(run_id)) != _relevant(writer.get(run_id))
        ]
        relate(writer, changed, self.settings)
        self._withdraw_signs(writer)

    def _withdraw_signs(self, writer: RunWriter) -> None:
        """Remove changed runs that speak no more for earlier ones, or begin elsewhere, from the signs of these."""
        for later_id in writer.changed():
            later, before = writer.get(later_id), writer.before(later_id)
            if before is None or before.begin_row is None:
                continue
            citing = list(writer.batch.run_keys(CITING, before.begin_row, before.begin_row + 1))
            for run in filter(None, map(writer.by_key, citing)):
                left = tuple(sign for sign in run.signs if sign.run_id != later_id or holds(sign, later))
                if left != run.signs:
                    writer.put(msgspec.structs.replace(run, signs=left, is_watched=True))

    def _expire(self, writer: RunWriter, now_us: int) -> int:
        silent_since = now_us - _us(self.settings.expire_after_s)
        silent = list(writer.batch.open_trajectories(silent_since))
        for run in silent:
            writer.put(msgspec.structs.replace(writer.get(run.id) or run, expired_us=now_us))
        return len(silent)

    def _runs_with(self, writer: RunWriter, rows: Sequence[int]) -> list[str]:
        found: dict[str, None] = {}
        for row in rows:
            record = writer.batch.record(row)
            run = None if record is None else writer.batch.run_of(record)
            if record is not None and record.run_id is not None:
                found |= dict.fromkeys((record.run_id, *(() if run is None else (run.id,))))
            keys = [*(use.run_key for use in writer.batch.uses(row)), *writer.batch.run_keys(CITING, row, row + 1)]
            found |= dict.fromkeys(run.id for run in map(writer.by_key, keys) if run is not None)
        return list(found)


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
    """Return the fields of a run that affect other runs."""
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
    signs = () if run.begin_row in gone else tuple(sign for sign in run.signs if sign.row not in gone)
    is_watched = run.is_watched or signs != run.signs
    return msgspec.structs.replace(run, marks=marks, inferred=inferred, signs=signs, is_watched=is_watched)
