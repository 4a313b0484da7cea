"""A stored run as people and programs see it: with the ids of memories and the words of the request."""

from __future__ import annotations

from memory_agent.learning.requests import request_of
from memory_agent.storage.codec import time_of
from memory_agent.storage.snapshot import Snapshot
from memory_agent.storage.trajectories import Mark, StoredTrajectory
from memory_agent.trajectory import Revision, Step, Trajectory, UsedMemory


def tell(snapshot: Snapshot, run: StoredTrajectory) -> Trajectory:
    """Return the run. Memories that were forgotten since are not in it."""
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
