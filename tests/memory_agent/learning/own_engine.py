"""Learning engines written as a caller would write them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sona import Adaptation, Lesson, Use


class NearestUses:
    """Raises the scores of memories used by runs with similar queries."""

    def __init__(self, ndim: int) -> None:
        self._ndim = ndim
        self._lessons: dict[int, Lesson] = {}

    def learn(self, lesson: Lesson) -> None:
        self._lessons[lesson.number] = lesson

    def forget(self, numbers: Iterable[int]) -> int:
        return sum(self._lessons.pop(number, None) is not None for number in numbers)

    def adapt(self, query: Any) -> Adaptation | None:
        near = [(float(query @ one.query), one) for one in self._lessons.values()]
        uses = [
            Use(memory, cosine * one.quality, cosine, one.number, cosine)
            for cosine, one in near
            if cosine > 0.5 and one.quality > 0.5
            for memory in one.used
        ]
        return Adaptation.of(uses, self._ndim) if uses else None


class Failing(NearestUses):
    """Fails at each call."""

    def learn(self, lesson: Lesson) -> None:
        raise RuntimeError("no graphics card")

    def adapt(self, query: Any) -> Adaptation | None:
        raise RuntimeError("no graphics card")


class Misshapen(NearestUses):
    """Returns a direction of the wrong dimension."""

    def adapt(self, query: Any) -> Adaptation | None:
        return Adaptation.of([Use(1, 0.5, 0.5, 1, 0.5)], self._ndim + 1)


class Exaggerating(NearestUses):
    """Returns a gain above 1, which would put one memory above all others."""

    def adapt(self, query: Any) -> Adaptation | None:
        return Adaptation.of([Use(1, 50.0, 0.5, 1, 0.5)], self._ndim)


class Unknowing(NearestUses):
    """Returns NaN."""

    def adapt(self, query: Any) -> Adaptation | None:
        return Adaptation.of([Use(1, float("nan"), 0.5, 1, 0.5)], self._ndim)


def unavailable(ndim: int) -> NearestUses:
    """Fail when an engine is created."""
    raise OSError(f"no room for {ndim} dimensions")


NO_CLASS = 7
