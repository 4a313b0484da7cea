"""Counts from a laboratory run, for the closing table and as evidence that faults occurred."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from .history import Finding, History

ADDED_UP = ("kills", "faults", "damages", "bytes")
ENCRYPTED = " (encrypted)"
BROKEN = ("lost", "doubled", "swapped", "resurrected", "foreign", "disagreeing")


@dataclass
class Figures:
    """Counts by name."""

    kills: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    damages: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    totals: Counter[str] = field(default_factory=Counter)
    broken: Counter[str] = field(default_factory=Counter)
    outages: dict[str, list[float]] = field(default_factory=dict)
    """How long, in seconds, each user received no answers after each fault in a cluster."""

    def add(self, history: History, findings: Iterable[Finding]) -> None:
        """Count a run's journaled and stored events, and its violations."""
        self.totals["events"] += len(history.journal)
        self.totals["acks"] += sum(len(set(ids)) for ids in history.acked.values())
        self.totals["memories"] += sum(len(store.memories) for store in (history.stores or {}).values())
        self.totals["forgotten"] += len(history.deleted)
        self.broken.update(finding.kind for finding in findings)

    def as_dict(self) -> dict[str, dict[str, int]]:
        """Return the counts."""
        groups = {name: dict(sorted(getattr(self, name).items())) for name in ("totals", *ADDED_UP)}
        return {**groups, "broken": {kind: self.broken[kind] for kind in BROKEN}}

    def write(self, file: Path) -> None:
        numbers = {**self.as_dict(), "outages": dict(sorted(self.outages.items()))}
        file.write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")

    def table(self) -> str:
        """Return the figures in Markdown, one table per group. The text after a name's last comma is the column."""
        tables = [_table(group, counts) for group, counts in self.as_dict().items() if counts]
        return "\n".join([*tables, *([_outages(self.outages)] if self.outages else [])])


def _table(group: str, counts: dict[str, int]) -> str:
    cells: dict[str, dict[str, int]] = {}
    for name, count in counts.items():
        row, comma, column = name.rpartition(", ")
        cells.setdefault(row if comma else name, {})[column if comma else ""] = count
    columns = sorted({column for row in cells.values() for column in row})
    lines = [[group, *columns], ["---", *("---:" for _ in columns)]]
    for row, values in cells.items():
        lines.append([row, *(f"{values[column]:,}" if column in values else "" for column in columns)])
    if group in ADDED_UP:
        sums = (sum(values.get(column, 0) for values in cells.values()) for column in columns)
        lines.append([f"in all {sum(counts.values()):,}", *(f"{number:,}" for number in sums)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _outages(outages: dict[str, list[float]]) -> str:
    lines = ["| seconds without an answer after | median | longest |", "| --- | ---: | ---: |"]
    for name, found in sorted(outages.items()):
        lines.append(f"| {name} | {statistics.median(found):.1f} | {max(found):.1f} |")
    return "".join(f"{line}\n" for line in lines)
