"""Counts and sums qualities by group, exactly: removing a quality restores the state bit for bit.

Qualities are rounded to thousandths, finer than any verdict (.4, .8, .9) or rating: sums of floats depend on their
order and do not cancel. Individual qualities are not kept, so remove only what was added.
"""

from __future__ import annotations

from collections.abc import Iterator

UNIT = 1_000


def thousandths(quality: float) -> int:
    """Return `quality` in thousandths. Raises `ValueError` outside 0 to 1."""
    if not 0.0 <= quality <= 1.0:
        raise ValueError(f"a quality is 0 to 1, not {quality}")
    return round(quality * UNIT)


class Tallies:
    """Count and sum of qualities by group. Empty groups are dropped. Not thread-safe."""

    def __init__(self) -> None:
        self._groups: dict[str, tuple[int, int]] = {}

    def __iter__(self) -> Iterator[tuple[str, int, int]]:
        """Yield (group, count, sum in thousandths), sorted by group."""
        return ((group, *self._groups[group]) for group in sorted(self._groups))

    def __len__(self) -> int:
        return len(self._groups)

    def move(self, group: str, count: int, thousandths: int) -> None:
        """Change the count and sum of a group. Raises `ValueError`, changing nothing, for an impossible result."""
        before = self._groups.get(group, (0, 0))
        after = (before[0] + count, before[1] + thousandths)
        if not 0 <= after[1] <= after[0] * UNIT:
            raise ValueError(f"{group}: {after[0]} qualities cannot add up to {after[1]}/{UNIT}")
        if after[0]:
            self._groups[group] = after
        else:
            self._groups.pop(group, None)

    def count(self, group: str) -> int:
        """Return the number of qualities of the group."""
        return self._groups.get(group, (0, 0))[0]

    def total(self, group: str) -> float:
        """Return the sum of the group's qualities."""
        return self._groups.get(group, (0, 0))[1] / UNIT
