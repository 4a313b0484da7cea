"""Relay processes on real folders, and helpers for all tests of the bus."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from relay import Endpoints, Event, EventLimits, RelaySettings, Subscriber, event_from_mapping

NOW = datetime(2026, 11, 21, 9, 0, tzinfo=UTC)
LIMITS = EventLimits()
STOP_TIMEOUT_S = 20


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def event(number: int, user_id: str = "alice", **fields: Any) -> Event:
    """Return an event identified by its number."""
    mapping = {
        "event_id": f"event-{number:06d}",
        "event_type": "chat.user_msg",
        "timestamp": "2026-02-16T10:00:00Z",
        "user_id": user_id,
        "payload": {"number": number},
    }
    return event_from_mapping({**mapping, **fields}, LIMITS, NOW)


def mapping(number: int, user_id: str = "alice", **fields: Any) -> dict[str, Any]:
    """Return the event as an emitter would write it."""
    return {**msgspec.structs.asdict(event(number, user_id)), "timestamp": "2026-02-16T10:00:00Z", **fields}


def wait_until(fact: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Poll until `fact` holds; fail if it does not become true in time."""
    deadline_s = time.monotonic() + timeout_s
    while not fact():
        assert time.monotonic() < deadline_s, "the condition did not become true in time"
        time.sleep(0.005)


def entries(subscriber: Subscriber, user_id: str | None = None) -> list[tuple[int, str]]:
    """Return every entry in a relay's journal as (seq, event_id)."""
    found: list[tuple[int, str]] = []
    while batch := subscriber.fetch(found[-1][0] if found else 0, 1_000, user_id=user_id).entries:
        found += [(entry.seq, msgspec.msgpack.decode(entry.data)["event_id"]) for entry in batch]
    return found


class RelayProcess:
    """`python -m relay` on one data folder, which can be killed and restarted."""

    def __init__(self, data_dir: Path, settings: RelaySettings | None = None, *arguments: str) -> None:
        self._command = [sys.executable, "-m", "relay", "--data-dir", str(data_dir), *arguments]
        self._log = data_dir.parent / f"{data_dir.name}.log"
        self._log.touch()
        if settings is not None:
            config = data_dir.parent / f"{data_dir.name}.toml"
            config.write_bytes(msgspec.toml.encode(settings))
            self._command += ["--config", str(config)]
        self._process: subprocess.Popen[str] | None = None
        self.ready: dict[str, Any] = {}
        self.exit_code: int | None = None

    def start(self) -> RelayProcess:
        """Start the process, which must not be running, and wait for its ready line."""
        assert self._process is None, "it runs already"
        with self._log.open("a") as log:
            self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.exit_code = self._end(signal.SIGTERM)
            raise AssertionError(f"the relay did not start:\n{self.log()}")
        self.ready = json.loads(line)
        return self

    @property
    def endpoints(self) -> Endpoints:
        return Endpoints(self.ready["ingest"], self.ready["feed"])

    def log(self) -> str:
        return self._log.read_text()

    def stop(self) -> int:
        """Stop the process the way a supervisor does; return the exit code."""
        return self._end(signal.SIGTERM)

    def kill(self) -> int:
        """Kill the process, to simulate a crash."""
        return self._end(signal.SIGKILL)

    def wait(self) -> int:
        """Wait until the process exits; return the exit code."""
        assert self._process is not None
        self._process.wait(STOP_TIMEOUT_S)
        return self._end(signal.SIGTERM)

    def __enter__(self) -> RelayProcess:
        return self if self._process is not None else self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _end(self, number: signal.Signals) -> int:
        if self._process is None:
            return 0
        self._process.send_signal(number)
        code = self._process.wait(STOP_TIMEOUT_S)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None
        return code
