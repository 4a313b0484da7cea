"""What a run of the laboratory did, counted: for the closing table, and so that a test can tell that faults came."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from .history import Finding, History

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

    def add(self, history: History, findings: Iterable[Finding]) -> None:
        """Count what a run journaled, stored and broke."""
        self.totals["events"] += len(history.journal)
        self.totals["acks"] += sum(len(set(ids)) for ids in history.acked.values())
        self.totals["memories"] += sum(len(store.memories) for store in (history.stores or {}).values())
        self.totals["forgotten"] += len(history.deleted)
        self.broken.update(finding.kind for finding in findings)

    def as_dict(self) -> dict[str, dict[str, int]]:
        groups = {
            name: dict(sorted(getattr(self, name).items()))
            for name in ("totals", "kills", "faults", "damages", "bytes")
        }
        return {**groups, "broken": {kind: self.broken[kind] for kind in BROKEN}}

    def write(self, file: Path) -> None:
        file.write_text(json.dumps(self.as_dict(), indent=2) + "\n", encoding="utf-8")

    def table(self) -> str:
        """The figures as Markdown."""
        rows = [
            f"| {group} | {name} | {count:,} |"
            for group, counts in self.as_dict().items()
            for name, count in counts.items()
        ]
        totals = [
            f"| {name} | **in all** | **{getattr(self, name).total():,}** |"
            for name in ("kills", "faults", "damages", "bytes")
        ]
        return "\n".join(["| | what | number |", "|---|---|---:|", *rows, *totals]) + "\n"
