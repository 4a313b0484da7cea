"""The processes under test (relay, publishers, owner), which can be started, made to fail, killed and restarted.

Only processes started here are killed, selected by id. The relay is `python -m relay`; the owner of the stores ingests
like a host of the daemon (`owner_process`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from relay import EncryptionSettings

from .encryption import KEYS
from .faults import Order
from .history import Finding, check
from .reading import read_history

ROOT = Path(__file__).parents[2]  # not tests/, whose `memory_agent` folder is not the package
PATIENCE_S = 120.0
PUBLISHER = ("-m", "tests.crash.publisher_process")


def wait_until(fact: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> None:
    """Poll until `fact` holds; fail if it does not hold in time."""
    deadline_s = time.monotonic() + timeout_s
    while not fact():
        assert time.monotonic() < deadline_s, f"did not happen in time: {what}"
        time.sleep(0.01)


class Part:
    """One process under test, started by `command`."""

    def __init__(self, name: str, command: list[str], folder: Path, shim: Path | None, *, is_ready_said: bool) -> None:
        self.name = name
        self.order = Order(shim, folder / f"{name}.order")
        self._command = [sys.executable, *command]
        self._log = folder / f"{name}.log"
        self._is_ready_said = is_ready_said
        self._process: subprocess.Popen[str] | None = None

    def start(self, *, is_waited_for: bool = True) -> None:
        """Start the process, and wait for its ready line, if any, unless it is expected to die first."""
        assert self._process is None, f"{self.name} runs already"
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                self._command,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
                env=self.order.environment(),
            )
        assert self._process.stdout is not None
        if is_waited_for and self._is_ready_said and not self._process.stdout.readline():
            raise AssertionError(f"{self.name} did not start:\n{self.log()}")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def is_started(self) -> bool:
        return self._process is not None

    def log(self, *, whole: bool = False) -> str:
        """Return the tail of the process's standard error, or all of it."""
        text = self._log.read_text(errors="replace") if self._log.exists() else ""
        return text if whole else text[-3_000:]

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self) -> None:
        """Stop the process (SIGSTOP); return once all of its threads have stopped."""
        self.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)

    def kill(self) -> None:
        """Kill the process if it is running."""
        if self._process is not None:
            self._process.kill()
            self.wait()

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """Wait for the process to end, and return its exit code, negative for a signal."""
        assert self._process is not None
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"{self.name} did not end:\n{self.log()}") from error
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None
        return code


class World:
    """A relay, two publishers (one with a spool) and the stores' owner, on one data folder.

    With encryption, everything but the spool is encrypted with the keys in a folder beside the data folder. Only
    tests of takeover start a `rival`, a second owner of the same stores.
    """

    def __init__(
        self,
        folder: Path,
        shim: Path | None = None,
        *,
        data_dir: Path | None = None,
        pace_s: float = 0.0,
        is_encrypted: bool = False,
    ) -> None:
        """Processes write below `folder`, whose path must be short (socket files)."""
        self.folder = folder
        self.data_dir = data_dir or folder / "data"
        self.notes = folder / "notes"
        self.notes.mkdir(parents=True, exist_ok=True)
        data, notes = str(self.data_dir), str(self.notes)
        self.is_encrypted = is_encrypted
        self.keys = self.data_dir.parent / KEYS
        publisher, owner = PUBLISHER, ("-m", "tests.crash.owner_process", *(["--keys", str(self.keys)] * is_encrypted))
        pace = ["--pace", str(pace_s)]
        config = _relay_config(folder, self.keys) if is_encrypted else []
        self.relay = Part("relay", ["-m", "relay", "--data-dir", data, *config], folder, shim, is_ready_said=True)
        self.plain = Part("plain", [*publisher, data, "plain", notes, *pace], folder, shim, is_ready_said=False)
        spool = ["--spool", str(folder / "spool")]
        self.spooling = Part(
            "spooling", [*publisher, data, "spooling", notes, *spool, *pace], folder, shim, is_ready_said=False
        )
        self.owner = Part("owner", [*owner, data, notes], folder, shim, is_ready_said=True)
        self.rival = Part("rival", [*owner, data, notes], folder, shim, is_ready_said=True)
        self.parts = (self.relay, self.plain, self.spooling, self.owner, self.rival)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for part in self.parts:
            part.kill()
        if isinstance(error, AssertionError):
            error.add_note("\n".join(f"--- {part.name}\n{part.log()}" for part in self.parts if part.log()))

    def start(self, *parts: Part) -> None:
        for part in parts or (self.relay, self.plain, self.spooling, self.owner):
            part.start()

    @property
    def keys_in_names(self) -> str:
        """The part of a path that commands to the shim use to match encryption key files, but not `keys.json`."""
        return f"{self.keys.parent.name}/{self.keys.name}"

    @property
    def acked(self) -> int:
        """The number of promises made to publishers."""
        return sum(count_lines(file) for file in self.notes.glob("*.acked"))

    @property
    def taken(self) -> int:
        """The number of events that the stores reported as stored."""
        return count_lines(self.notes / "taken")

    def acked_by(self, part: Part) -> int:
        return count_lines(self.notes / f"{part.name}.acked")

    def finish(self) -> None:
        """Wait until everything published is delivered and ingested, then stop cleanly."""
        started = [part for part in self.parts if part.is_started]
        for part in started:
            part.order.revoke()
            if not part.is_alive:
                part.wait()
                part.start()
        (self.notes / "stop").touch()
        for part in (self.plain, self.spooling):
            if part in started:
                assert part.wait() == 0, part.log()
        (self.notes / "stop-owner").touch()
        for owner in (self.owner, self.rival):
            if owner in started:
                assert owner.wait() == 0, owner.log()
        self.relay.signal(signal.SIGTERM)
        assert self.relay.wait() == 0, self.relay.log()

    def findings(self, *, with_stores: bool = True) -> list[Finding]:
        """Check everything on the disk."""
        return check(read_history(self.data_dir, self.notes, with_stores=with_stores))


def _relay_config(folder: Path, keys: Path) -> list[str]:
    """Write the settings of a relay that encrypts; return the relay's command-line arguments."""
    file = folder / "relay.toml"
    file.write_bytes(msgspec.toml.encode({"encryption": EncryptionSettings(keys_folder=str(keys))}))
    return ["--config", str(file)]


def count_lines(file: Path) -> int:
    """Return the number of lines in a file, or 0 if it does not exist."""
    return file.read_bytes().count(b"\n") if file.exists() else 0
