"""Settings, sentences and an embedder process for the tests."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import msgspec

from memory_agent.settings import EmbedderSettings

OFFLINE = EmbedderSettings(allow_download=False)
INT8 = msgspec.structs.replace(OFFLINE, scheme="int8")
FLOAT32 = msgspec.structs.replace(OFFLINE, scheme="float32")

SENTENCES = [
    "Fix the race in the session manager with a mutex.",
    "Three runs failed because the token had expired.",
    "naïve café — Ünïcode, 東京, مرحبا, emoji 🙂 and a\ttab",
    "a",
    "The deployment was rolled back; the migration had locked the accounts table for nine minutes. " * 3,
    "def open(path): return Path(path).read_text()",
    "word " * 400,
]


class ServerProcess:
    """An embedder process."""

    def __init__(self, endpoint: str, *arguments: str) -> None:
        command = [sys.executable, "-m", "memory_agent.embedders", "--endpoint", endpoint, *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.ready = json.loads(self.process.stdout.readline() or "{}")
        self.endpoint: str = self.ready.get("endpoint", endpoint)

    def stop(self) -> tuple[int, str]:
        """Send SIGTERM to the process; return its exit code and log."""
        self.process.terminate()
        return self.wait()

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        self.process.kill()
        self.wait()

    def wait(self) -> tuple[int, str]:
        _, errors = self.process.communicate(timeout=20)
        return self.process.returncode, errors


StartServer = Callable[..., ServerProcess]
