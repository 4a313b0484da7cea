"""Lessons, the input of the learner: one recall and the outcome of its run.

In this package, a memory is represented by a number and a vector.

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
    """The result of an interleaved recall: the number of used memories that each ranking contributed."""

    learned: int
    baseline: int


class Comparison(NamedTuple):
    """The result of a comparison (`comparison`): the factors of bets on and against the learned ranking."""

    learned: float
    baseline: float


@dataclass(frozen=True)
class Lesson:
    """One recall, the memories used by its run, and the outcome of the run.

    `number` is unique; lessons are ordered by it. `query`, (d,), is uncentred and of unit length. `used` holds the
    numbers of the used memories, and `vectors`, (k, d), holds their unit vectors. `credits`, (k,), is 1 for a memory
    that was named, and .5 for a memory that was inferred, or named without a choice. `quality` is between 0 and 1;
    `kind` groups runs with comparable qualities. `contest` is None if rankings were neither interleaved nor compared.
    `is_counted` is True for only one lesson per run, because several recalls in a run are no stronger evidence than
    one.
    """

    number: int
    query: Vector
    used: tuple[int, ...]
    vectors: Vector
    credits: tuple[float, ...]
    quality: float
    kind: str = "run"
    contest: Contest | Comparison | None = None
    is_counted: bool = True

    @property
    def credit(self) -> float:
        """The highest credit of a used memory, or 0 if no memory was used."""
        return max(self.credits, default=0.0)
