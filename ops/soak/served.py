"""A `memory-agent serve` process on one data folder; a soak stops, kills and restarts it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

from memory_agent.errors import UnavailableError
from memory_agent.evaluation import child_environment
from memory_agent.evaluation.daemon_process import write_settings
from memory_agent.settings import Settings

_STOP_S = 120.0
_LOGS = 3


class Served:
    """The daemon. Each start writes its own log; the newest three are kept."""

    def __init__(self, data_dir: Path, logs: Path, settings: Settings) -> None:
        data_dir.mkdir(parents=True, exist_ok=True)
        logs.mkdir(parents=True, exist_ok=True)
        self._config = write_settings(settings, data_dir)
        self._logs = logs
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        """The process id of the started daemon."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the daemon and wait until it is ready. If it does not start, raises `UnavailableError` with the end of
        its log."""
        olds = sorted(self._logs.glob("*.log"))
        for old in olds[: len(olds) - _LOGS + 1]:
            old.unlink()
        number = int(olds[-1].stem) + 1 if olds else 0
        command = [sys.executable, "-m", "memory_agent", "serve", "--config", str(self._config)]
        log_file = self._logs / f"{number:05}.log"
        with log_file.open("w", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env=child_environment(), start_new_session=True
            )
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            end = log_file.read_text(encoding="utf-8").splitlines()[-5:]
            raise UnavailableError(f"the daemon did not start (exit code {self._process.wait()}): {' / '.join(end)}")

    def complaints(self) -> dict[str, int]:
        """Count, by level and event, the lines of the newest log that are not at level info."""
        lines = max(self._logs.glob("*.log")).read_text(encoding="utf-8").splitlines()
        return dict(Counter(filter(None, map(_complaint, lines))))

    @property
    def has_ended(self) -> bool:
        """Whether the daemon exited on its own, or was never started."""
        return self._process is None or self._process.poll() is not None

    def stop(self) -> int:
        """Stop the daemon and return its exit code, or -9 if it does not stop within two minutes."""
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        return self._ended()

    def kill(self) -> int:
        """Kill the daemon."""
        assert self._process is not None
        self._process.kill()
        return self._ended()

    def _ended(self) -> int:
        assert self._process is not None
        code = self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        return code


def _complaint(line: str) -> str | None:
    try:
        fields = json.loads(line)
        return None if fields["level"] in ("info", "debug") else f"{fields['level']} {fields['event']}"
    except (ValueError, TypeError, KeyError):
        return "not a log line"
