"""What the runs that used a memory say of it, before any query is known: an empirical-Bayes mean of their qualities.

SONA.md 5: theta_m = (sum r + kappa theta_0)/(n + kappa), where theta_0 is the mean of all observations of a kind and
kappa is 1. One memory may be used by runs of several kinds, and a memory is not bad because a kind of run is hard: so
each quality is held against the theta_0 of its own kind. lift = sum (r - theta_0)/(n + kappa) is theta_m - theta_0
where there is one kind. What this does not do: decide what the lift may change; its weight is the caller's (SONA.md 6).
"""

from __future__ import annotations

from typing import Self

import msgspec

from sona.errors import DamagedStateError
from sona.tally import UNIT, Tallies, thousandths

KAPPA = 1.0
ENOUGH = 3
_START = 0.6
_VERSION = 1


class _State(msgspec.Struct, frozen=True, array_like=True):
    version: int
    observations: list[tuple[int, str, int, int]]


class MemoryPrior:
    """Qualities by memory and kind of run. The state follows from the observations held, in any order."""

    def __init__(self, kappa: float = KAPPA) -> None:
        """`kappa` is how many observations the mean of the kind counts for, above 0."""
        self._kappa = kappa
        self._kinds = Tallies()
        self._memories: dict[int, Tallies] = {}

    def __len__(self) -> int:
        """How many memories have an observation."""
        return len(self._memories)

    def add(self, memory: int, kind: str, quality: float) -> None:
        """Let a run of `kind` that used `memory` count. Raises `ValueError` for a quality that is not 0 to 1."""
        self._move(memory, kind, 1, thousandths(quality))

    def remove(self, memory: int, kind: str, quality: float) -> None:
        """Forget an observation, exactly. Raises `ValueError` where there can be none like it."""
        self._move(memory, kind, -1, -thousandths(quality))

    def revise(self, memory: int, kind: str, old: float, new: float) -> None:
        """Let an observation that was added with quality `old` count with `new`, exactly. Raises as `remove` does."""
        self._move(memory, kind, 0, thousandths(new) - thousandths(old))

    def forget(self, memory: int) -> None:
        """Forget all observations of a memory, in the means of their kinds too."""
        for kind, count, total in self._memories.pop(memory, Tallies()):
            self._kinds.move(kind, -count, -total)

    def mean(self, kind: str) -> float:
        """Return theta_0 of `kind`; .6 for a kind that was never seen."""
        count = self._kinds.count(kind)
        return self._kinds.total(kind) / count if count else _START

    def theta(self, memory: int, kind: str) -> float:
        """Return the quality expected of a run of `kind` that uses `memory`, however few observations there are.

        0 to 1 where the memory was used by runs of this kind alone.
        """
        return self.mean(kind) + self._lift(memory)

    def lift(self, memory: int, enough: int = ENOUGH) -> float:
        """Return how much better than usual the runs went that used `memory`; 0 with fewer than `enough` of them."""
        return self._lift(memory) if self.count(memory) >= enough else 0.0

    def count(self, memory: int) -> int:
        """Return how many observations a memory has."""
        return sum(count for _, count, _ in self._of(memory))

    def to_bytes(self) -> bytes:
        """Return the state: the same bytes for the same observations."""
        observations = [(memory, *group) for memory in sorted(self._memories) for group in self._memories[memory]]
        return msgspec.msgpack.encode(_State(_VERSION, observations))

    @classmethod
    def from_bytes(cls, data: bytes, kappa: float = KAPPA) -> Self:
        """Return the prior that `to_bytes` saved. Raises `DamagedStateError`, also for another version."""
        prior = cls(kappa)
        try:
            state = msgspec.msgpack.decode(data, type=_State)
            for memory, kind, count, total in state.observations:
                prior._move(memory, kind, count, total)
        except (msgspec.DecodeError, ValueError) as error:
            raise DamagedStateError(f"prior: {error}") from error
        if state.version != _VERSION:
            raise DamagedStateError("prior: another version")
        return prior

    def _of(self, memory: int) -> Tallies:
        return self._memories.get(memory, Tallies())

    def _move(self, memory: int, kind: str, count: int, total: int) -> None:
        tallies = self._of(memory)
        tallies.move(kind, count, total)
        self._kinds.move(kind, count, total)
        if tallies:
            self._memories[memory] = tallies
        else:
            self._memories.pop(memory, None)

    def _lift(self, memory: int) -> float:
        excess = sum(total / UNIT - count * self.mean(kind) for kind, count, total in self._of(memory))
        return excess / (self.count(memory) + self._kappa)
