"""The expected quality of runs that use a memory, independent of the query: an empirical-Bayes mean.

theta_m = (sum r + kappa theta_0)/(n + kappa), where theta_0 is the mean of all observations of a kind and kappa is 1.
Runs of several kinds may use a memory, and some kinds are harder than others. Therefore, each quality is compared with
the theta_0 of its own kind: lift = sum (r - theta_0)/(n + kappa). With only one kind, this is theta_m - theta_0. The
caller weights the lift.
"""

from __future__ import annotations

from typing import Self

import msgspec

from sona.errors import DamagedStateError
from sona.quality import UNIT, Tallies, thousandths

KAPPA = 1.0
ENOUGH = 3
_START = 0.6
_VERSION = 1


class _State(msgspec.Struct, frozen=True, array_like=True):
    version: int
    observations: list[tuple[int, str, int, int]]


_decoder = msgspec.msgpack.Decoder(_State)


class MemoryPrior:
    """Qualities by memory and kind of run. The state does not depend on the order of the observations."""

    def __init__(self, kappa: float = KAPPA) -> None:
        """Start empty. The mean of a kind is weighted like `kappa` observations; `kappa` must be positive."""
        self._kappa = kappa
        self._kinds = Tallies()
        self._memories: dict[int, Tallies] = {}

    def __len__(self) -> int:
        return len(self._memories)

    def add(self, memory: int, kind: str, quality: float) -> None:
        """Add a run of `kind` that used `memory`. Raises `ValueError` if the quality is not between 0 and 1."""
        self._move(memory, kind, 1, thousandths(quality))

    def remove(self, memory: int, kind: str, quality: float) -> None:
        """Remove an observation, undoing `add` exactly. Raises `ValueError` if the observation cannot have been
        added.
        """
        self._move(memory, kind, -1, -thousandths(quality))

    def revise(self, memory: int, kind: str, old: float, new: float) -> None:
        """Change an observation as if `new` had been added instead of `old`. Raises the same errors as `remove`."""
        self._move(memory, kind, 0, thousandths(new) - thousandths(old))

    def mean(self, kind: str) -> float:
        """Return theta_0 of `kind`, or .6 for an unseen kind."""
        count = self._kinds.count(kind)
        return self._kinds.total(kind) / count if count else _START

    def theta(self, memory: int, kind: str) -> float:
        """Return the expected quality of a run of `kind` that uses `memory`, however few observations there are."""
        return self.mean(kind) + self._lift(memory)

    def lift(self, memory: int, enough: int = ENOUGH) -> float:
        """Return the lift of runs that used `memory`, or 0 if there are fewer than `enough` observations."""
        return self._lift(memory) if self.count(memory) >= enough else 0.0

    def count(self, memory: int) -> int:
        return sum(count for _, count, _ in self._of(memory))

    def to_bytes(self) -> bytes:
        """Return the state as bytes. Equal observations yield identical bytes."""
        observations = [(memory, *group) for memory in sorted(self._memories) for group in self._memories[memory]]
        return msgspec.msgpack.encode(_State(_VERSION, observations))

    @classmethod
    def from_bytes(cls, data: bytes, kappa: float = KAPPA) -> Self:
        """Restore a prior saved by `to_bytes`. Raises `DamagedStateError` if the bytes are damaged or the version
        differs.
        """
        prior = cls(kappa)
        try:
            state = _decoder.decode(data)
            for memory, kind, count, total in state.observations:
                prior._move(memory, kind, count, total)
        except (msgspec.DecodeError, ValueError) as error:
            raise DamagedStateError(f"prior: {error}") from error
        if state.version != _VERSION:
            raise DamagedStateError("prior: different version")
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
