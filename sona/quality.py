"""Weights a run by the amount by which its quality exceeds the baseline of its kind.

The baseline of a kind is b = (6*.6 + sum q)/(6 + n), clipped to [.5, .8]. The weight of a trajectory is clip((q - b)/(1
- b), 0, 1) * credit. Failures have weight 0.

Qualities are summed as integer thousandths, because sums of floats depend on the order of addition and cannot be undone
exactly. Individual qualities are not stored, so the caller must remove only qualities that were added.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

import msgspec

from sona.errors import DamagedStateError

START, PRIOR_COUNT = 0.6, 6
LOWEST, HIGHEST = 0.5, 0.8
UNIT = 1_000
_VERSION = 1


def weight(quality: float, baseline: float, credit: float) -> float:
    """Return the weight of a trajectory in the bank, 0 to `credit`. `baseline` must be below 1."""
    return min(max((quality - baseline) / (1.0 - baseline), 0.0), 1.0) * credit


class _State(msgspec.Struct, frozen=True, array_like=True):
    version: int
    kinds: list[tuple[str, int, int]]


_decoder = msgspec.msgpack.Decoder(_State)


class Baselines:
    """The baselines of all kinds of run. The state does not depend on the order of the runs."""

    def __init__(self) -> None:
        self._kinds = Tallies()

    def add(self, kind: str, quality: float) -> None:
        """Add a run. Like `remove` and `revise`, raises `ValueError` if the quality is not between 0 and 1."""
        self._kinds.move(kind, 1, thousandths(quality))

    def remove(self, kind: str, quality: float) -> None:
        """Remove a run that was added with this quality, undoing `add` exactly."""
        self._kinds.move(kind, -1, -thousandths(quality))

    def revise(self, kind: str, old: float, new: float) -> None:
        """Change the quality of a run as if `new` had been added instead of `old`."""
        self._kinds.move(kind, 0, thousandths(new) - thousandths(old))

    def of(self, kind: str) -> float:
        """Return the baseline of `kind`, from .5 to .8, or .6 for an unseen kind."""
        mean = (PRIOR_COUNT * START + self._kinds.total(kind)) / (PRIOR_COUNT + self._kinds.count(kind))
        return min(max(mean, LOWEST), HIGHEST)

    def to_bytes(self) -> bytes:
        return msgspec.msgpack.encode(_State(_VERSION, list(self._kinds)))

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Restore baselines saved by `to_bytes`. Raises `DamagedStateError` if the bytes are damaged or the version
        differs.
        """
        baselines = cls()
        try:
            state = _decoder.decode(data)
            for kind, count, total in state.kinds:
                baselines._kinds.move(kind, count, total)
        except (msgspec.DecodeError, ValueError) as error:
            raise DamagedStateError(f"quality: {error}") from error
        if state.version != _VERSION:
            raise DamagedStateError("quality: different version")
        return baselines


def thousandths(quality: float) -> int:
    """Return `quality` in thousandths. Raises `ValueError` if it is not between 0 and 1."""
    if not 0.0 <= quality <= 1.0:
        raise ValueError(f"a quality must be between 0 and 1, not {quality}")
    return round(quality * UNIT)


class Tallies:
    """The number and sum of the qualities in each group. Empty groups are dropped. Not thread-safe."""

    def __init__(self) -> None:
        self._groups: dict[str, tuple[int, int]] = {}

    def __iter__(self) -> Iterator[tuple[str, int, int]]:
        """Yield (group, count, sum in thousandths), sorted by group."""
        return ((group, *self._groups[group]) for group in sorted(self._groups))

    def __len__(self) -> int:
        return len(self._groups)

    def move(self, group: str, count: int, thousandths: int) -> None:
        """Change a group. If the result is impossible, raises `ValueError` and changes nothing."""
        before = self._groups.get(group, (0, 0))
        after = (before[0] + count, before[1] + thousandths)
        if not 0 <= after[1] <= after[0] * UNIT:
            raise ValueError(f"{group}: {after[0]} qualities cannot add up to {after[1]}/{UNIT}")
        if after[0]:
            self._groups[group] = after
        else:
            self._groups.pop(group, None)

    def count(self, group: str) -> int:
        return self._groups.get(group, (0, 0))[0]

    def total(self, group: str) -> float:
        return self._groups.get(group, (0, 0))[1] / UNIT
