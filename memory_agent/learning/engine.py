"""The learning engine of a memory: `sona`, or a custom engine with the same protocol.

The gate of `sona` decides, from the results of runs, whether an engine's ranking is used. A custom engine is not saved;
it is retrained when the memory is opened. If it fails, answers are ranked without it until the memory is reopened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

import numpy as np

from memory_agent.records.embedded import Embedding
from memory_agent.settings import LearningSettings, import_named
from relay.log import log
from sona import REACH, Adaptation, Learner, Lesson

OURS = "sona"


class LearningEngine(Protocol):
    """Learns from lessons which memories help with which queries. One thread calls it at a time.

    Its state must depend only on the lessons that were learned and not forgotten. `sona.Learner` is one.
    """

    def learn(self, lesson: Lesson) -> None:
        """Add a lesson, or replace the lesson that has its number."""
        ...

    def forget(self, numbers: Iterable[int]) -> int:
        """Undo the lessons with these numbers; return how many existed."""
        ...

    def adapt(self, query: Embedding) -> Adaptation | None:
        """Return how to adapt the ranking for a query (a unit vector, (d,)), or None. `sona.Adaptation.of` creates it.

        An adaptation refers to memories and lessons by the numbers that `learn` received.
        """
        ...


EngineOf = Callable[[int], LearningEngine]
"""Returns a new engine for vectors of this dimension."""


def own_engine(settings: LearningSettings) -> EngineOf | None:
    """Return the factory of the custom engine, or None for `sona`. Raises `SettingsError`."""
    if settings.engine == OURS:
        return None
    engine_of: EngineOf = import_named("learning.engine", settings.engine)
    return engine_of


class EngineLearner(Learner):
    """A learner with the gate, baselines and counts of `sona`, and the ranking of a custom engine."""

    def __init__(self, ndim: int, engine_of: EngineOf, lessons: Iterable[Lesson] = ()) -> None:
        """Train a new engine on these lessons, in the order of their numbers."""
        super().__init__(ndim)
        self._engine: LearningEngine | None = None
        with self._guarded():
            self._engine = engine_of(ndim)
        for lesson in sorted(lessons, key=lambda lesson: lesson.number):
            self.learn(lesson)
        self.changes = 0

    def learn(self, lesson: Lesson) -> None:
        self.changes += 1
        known = self.facts.get(lesson.number)
        if known is not None:
            self.undo(lesson.number, known)
        self.count(lesson, known)
        if self._engine is not None:
            with self._guarded():
                self._engine.learn(lesson)

    def forget(self, numbers: Iterable[int]) -> int:
        gone = list(numbers)
        if self._engine is not None:
            with self._guarded():
                self._engine.forget(gone)
        return super().forget(gone)

    def adapt(self, query: Embedding) -> Adaptation | None:
        if self._engine is None or not self.facts:
            return None
        with self._guarded():
            found = self._engine.adapt(query)
            if found is not None:
                _check(found, self.ndim)
            return found
        return None

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Stop using the engine after any error, so that recalls and writes continue."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the engine is the caller's
            self._engine = None
            log.error("learning.engine_failed", error=type(error).__name__)


def _check(found: Adaptation, ndim: int) -> None:
    reached, direction = found.reached, found.direction
    sizes = (
        {len(reached.memories), len(reached.amounts), len(reached.support), len(reached.unweighted)},
        {len(reached.used), len(reached.gains), len(reached.lessons)},
        {len(found.numbers), len(found.similarities)},
    )
    gains = np.concatenate([reached.amounts, reached.unweighted])
    numbers = np.concatenate([gains, reached.support, reached.gains, direction, found.similarities])
    is_ascending = all((np.diff(one) > 0).all() for one in (reached.memories, found.numbers))
    is_explained = np.isin(reached.memories, reached.used).all() and np.isin(reached.lessons, found.numbers).all()
    is_sorted = is_ascending and (np.diff(reached.used) >= 0).all()
    if any(len(one) != 1 for one in sizes) or direction.shape != (ndim,) or not (is_sorted and is_explained):
        raise ValueError("the arrays of an adaptation are inconsistent")
    if not np.isfinite(numbers).all() or np.linalg.norm(direction) > REACH * 1.001 or (gains > 1.0).any():
        raise ValueError("the values of an adaptation are out of range")
