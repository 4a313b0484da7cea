"""Runs the demo's emitters as processes and tracks their acks."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from memory_agent.evaluation import child_environment
from ops.demo.story import Event

ROOT = Path(__file__).parents[2]
_END_TIMEOUT_S = 60


class Sender:
    """One emitter process."""

    def __init__(
        self, name: str, events: Sequence[Event], folder: Path, relay: str, *, pace_ms: float = 0.0, again: int = 0
    ) -> None:
        """Start publishing `events`, followed by the last `again` events a second time."""
        self.name = name
        self.total = len(events) + again
        self.acked = self.duplicates = 0
        file = folder / f"{name.replace(' ', '-')}.jsonl"
        file.write_text("".join(json.dumps(event) + "\n" for event in events), encoding="utf-8")
        options = ["--relay", relay, "--pace-ms", str(pace_ms), "--again", str(again)]
        self._process = start_process("ops.demo.emitter", str(file), *options)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The emitter's process id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is running."""
        return self._process.poll() is None

    def finish(self) -> bool:
        """Wait for the process; return whether every event was acknowledged."""
        code = self._process.wait(_END_TIMEOUT_S)
        self._reader.join()
        return code == 0 and self.acked == self.total

    def stop(self) -> None:
        """Kill the process if it is running."""
        self._process.kill()
        self._process.wait()
        self._reader.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                report = json.loads(line)
                self.duplicates = report.get("duplicates", 0)
                self.acked = report["acked"] + self.duplicates


def send_plainly(messages: Sequence[str], folder: Path, endpoint: str) -> bool:
    """Send messages over plain PUB from a separate process; return whether there was a subscriber."""
    file = folder / "plain.txt"
    file.write_text("".join(message + "\n" for message in messages), encoding="utf-8")
    return start_process("ops.demo.plain_tool", str(file), "--connect", endpoint).wait(_END_TIMEOUT_S) == 0


def start_process(module: str, *arguments: str, stdin: int | None = None) -> subprocess.Popen[str]:
    """Start a demo process with a pipe for its output, and another for its input if `stdin` is `subprocess.PIPE`."""
    command = [sys.executable, "-m", module, *arguments]
    environment = child_environment()
    return subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)
