"""Measures what a copy of the journal costs: acknowledged events/s and ack latency, without and with a copy.

The copies are a folder on the same disk, with fsync, and the same folder with 5 and 20 ms of latency added to each
upload, as with an object store. The relay and the publishers are separate processes. The window is 256 events of 300
bytes, with one publisher and with four. The cases take turns.

To run it: `python -m ops.bench.relay_copies [TURNS]`.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from memory_agent.archiving import Objects, archived_journal
from memory_agent.settings import ArchiveSettings
from ops.bench.journal import running_relay
from relay import Publisher, PublisherSettings, relay_endpoints, run_relay

PUBLISHERS = (1, 4)
WINDOW = 256
EVENTS = 20_000
PAYLOAD_BYTES = 120  # an event of 300 bytes


class Case(NamedTuple):
    """A relay to measure. `latency_ms` is added to each upload; None: no copy."""

    name: str
    latency_ms: float | None


CASES = (Case("no copy", None), Case("folder", 0.0), Case("folder + 5 ms", 5.0), Case("folder + 20 ms", 20.0))


def measure(turns: int = 5) -> dict[str, Any]:
    """Return, for each case and number of publishers, the median and range of the figures."""
    found: dict[str, list[dict[str, float]]] = {}
    for _ in range(turns):
        for publishers in PUBLISHERS:
            for case in CASES:
                found.setdefault(f"{case.name}, {publishers}", []).append(_measure(case, publishers))
    return {name: _summary(figures) for name, figures in found.items()}


def _summary(figures: Sequence[dict[str, float]]) -> dict[str, Any]:
    columns = {name: [one[name] for one in figures] for name in figures[0]}
    return {
        name: {"median": statistics.median(column), "from": min(column), "to": max(column)}
        for name, column in columns.items()
    }


def _measure(case: Case, publishers: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="bench-copies-") as folder, _relay(Path(folder), case):
        command = [sys.executable, "-m", "ops.bench.relay_copies", "--publish", folder]
        warm_up = subprocess.run([*command, "warm", "500"], stdout=subprocess.PIPE, text=True, check=True)
        assert warm_up.stdout
        started = [
            subprocess.Popen([*command, f"p{number}", str(EVENTS // publishers)], stdout=subprocess.PIPE, text=True)
            for number in range(publishers)
        ]
        reports = [json.loads(process.communicate()[0]) for process in started]
        uploads = len(list(Path(folder, "archive").rglob("*.increment"))) if case.latency_ms is not None else 0
    latencies_s = sorted(latency for report in reports for latency in report["latencies_s"])
    took_s = max(report["ended_s"] for report in reports) - min(report["began_s"] for report in reports)
    return {
        "events_per_s": round(len(latencies_s) / took_s),
        "ack_p50_ms": round(latencies_s[len(latencies_s) // 2] * 1000, 1),
        "ack_p99_ms": round(latencies_s[len(latencies_s) * 99 // 100] * 1000, 1),
        "uploads": uploads,
    }


def _relay(data_dir: Path, case: Case) -> AbstractContextManager[None]:
    latency = "none" if case.latency_ms is None else str(case.latency_ms)
    return running_relay("ops.bench.relay_copies", "--relay", str(data_dir), latency)


def _serve(data_dir: Path, latency: str) -> int:
    """Run a relay with slower uploads in this process."""
    copy = None
    if latency != "none":
        create = Objects.create

        def create_slowly(self: Objects, epoch: int, name: str, content: bytes) -> bool:
            time.sleep(float(latency) / 1000)
            return create(self, epoch, name, content)

        Objects.create = create_slowly  # type: ignore[method-assign]
        copy = archived_journal(ArchiveSettings(url=f"file://{data_dir}/archive", journal=True))
    return run_relay(["--data-dir", str(data_dir), "--log-level", "error"], copy)


def _publish(data_dir: Path, name: str, count: int) -> None:
    """Publish events, and print the start time, the end time and the latency of each ack."""
    published_s: list[float] = []
    latencies_s: list[float] = []

    def note(progress: Any) -> None:
        now_s = time.perf_counter()
        latencies_s.extend(now_s - one for one in published_s[len(latencies_s) : progress.acked])

    events = [_event(name, number) for number in range(count)]
    settings = PublisherSettings(window=WINDOW)
    with Publisher(relay_endpoints(data_dir).ingest, settings=settings, on_progress=note) as publisher:
        began_s = time.monotonic()
        for event in events:
            published_s.append(time.perf_counter())
            publisher.publish(event)
        report = publisher.flush()
        ended_s = time.monotonic()
    assert report.acked == count, report
    print(json.dumps({"began_s": began_s, "ended_s": ended_s, "latencies_s": latencies_s}))


def _event(name: str, number: int) -> dict[str, Any]:
    return {
        "event_id": f"{name}-{number:08d}",
        "event_type": "worker.task.progress",
        "timestamp": "2026-02-16T10:00:00Z",
        "user_id": f"user-{number % 8}",
        "session_id": "session-1",
        "payload": {"text": "x" * PAYLOAD_BYTES},
    }


def main(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["--relay"]:
        return _serve(Path(arguments[1]), arguments[2])
    if arguments[:1] == ["--publish"]:
        _publish(Path(arguments[1]), arguments[2], int(arguments[3]))
        return 0
    print(f"{'copy, publishers':<20} {'events/s':>24} {'ack p50 ms':>20} {'ack p99 ms':>20} {'uploads':>8}")
    for name, figures in measure(int(arguments[0]) if arguments else 5).items():
        cells = [
            f"{one['median']:g} ({one['from']:g}-{one['to']:g})"
            for one in (figures[key] for key in ("events_per_s", "ack_p50_ms", "ack_p99_ms"))
        ]
        print(f"{name:<20} {cells[0]:>24} {cells[1]:>20} {cells[2]:>20} {figures['uploads']['median']:>8g}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
