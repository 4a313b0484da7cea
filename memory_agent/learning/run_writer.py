"""Loads and stores the runs that one transaction changes, and updates their memories once, at the end.

A run's end, quality and uses are functions of all its facts, so the order in which events arrive does not matter.
"""

from __future__ import annotations

import msgspec

from memory_agent.learning.attribution import used_memories
from memory_agent.learning.outcomes import ending
from memory_agent.learning.run_views import RunRequest, request_of
from memory_agent.storage.batch import Batch
from memory_agent.storage.stored_runs import Mark, StoredTrajectory, trajectory_key

MOST_STEPS = 1_000  # stored per run, earliest first; marks that name memories or recalls have a separate limit


class RunWriter:
    """Reads and writes runs by id within one batch. A forgotten run reads as None and is never restored."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self._before: dict[str, StoredTrajectory | None] = {}
        self._now: dict[str, StoredTrajectory | None] = {}
        self._ids: dict[bytes, str] = {}
        self._requests: dict[int, RunRequest | None] = {}

    def get(self, run_id: str) -> StoredTrajectory | None:
        run = self._load(run_id)
        return None if run is None or run.is_forgotten else run

    def stored(self, run_id: str) -> StoredTrajectory:
        """Return the run, including a forgotten run, or an empty run if the id is unknown."""
        return self._load(run_id) or StoredTrajectory(run_id)

    def get_or_new(self, run_id: str) -> StoredTrajectory | None:
        """Return the run, an empty run if it is unknown, or None if it has been forgotten."""
        run = self._load(run_id)
        return StoredTrajectory(run_id) if run is None else self.get(run_id)

    def by_key(self, key: bytes) -> StoredTrajectory | None:
        if key not in self._ids:
            stored = self.batch.run_of_key(key)
            if stored is None:
                return None
            self._ids[key] = stored.id
        return self.get(self._ids[key])

    def request(self, run: StoredTrajectory) -> RunRequest | None:
        row = run.begin_row
        if row is not None and row not in self._requests:
            self._requests[row] = request_of(self.batch, run, with_vector=True)
        return None if row is None else self._requests[row]

    def put(self, run: StoredTrajectory) -> StoredTrajectory:
        """Recompute a run's derived fields unless it is forgotten; store and return the run."""
        self._load(run.id)
        settled = run if run.is_forgotten else self._settled(run)
        self._now[run.id] = kept = self.batch.put_trajectory(settled)
        return kept

    def remove(self, run_id: str) -> None:
        """Delete a run whose facts were moved to a different run."""
        self._load(run_id)
        self.batch.delete_trajectory(run_id)
        self._now[run_id] = None

    def forget(self, run_id: str) -> None:
        run = self.stored(run_id)
        self.put(StoredTrajectory(run_id, is_forgotten=True, again=run.again, last_us=run.last_us))

    def claim(self, row: int | None, run_id: str) -> None:
        """Set a memory's `run_id` to the run's name; a `row` of None is ignored."""
        record, name = None if row is None else self.batch.record(row), self.stored(run_id).name
        if record is not None and record.run_id != name:
            self.batch.update(msgspec.structs.replace(record, run_id=name))

    def before(self, run_id: str) -> StoredTrajectory | None:
        return self._before.get(run_id)

    def changed(self) -> list[str]:
        """Return the ids of the runs that changed, in the order of their first access."""
        return [run_id for run_id, now in self._now.items() if now != self._before[run_id]]

    def finish(self) -> None:
        """Write the quality of changed runs to their memories, and update the utility of the memories they used."""
        rows: set[int] = set()
        for run_id in self.changed():
            before, now = self._before[run_id], self._now[run_id]
            rows |= _rows_used_otherwise(before, now)
            if now is not None:
                self._pass_quality_on(before, now)
        for row in sorted(rows):
            qualities = [use.quality for use in self.batch.uses(row) if use.quality is not None]
            self.batch.set_utility(row, len(qualities), sum(qualities))

    def _load(self, run_id: str) -> StoredTrajectory | None:
        if run_id not in self._now:
            self._before[run_id] = self._now[run_id] = self.batch.run_of_key(trajectory_key(run_id))
        return self._now[run_id]

    def _settled(self, run: StoredTrajectory) -> StoredTrajectory:
        marks = _bounded(run.marks)
        begin = next((mark for mark in marks if mark.role == "begin"), None)
        named = {recall_id for mark in marks for recall_id in mark.recalls}
        is_heard_of = bool(marks) and run.expired_us is not None and marks[-1].at_us > run.expired_us
        run = msgspec.structs.replace(
            run,
            marks=marks,
            expired_us=None if is_heard_of else run.expired_us,
            began_us=None if begin is None else begin.at_us,
            begin_row=None if begin is None else begin.row,
            recall_ids=tuple(sorted(named | set(run.recalls))),
        )
        known = (self.batch.recall_note(recall_id) for recall_id in run.recall_ids)
        notes = sorted((note for note in known if note is not None), key=lambda note: (note.at_us, note.recall_id))
        end = ending(marks, run.echoes)
        first = () if begin is None else (begin.session_id,)
        sessions = (*first, *(mark.session_id for mark in marks), *(note.session_id for note in notes))
        return msgspec.structs.replace(
            run,
            session_id=next((session for session in sessions if session is not None), None),
            ended_us=end.ended_us,
            outcome=end.outcome,
            revisions=end.revisions,
            used=used_memories(marks, run.inferred, notes),
        )

    def _pass_quality_on(self, before: StoredTrajectory | None, now: StoredTrajectory) -> None:
        """Copy a run's quality to its memories, except those with their own verdict."""
        is_same = before is not None and before.quality == now.quality
        known = {mark.event_id for mark in before.marks} if before is not None and is_same else set()
        for mark in now.marks:
            takes_quality = mark.role in ("begin", "end") or (mark.role == "step" and not mark.is_judged)
            if mark.row is None or mark.event_id in known or not takes_quality:
                continue
            record = self.batch.record(mark.row)
            if record is not None and record.quality_score != now.quality:
                self.batch.update(msgspec.structs.replace(record, quality_score=now.quality))


def _bounded(marks: tuple[Mark, ...]) -> tuple[Mark, ...]:
    """Return the marks in chronological order, without steps beyond `MOST_STEPS`."""
    ordered = sorted(marks, key=lambda mark: (mark.at_us, mark.event_id))
    steps = [mark for mark in ordered if mark.role == "step"]
    telling = [mark.event_id for mark in steps if mark.named or mark.recalls]
    bare = [mark.event_id for mark in steps if not (mark.named or mark.recalls)]
    surplus = {*telling[MOST_STEPS:], *bare[MOST_STEPS:]}
    return tuple(mark for mark in ordered if mark.event_id not in surplus)


def _rows_used_otherwise(before: StoredTrajectory | None, now: StoredTrajectory | None) -> set[int]:
    old = {(use.row, before.quality) for use in before.used} if before is not None else set()
    new = {(use.row, now.quality) for use in now.used} if now is not None else set()
    return {row for row, _ in old ^ new}
