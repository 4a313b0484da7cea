"""Weighs runs by how much better they ended than the baseline of their kind.

b = (6*.6 + sum q)/(6 + n) per kind, clipped to [.5, .8]; advantage q - b; the weight of a trajectory is
clip((q - b)/(1 - b), 0, 1) * credit. Failures have weight 0: moving queries away from them gained nothing (measured).
Quality alone as the weight would let a kind of run that nearly always succeeds outweigh the others.
"""

from __future__ import annotations

from typing import Self

import msgspec

from sona.errors import DamagedStateError
from sona.tally import Tallies, thousandths

START, PRIOR_COUNT = 0.6, 6
LOWEST, HIGHEST = 0.5, 0.8
_VERSION = 1


def advantage(quality: float, baseline: float) -> float:
    """Return the advantage of a run over its baseline, -1 to 1."""
    return quality - baseline


def weight(quality: float, baseline: float, credit: float) -> float:
    """Return the weight of a trajectory in the bank, 0 to `credit`. `baseline` must be below 1."""
    return min(max(advantage(quality, baseline) / (1.0 - baseline), 0.0), 1.0) * credit


class _State(msgspec.Struct, frozen=True, array_like=True):
    version: int
    kinds: list[tuple[str, int, int]]


class Baselines:
    """The baseline of each kind of run. The state does not depend on the order of the runs."""

    def __init__(self) -> None:
        self._kinds = Tallies()

    def add(self, kind: str, quality: float) -> None:
        """Add a run. Raises `ValueError` for a quality outside 0 to 1, as `remove` and `revise` do."""
        self._kinds.move(kind, 1, thousandths(quality))

    def remove(self, kind: str, quality: float) -> None:
        """Remove a run added with this quality, exactly."""
        self._kinds.move(kind, -1, -thousandths(quality))

    def revise(self, kind: str, old: float, new: float) -> None:
        """Change the quality of a run from `old` to `new`, exactly."""
        self._kinds.move(kind, 0, thousandths(new) - thousandths(old))

    def of(self, kind: str) -> float:
        """Return the baseline of `kind`, .5 to .8; .6 for an unseen kind."""
        mean = (PRIOR_COUNT * START + self._kinds.total(kind)) / (PRIOR_COUNT + self._kinds.count(kind))
        return min(max(mean, LOWEST), HIGHEST)

    def to_bytes(self) -> bytes:
        """Return the state; the same bytes for the same qualities."""
        return msgspec.msgpack.encode(_State(_VERSION, list(self._kinds)))

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return the baselines that `to_bytes` saved. Raises `DamagedStateError`, also for another version."""
        baselines = cls()
        try:
            state = msgspec.msgpack.decode(data, type=_State)
            for kind, count, total in state.kinds:
                baselines._kinds.move(kind, count, total)
        except (msgspec.DecodeError, ValueError) as error:
            raise DamagedStateError(f"quality: {error}") from error
        if state.version != _VERSION:
            raise DamagedStateError("quality: another version")
        return baselines
