"""Runs a temporary daemon for a measurement, and publishes to it from a separate process, as emitters do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from memory_agent.errors import UnavailableError
from memory_agent.settings import ENVIRONMENT_PREFIX, Settings
from relay import described

_STOP_TIMEOUT_S = 60
_LOG_LINES = 5
_KEPT = ("MEMORY_AGENT_MODEL_CACHE",)


@contextmanager
def temporary_daemon(settings: Settings) -> Iterator[Path]:
    """Start a daemon with these settings and yield its data folder; stop it and remove the folder afterwards.

    Raises `UnavailableError` (with the end of the daemon's log) if it does not start.
    """
    with tempfile.TemporaryDirectory(prefix="memory-eval-") as folder:
        data_dir = Path(folder)
        process = _start(data_dir, settings)
        try:
            with _ending_on_sigterm():
                _wait_until_ready(process, data_dir)
                yield data_dir
        finally:
            _stop(process)


def child_environment() -> dict[str, str]:
    """Return this process's environment without settings; a child process reads its settings from a file."""
    own = {name: text for name, text in os.environ.items() if not name.startswith(ENVIRONMENT_PREFIX)}
    return own | {name: os.environ[name] for name in _KEPT if name in os.environ}


def write_settings(settings: Settings, data_dir: Path) -> Path:
    """Write all settings to a file in `data_dir` for a child process's --config; return the file."""
    file = data_dir / "settings.toml"
    tables = msgspec.to_builtins(msgspec.structs.replace(settings, data_dir=str(data_dir)))
    file.write_bytes(msgspec.toml.encode({name: one for name, one in tables.items() if one is not None}))
    return file


def _start(data_dir: Path, settings: Settings) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "memory_agent", "serve", "--config", str(write_settings(settings, data_dir))]
    with open(_log(data_dir), "w", encoding="utf-8") as log:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=child_environment())


def _wait_until_ready(process: subprocess.Popen[str], data_dir: Path) -> None:
    assert process.stdout is not None
    if not process.stdout.readline():
        end = _log(data_dir).read_text(encoding="utf-8").splitlines()[-_LOG_LINES:]
        raise UnavailableError(f"the daemon did not start (exit code {process.wait()}): {' / '.join(end)}")


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    assert process.stdout is not None
    process.stdout.close()


@contextmanager
def _ending_on_sigterm() -> Iterator[None]:
    def unwind(number: int, _frame: Any) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, unwind)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _log(data_dir: Path) -> Path:
    return data_dir / "daemon.log"


class PublishSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the output of `publish --json`."""

    acknowledged: int
    recallable_s: float | None  # seconds since the first event was published


def publish_events(events: Iterable[dict[str, Any]], file: Path, data_dir: Path, timeout_s: float) -> PublishSummary:
    """Write the events to `file`, publish them to the daemon for `data_dir`, and wait until all are recallable.

    Runs `memory-agent publish --wait`, which shows its progress on standard error. Raises `UnavailableError` if it
    fails; the reason is printed on standard error.
    """
    encode = msgspec.json.encode
    file.write_bytes(b"".join(encode(event) + b"\n" for event in events))
    options = ["--data-dir", str(data_dir), "--wait", "--timeout", str(timeout_s), "--json"]
    command = [sys.executable, "-m", "memory_agent", "publish", str(file), *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, env=child_environment(), check=False)
    if done.returncode != 0:
        raise UnavailableError(f"the publisher exited with code {done.returncode}")
    return msgspec.json.decode(done.stdout, type=described(PublishSummary))
