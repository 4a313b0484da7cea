"""The request of a stored run, and the run's public form (`Trajectory`).

A request is read from the memory that the begin event became, so forgetting that memory forgets it. Without comparable
vectors two requests are compared by their words.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

from memory_agent.records import Embedding
from memory_agent.storage.codec import time_of
from memory_agent.storage.recall_notes import RecallNote, request_digest
from memory_agent.storage.snapshot import Snapshot
from memory_agent.storage.trajectories import Mark, StoredTrajectory
from memory_agent.trajectory import Revision, Step, Trajectory, UsedMemory


def to_trajectory(snapshot: Snapshot, run: StoredTrajectory) -> Trajectory:
    """Return the public form of a run, without memories that were forgotten since."""
    request = request_of(snapshot, run)
    return Trajectory(
        id=run.id,
        state=run.state,
        objective=None if request is None else request.text,
        session_id=run.session_id,
        began_at=None if run.began_us is None else time_of(run.began_us),
        ended_at=None if run.ended_us is None else time_of(run.ended_us),
        outcome=run.outcome,
        quality=run.quality,
        revisions=tuple(
            Revision(quality=told.quality, reason=told.reason, at=time_of(told.at_us), cause=told.cause)
            for told in run.revisions
        ),
        recall_ids=run.recall_ids,
        steps=tuple(_step(snapshot, mark) for mark in run.marks if mark.role == "step"),
        used=_used(snapshot, run),
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


_WORD = re.compile(r"\w+")


class RunRequest(NamedTuple):
    """What a run was asked to do: text, digest, and its unit vector (d,) or None."""

    text: str
    digest: bytes
    vector: Embedding | None = None


def request_of(snapshot: Snapshot, run: StoredTrajectory, *, with_vector: bool = False) -> RunRequest | None:
    """Return the request of a run; None when its begin is unknown, made no memory, or was forgotten."""
    record = None if run.begin_row is None else snapshot.record(run.begin_row)
    if record is None or run.begin_row is None:
        return None
    begin = next(mark for mark in run.marks if mark.role == "begin")
    text = record.text[: begin.objective_chars] if begin.objective_chars else record.text
    return RunRequest(text, request_digest(text), snapshot.vector(run.begin_row) if with_vector else None)


def is_in_other_words(one: RunRequest, other: RunRequest, least_similarity: float) -> bool:
    """Return whether two requests ask the same in different words."""
    if one.digest == other.digest:
        return False
    if one.vector is None or other.vector is None:
        return _words(one.text) == _words(other.text)
    return one.vector.shape == other.vector.shape and float(one.vector @ other.vector) >= least_similarity


def asks_for(note: RecallNote, request: RunRequest, least_similarity: float) -> bool:
    """Return whether the query of a recall is this request, or lies near it."""
    if note.request == request.digest:
        return True
    query = note.query
    if query is None or request.vector is None or query.shape != request.vector.shape:
        return False
    return float(query @ request.vector) >= least_similarity


def _words(text: str) -> Counter[str]:
    return Counter(_WORD.findall(text.casefold()))
