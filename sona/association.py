"""Finds memories used by similar past requests, even if their text does not resemble the new request.

Memory m gains max_j credit_jm clip(x.x_j - floor, 0, 1) weight_j over the lessons j that used it. With a sum instead of
the maximum, frequently used memories would rank high for unrelated requests. The caller weights the gain, because a
gain harms the ranking if use does not recur. Lessons of failed runs have a weight of 0: they boost no memory, but show
whether use recurs (`comparison`). The state depends only on the lessons, not on their order of arrival, and is
reproducible bit for bit.

Shapes: n = lessons, d = dimensions of an embedding, e = uses (pairs of lesson and memory), m = memories reached.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from sona.errors import ShapeError
from sona.lesson import Array, Vector

Numbers = npt.NDArray[np.int64]

FLOOR = 0.2
ALIKE = 0.5  # the minimum cosine at which a past request supports the memories that its run used
_EVEN = 1e-6
_FIRST_ROOM = 64
_SIDES: tuple[Literal["left"], Literal["right"]] = ("left", "right")


class Reached(NamedTuple):
    """The memories reached, (m,) ascending, and their gains, (m,) in [0, 1]. A gain is 0 if only lessons of weight 0
    used the memory.

    `support`, (m,), grows with every similar request that used the memory. `unweighted`, (m,) in (0, 1], holds the
    gains that would result if all lessons had a weight of 1. `used`, `gains` and `lessons`, (e,), hold the memory, the
    gain and the lesson number of each use, ascending by memory and then lesson.
    """

    memories: Numbers
    amounts: Array
    support: Array
    unweighted: Array
    used: Numbers
    gains: Array
    lessons: Numbers

    def cause(self, memory: int) -> int | None:
        """Return the number of the lesson with the highest gain for `memory`, or None. Ties go to the lowest number.

        Gains that differ by at most 1e-6 are ties, because the last bits of a cosine depend on the row's position in
        the matrix.
        """
        place = int(self.memories.searchsorted(memory))
        if place == len(self.memories) or self.memories[place] != memory or not self.amounts[place] > 0.0:
            return None
        start, end = self.used.searchsorted((memory, memory + 1)).tolist()
        gains = self.gains[start:end]
        return int(self.lessons[start + int(((gains >= self.amounts[place] - _EVEN) & (gains > 0.0)).argmax())])


_NONE, _EMPTY = np.empty(0, dtype=np.int64), np.empty(0)
NOTHING = Reached(_NONE, _EMPTY, _EMPTY, _EMPTY, _NONE, _EMPTY, _NONE)


class UsageAssociation:
    """The memories used by each lesson of one user. Not thread-safe."""

    def __init__(self, ndim: int, floor: float = FLOOR) -> None:
        """Start empty. Lessons whose cosine similarity to a request is at most `floor` are ignored."""
        self._floor = floor
        self._numbers = np.empty(0, dtype=np.int64)
        self._weights = np.empty(0)
        self._room = np.zeros((_FIRST_ROOM, ndim), dtype=np.float32)
        self._memories = np.empty(0, dtype=np.int64)  # the memory, credit and lesson row of each use
        self._credits = np.empty(0)
        self._places = np.empty(0, dtype=np.int64)
        self._bound()

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def numbers(self) -> Numbers:
        """The lesson numbers, ascending, (n,). Never changed in place."""
        return self._numbers

    @property
    def weights(self) -> Array:
        """The weight (n,) of each lesson, non-negative, in the order of lesson numbers."""
        return self._weights

    def add(self, number: int, x: Array | Vector, used: Sequence[int], credits: Sequence[float], weight: float) -> bool:
        """Add or replace a lesson: its request `x`, (d,) of unit length, and the memories used, with their credits.

        Returns False, and removes the lesson, when it has no credited use, a negative weight, or a value that is not
        finite. A repeated memory keeps its highest credit.
        """
        self._check(x)
        if len(used) != len(credits):
            raise ShapeError(len(used), (len(credits),))
        self.forget(number)
        credited = sorted((memory, credit) for memory, credit in zip(used, credits, strict=True) if credit > 0.0)
        worth = dict(credited)  # ascending, so the higher of two credits is kept
        is_finite = np.isfinite(x).all() and all(map(math.isfinite, (weight, *worth.values())))
        if not worth or not weight >= 0.0 or not is_finite:
            return False
        place = int(np.searchsorted(self._numbers, number))
        self._insert(place, number, x, weight)
        self._note(place, list(worth), list(worth.values()))
        return True

    def reweight(self, number: int, weight: float) -> bool:
        """Set the weight of a lesson. Return False if the lesson is unknown, or the weight is negative or infinite."""
        place = self._place(number)
        if place is None or not (weight >= 0.0 and math.isfinite(weight)):
            return False
        self._weights[place] = weight
        return True

    def forget(self, number: int) -> bool:
        """Remove a lesson. Returns False if it is unknown."""
        place = self._place(number)
        if place is None:
            return False
        self._remove(place)
        kept = self._places != place
        self._memories, self._credits, self._places = self._memories[kept], self._credits[kept], self._places[kept]
        self._places -= self._places > place
        self._bound()
        return True

    def similarities(self, x: Array | Vector) -> Array:
        """Return the cosine similarity (n,) of `x` (d,) to each lesson's request, in the order of lesson numbers."""
        self._check(x)
        cosines: Vector = self._room[: len(self)].dot(x.astype(np.float32, copy=False))
        return cosines.astype(np.float64)

    def reach(self, x: Array | Vector) -> Reached:
        """Return the memories used for requests like `x`, (d,); empty if `x` is not finite."""
        return self.reach_by(self.similarities(x))

    def reach_by(self, cosines: Array) -> Reached:
        if not len(self) or not math.isfinite(nearest := float(cosines[cosines.argmax()])):  # faster than `max`
            return NOTHING
        above = np.minimum(np.maximum(cosines - self._floor, 0.0), 1.0)
        unweighted = np.maximum.reduceat(self._credits * above.take(self._places), self._starts)
        near = above * self._weights
        gains = self._credits * near.take(self._places)
        best = np.maximum.reduceat(gains, self._starts)
        (reached,) = (unweighted > 0.0).nonzero()
        if nearest - self._floor > ALIKE - self._floor:
            alike = np.maximum(near - (ALIKE - self._floor) * self._weights, 0.0)
            support = np.add.reduceat(self._credits * alike.take(self._places), self._starts)[reached]
        else:
            support = np.zeros(reached.shape)
        parts = (self._distinct[reached], best[reached], support, unweighted[reached])
        return Reached(*parts, self._memories, gains, self._lessons)

    def _note(self, place: int, memories: list[int], credits: list[float]) -> None:
        """Insert the uses of the lesson at position `place`; uses stay ordered by memory, then by lesson."""
        self._places += self._places >= place
        starts, ends = (np.searchsorted(self._memories, memories, side) for side in _SIDES)
        spots = [
            start + int(np.searchsorted(self._places[start:end], place))
            for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
        ]
        self._memories = np.insert(self._memories, spots, memories)
        self._credits = np.insert(self._credits, spots, credits)
        self._places = np.insert(self._places, spots, place)
        self._bound()

    def _bound(self) -> None:
        """Recompute the lesson number of each use, the distinct memories, and the start of each memory's uses.

        Replaces these arrays instead of changing them in place, because earlier results refer to them.
        """
        self._lessons = self._numbers[self._places]
        self._starts = np.flatnonzero(np.diff(self._memories, prepend=self._memories[:1] - 1))
        self._distinct = self._memories[self._starts]

    def _insert(self, place: int, number: int, x: Array | Vector, weight: float) -> None:
        count = len(self)
        if count == len(self._room):
            self._room = np.concatenate([self._room, np.zeros_like(self._room)])
        self._room[place + 1 : count + 1] = self._room[place:count].copy()
        self._room[place] = x
        self._numbers = np.insert(self._numbers, place, number)
        self._weights = np.insert(self._weights, place, weight)

    def _remove(self, place: int) -> None:
        count = len(self)
        self._room[place : count - 1] = self._room[place + 1 : count].copy()
        self._room[count - 1] = 0.0
        self._numbers = np.delete(self._numbers, place)
        self._weights = np.delete(self._weights, place)

    def _place(self, number: int) -> int | None:
        place = int(np.searchsorted(self._numbers, number))
        return place if place < len(self) and self._numbers[place] == number else None

    def _check(self, vector: Array | Vector) -> None:
        if vector.shape != self._room.shape[1:]:
            raise ShapeError(self._room.shape[1], vector.shape)
