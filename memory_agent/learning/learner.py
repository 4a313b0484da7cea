"""The learner (`sona`) of one user, which is trained on finished runs, used by recalls, and saved beside the store.

The learned state is a function of the runs in the store (`lessons`). After each batch, the changed runs are learned
incrementally. During upkeep, and before saving, everything is relearned. Relearning is exact, and it also replaces a
lost or damaged file. `recall/stages` uses the advice for ranking.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from memory_agent.errors import EncryptionKeyMissingError
from memory_agent.learning.engine import EngineLearner, own_engine
from memory_agent.learning.lessons import all_lessons, lessons_of, numbers_of, run_number, run_of_number
from memory_agent.records.embedded import Embedding
from memory_agent.records.trajectories import GateState, RecalledRun
from memory_agent.settings import LearningSettings
from memory_agent.storage.archive import Archive
from memory_agent.storage.codec import StoreState
from memory_agent.storage.environment import UserKey
from memory_agent.storage.store import Store
from memory_agent.storage.stored_runs import StoredTrajectory
from relay import UndecipherableError, described
from relay.disk import write_private
from sona import Adaptation, DamagedStateError, Evidence, Fact, Gain, Learner, Lesson, Route, checkpoint

RunOf = Callable[[int, float], RecalledRun | None]  # takes a lesson's number and its similarity to the request


class Advice(msgspec.Struct, frozen=True, dict=True):
    """How to rank a recall. `adaptation` is None if nothing was learned; `key` seeds team-draft interleaving."""

    route: Route = "baseline"
    adaptation: Adaptation | None = None
    key: str = ""
    run_of: RunOf = lambda _number, _similarity: None

    def causes(self, row: int) -> list[dict[str, Any]]:
        """Return the past runs that raise the score of a memory: the run that used it, or else the nearest three."""
        if self.adaptation is None:
            return []
        cause = self.adaptation.cause(row)
        return self._nearest if cause is None else self._runs([cause])

    @cached_property
    def _nearest(self) -> list[dict[str, Any]]:
        return [] if self.adaptation is None else self._runs(self.adaptation.nearest())

    def _runs(self, lessons: Iterable[tuple[int, float]]) -> list[dict[str, Any]]:
        found = [self.run_of(number, similarity) for number, similarity in lessons]
        return [msgspec.structs.asdict(run) for run in found if run is not None]


USUAL = Advice()


_DUE_SHARE = 32  # relearn after changes to 1 in 32 lessons: this takes seconds, and single updates are almost exact


class Figures(NamedTuple):
    """The statistics of a learner: the gate's evidence, the size of the state, and the lessons' facts by number."""

    evidence: Evidence
    gain: Gain | None
    credited: int
    exemplars: int
    memories: int
    facts: dict[int, Fact]


class UserLearner:
    """Trains, saves and queries the learner of one user. Thread-safe."""

    def __init__(self, archive: Archive, settings: LearningSettings) -> None:
        """Load the saved learner, or relearn it from the runs. Raises `SettingsError` for an unknown engine."""
        self.settings = settings
        self._engine_of = own_engine(settings)
        self.consolidated_at: datetime | None = None
        self._archive = archive
        self._lock = threading.RLock()
        self._learning = threading.Lock()
        self._learner: Learner | None = None
        self._moment: Moment | None = None
        self._saved: Moment | None = None
        self._runs: dict[int, RecalledRun | None] = {}
        if settings.mode != "off" and archive.store.state.ndim is not None:
            self._load()

    def advise(self, query: Embedding, recall_id: str) -> Advice:
        """Return how to rank memories for the uncentred `query` (d,), and whether the gate enables the learner."""
        with self._lock:
            learner = self._learner
            if learner is None or learner.ndim != query.size:
                return USUAL
            route = "learned" if self.settings.mode == "on" else learner.gate.route(recall_id)
            if route == "baseline":
                return USUAL
            return Advice(route, learner.adapt(query), recall_id, self._run_of)

    def follow(self, *, from_scratch: bool = False) -> None:
        """Learn what changed in the store since the last call; `from_scratch` (after forgetting) relearns every run."""
        if from_scratch:
            discard_learner(self._archive.store.folder)
            self._saved = None
        if self.settings.mode == "off":
            return
        with self._learning:
            moment = moment_in(self._archive.store.state)  # read before the changes, so never newer than the changes
            if moment == self._moment:
                return
            changed = self._archive.store.take_taught()
            learner = self._learner
            is_other = learner is None or self._moment is None or moment.stamp != self._moment.stamp
            if from_scratch or is_other or not self._learn_changed(changed, moment):
                self._relearn()

    def consolidate(self, now: datetime) -> bool:
        """Relearn and save if enough has changed since the last save; return whether it did."""
        if self.settings.mode == "off":
            return False
        self.follow()
        with self._learning:
            learner = self._learner
            if learner is None or self._saved == self._moment or not _is_due(learner):
                return False
            if learner.changes:
                learner = self._relearn()
            self.consolidated_at = now
            self._save(learner)
        return True

    def close(self) -> None:
        """Save the learner. If this fails, everything is relearned when the memory is next opened."""
        with self._learning, suppress(EncryptionKeyMissingError):  # the user was erased
            learner = self._learner
            if learner is not None and self._saved != self._moment and learner.facts:
                self._save(self._relearn() if learner.changes else learner)

    @property
    def gate(self) -> GateState:
        """The state of the gate; `shadow` until something is learned."""
        with self._lock:
            return "shadow" if self._learner is None else self._learner.gate.state

    def figures(self, ndim: int) -> Figures:
        with self._lock:
            learner = self._learner or Learner(ndim)
            return Figures(
                evidence=learner.gate.evidence(),
                gain=learner.gate.gain(),
                credited=learner.credited,
                exemplars=len(learner.exemplars),
                memories=len(learner.prior),
                facts=learner.facts.copy(),
            )

    def _load(self) -> None:
        self._learner = load_learner(self._archive.store) if self._engine_of is None else None
        if self._learner is None:
            self._relearn()
        else:
            self._moment = self._saved = moment_in(self._archive.store.state)

    def _relearn(self) -> Learner | None:
        """Relearn from all runs, read from one snapshot. Until this is done, recalls use the old learner."""
        with self._archive.store.snapshot() as snapshot:
            state = snapshot.state
            moment, lessons, runs = moment_in(state), list[Lesson](), dict[int, RecalledRun | None]()
            for run, told in all_lessons(snapshot):
                lessons += told
                runs[run_number(told[0].number)] = _recalled(run)
        learner = None if state.ndim is None else self._taught(state.ndim, lessons)
        with self._lock:
            self._learner, self._moment, self._runs = learner, moment, runs
        return learner

    def _taught(self, ndim: int, lessons: Sequence[Lesson]) -> Learner:
        if self._engine_of is None:
            return Learner.from_lessons(ndim, lessons)
        return EngineLearner(ndim, self._engine_of, lessons)

    def _learn_changed(self, changed: Iterable[str | None], moment: Moment) -> bool:
        """Learn the changed runs; return False if a missing or unknown run requires relearning everything."""
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
        with suppress(OSError, EncryptionKeyMissingError):  # only a cache
            if learner is not None and self._moment is not None:
                if self._engine_of is None:
                    save_learner(self._archive.store, learner, self._moment)
                self._saved = self._moment

    def _run_of(self, lesson: int, similarity: float) -> RecalledRun | None:
        number, runs = run_number(lesson), self._runs
        if number not in runs:  # the learner was loaded from disk
            with self._archive.store.snapshot() as snapshot:
                found = run_of_number(snapshot, number)
            runs.setdefault(number, None if found is None else _recalled(found))
        run = runs[number]
        if run is None:
            return None
        return RecalledRun(trajectory_id=run.trajectory_id, similarity=similarity, quality=run.quality)


def _recalled(run: StoredTrajectory) -> RecalledRun:
    return RecalledRun(trajectory_id=run.id, quality=run.quality)


def _is_due(learner: Learner) -> bool:
    return learner.changes * _DUE_SHARE >= len(learner.facts)


# The saved learner is a cache beside the store, used only if its `Moment` matches the store. A damaged file is moved
# aside, and one that is outdated or cannot be decrypted is deleted. Relearning from the runs gives the same result.

LEARNER_FILE = "sona.state"
_DRAFT = "sona.state.new"
_SET_ASIDE = "sona.damaged"
_PURPOSE, _ABOUT = "learner", b"sona.state"


class Moment(msgspec.Struct, frozen=True, array_like=True):
    """The state on which a learner was trained: the store's lineage, the version of its lessons, and the model."""

    lineage: str
    version: int
    mark: int
    stamp: str | None


class _Kept(msgspec.Struct, frozen=True, array_like=True):
    moment: Moment
    state: bytes


def moment_in(state: StoreState) -> Moment:
    return Moment(state.lineage, state.lessons_version, state.lessons_mark, state.stamp)


def load_learner(store: Store) -> Learner | None:
    """Return the saved learner, or None if it does not match the current state of the store."""
    path = store.folder / LEARNER_FILE
    try:
        kept = _read(path, store.key)
        if kept.moment == moment_in(store.state) and not checkpoint.is_former(kept.state):
            return checkpoint.from_bytes(kept.state)
        discard_learner(store.folder)  # outdated, or written by an earlier version; may contain forgotten memories
    except OSError:
        pass
    except UndecipherableError:
        discard_learner(store.folder)
    except (msgspec.DecodeError, ValueError, RecursionError, DamagedStateError):
        with suppress(OSError):
            path.replace(store.folder / _SET_ASIDE)
    return None


def look_at_learner(folder: Path, key: UserKey | None) -> str | None:
    """Return the store lineage of the saved learner, if any. Read-only. Raises `DamagedStateError`."""
    try:
        kept = _read(folder / LEARNER_FILE, key)
        checkpoint.whole_body(kept.state)
    except FileNotFoundError:
        return None
    except (OSError, UndecipherableError, msgspec.DecodeError, ValueError, RecursionError) as error:
        raise DamagedStateError(f"{LEARNER_FILE} cannot be read") from error
    return kept.moment.lineage


def _read(path: Path, key: UserKey | None) -> _Kept:
    data = path.read_bytes()
    if key is not None:
        data = key.cipher(_PURPOSE).open(data, _ABOUT)
    return msgspec.msgpack.decode(data, type=described(_Kept))


def discard_learner(folder: Path) -> None:
    """Delete the saved learner and any damaged one moved aside: both contain vectors of queries and memories."""
    for name in (LEARNER_FILE, _DRAFT, _SET_ASIDE):
        with suppress(OSError):
            (folder / name).unlink()


def save_learner(store: Store, learner: Learner, moment: Moment) -> int:
    """Save a consolidated learner atomically; return its size in bytes. Raises `OSError` and `StoreError`."""
    data = msgspec.msgpack.encode(_Kept(moment, checkpoint.to_bytes(learner)))
    if store.key is not None:
        data = store.key.cipher(_PURPOSE).seal(data, _ABOUT)
    write_private(store.folder / LEARNER_FILE, data)
    return len(data)


def saved_bytes(folder: Path) -> int:
    with suppress(OSError):
        return (folder / LEARNER_FILE).stat().st_size
    return 0
