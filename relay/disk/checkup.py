"""The base class of checkups. A checkup scans the databases of an environment in one snapshot, and counts faults.

A finding states the location and the kind of a fault, but never contains text or ids.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import msgspec

from relay.disk.transaction import Pair, Transaction

UNREADABLE = "does not match its checksum"
_STEP = 1_000  # pairs between progress reports

Report = Callable[[str, int, int], None]
"""Called with the name of the step, the number of pairs checked, and the total (0 if unknown)."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A fault, and the number of times it was found. `place` is a file, or a class of keys in a file."""

    place: str
    fault: str
    count: int = 1


class Findings:
    """Counts faults by place and kind."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(self, place: str, fault: str, count: int = 1) -> None:
        if count:
            self._counts[place, fault] += count

    def require(self, holds: object, place: str, fault: str) -> bool:
        """Add a fault unless `holds`; return `holds`."""
        if not holds:
            self.add(place, fault)
        return bool(holds)

    def listed(self) -> tuple[Finding, ...]:
        return tuple(Finding(place=place, fault=fault, count=count) for (place, fault), count in self._counts.items())


class Checkup(ABC):
    """Checks one environment. A subclass lists its checks."""

    def __init__(self, transaction: Transaction, findings: Findings, report: Report) -> None:
        self.transaction = transaction
        self.findings = findings
        self._report = report

    @abstractmethod
    def checks(self) -> Sequence[Callable[[], None]]: ...

    def run(self) -> None:
        for check in self.checks():
            check()

    def walk(self, database: str) -> Iterator[Pair]:
        """Yield the pairs of a database, and report progress."""
        total = self.transaction.count(database)
        for done, pair in enumerate(self.transaction.scan(database)):
            if done % _STEP == 0:
                self._report(database, done, total)
            yield pair
        self._report(database, total, total)
