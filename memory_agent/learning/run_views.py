"""Reads a stored run's request, and converts runs to their public forms, `Trajectory` and `SimilarRun`.

The request is read from the memory of the begin event, so forgetting that memory forgets the request.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import islice
from typing import NamedTuple

from memory_agent.learning.patterns import CUT, on_one_line
from memory_agent.records.embedded import Embedding
from memory_agent.records.memories import MemoryRecord, time_of
from memory_agent.records.trajectories import Revision, RunLine, SimilarRun, Step, Trajectory, UsedMemory
from memory_agent.storage.snapshot import Snapshot
from memory_agent.storage.stored_runs import Mark, RecallNote, StoredTrajectory, request_digest
from memory_agent.storage.terms import fingerprint


def to_trajectory(snapshot: Snapshot, run: StoredTrajectory) -> Trajectory:
    """Return a run's public form, without forgotten memories."""
    request = request_of(snapshot, run)
    return Trajectory(
        id=run.id,
        state=run.state,
        objective=None if request is None else request.text,
        session_id=run.session_id,
        began_at=None if run.began_us is None else time_of(run.began_us),
        ended_at=None if run.ended_us is None else time_of(run.ended_us),
        outcome=None if run.outcome == "cancelled" else run.outcome,
        quality=run.quality,
        revisions=tuple(
            Revision(quality=told.quality, reason=told.reason, at=time_of(told.at_us), cause=told.cause)
            for told in run.revisions
        ),
        recall_ids=run.recall_ids,
        steps=tuple(_step(snapshot, mark) for mark in run.marks if mark.role == "step"),
        used=_used(snapshot, run),
        is_cancelled=run.outcome == "cancelled",
        conclusions=tuple(_step(snapshot, mark) for mark in run.marks if mark.role in ("end", "feedback")),
    )


def _step(snapshot: Snapshot, mark: Mark) -> Step:
    return Step(
        event_id=mark.event_id,
        event_type=mark.event_type,
        timestamp=time_of(mark.at_us),
        record_id=None if mark.row is None else _id_of(snapshot, mark.row),
    )


def _used(snapshot: Snapshot, run: StoredTrajectory) -> tuple[UsedMemory, ...]:
    named = [(use, _id_of(snapshot, use.row)) for use in run.used]
    return tuple(
        UsedMemory(record_id=record_id, how=use.how, credit=use.credit, recall_id=use.recall_id)
        for use, record_id in named
        if record_id is not None
    )


def _id_of(snapshot: Snapshot, row: int) -> str | None:
    record = snapshot.record(row)
    return None if record is None else record.id


MOST_STEPS = 32  # maximum number of steps of a run that are converted to text: the first 31 steps and the last one
LINE_CHARS = 160
_MOST_RECALLED = 50
_LITTLE_CHARS = 48  # after the event's own words, such as a step's assignee


def to_similar_run(snapshot: Snapshot, run: StoredTrajectory) -> SimilarRun | None:
    """Return a run as text, or None if it has not ended or its request is missing."""
    record = None if run.begin_row is None else snapshot.record(run.begin_row)
    if record is None or run.ended_us is None or run.outcome is None:
        return None
    begin = next(mark for mark in run.marks if mark.role == "begin")
    steps, more = _steps(snapshot, run)
    recalled = dict.fromkeys(row for note in _notes(snapshot, run) for row in note.rows)
    ids = (_id_of(snapshot, row) for row in islice(recalled, _MOST_RECALLED))
    return SimilarRun(
        id=run.id,
        request=_line(record, begin),
        end=run.outcome,
        quality=run.quality,
        reason=run.revisions[-1].reason if run.revisions else None,
        because=_because(snapshot, run),
        steps=steps,
        more_steps=more,
        session_id=run.session_id,
        began_at=None if run.began_us is None else time_of(run.began_us),
        ended_at=time_of(run.ended_us),
        took_s=None if run.began_us is None else max(run.ended_us - run.began_us, 0) / 1_000_000,
        recalled=tuple(record_id for record_id in ids if record_id is not None),
        used=_used(snapshot, run),
    )


def _steps(snapshot: Snapshot, run: StoredTrajectory) -> tuple[tuple[RunLine, ...], int]:
    """Return the distinct steps as text, and the number of steps omitted before the last one."""
    rows = [(mark, mark.row) for mark in run.marks if mark.role == "step" and mark.row is not None]
    chosen = rows if len(rows) <= MOST_STEPS else [*rows[: MOST_STEPS - 1], rows[-1]]
    read = ((mark, snapshot.record(row)) for mark, row in chosen)
    lines = [_line(record, mark) for mark, record in read if record is not None]
    different: dict[int, RunLine] = {}
    for line in lines:
        different.setdefault(fingerprint(line.text), line)
    return tuple(different.values()), len(rows) - len(chosen)


def _because(snapshot: Snapshot, run: StoredTrajectory) -> RunLine | None:
    """Return the words of the event that set the run's quality, or else the words of its latest end event."""
    cause = run.revisions[-1].cause if run.revisions else None
    said = [mark for mark in run.marks if mark.role == "end" or (mark.role == "feedback" and mark.said_chars)]
    ends = [mark for mark in said if mark.role == "end"]
    for mark in [*(mark for mark in said if mark.event_id == cause), *reversed(ends)]:
        record = None if mark.row is None else snapshot.record(mark.row)
        if record is not None:
            return _line(record, mark)
    return None


def _line(record: MemoryRecord, mark: Mark) -> RunLine:
    words = words_of(record, mark)
    line = on_one_line(words, LINE_CHARS)
    if record.title and line.endswith(CUT):
        line = on_one_line(record.title, LINE_CHARS)
    more_chars = len(record.text) - record.text.find(words) - len(words)
    is_whole = more_chars <= _LITTLE_CHARS and not record.title and not line.endswith(CUT)
    return RunLine(text=line, record_id=record.id, is_whole=is_whole)


def _notes(snapshot: Snapshot, run: StoredTrajectory) -> list[RecallNote]:
    notes = (snapshot.recall_note(recall_id) for recall_id in run.recall_ids)
    return [note for note in notes if note is not None]


_WORD = re.compile(r"\w+")


class RunRequest(NamedTuple):
    """A run's request: its text, the text's digest, and its unit vector (d,) or None."""

    text: str
    digest: bytes
    vector: Embedding | None = None


def request_of(snapshot: Snapshot, run: StoredTrajectory, *, with_vector: bool = False) -> RunRequest | None:
    """Return a run's request, or None if its begin event is unknown, created no memory, or was forgotten."""
    record = None if run.begin_row is None else snapshot.record(run.begin_row)
    if record is None or run.begin_row is None:
        return None
    begin = next(mark for mark in run.marks if mark.role == "begin")
    text = words_of(record, begin)
    return RunRequest(text, request_digest(text), snapshot.vector(run.begin_row) if with_vector else None)


def words_of(record: MemoryRecord, mark: Mark) -> str:
    """Return the event's own words from the text of its memory, without the introduction and additions."""
    if not mark.said_chars or record.updated_at is not None:  # stored by an earlier version, or replaced by `remember`
        return record.text
    return record.text[mark.said_at : mark.said_at + mark.said_chars]


def is_in_other_words(one: RunRequest, other: RunRequest, least_similarity: float) -> bool:
    similarity = None if one.digest == other.digest else likeness(one, other)
    return similarity is not None and similarity >= least_similarity


def likeness(one: RunRequest, other: RunRequest) -> float | None:
    """Return the cosine similarity of two requests or, if one has no vector, 1 if their words are equal, else None."""
    if one.vector is None or other.vector is None:
        return 1.0 if _words(one.text) == _words(other.text) else None
    return float(one.vector @ other.vector) if one.vector.shape == other.vector.shape else None


def asks_for(note: RecallNote, request: RunRequest, least_similarity: float) -> bool:
    if note.request == request.digest:
        return True
    query = note.query
    if query is None or request.vector is None or query.shape != request.vector.shape:
        return False
    return float(query @ request.vector) >= least_similarity


def _words(text: str) -> Counter[str]:
    return Counter(_WORD.findall(text.casefold()))
