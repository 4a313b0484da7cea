"""Runs, kept from what their events say, in the transaction that keeps the events.

An event has its effect once, and in whatever order events come, a run ends up the same: what each said is added to a
set, and everything else follows from the set (`book`). What one batch of events does to runs is done here in four
steps: what the events say, which recalls belong to the runs, what runs say of each other, what that makes of memories.
What this does not do: read an event (`signals/runs`), learn (`sona`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec

from memory_agent.config import LearningSettings
from memory_agent.learning.run_links import link_asked, link_named, link_same_request, relate, take_back
from memory_agent.learning.run_writer import Book
from memory_agent.records import MemoryRecord
from memory_agent.signals.runs import RunSign
from memory_agent.storage.batch import Batch
from memory_agent.storage.codec import microseconds
from memory_agent.storage.snapshot import Snapshot
from memory_agent.storage.trajectories import OPEN, Mark, StoredTrajectory

UNKNOWN_MEMORY = "runs.unknown_memory"
UNKNOWN_RECALL = "runs.unknown_recall"


class Entry(NamedTuple):
    """What an event said of a run, and the memory that the event became, if any."""

    sign: RunSign
    row: int | None = None
    record: MemoryRecord | None = None


class Bookkeeping:
    """Keeps the runs of one user. Has no state of its own, so any thread may use it."""

    def __init__(self, settings: LearningSettings) -> None:
        self.settings = settings

    def enter(self, batch: Batch, entries: Sequence[Entry]) -> None:
        """Take in what events said of runs. What was taken in before changes nothing."""
        book = Book(batch)
        self._follow(book, [*link_asked(book), *self._mark(book, entries)])
        began = [microseconds(entry.sign.at, "timestamp") for entry in entries if entry.sign.role == "begin"]
        if began:
            self._expire(book, max(began))
        book.finish()
        if batch.waiting_count > self.settings.keep_recalls:
            batch.prune_notes(self.settings.keep_recalls, oldest_us=0)

    def has_upkeep(self, snapshot: Snapshot, now: datetime) -> bool:
        """Whether `expire` would do anything: it costs a flush."""
        now_us = microseconds(now, "now")
        silent = snapshot.run_keys(OPEN, until_us=now_us - _us(self.settings.expire_after_s))
        old = snapshot.notes_between(0, now_us - _us(self.settings.keep_recalls_s))
        return any(silent) or any(note.run_id is None for note in old)

    def expire(self, batch: Batch, now: datetime) -> int:
        """Give up runs that were silent for too long, and recalls that no run asked for; return how many runs."""
        book, now_us = Book(batch), microseconds(now, "now")
        self._follow(book, link_asked(book))
        expired = self._expire(book, now_us)
        book.finish()
        batch.prune_notes(self.settings.keep_recalls, now_us - _us(self.settings.keep_recalls_s))
        return expired

    def infer(self, batch: Batch, run_id: str, rows: Iterable[tuple[int, str | None]]) -> None:
        """Say which memories a run's output shows that it used, each with the recall that had shown it."""
        book = Book(batch)
        run = book.get(run_id)
        if run is not None:
            book.put(msgspec.structs.replace(run, inferred=tuple(sorted(set(rows)))))
            self._follow(book, [run_id])
            book.finish()

    def forget_rows(self, batch: Batch, rows: Sequence[int]) -> None:
        """Take memories out of the runs that they belong to or that used them, and out of recalls. Before deleting."""
        batch.use_reserve()
        book, gone = Book(batch), frozenset(rows)
        for note in list(batch.recall_notes()):
            if gone.intersection(note.said_rows):
                left = tuple(shown.without(gone) for shown in note.shown if shown.row not in gone)
                batch.put_note(msgspec.structs.replace(note, shown=left))
                batch.change_lessons()
        for run_id in self._runs_with(book, rows):
            run = book.get(run_id)
            if run is not None:
                book.put(_without_rows(run, gone))
        self._relate(book)
        book.finish()

    def rows_of_session(self, batch: Snapshot, session_id: str) -> set[int]:
        """Return the memories of a session's runs that name no session themselves."""
        runs = (run for run in batch.newest_trajectories() if run.session_id == session_id)
        rows = {row for run in runs for row in run.rows}
        return {row for row in rows if (record := batch.record(row)) is not None and record.session_id is None}

    def forget_session(self, batch: Batch, session_id: str) -> None:
        """Leave nothing of a session's runs and recalls but that the runs were forgotten."""
        batch.use_reserve()
        book = Book(batch)
        doomed = [run.id for run in batch.newest_trajectories() if run.session_id == session_id]
        for run_id in doomed:
            take_back(book, run_id)
            book.forget(run_id)
        for note in list(batch.recall_notes()):
            if note.session_id == session_id or note.run_id in doomed or note.by_run in doomed:
                batch.delete_note(note.recall_id)
                batch.change_lessons()
                run = None if note.run_id is None else book.get(note.run_id)
                if run is not None:
                    book.put(run)
        self._relate(book)
        book.finish()

    def _mark(self, book: Book, entries: Sequence[Entry]) -> list[str]:
        """Add what events said to their runs; return the runs of which something new is known."""
        said: dict[str, dict[str, Mark]] = {}
        for entry in entries:
            run_id = entry.sign.run_id or self._run_of_recall(book, entry.sign)
            if run_id is not None and book.get_or_new(run_id) is not None:
                said.setdefault(run_id, {}).setdefault(entry.sign.event_id, _mark_of(book.batch, entry))
        return [run_id for run_id, marks in said.items() if self._add(book, run_id, marks)]

    def _add(self, book: Book, run_id: str, marks: dict[str, Mark]) -> bool:
        run = book.get_or_new(run_id)
        known = {mark.event_id for mark in run.marks} if run is not None else set()
        news = tuple(mark for event_id, mark in marks.items() if event_id not in known)
        if run is None or not news:
            return False
        for mark in news:
            book.claim(mark.row, run_id)
        book.put(msgspec.structs.replace(run, marks=(*run.marks, *news)))
        return True

    def _run_of_recall(self, book: Book, sign: RunSign) -> str | None:
        """The run that a recall belongs to; a recall of no run makes one of its own when it is judged."""
        for recall_id in sign.recall_ids:
            note = book.batch.recall_note(recall_id)
            if note is not None:
                return note.run_id or note.by_run or recall_id
        book.batch.count(UNKNOWN_RECALL)
        return None

    def _follow(self, book: Book, run_ids: Sequence[str]) -> None:
        """Find out what follows from what was said of these runs."""
        for run_id in dict.fromkeys(run_ids):
            before = book.before(run_id)
            link_named(book, run_id)
            run = book.get(run_id)
            if run is not None and (before is None or before.began_us != run.began_us):
                link_same_request(book, run_id, self.settings)
        self._relate(book)

    def _relate(self, book: Book) -> None:
        """Find out what the runs that changed say of others, and others of them."""
        changed = [run_id for run_id in book.changed() if _bearing(book.before(run_id)) != _bearing(book.get(run_id))]
        relate(book, changed, self.settings)

    def _expire(self, book: Book, now_us: int) -> int:
        silent_since = now_us - _us(self.settings.expire_after_s)
        silent = list(book.batch.open_trajectories(silent_since))
        for run in silent:
            book.put(msgspec.structs.replace(book.get(run.id) or run, expired_us=now_us))
        return len(silent)

    def _runs_with(self, book: Book, rows: Sequence[int]) -> list[str]:
        found: dict[str, None] = {}
        for row in rows:
            record = book.batch.record(row)
            if record is not None and record.run_id is not None:
                found[record.run_id] = None
            runs = (book.by_key(use.run_key) for use in book.batch.uses(row))
            found |= dict.fromkeys(run.id for run in runs if run is not None)
        return list(found)


def _us(seconds: float) -> int:
    return round(seconds * 1_000_000)


def _mark_of(batch: Batch, entry: Entry) -> Mark:
    sign, record = entry.sign, entry.record
    rows = [batch.row_of_id(memory_id) for memory_id in sign.memory_ids]
    named = {row for row in rows if row is not None}
    if None in rows:
        batch.count(UNKNOWN_MEMORY, rows.count(None))
    objective = sign.objective if record is not None and record.text.startswith(sign.objective) else ""
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
        objective_chars=len(objective),
    )


def _bearing(run: StoredTrajectory | None) -> object:
    """What of a run bears on other runs."""
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
