"""Reads the records of a soak test, one JSON object per line, and joins the parts that have the same settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

Line = Mapping[str, Any]

_ALIKE = ("light", "users", "restart_minutes")


class Sample(NamedTuple):
    """One sample. `at_s` is its time on the axis shared by all parts; `life_s` is the time since the daemon's run
    `life` started.

    `is_disturbed`: whether the daemon was stopped or killed since the previous sample.
    """

    at_s: float
    life: int
    life_s: float
    is_disturbed: bool
    line: Line


@dataclass
class Joined:
    """Parts with the same kind of daemon, number of users and time between restarts, joined end to end."""

    parts: list[Line] = field(default_factory=list)
    ends: list[Line] = field(default_factory=list)
    """The last line of each part: its event is `end` unless the part was killed."""
    samples: list[Sample] = field(default_factory=list)
    others: list[Line] = field(default_factory=list)
    """All other lines."""

    @property
    def name(self) -> str:
        """What the parts have in common."""
        first = self.parts[0]
        form = "one process" if first["light"] else "with Ray"
        return f"{form}, {first['users']} users, restarts every {first['restart_minutes']:g} minutes"

    @property
    def hours(self) -> float:
        """The total duration of all parts."""
        return sum(float(end["soaked_s"]) for end in self.ends) / 3_600

    def lines(self, event: str) -> Iterator[Line]:
        """Yield the lines in `others` with this event."""
        return (line for line in self.others if line["event"] == event)

    def lives(self) -> list[list[Sample]]:
        """Return the samples of each run of the daemon."""
        found: dict[int, list[Sample]] = {}
        for sample in self.samples:
            found.setdefault(sample.life, []).append(sample)
        return list(found.values())

    def requests(self) -> dict[str, list[float]]:
        """Return the latencies of all answered requests in milliseconds, by kind."""
        return milliseconds(self.samples)

    def add(self, part: list[Line]) -> None:
        """Add the lines of one part."""
        offset_s = self.hours * 3_600
        life, began_s, is_disturbed = len(self.lives()), 0.0, False
        for line in part[1:]:
            at_s = float(line["soaked_s"])
            if line["event"] == "sample":
                self.samples.append(Sample(offset_s + at_s, life, at_s - began_s, is_disturbed, line))
                is_disturbed = False
            elif line["event"] == "restart":
                life, began_s, is_disturbed = life + 1, at_s, True
        self.others += [line for line in part[1:] if line["event"] != "sample"]
        self.parts.append(part[0])
        self.ends.append(part[-1])


def read(folders: Iterable[Path]) -> list[Joined]:
    """Return the joined parts of the records in all folders. Incomplete lines are left out."""
    joined: dict[tuple[Any, ...], Joined] = {}
    for folder in folders:
        for part in _parts((folder / "record.jsonl").read_text(encoding="utf-8")):
            joined.setdefault(tuple(part[0][name] for name in _ALIKE), Joined()).add(part)
    return list(joined.values())


def milliseconds(samples: Iterable[Sample]) -> dict[str, list[float]]:
    """Return the latencies of answered requests in milliseconds, by kind."""
    found: dict[str, list[float]] = {}
    for sample in samples:
        for kind, values in sample.line["ms"].items():
            found.setdefault(kind, []).extend(values)
    return found


def errors(samples: Iterable[Sample], *, is_disturbed: bool) -> Counter[str]:
    """Count errors by kind and code in the samples whose `is_disturbed` equals the argument."""
    found: Counter[str] = Counter()
    for sample in samples:
        if sample.is_disturbed == is_disturbed:
            found.update(sample.line["errors"])
    return found


def _parts(text: str) -> list[list[Line]]:
    parts: list[list[Line]] = []
    for one in text.splitlines():
        try:
            line = msgspec.json.decode(one)
        except msgspec.DecodeError:
            continue  # cut off when the soak was killed
        if line["event"] == "part":
            parts.append([])
        if parts:
            parts[-1].append(line)
    return parts
