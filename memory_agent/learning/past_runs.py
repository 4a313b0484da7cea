"""The runs that have ended, as patterns are made of them: read from the store, the newest 1,000.

A run takes part with the words and the vector of its begin, so forgetting that takes it out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from memory_agent.learning.patterns import MOST_RUNS, PastRun, Pattern
from memory_agent.learning.requests import Request, request_of
from memory_agent.records import MemoryRecord
from memory_agent.storage.batch import Batch
from memory_agent.storage.codec import time_of
from memory_agent.storage.snapshot import Snapshot
from memory_agent.storage.trajectories import ENDED, StoredTrajectory

_MOST_STEPS = 32  # of one run: the first ones, and what it said last


@dataclass(frozen=True, eq=False)
class Past:
    """What was looked at: the `numbers` of all runs, and the runs that may be in patterns, as stored and as told.

    `is_whole`: no request waits for its vector.
    """

    numbers: frozenset[int]
    stored: Mapping[int, StoredTrajectory]
    runs: Sequence[PastRun]
    is_whole: bool = True

    def numbers_of(self, pattern: Pattern) -> tuple[int, ...]:
        """Return the numbers of the runs of a pattern, ascending."""
        ids = {run.id for run in pattern.runs}
        return tuple(sorted(number for number, run in self.stored.items() if run.id in ids))

    def is_beyond(self, numbers: Iterable[int]) -> bool:
        """Whether any of these runs is too old to be looked at."""
        return len(self.numbers) >= MOST_RUNS and not self.numbers.issuperset(numbers)

    def holds(self, batch: Batch, numbers: Iterable[int]) -> bool:
        """Whether these runs are still as they were looked at."""
        runs = (self.stored[number] for number in numbers)
        return all(batch.trajectory(run.id) == run for run in runs)


NOTHING = Past(frozenset(), {}, ())


def read_past(snapshot: Snapshot, without: Collection[int]) -> Past:
    """Return the newest runs; those with a number in `without` are looked at and take no part."""
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
    return Past(frozenset(numbers), stored, runs, is_whole)


class _Reader:
    """Reads runs through one snapshot; the ids of memories that many runs used are read once."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._ids: dict[int, str | None] = {}

    def past_run(self, run: StoredTrajectory, request: Request) -> PastRun | None:
        """Return the run; None where it has not ended, or its request has no vector."""
        if request.vector is None or run.ended_us is None or run.outcome is None or run.quality is None:
            return None
        return PastRun(
            id=run.id,
            objective=request.text,
            vector=request.vector,
            session_id=run.session_id,
            ended_at=time_of(run.ended_us),
            outcome=run.outcome,
            quality=run.quality,
            steps=self._steps(run),
            used=tuple(name for use in run.used if (name := self._id(use.row)) is not None),
        )

    def _steps(self, run: StoredTrajectory) -> tuple[str, ...]:
        rows = [mark.row for mark in run.marks if mark.role in ("step", "end") and mark.row is not None]
        if len(rows) > _MOST_STEPS:
            rows = [*rows[: _MOST_STEPS - 1], rows[-1]]
        records = (self._snapshot.record(row) for row in rows)
        return tuple(_said(record) for record in records if record is not None)

    def _id(self, row: int) -> str | None:
        if row not in self._ids:
            record = self._snapshot.record(row)
            self._ids[row] = None if record is None else record.id
        return self._ids[row]


def _said(record: MemoryRecord) -> str:
    return record.title or record.text
