"""What the learner is told of one recall whose run has ended: plain data.

A lesson is complete in itself: the learner's whole state is a function of the lessons in the order of their numbers, so
that it can be learnt again to the last bit, and forgetting is learning without. What this does not do: know what a
memory says; here it is a number and a vector.

Shapes: d = dimensions of an embedding, k = memories used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float32]
Array = npt.NDArray[np.float64]


class Contest(NamedTuple):
    """What an interleaved recall showed of two rankings: how many used memories each of them had brought in alone."""

    learned: int
    baseline: int


@dataclass(frozen=True)
class Lesson:
    """One recall, what its run used, how the run ended.

    `number` orders lessons and is unique. `query` is (d,), raw, of unit length. `used` are the memories' numbers,
    `vectors` (k, d) theirs, of unit length, and `credits` (k,) 1 where the run said so, .5 where it was inferred.
    `quality` is 0 to 1; `kind` groups runs whose quality is compared. `contest` is None where the recall was not
    interleaved. `is_counted`: it is the one of its run that the gate counts, since a run that asks often says no more.
    """

    number: int
    query: Vector
    used: tuple[int, ...]
    vectors: Vector
    credits: tuple[float, ...]
    quality: float
    kind: str = "run"
    contest: Contest | None = None
    is_counted: bool = True

    @property
    def credit(self) -> float:
        """The credit of the lesson as a whole; 0 where nothing is known to have been used."""
        return max(self.credits, default=0.0)
