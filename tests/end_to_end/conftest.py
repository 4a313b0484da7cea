"""A real daemon for the tests that need one, started the way a user starts it, with or without Ray."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pytest
from click.testing import CliRunner, Result
from trace_collector import Collector, collecting

from memory_agent.cli.group import cli

STOP_TIMEOUT_S = 60
ONE_HOST = ("daemon.dedicated_hosts=0", "daemon.shared_hosts=1")
"""All users share one host. Starting a host takes 0.7 s of processor time; an idle host uses 1 % of a core."""
FEW_HOSTS = ("daemon.dedicated_hosts=1", "daemon.shared_hosts=1")
"""The first user has a separate host; all other users share one."""


class DaemonProcess:
    """A `memory-agent serve` process on one data folder, which can be started, killed and restarted."""

    def __init__(self, data_dir: Path, *settings: str, light: bool = False) -> None:
        self.data_dir = data_dir
        self.light = light
        self._settings: list[str] = []
        self._own = settings
        self.configure()
        self.program: tuple[str, ...] = (str(Path(sys.executable).with_name("memory-agent")),)
        self._process: subprocess.Popen[str] | None = None
        self.ready: dict[str, Any] = {}

    def configure(self, *settings: str) -> None:
        """From the next start on, add these settings to the initial settings."""
        self._settings = [word for setting in (*self._own, *settings) for word in ("--set", setting)]

    def wait(self) -> int:
        """Wait until the daemon exits; return its exit code."""
        assert self._process is not None
        return self._end_of(self._process)

    def ended(self) -> int | None:
        """Return the exit code if the daemon has ended, else None."""
        code = None if self._process is None else self._process.poll()
        return code if code is None else self.wait()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, cwd: Path | None = None) -> None:
        """Start the daemon, optionally in the folder `cwd`, and wait for its ready line."""
        command = [*self.program, "serve", "--data-dir", str(self.data_dir), *self._settings]
        command += ["--light"] if self.light else []
        with open(self.data_dir / "daemon.log", "a", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment(), cwd=cwd
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the daemon did not start:\n{self.log()}"
        self.ready = json.loads(line)

    @contextmanager
    def running(self) -> Iterator[Self]:
        """Start the daemon, and stop it at the end. The stop must succeed."""
        try:
            self.start()
            yield self
        finally:
            assert self.stop() == 0, self.log()

    def stop(self) -> int:
        """Stop the daemon the way a supervisor does; return its exit code."""
        return self._end(signal.SIGTERM)

    def kill(self) -> int:
        """Kill the daemon."""
        return self._end(signal.SIGKILL)

    def log(self) -> str:
        """Return the daemon's standard error."""
        return (self.data_dir / "daemon.log").read_text(encoding="utf-8")

    def _end(self, number: signal.Signals) -> int:
        if self._process is None:
            return 0
        self._process.send_signal(number)
        return self._end_of(self._process)

    def _end_of(self, process: subprocess.Popen[str]) -> int:
        code = process.wait(STOP_TIMEOUT_S)
        assert process.stdout is not None
        process.stdout.close()
        self._process = None
        return code


def environment() -> dict[str, str]:
    """Return a child process's environment: the current one without the MEMORY_AGENT variables."""
    return {name: value for name, value in os.environ.items() if not name.startswith("MEMORY_AGENT_")} | {
        "RAY_USAGE_STATS_ENABLED": "0"
    }


def invoke(*words: str, input: str = "", **variables: str) -> Result:
    """Run `memory-agent WORDS` in this process. A new process would take ten times as long."""
    removed = {name: None for name in os.environ if name.startswith("MEMORY_AGENT_")}
    return CliRunner().invoke(cli, words, input, env=removed | variables)


def short_folder() -> tempfile.TemporaryDirectory[str]:
    """Create a folder whose path is short enough for socket paths (at most 107 bytes)."""
    return tempfile.TemporaryDirectory(prefix="memory-test-")


@pytest.fixture(scope="package")
def collector() -> Iterator[Collector]:
    """A trace collector. Tests identify their traces by id."""
    with collecting() as collector:
        yield collector


@pytest.fixture(scope="package")
def daemon(collector: Collector) -> Iterator[DaemonProcess]:
    """One daemon shared by tests that only send requests; each test uses its own users.

    It traces only requests with a trace context.
    """
    traces = (f"tracing.endpoint={collector.url}", "tracing.sample_ratio=0", "tracing.interval_s=0.1")
    with (
        short_folder() as folder,
        DaemonProcess(Path(folder), "daemon.upkeep_interval_s=1", *FEW_HOSTS, *traces).running() as process,
    ):
        yield process


@pytest.fixture(scope="module")
def light_daemon() -> Iterator[DaemonProcess]:
    """Like `daemon`, but without Ray, for the tests in one file."""
    with (
        short_folder() as folder,
        DaemonProcess(Path(folder), "daemon.upkeep_interval_s=1", light=True).running() as process,
    ):
        yield process


HASTY = ("daemon.owner_wait_s=3", "store.takeover_after_s=1", "daemon.dedicated_hosts=32")
"""Each user of these tests has a separate process, which a test can find by its name and kill."""


@pytest.fixture(scope="package")
def rough_daemon() -> Iterator[DaemonProcess]:
    """One daemon for tests that quarantine events, damage a user's files or kill a part.

    Each test must leave the quarantine empty.
    """
    settings = (*HASTY, "daemon.idle_sleep_s=30")  # lets the hosts of earlier tests end
    with short_folder() as folder, DaemonProcess(Path(folder), *settings).running() as process:
        yield process


@pytest.fixture
def own_daemon() -> Iterator[DaemonProcess]:
    """A daemon without Ray that the test starts, kills and stops. Starting it takes 0.6 s of processor time."""
    yield from _own(light=True)


@pytest.fixture
def own_full_daemon() -> Iterator[DaemonProcess]:
    """A daemon with Ray, for tests of its processes. Starting it and a host takes 2.4 s of processor time."""
    yield from _own(light=False)


def _own(*, light: bool) -> Iterator[DaemonProcess]:
    with short_folder() as folder:
        process = DaemonProcess(Path(folder), *HASTY, light=light)
        yield process
        process.kill()
