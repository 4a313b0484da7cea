"""Test `memory-agent mcp` with a real daemon that the command starts, or that is killed during calls and restarted."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from memory_agent import MemoryClient
from memory_agent.daemon.stopping import stop_daemon
from memory_agent.layout import Layout

from .conftest import DaemonProcess, environment, short_folder
from .test_hosts_killed import killed

VPN = "The deploy to staging hangs while the VPN is off: connect it first"
QUESTION = "why does the deploy to staging hang?"
PATIENCE_S = 120.0


class McpProcess:
    """A process of `memory-agent mcp`, as its client sees it: sends requests and reads the responses."""

    def __init__(self, data_dir: Path, *options: str, cwd: Path | None = None) -> None:
        command = [str(Path(sys.executable).with_name("memory-agent")), "mcp", "--data-dir", str(data_dir), *options]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            cwd=cwd,
        )
        self._calls = 0

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool; return the structured content of its result."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._calls += 1
        asked = {"jsonrpc": "2.0", "id": self._calls, "method": "tools/call"}
        self._process.stdin.write(json.dumps(asked | {"params": {"name": tool, "arguments": arguments}}) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        assert answer["id"] == self._calls
        found: dict[str, Any] = answer["result"]["structuredContent"]
        return found

    def patiently(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Repeat a call, as a model would, while the answer is a retryable error or incomplete.

        A failed call may have been executed, so remembered facts have an id.
        """
        until_s = time.monotonic() + PATIENCE_S
        while (found := self.call(tool, **arguments)).get("retryable") or found.get("degraded"):
            assert time.monotonic() < until_s, found
        return found

    def end(self) -> str:
        """Stop the process the way a client does; return its standard error."""
        _, said = self._process.communicate(timeout=PATIENCE_S)
        assert self._process.returncode == 0
        return said


def test_the_bridge_starts_a_daemon_that_outlives_it_and_serves_the_next_session() -> None:
    with short_folder() as folder:
        data_dir = Path(folder) / "data"
        first = McpProcess(data_dir, "--set", "daemon.shared_hosts=1")
        try:
            known = first.patiently("remember", text=VPN, id="vpn")
            assert "starting one" in first.end()
            second = McpProcess(data_dir)
            assert known["id"] in second.patiently("recall", query=QUESTION)["text"]
            assert second.end() == ""
            with MemoryClient(data_dir=data_dir) as memory:
                assert memory.status().form == "light"
            assert (data_dir / "daemon.log").stat().st_mode & 0o077 == 0
        finally:
            stop_daemon(Layout(data_dir), 60)


def test_sessions_that_begin_at_once_start_one_daemon_outside_of_the_project(tmp_path: Path) -> None:
    for name in ("numpy.py", "msgspec.py", "relay.py"):
        (tmp_path / name).write_text("raise SystemExit('a module of the project is imported')")
    with short_folder() as folder:
        data_dir = Path(folder) / "data"
        sessions = [McpProcess(data_dir, "--set", "daemon.shared_hosts=1", cwd=tmp_path) for _ in range(3)]
        try:
            for session in sessions:
                assert "text" in session.patiently("recall", query=QUESTION)
            told = [session.end() for session in sessions]
            assert sum("starting one" in said for said in told) == 1, told
            assert (data_dir / "daemon.log").read_text().count('"daemon.ready"') == 1
        finally:
            stop_daemon(Layout(data_dir), 60)


def test_calls_fail_while_a_daemon_is_killed_and_succeed_after_its_return(own_daemon: DaemonProcess) -> None:
    own_daemon.start()
    client = McpProcess(own_daemon.data_dir, "--no-start")
    known = client.patiently("remember", text=VPN, id="vpn")
    outcomes, answered = Counter[str](), threading.Event()

    def ask() -> None:
        while not outcomes["unavailable"]:
            outcomes[client.call("recall", query=QUESTION).get("code", "")] += 1
            if outcomes[""] >= 5:
                answered.set()

    asking = threading.Thread(target=ask)
    asking.start()
    assert answered.wait(PATIENCE_S)
    own_daemon.kill()
    asking.join(PATIENCE_S)
    assert not asking.is_alive(), "a call hangs"
    assert set(outcomes) <= {"", "unavailable", "deadline_exceeded"}
    own_daemon.start()
    assert known["id"] in client.patiently("recall", query=QUESTION)["text"]
    client.end()


def test_a_host_killed_during_calls_gives_a_retryable_result(rough_daemon: DaemonProcess) -> None:
    client = McpProcess(rough_daemon.data_dir, "--user", "mcp-killed", "--no-start")
    client.patiently("remember", text=VPN, id="vpn")
    with MemoryClient("mcp-killed", data_dir=rough_daemon.data_dir) as admin:
        killed(admin, "mcp-killed")
        assert VPN in client.patiently("recall", query=QUESTION)["text"]
    client.end()


@pytest.mark.parametrize("tools", ["standard", "classic"])
def test_a_run_of_a_client_is_credited_with_what_it_recalled(daemon: DaemonProcess, tools: str) -> None:
    user = f"mcp-{tools}"
    with MemoryClient(user, data_dir=daemon.data_dir) as memory:
        before = McpProcess(daemon.data_dir, "--user", user)
        known = before.patiently("remember", text=VPN, id="vpn")
        assert (
            known["id"] in before.patiently("recall", query=QUESTION)["text"]
        )  # the run is unknown, but now the host is awake
        before.end()
        run = memory.runs.begin("Deploy to staging")
        client = McpProcess(daemon.data_dir, "--user", user, "--run", run.id, "--tools", tools)
        found = client.call("recall" if tools == "standard" else "search_memory", query=QUESTION)
        assert known["id"] in found["text"]
        client.end()
        assert memory.runs.get(run.id).recall_ids == (found["recall_id"],)
