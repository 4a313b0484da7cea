"""The learner of one user: learns from lessons and adapts queries.

Its state is a function of the lessons in the order of their numbers (`Learner.from_lessons`), so a rebuild without a
lesson forgets that lesson exactly. `learn` and `forget` update the state in less than a millisecond. The result is
approximate until the next rebuild: the means that are subtracted from queries and memories are frozen, older weights
keep their former baseline, and the gate does not recount revised contests. Comparisons and contests influenced by a
forgotten lesson keep their results.

The caller does the ranking, and `checkpoint` does the saving.

Shapes: d = dimensions, n = exemplars, m = used memories.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Self

import msgspec
import numpy as np
import numpy.typing as npt

from sona.association import Numbers, Reached, UsageAssociation
from sona.centering import QueryCentering
from sona.exemplars import Exemplar, condense, exemplar
from sona.gate import Gate
from sona.instant import COLD, InstantLayer
from sona.lesson import Array, Comparison, Contest, Lesson, Vector
from sona.prior import MemoryPrior
from sona.quality import Baselines, weight
from sona.reasoning_bank import ReasoningBank

CAPACITY = 512  # maximum number of exemplars after a rebuild, which condenses older exemplars
RESERVE = 128  # maximum number of exemplars added before the next rebuild
REACH = 0.5
"""Maximum shift of a query. Two memories keep their order if their scores differ by more than `REACH` times the
distance between them.
"""

_NEAR, _KNOWN = 0.2, 0.6

Places = npt.NDArray[np.intp]


class Use(NamedTuple):
    """A memory that was used by the run of an earlier lesson, for `Adaptation.of`.

    `gain` is in (0, 1]. `support` is at least 0 and grows with every such lesson. `similarity` is the cosine of the
    lesson's query to the new query.
    """

    memory: int
    gain: float
    support: float
    lesson: int
    similarity: float


class Adaptation(msgspec.Struct, frozen=True):
    """The learner's effect on the ranking for one query.

    `reached` contains the memories used for similar requests. `direction`, (d,), has a length of at most `REACH`; its
    dot product with a memory's vector is the change in that memory's score. `similarities`, (n,), holds the cosines to
    the lessons in `numbers`, which is ascending and omits lessons without weight.
    """

    reached: Reached
    direction: Vector
    numbers: Numbers
    similarities: Array
    prior: MemoryPrior

    @classmethod
    def of(cls, uses: Iterable[Use], ndim: int) -> Self:
        """Return an adaptation that raises the scores of the memories in `uses` and does not move the query.

        A memory's gain is the maximum over its uses, and its support is the sum over them.

        >>> Adaptation.of([Use(memory=7, gain=0.9, support=0.5, lesson=1, similarity=0.9)], ndim=4).cause(7)
        (1, 0.9)
        """
        ordered = sorted(uses, key=lambda use: (use.memory, use.lesson))
        used = np.array([use.memory for use in ordered], dtype=np.int64)
        sources = np.array([use.lesson for use in ordered], dtype=np.int64)
        gains = np.array([use.gain for use in ordered])
        memories, starts = np.unique(used, return_index=True)
        amounts = np.maximum.reduceat(gains, starts) if ordered else gains
        support = np.add.reduceat([use.support for use in ordered], starts) if ordered else gains
        lessons = {use.lesson: use.similarity for use in sorted(ordered, key=lambda use: use.lesson)}
        return cls(
            reached=Reached(memories, amounts, support, amounts, used, gains, sources),
            direction=np.zeros(ndim, dtype=np.float32),
            numbers=np.array(list(lessons), dtype=np.int64),
            similarities=np.array(list(lessons.values())),
            prior=MemoryPrior(),
        )

    def cause(self, memory: int) -> tuple[int, float] | None:
        """Return (lesson, cosine) for the lesson that reaches `memory`, or None if no lesson does.

        >>> learner = Learner.from_lessons(4, [lesson])
        >>> learner.adapt(lesson.query).cause(memory=7)
        (1, 1.0)
        """
        cause = self.reached.cause(memory)
        return None if cause is None else (cause, float(self.similarities[self.numbers.searchsorted(cause)]))

    def nearest(self) -> list[tuple[int, float]]:
        """Return (lesson, cosine) for the three nearest lessons, nearest first. Ties go to the lowest number.

        >>> learner = Learner.from_lessons(4, [lesson])
        >>> learner.adapt(lesson.query).nearest()
        [(1, 1.0)]
        """
        left, found = self.similarities.copy(), list[tuple[int, float]]()
        for _ in range(min(3, left.size)):
            place = left.argmax()
            found.append((int(self.numbers[place]), float(left[place])))
            left[place] = -np.inf
        return found


@dataclass(frozen=True)
class Fact:
    """The data stored for every lesson, credited or not, so that the lesson can be undone."""

    kind: str
    quality: float
    used: tuple[int, ...]
    credits: tuple[float, ...]
    contest: Contest | Comparison | None


class Learner:
    """The learner of one user. Not thread-safe.

    In the examples, `lesson` has number 1; its run used memory 7 and ended with quality 1.
    """

    def __init__(self, ndim: int, capacity: int = CAPACITY) -> None:
        """Start empty, for vectors of shape (ndim,)."""
        self.ndim = ndim
        self.capacity = capacity
        self.facts: dict[int, Fact] = {}
        self.gate = Gate()
        self.baselines = Baselines()
        self.prior = MemoryPrior()
        self.queries = QueryCentering(ndim)
        self.targets = QueryCentering(ndim)
        self.exemplars: dict[int, Exemplar] = {}
        self._is_condensed = False
        self.bank = ReasoningBank(ndim, reserve=capacity + RESERVE)
        self.association = UsageAssociation(ndim)
        self.instant = InstantLayer(ndim)
        self.changes = 0
        self._bank_places: Places | None = None

    @classmethod
    def from_lessons(cls, ndim: int, lessons: Iterable[Lesson], capacity: int = CAPACITY) -> Self:
        """Return a learner trained on these lessons, in any order. Equal lessons give bit-identical learners.

        >>> learner = Learner.from_lessons(4, [lesson])
        >>> learner.credited
        1
        """
        learner = cls(ndim, capacity)
        ordered = sorted(lessons, key=lambda lesson: lesson.number)
        for lesson in ordered:
            learner.queries.observe(lesson.query)
            for vector in lesson.vectors:
                learner.targets.observe(vector)
            learner.count(lesson)
        kept = [learner._exemplar(lesson) for lesson in ordered if lesson.credit > 0]
        learner.hold(condense(kept, capacity))
        learner.instant.train(list(learner.exemplars.values()), learner.uses_instant)
        return learner

    @property
    def credited(self) -> int:
        """The number of lessons with used memories."""
        return sum(1 for fact in self.facts.values() if fact.used)

    @property
    def uses_instant(self) -> bool:
        """Whether the instant layer acts: the bank is nearly empty, or too full to hold every lesson."""
        return len(self.exemplars) < COLD or self._is_condensed

    def learn(self, lesson: Lesson) -> None:
        """Add a lesson, or replace the lesson with the same number. Raises `ShapeError`.

        >>> learner = Learner(ndim=4)
        >>> learner.learn(lesson)
        >>> learner.credited
        1
        """
        self.changes += 1
        known = self.facts.get(lesson.number)
        if known is not None and self._reweighted(known, lesson):
            return
        if known is not None:
            self.undo(lesson.number, known)
        self.count(lesson, known)
        if lesson.credit > 0:
            self._hold(self._exemplar(lesson))
            if self.uses_instant:
                self.instant.step(self.exemplars[lesson.number], list(self.exemplars.values()))

    def forget(self, numbers: Iterable[int]) -> int:
        """Undo these lessons, except in the gate; return the number of known lessons among them.

        >>> learner = Learner.from_lessons(4, [lesson])
        >>> learner.forget([lesson.number, 99]), learner.credited
        (1, 0)
        """
        known = [(number, fact) for number in numbers if (fact := self.facts.get(number)) is not None]
        for number, fact in known:
            self.undo(number, fact)
        self.changes += len(known)
        return len(known)

    def adapt(self, query: Vector) -> Adaptation | None:
        """Return the adaptation of `query`, a unit vector (d,), or None if there are no lessons. Raises `ShapeError`.

        Lessons without used memories do not contribute; the caller handles the outcome of their runs.

        >>> learner = Learner.from_lessons(4, [lesson])
        >>> adaptation = learner.adapt(lesson.query)
        >>> adaptation.reached.memories, adaptation.cause(7)
        (array([7]), (1, 1.0))
        """
        if not self.facts:
            return None
        centred = self.queries.centre(query)
        numbers, cosines = self.association.numbers, self.association.similarities(centred)
        weighed = self.association.weights > 0.0
        # The association contains every exemplar of the bank, so a single product gives the cosines for both.
        # `dot` instead of `@`, here and in called functions, saves 4 us with cold caches, as in a recall (measured).
        request = centred.astype(np.float64)
        moved = request + self.bank.shift_by(cosines.take(self._places_of_bank()))
        if self.uses_instant:
            unit = moved / np.linalg.norm(moved)
            share = _locality(cosines[weighed])
            moved = unit + share * (self.instant.move(unit) - unit) if share > 0.0 else request
        reached = self.association.reach_by(cosines)
        return Adaptation(reached, _within(moved, request), numbers[weighed], cosines[weighed], self.prior)

    def hold(self, exemplars: Iterable[Exemplar]) -> None:
        """Replace all exemplars and solve the bank."""
        self._bank_places = None
        self.exemplars = {one.number: one for one in exemplars}
        kept = list(self.exemplars.values())
        self._is_condensed = any(one.others for one in kept)  # cached for recalls, because it changes only here
        self.bank = ReasoningBank.solve(
            [one.number for one in kept],
            np.array([one.request for one in kept], dtype=np.float64).reshape(-1, self.ndim),
            np.array([one.answer for one in kept], dtype=np.float64).reshape(-1, self.ndim),
            [one.weight for one in kept],
            reserve=self.capacity + RESERVE,
        )
        self.association = UsageAssociation(self.ndim)
        for one in kept:
            self.association.add(one.number, one.request, one.used, one.credits, one.worth)

    def _places_of_bank(self) -> Places:
        """Return the positions of the bank's exemplars among the association's exemplars."""
        if self._bank_places is None:
            self._bank_places = np.searchsorted(self.association.numbers, self.bank.numbers)
        return self._bank_places

    def _exemplar(self, lesson: Lesson) -> Exemplar:
        weighed = weight(lesson.quality, self.baselines.of(lesson.kind), lesson.credit)
        return exemplar(lesson, weighed, self.queries, self.targets)

    def _hold(self, one: Exemplar) -> None:
        self._bank_places = None
        self.exemplars[one.number] = one
        self.bank.add(one.number, one.request, one.answer, one.weight)
        self.association.add(one.number, one.request, one.used, one.credits, one.worth)

    def count(self, lesson: Lesson, before: Fact | None = None) -> None:
        """Add the lesson to the facts, baselines, prior and gate; only changes since `before` are added to the gate.

        >>> learner = Learner(ndim=4)
        >>> learner.count(lesson)
        >>> learner.credited, len(learner.exemplars)
        (1, 0)
        """
        self.facts[lesson.number] = Fact(lesson.kind, lesson.quality, lesson.used, lesson.credits, lesson.contest)
        self.baselines.add(lesson.kind, lesson.quality)
        for memory in lesson.used:
            self.prior.add(memory, lesson.kind, lesson.quality)
        if lesson.credit > 0 and lesson.is_counted and not (before and before.used):
            self.gate.credit()
        if before is None or before.contest is None:
            self.gate.observe(lesson.contest)

    def undo(self, number: int, fact: Fact) -> None:
        """Remove a lesson and its exemplar from everything except the gate.

        >>> learner = Learner.from_lessons(4, [lesson])
        >>> learner.undo(1, learner.facts[1])
        >>> learner.credited
        0
        """
        self._bank_places = None
        del self.facts[number]
        self.baselines.remove(fact.kind, fact.quality)
        for memory in fact.used:
            self.prior.remove(memory, fact.kind, fact.quality)
        if self.exemplars.pop(number, None) is not None:
            self.bank.forget(number)
            self.association.forget(number)

    def _reweighted(self, known: Fact, lesson: Lesson) -> bool:
        """If only the quality of a lesson changed, update its weight and return True; otherwise, return False."""
        now = Fact(lesson.kind, lesson.quality, lesson.used, lesson.credits, lesson.contest)
        old = self.exemplars.get(lesson.number)
        if now != Fact(known.kind, lesson.quality, known.used, known.credits, known.contest):
            return False
        self.facts[lesson.number] = now
        self.baselines.revise(lesson.kind, known.quality, lesson.quality)
        for memory in lesson.used:
            self.prior.revise(memory, lesson.kind, known.quality, lesson.quality)
        if old is not None and not old.others:
            self._weigh(self._exemplar(lesson))
        return True

    def _weigh(self, one: Exemplar) -> None:
        self._bank_places = None
        self.exemplars[one.number] = one
        if not self.bank.reweight(one.number, one.weight):  # not in the bank, because it had no weight
            self.bank.add(one.number, one.request, one.answer, one.weight)
        if not self.association.reweight(one.number, one.worth):
            self.association.add(one.number, one.request, one.used, one.credits, one.worth)


def _locality(cosines: Array) -> float:
    """Return the fraction of the instant layer's shift to apply: 0 for largest cosines up to .2, 1 from .6 on."""
    nearest = float(cosines.max(initial=-1.0))
    return min(max((nearest - _NEAR) / (_KNOWN - _NEAR), 0.0), 1.0)


def _within(moved: Array, request: Array) -> Vector:
    """Return unit(moved) - unit(request), clipped to length `REACH`; exactly zero when they are equal."""
    length = math.sqrt(moved.dot(moved))
    if not math.isfinite(length) or length == 0.0:
        return np.zeros(request.shape, dtype=np.float32)
    direction = moved / length - request / math.sqrt(request.dot(request))
    far = math.sqrt(direction.dot(direction))
    if far > REACH:
        direction *= REACH / far
    return direction.astype(np.float32)
