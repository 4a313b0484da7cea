"""Reads the lessons of a run from the store: one lesson per recall.

Lessons are numbered in the order in which runs first ended, and within a run in the order of its recalls. A run that
made no recalls but names the memories it used is one lesson, with the run's request as its query.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from memory_agent.embedders import comparable
from memory_agent.records.embedded import Embedding
from memory_agent.storage.batch import Batch
from memory_agent.storage.codec import vector_bytes
from memory_agent.storage.snapshot import Snapshot
from memory_agent.storage.stored_runs import BASELINE, LEARNED, NUMBERED, RecallNote, StoredTrajectory, StoredUse
from sona import Arm, Comparison, Contest, Lesson, Pick, compare, contest, mean_of

RECALLS_OF_A_RUN = 64  # recalls that become lessons; later recalls add little

USES_OF_A_RECALL = 32  # credited per lesson, to bound the learner's state
_RESET_BLOB = "learning_reset"

_ARMS: dict[int, Arm] = {BASELINE: "baseline", LEARNED: "learned"}


def all_lessons(snapshot: Snapshot) -> Iterator[tuple[StoredTrajectory, list[Lesson]]]:
    for run in snapshot.trajectories():
        lessons = lessons_of(snapshot, run)
        if lessons:
            yield run, lessons


def lessons_of(snapshot: Snapshot, run: StoredTrajectory) -> list[Lesson]:
    """Return the lessons of one run.

    Empty if the run has not ended, has no query vector from the store's model, or is older than the last reset.
    """
    quality, last_ignored = run.quality, int.from_bytes(snapshot.blob(_RESET_BLOB) or b"", "big")
    if run.number is None or quality is None or snapshot.state.stamp is None or run.number <= last_ignored:
        return []
    notes = _notes(snapshot, run)
    first = run.number * RECALLS_OF_A_RUN
    if not notes:
        request = None if run.begin_row is None else snapshot.vector(run.begin_row)
        return [] if request is None else [_lesson(snapshot, first, request, run.used, quality, None)]
    shares = _shares(run.used, notes)
    counted = next((place for place, share in enumerate(shares) if share), 0)
    return [
        _lesson(
            snapshot,
            first + place,
            query,
            shares[place],
            quality,
            _contest(notes, shares) if place == counted else None,
            is_counted=place == counted,
        )
        for place, (_, query) in enumerate(notes)
    ]


def ignore_ended_runs(batch: Batch) -> int:
    """Exclude all finished runs from the lessons; return the number of finished runs."""
    numbers = [run.number or 0 for run in batch.trajectories()]
    batch.set_blob(_RESET_BLOB, max(numbers, default=0).to_bytes(8, "big"))
    batch.change_lessons()
    return len(numbers)


def run_of_number(snapshot: Snapshot, number: int) -> StoredTrajectory | None:
    key = next(iter(snapshot.run_keys(NUMBERED, number, number + 1)), None)
    return None if key is None else snapshot.run_of_key(key)


def numbers_of(run: StoredTrajectory | None) -> range:
    if run is None or run.number is None:
        return range(0)
    return range(run.number * RECALLS_OF_A_RUN, (run.number + 1) * RECALLS_OF_A_RUN)


def run_number(lesson: int) -> int:
    return lesson // RECALLS_OF_A_RUN


def _notes(snapshot: Snapshot, run: StoredTrajectory) -> list[tuple[RecallNote, Embedding]]:
    """Return the run's recalls whose query vectors come from the store's model, with these vectors."""
    known = (snapshot.recall_note(recall_id) for recall_id in run.recall_ids[:RECALLS_OF_A_RUN])
    stamp, ndim = snapshot.state.stamp or "", snapshot.state.ndim or 0
    return [
        (note, query)
        for note in known
        if note is not None and comparable(stamp, note.stamp or "") and len(note.vector) == vector_bytes(ndim)
        if (query := note.query) is not None and np.isfinite(query).all()
    ]


def _shares(used: Sequence[StoredUse], notes: Sequence[tuple[RecallNote, Embedding]]) -> list[list[StoredUse]]:
    """Return the uses of each recall's memories; a memory that was not shown by any recall is assigned to the first
    recall.
    """
    places = {note.recall_id: place for place, (note, _) in enumerate(notes)}
    shares: list[list[StoredUse]] = [[] for _ in notes]
    for use in used:
        shares[places.get(use.recall_id or "", 0)].append(use)
    return shares


def _lesson(
    snapshot: Snapshot,
    number: int,
    query: Embedding,
    used: Sequence[StoredUse],
    quality: float,
    contest: Contest | Comparison | None,
    *,
    is_counted: bool = True,
) -> Lesson:
    used = sorted(sorted(used, key=lambda use: (-use.credit, use.row))[:USES_OF_A_RECALL], key=lambda use: use.row)
    vectors = snapshot.vectors([use.row for use in used]) if used else np.zeros((0, query.size), dtype=np.float32)
    present = [place for place, vector in enumerate(vectors) if vector.any()]
    return Lesson(
        number=number,
        query=query,
        used=tuple(used[place].row for place in present),
        vectors=vectors[present],
        credits=tuple(used[place].credit for place in present),
        quality=quality,
        contest=contest,
        is_counted=is_counted,
    )


def _contest(
    notes: Sequence[tuple[RecallNote, Embedding]], shares: Sequence[Sequence[StoredUse]]
) -> Contest | Comparison | None:
    """Return one contest between the rankings, from a run's interleaved recalls or else from its compared recalls.

    None if no use is stated. Each memory counts once, for the recall to which it is credited, and only if its use was
    stated.
    """
    contests: list[Contest | None] = []
    comparisons: list[Comparison | None] = []
    for (note, _), share in zip(notes, shares, strict=True):
        rows = {use.row for use in share if use.how != "overlap"}
        if note.is_contested and rows:
            contests.append(contest([Pick(shown.row, _ARMS.get(shown.arm)) for shown in note.shown], rows))
        elif note.ranks:
            used = [shown.place for shown in note.shown if shown.row in rows]
            comparisons.append(compare(note.ranks, note.boosts, used))
    decided = [one for one in contests if one is not None]
    if decided:
        return Contest(sum(one.learned for one in decided), sum(one.baseline for one in decided))
    compared = [one for one in comparisons if one is not None]
    return mean_of(compared) if compared else None
