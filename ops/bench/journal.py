"""Journal events/s and ack latency through a real relay process, at windows of 1, 16 and 256 events of 1 KB.

`python -m ops.bench.journal` prints a table; `measure()` returns the same as a dict. Latency is from `publish` to the
moment the publisher has the ack, one sample per event. The relay and the publisher are two processes, as in use.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from relay import Publisher, PublisherSettings, relay_endpoints

WINDOWS = {1: 2_000, 16: 15_000, 256: 40_000}
PAYLOAD_BYTES = 850
STOP_TIMEOUT_S = 20


def measure() -> dict[str, Any]:
    """Return for each window: events/s, ack p50 and p99 in ms, and the number of events."""
    with tempfile.TemporaryDirectory(prefix="bench-journal-") as folder, _relay(Path(folder)):
        return {f"window_{window}": _measure_window(Path(folder), window, count) for window, count in WINDOWS.items()}


@contextmanager
def _relay(data_dir: Path) -> Iterator[None]:
    command = [sys.executable, "-m", "relay", "--data-dir", str(data_dir), "--log-level", "error"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        json.loads(process.stdout.readline())
        yield
    finally:
        process.terminate()
        process.wait(STOP_TIMEOUT_S)
        process.stdout.close()


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


def main() -> None:
    print(f"{'window':>8} {'events/s':>10} {'ack p50 ms':>11} {'ack p99 ms':>11}")
    for name, figures in measure().items():
        window = name.removeprefix("window_")
        print(
            f"{window:>8} {figures['events_per_s']:>10} {figures['ack_p50_ms']:>11.2f} {figures['ack_p99_ms']:>11.2f}"
        )


if __name__ == "__main__":
    main()
