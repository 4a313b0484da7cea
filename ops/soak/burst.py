"""Publishes events far faster than the memory can ingest them, while recalls run concurrently.

Checks that every event is acknowledged, journaled exactly once and eventually processed, and that every recall
succeeds.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from memory_agent import MemoryClient
from memory_agent.errors import DeadlineExceededError
from memory_agent.evaluation import temporary_daemon
from memory_agent.settings import Settings
from ops.bench.spread import percentile
from ops.bench.texts import events, passages, queries
from ops.soak.watch import Watch
from relay import Publisher, relay_endpoints

_USER = "burst"
_QUESTIONS = 2_000
_PAUSE_S = 0.05
_LONGEST_WAIT_S = 300.0
_SAMPLE_S = 2.0


def burst(count: int, timeout_s: float) -> dict[str, Any]:
    """Run the burst and return its results.

    Raises `AssertionError` if a check fails, and `DeadlineExceededError` if events are not processed in time.
    """
    made = events(passages(count, seed=5), _USER, "burst")
    with temporary_daemon(Settings()) as data_dir, MemoryClient(_USER, data_dir=data_dir) as client:
        client.remember("The spare key is under the third stone")
        pid = next(part.pid for part in client.status().parts if part.name == "daemon")
        assert pid is not None
        with Watch(pid, _SAMPLE_S) as watch, _Asking(client) as asking:
            began_s = time.monotonic()
            through = _publish(made, data_dir, timeout_s)
            acked_s = time.monotonic() - began_s
            _wait(client, through, began_s + timeout_s)
            worked_s = time.monotonic() - began_s
        status = client.status()
        assert status.journal["last_seq"] == count, "an event is missing from the journal, or duplicated"
        assert status.dispatched["kept"] == count, status.dispatched
        assert client.quarantined() == []
        assert client.stats().memories >= count
        assert asking.taken_ms, "no recall succeeded"
    left = watch.left_over()
    assert left == {"processes": [], "shared_files": []}, left
    return {
        "events": count,
        "acknowledged_per_s": round(count / acked_s),
        "worked_off_per_s": round(count / worked_s),
        "recalls": len(asking.taken_ms),
        "recalls_degraded": asking.degraded,
        "recall_p50_ms": round(percentile(asking.taken_ms, 50), 1),
        "recall_p99_ms": round(percentile(asking.taken_ms, 99), 1),
        "largest_resident_mb": {part: round(size / 1e6) for part, size in sorted(watch.largest_rss.items())},
        "lag": asking.lag,
    }


def _publish(made: list[dict[str, Any]], data_dir: Path, timeout_s: float) -> dict[str, int]:
    with Publisher(relay_endpoints(data_dir).ingest) as publisher:
        for event in made:
            publisher.publish(event, timeout_s=timeout_s)
        report = publisher.flush(timeout_s)
        assert (report.acked, report.rejected, report.pending) == (len(made), 0, 0), report
        return report.acked_through


def _wait(client: MemoryClient, through: dict[str, int], until_s: float) -> None:
    """Wait until all events are processed. Each request waits for at most ten minutes."""
    while True:
        remaining_s = until_s - time.monotonic()
        try:
            client.wait(through, min(remaining_s, _LONGEST_WAIT_S))
        except DeadlineExceededError:
            if remaining_s <= _LONGEST_WAIT_S:
                raise
        else:
            return


class _Asking:
    """Recalls continuously in a thread while the context is active, and records latency and consumer lag."""

    def __init__(self, client: MemoryClient) -> None:
        self._client = client
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._failure: BaseException | None = None
        self.taken_ms: list[float] = []
        self.degraded = 0
        self.lag: list[tuple[float, int]] = []

    def __enter__(self) -> _Asking:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        texts, began_s = queries(_QUESTIONS, seed=6), time.monotonic()
        try:
            while not self._over.wait(_PAUSE_S):
                asked_s = time.monotonic()
                result = self._client.recall(texts[len(self.taken_ms) % len(texts)])
                self.taken_ms.append((time.monotonic() - asked_s) * 1000)
                self.degraded += bool(result.degraded)
                if not self.lag or asked_s - began_s - self.lag[-1][0] > _SAMPLE_S:
                    self.lag.append((round(asked_s - began_s, 1), self._lag()))
        except Exception as error:  # noqa: BLE001 - raised again by the thread that runs the burst
            self._failure = error

    def _lag(self) -> int:
        consumers = self._client.status().journal["consumers"]
        return max((consumer["lag"] for consumer in consumers), default=0)
