"""`make bench`: measures every part in one run, and prints one table of results and design targets.

    python -m ops.bench [--quick] [--json] [--only PART]...

Progress goes to standard error. A full run also writes `ops/bench/results.md`. The exit code is 0 even if a target is
missed. Run it on an idle machine: the results include the load before and after the run.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ops.bench import (
    archiving,
    cost,
    embedding,
    filters,
    hook,
    hosts,
    http,
    indexes,
    ingest,
    ingesting,
    journal,
    learning,
    light,
    load,
    mcp,
    moves,
    nodes,
    providers,
    recall,
    resident,
    shared,
    storage,
    triggers,
)
from ops.bench.filled_store import MEMORIES, QUICK_MEMORIES, filled_store
from ops.bench.grown_stores import QUICK_SIZES, SIZES, grown_stores
from ops.bench.machine import describe_machine, load_per_core
from ops.bench.rows import Row, all_rows

RESULTS = Path(__file__).with_name("results.md")
_ON_STORE = {
    "recall": recall.measure,
    "load": load.measure,
    "hosts": hosts.measure,
    "resident": resident.measure,
    "light": light.measure,
    "learning": learning.measure,
    "triggers": triggers.measure,
    "http": http.measure,
    "mcp": mcp.measure,
    "hook": hook.measure,
    "archiving": archiving.measure,
    "moves": moves.measure,
}
_ON_GROWN = {
    "cost": cost.measure,
    "ingesting": ingesting.measure,
    "storage": storage.measure,
    "filters": filters.measure,
    "shared": shared.measure,
}
PARTS = ("embedding", "providers", "journal", "ingest", "nodes", "indexes", *_ON_STORE, *_ON_GROWN)

_QUICK_EVENTS = 1_200
_PIPE_WIDTH = 160
_MARKS = {True: "yes", False: "NO", None: ""}


def main(now: datetime) -> int:
    """Run the benchmarks and print the results; a full run also writes results.md, dated `now`. Return 1 if a part
    failed.
    """
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # prevents background work
    options = _parse()
    started_s = time.monotonic()
    busy = load_per_core()
    parts = _measure(options, lambda text: print(f"[{time.monotonic() - started_s:4.0f} s] {text}", file=sys.stderr))
    machine = describe_machine() | {"load per core before and after": f"{busy:g}, {load_per_core():g}"}
    rows = all_rows(parts)
    if options.json:
        print(json.dumps({"date": now.isoformat(), "machine": machine, "parts": parts}, indent=2))
    else:
        _print(rows)
    if not options.quick and set(PARTS) <= set(parts):
        RESULTS.write_text(results_page(rows, machine, now), encoding="utf-8")
    return 0 if set(options.only or PARTS) <= set(parts) else 1


def results_page(rows: list[Row], machine: dict[str, str], now: datetime) -> str:
    """Return the contents of results.md."""
    lines = [
        "# Bench results",
        "",
        f"Measured on {now:%Y-%m-%d} by `make bench`, all in one run. Values are medians, with the",
        "minimum and maximum in parentheses. Memory is the proportional set size (PSS). Targets are",
        "from the design. Ratios are valid on other machines; absolute values are not.",
        "",
        *(f"- {name}: {value}" for name, value in machine.items()),
        "",
        "| measurement | result | baseline | target | reached |",
        "|---|---|---|---|---|",
        *(f"| {' | '.join(_cells(row))} |" for row in rows),
    ]
    return "\n".join(lines) + "\n"


def _measure(options: argparse.Namespace, tell: Callable[[str], None]) -> dict[str, Any]:
    wanted = options.only or PARTS
    measures: dict[str, Callable[[], Any]] = {
        "embedding": embedding.measure,
        "providers": providers.measure,
        "journal": journal.measure,
        "ingest": lambda: ingest.measure(_QUICK_EVENTS) if options.quick else ingest.measure(),
        "nodes": lambda: nodes.measure(nodes.QUICK_AWAKE) if options.quick else nodes.measure(),
        "indexes": lambda: indexes.measure(indexes.QUICK_SIZES if options.quick else indexes.SIZES),
    }
    parts: dict[str, Any] = {}

    def take(name: str, measure: Callable[[], Any]) -> None:
        tell(name)
        try:
            parts[name] = measure()
        except Exception:  # noqa: BLE001 - other parts took minutes to measure
            traceback.print_exc()
            tell(f"{name} failed")

    for name, measure in measures.items():
        if name in wanted:
            take(name, measure)
    if on_store := [name for name in _ON_STORE if name in wanted]:
        memories = QUICK_MEMORIES if options.quick else MEMORIES
        with filled_store(memories, lambda text: tell(f"filling a store: {text}")) as store:
            for name in on_store:
                take(name, partial(_ON_STORE[name], store))
    if on_grown := [name for name in _ON_GROWN if name in wanted]:
        sizes = QUICK_SIZES if options.quick else SIZES
        with grown_stores(sizes, lambda text: tell(f"growing a store: {text}")) as growth:
            for name in on_grown:
                take(name, partial(_ON_GROWN[name], growth))
    return parts


def _print(rows: list[Row]) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 3, 0, 0))
    for name in ("figure", "measured: median (range)", "beside", "target", "reached"):
        table.add_column(name)
    for row in rows:
        colour = {True: "green", False: "bold red", None: None}[row.reached]
        table.add_row(*_cells(row), style=colour)
    console.print(table)


def _cells(row: Row) -> tuple[str, ...]:
    return row.figure, row.measured, row.baseline, row.target, _MARKS[row.reached]


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m ops.bench", description="Compare measurements with the design targets."
    )
    parser.add_argument("--quick", action="store_true", help="use fewer memories and events; do not write results.md")
    parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")
    parser.add_argument("--only", action="append", choices=PARTS, help="run only this part; may be repeated")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main(datetime.now(UTC)))
