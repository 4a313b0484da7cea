"""Formats a burst's results as the page `ops/bench/load.md`. Pure."""

from __future__ import annotations

from datetime import date
from typing import Any

from ops.bench.machine import describe_machine, load_per_core


def load_page(figures: dict[str, Any], today: date) -> str:
    """Return the contents of load.md, dated `today`."""
    machine = describe_machine()
    rows = [
        ("events published", f"{figures['events']:,}"),
        ("acknowledged per second", f"{figures['acknowledged_per_s']:,}"),
        ("processed per second", f"{figures['worked_off_per_s']:,}"),
        ("concurrent recalls", f"{figures['recalls']:,}"),
        ("of them degraded", f"{figures['recalls_degraded']:,}"),
        ("recall p50 / p99, ms", f"{figures['recall_p50_ms']} / {figures['recall_p99_ms']}"),
    ]
    parts = [(part, f"{size:,}") for part, size in figures["largest_resident_mb"].items()]
    return "\n".join(
        [
            "# A burst",
            "",
            f"Measured on {today.isoformat()} with `python -m ops.soak burst --events {figures['events']} --page`",
            f"on {machine['processor']} with {machine['cores']} cores; the load at the end was {load_per_core()}",
            "per core.",
            "The events are published without pauses, as fast as they are acknowledged. At the same time, one client",
            "recalls in a loop, pausing for 50 ms after each answer. Every event was acknowledged, is in the journal",
            "once and created a memory. Every recall succeeded, and no process was left running.",
            "",
            *_table("what", rows),
            "",
            "The maximum resident set size of each part (processes share pages, so the sizes cannot be summed):",
            "",
            *_table("part, MB", parts),
            "",
        ]
    )


def _table(head: str, rows: list[tuple[str, str]]) -> list[str]:
    return [f"| {head} | |", "|---|---:|", *(f"| {name} | {value} |" for name, value in rows)]
