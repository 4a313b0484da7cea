"""Measures journal throughput and ack latency through a real relay process, with windows of 1, 16 and 256 events.

`python -m ops.bench --only journal [--json]` runs only this benchmark. Events are 1 KB long. Each event's
latency is measured from `publish` until the ack arrives, including the time spent waiting for the window. Relay and
publisher are separate processes, as in production. `commit` uses the journal in this process with one event per commit,
which shows the limit set by the disk and the processor at that time.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from relay import EventLimits, Journal, Publisher, PublisherSettings, event_from_mapping, relay_endpoints

WINDOWS = {1: 2_000, 16: 15_000, 256: 40_000}
COMMITS = 500
PAYLOAD_BYTES = 850
STOP_TIMEOUT_S = 20


def measure() -> dict[str, Any]:
    """Return events/s, ack p50 and p99 in ms, and the number of events, for a bare commit and for each window."""
    with tempfile.TemporaryDirectory(prefix="bench-journal-") as folder, _relay(Path(folder)):
        figures = {"commit": _measure_commit(Path(folder) / "bare")}
        for window, count in WINDOWS.items():
            figures[f"window_{window}"] = _measure_window(Path(folder), window, count)
    return figures


@contextmanager
def running_relay(*words: str) -> Iterator[None]:
    """Run `python -m WORDS`, a relay, until the end of the block."""
    process = subprocess.Popen([sys.executable, "-m", *words], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        json.loads(process.stdout.readline())
        yield
    finally:
        process.terminate()
        process.wait(STOP_TIMEOUT_S)
        process.stdout.close()


def _relay(data_dir: Path) -> AbstractContextManager[None]:
    return running_relay("relay", "--data-dir", str(data_dir), "--log-level", "error")


def _measure_commit(folder: Path) -> dict[str, float]:
    now = datetime.now(UTC)
    latencies_s: list[float] = []
    with Journal.open(folder) as journal:
        for number in range(COMMITS):
            event = event_from_mapping(_event(0, number), EventLimits(), now)
            started_s = time.perf_counter()
            journal.append([event], now)
            latencies_s.append(time.perf_counter() - started_s)
    return _figures(COMMITS, sum(latencies_s), latencies_s)


def _measure_window(data_dir: Path, window: int, count: int) -> dict[str, float]:
    published_s: list[float] = []
    latencies_s: list[float] = []

    def note(progress: Any) -> None:
        now_s = time.perf_counter()
        latencies_s.extend(now_s - one for one in published_s[len(latencies_s) : progress.acked])

    ingest = relay_endpoints(data_dir).ingest
    events = [_event(window, number) for number in range(count)]
    with Publisher(ingest, settings=PublisherSettings(window=window), on_progress=note) as publisher:
        started_s = time.perf_counter()
        for event in events:
            published_s.append(time.perf_counter())
            publisher.publish(event)
        report = publisher.flush()
        took_s = time.perf_counter() - started_s
    assert report.acked == count, report
    return _figures(count, took_s, latencies_s)


def _figures(count: int, took_s: float, latencies_s: list[float]) -> dict[str, float]:
    latencies_s.sort()
    return {
        "events": count,
        "events_per_s": round(count / took_s),
        "ack_p50_ms": round(latencies_s[len(latencies_s) // 2] * 1000, 3),
        "ack_p99_ms": round(latencies_s[len(latencies_s) * 99 // 100] * 1000, 3),
    }


def _event(window: int, number: int) -> dict[str, Any]:
    return {
        "event_id": f"{window}-{number:08d}",
        "event_type": "worker.task.progress",
        "timestamp": "2026-02-16T10:00:00Z",
        "user_id": f"user-{number % 8}",
        "session_id": "session-1",
        "payload": {"text": "x" * PAYLOAD_BYTES},
    }
