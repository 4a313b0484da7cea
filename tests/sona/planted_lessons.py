"""Planted lessons: each request has a topic, and each topic has a memory that answers it."""

from __future__ import annotations

import numpy as np

from sona.lesson import Comparison, Contest, Lesson, Vector

NDIM = 24


def unit(vector: Vector) -> Vector:
    return (vector / np.linalg.norm(vector)).astype(np.float32)


class Topics:
    """Topics, each with one direction for its requests and one for the memory that answers them."""

    def __init__(self, count: int = 6, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)
        self.requests = np.array([unit(self._random.normal(size=NDIM)) for _ in range(count)])
        self.memories = np.array([unit(self._random.normal(size=NDIM)) for _ in range(count)])

    def request(self, topic: int) -> Vector:
        return unit(self.requests[topic] + 0.15 * self._random.normal(size=NDIM))

    def lesson(
        self,
        number: int,
        topic: int,
        quality: float = 1.0,
        credit: float = 1.0,
        contest: Contest | Comparison | None = None,
    ) -> Lesson:
        """Return the lesson of a run whose request was about `topic` and which used memory 100 + topic."""
        used = (100 + topic,) if credit else ()
        vectors = self.memories[[topic]] if credit else np.zeros((0, NDIM), dtype=np.float32)
        credits = (credit,) if credit else ()
        return Lesson(number, self.request(topic), used, vectors, credits, quality, contest=contest)

    def lessons(self, count: int, quality: float = 1.0) -> list[Lesson]:
        return [self.lesson(number, number % len(self.requests), quality) for number in range(1, count + 1)]
