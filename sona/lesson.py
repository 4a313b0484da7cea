"""Lessons: what the learner receives about one recall after its run has ended.

The learner's whole state is a function of the lessons in the order of their numbers. A memory is a number and a vector
here.

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
    """The result of an interleaved recall: how many used memories each ranking contributed."""

    learned: int
    baseline: int


class Comparison(NamedTuple):
    """The result of a comparison (`comparison`): the factors of bets on the learned ranking, and of bets against it."""

    learned: tuple[float, float, float]
    baseline: tuple[float, float, float]


@dataclass(frozen=True)
class Lesson:
    """One recall, the memories its run used, and how the run ended.

    `number` is unique and orders lessons. `query` is (d,), uncentred, of unit length. `used` are numbers of memories,
    `vectors` (k, d) their unit vectors, `credits` (k,) 1 when named, .5 when inferred or named without a choice.
    `quality` is 0 to 1; `kind` groups runs with comparable qualities. `contest` is None when rankings were neither
    interleaved nor compared. `is_counted` is True for one lesson per run: a run with many recalls is not more evidence
    than others.
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
        """The highest credit of a used memory; 0 without any."""
        return max(self.credits, default=0.0)
