"""What a check found: where, what, and how many of them; never text, and no more than a few names. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec

Report = Callable[[str, int, int], None]
"""Called with (what is being done, how much is done, of how much; 0 when that is not known)."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is not as it should be. `place` is a file, or a class of keys in it."""

    place: str
    fault: str
    count: int = 1


class Findings:
    """Faults as they are met, counted by place and kind."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(self, place: str, fault: str, count: int = 1) -> None:
        """Note a fault, if there is any."""
        if count:
            self._counts[place, fault] += count

    def require(self, holds: bool, place: str, fault: str) -> bool:
        """Note a fault unless `holds`, and return `holds`."""
        if not holds:
            self.add(place, fault)
        return holds

    def listed(self) -> tuple[Finding, ...]:
        """Return what was found, in the order in which each was first met."""
        return tuple(Finding(place=place, fault=fault, count=count) for (place, fault), count in self._counts.items())
