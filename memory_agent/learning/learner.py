"""The learner of one user between its store and its recalls: told what ended, asked for advice, kept, made anew.

What is learnt is a function of the runs in the store (`lessons`). After each batch the runs that changed are learnt at
once; on upkeep, and before it is saved, all of it is learnt anew, which is exact, and is what a lost or damaged file is
replaced by. The learner gives advice: where it has none, recalls are ranked as usual. What this does not do: rank
(`recall/learned`), know how a run went (`outcomes`).

What the learner says of one recall: how it would rank, whether it may, and which past runs make it say so.

Plain data between the learner and the recall.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from memory_agent.config import LearningSettings
from memory_agent.errors import EncryptionKeyMissingError
from memory_agent.learning.checkpoint import (
    Moment,
    discard_learner,
    load_learner,
    moment_in,
    moment_of,
    save_learner,
)
from memory_agent.learning.lessons import all_lessons, lessons_of, numbers_of, run_number, run_of_number
from memory_agent.records import Embedding
from memory_agent.storage.archive import Archive
from memory_agent.storage.trajectories import StoredTrajectory
from memory_agent.trajectory import RecalledRun
from sona.engine import Adaptation, Learner
from sona.gate import Evidence, Gain, Route
from sona.lesson import Lesson

RunOf = Callable[[int, float], RecalledRun | None]
"""Returns the run of a lesson, by its number, which is so much like the request."""


@dataclass(frozen=True)
class Advice:
    """`adaptation` is None where nothing was learnt. `key` decides whose turn it is where both rankings take part."""

    route: Route = "baseline"
    adaptation: Adaptation | None = None
    key: str = ""
    run_of: RunOf = lambda _number, _similarity: None

    def causes(self, row: int) -> list[dict[str, Any]]:
        """Return the past runs that lift the memory in `row`: the one that used it, else those for requests like it."""
        if self.adaptation is None:
            return []
        found = (self.run_of(number, similarity) for number, similarity in self.adaptation.causes(row))
        return [msgspec.structs.asdict(run) for run in found if run is not None]


USUAL = Advice()


_DUE_SHARE = 32
"""All is learnt anew when one lesson of so many is new: it takes seconds for thousands, and little is inexact."""


class Figures(NamedTuple):
    """What a learner comes to: what its gate goes by, and how much it holds."""

    evidence: Evidence
    gain: Gain | None
    credited: int
    exemplars: int
    memories: int


class Teacher:
    """Teaches, keeps and asks the learner of one user. Threads may share it."""

    def __init__(self, archive: Archive, settings: LearningSettings) -> None:
        """Take up what was learnt before, or learn it again from the runs."""
        self.settings = settings
        self.consolidated_at: datetime | None = None
        self._archive = archive
        self._lock = threading.RLock()
        self._learning = threading.Lock()
        self._learner: Learner | None = None
        self._moment: Moment | None = None
        self._saved: Moment | None = None
        self._runs: dict[int, RecalledRun | None] = {}
        if settings.mode != "off" and archive.store.ndim is not None:
            self._take_up()

    def advise(self, query: Embedding, recall_id: str) -> Advice:
        """Return how the learner would rank for `query`, (d,) raw, and whether it may."""
        with self._lock:
            learner = self._learner
            if learner is None or learner.ndim != query.size:
                return USUAL
            route = "learned" if self.settings.mode == "on" else learner.gate.route(recall_id)
            if route == "baseline":
                return USUAL
            return Advice(route, learner.adapt(query), recall_id, self._run_of)

    def follow(self, *, anew: bool = False) -> None:
        """Learn what changed in the store since the last call; by learning all `anew`, if something was forgotten."""
        if anew:
            discard_learner(self._archive.store.folder)
            self._saved = None
        if self.settings.mode == "off":
            return
        with self._learning:
            moment = moment_of(self._archive.store)  # before what changed is taken: that is no older then
            if moment == self._moment:
                return
            changed = self._archive.store.take_taught()
            learner = self._learner
            is_other = learner is None or self._moment is None or moment.stamp != self._moment.stamp
            if anew or is_other or not self._learn_at_once(changed, moment):
                self._learn_anew()

    def consolidate(self, now: datetime) -> bool:
        """Learn all anew and save it, where something was learnt since; return whether there was."""
        if self.settings.mode == "off":
            return False
        self.follow()
        with self._learning:
            learner = self._learner
            if learner is None or self._saved == self._moment or not _is_due(learner):
                return False
            if learner.changes:
                learner = self._learn_anew()
            self.consolidated_at = now
            self._save(learner)
        return True

    def close(self) -> None:
        """Save what was learnt; what cannot be saved is learnt again."""
        with self._learning, suppress(EncryptionKeyMissingError):  # nothing is kept any more of this user
            learner = self._learner
            if learner is not None and self._saved != self._moment and learner.facts:
                self._save(self._learn_anew() if learner.changes else learner)

    def figures(self, ndim: int) -> Figures:
        """Return what the learner comes to."""
        with self._lock:
            learner = self._learner or Learner(ndim)
            return Figures(
                evidence=learner.gate.evidence(),
                gain=learner.gate.gain(),
                credited=learner.credited,
                exemplars=len(learner.exemplars),
                memories=len(learner.prior),
            )

    def _take_up(self) -> None:
        self._learner = load_learner(self._archive.store)
        if self._learner is None:
            self._learn_anew()
        else:
            self._moment = self._saved = moment_of(self._archive.store)

    def _learn_anew(self) -> Learner | None:
        """Learn all runs as if for the first time, from one view of the store, while recalls go on with the old one."""
        with self._archive.store.snapshot() as snapshot:
            state = snapshot.state
            moment, lessons, runs = moment_in(state), list[Lesson](), dict[int, RecalledRun | None]()
            for run, told in all_lessons(snapshot):
                lessons += told
                runs[run_number(told[0].number)] = _recalled(run)
        learner = None if state.ndim is None else Learner.taught(state.ndim, lessons)
        with self._lock:
            self._learner, self._moment, self._runs = learner, moment, runs
        return learner

    def _learn_at_once(self, changed: Iterable[str | None], moment: Moment) -> bool:
        """Learn the runs that changed; False where that takes learning anew: one is gone, may be any, or it is due."""
        learner = self._learner
        if learner is None:
            return False
        with self._archive.store.snapshot() as snapshot:
            runs = [None if run_id is None else snapshot.trajectory(run_id) for run_id in changed]
            lessons = [lesson for run in runs if run is not None for lesson in lessons_of(snapshot, run)]
        if any(run is None or run.number is None for run in runs):
            return False
        numbers = {lesson.number for lesson in lessons}
        with self._lock:
            for run in runs:
                learner.forget(set(numbers_of(run)) - numbers)
                if run is not None and run.number is not None:
                    self._runs[run.number] = _recalled(run)
            for lesson in lessons:
                learner.learn(lesson)
            self._moment = moment
        return True

    def _save(self, learner: Learner | None) -> None:
        with suppress(OSError, EncryptionKeyMissingError):  # a cache
            if learner is not None and self._moment is not None:
                save_learner(self._archive.store, learner, self._moment)
                self._saved = self._moment

    def _run_of(self, lesson: int, similarity: float) -> RecalledRun | None:
        """Return the run of a lesson, as it was learnt."""
        number, runs = run_number(lesson), self._runs
        if number not in runs:  # the learner is from its file
            with self._archive.store.snapshot() as snapshot:
                found = run_of_number(snapshot, number)
            runs.setdefault(number, None if found is None else _recalled(found))
        run = runs[number]
        return None if run is None else msgspec.structs.replace(run, similarity=similarity)


def _recalled(run: StoredTrajectory) -> RecalledRun:
    return RecalledRun(trajectory_id=run.id, quality=run.quality)


def _is_due(learner: Learner) -> bool:
    return learner.changes * _DUE_SHARE >= len(learner.facts)
