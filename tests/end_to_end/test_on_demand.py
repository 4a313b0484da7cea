"""Test a daemon that a client starts: what it inherits, its idle shutdown, the next start, and `memory-agent stop`."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from polling import wait_until

from memory_agent import MemoryClient
from memory_agent.daemon.stopping import stop_daemon
from memory_agent.doors.mcp.stdio import LocalDoor
from memory_agent.errors import UnavailableError
from memory_agent.exchange import Exchange
from memory_agent.layout import Layout
from memory_agent.starting import Start, record_start, restart_daemon

from .conftest import DaemonProcess, invoke, short_folder
from .test_command_line import run

PATIENCE_S = 120.0
SHORT = Start(("--set", "daemon.idle_end_min=0.005", "--set", "daemon.upkeep_interval_s=0.1"))  # 0.3 s
SECRETS = {"ANTHROPIC_API_KEY": "sk-ant-own", "OPENAI_API_KEY": "sk-own", "MEMORY_AGENT_TOKEN": "of-another-key"}


@contextmanager
def folder() -> Iterator[Layout]:
    with short_folder() as name:
        layout = Layout(Path(name) / "data")
        try:
            yield layout
        finally:
            with suppress(UnavailableError):
                stop_daemon(layout, 60)


def call(local: LocalDoor, verb: str, **fields: Any) -> dict[str, Any]:
    """Send a request as `memory-agent mcp` does, starting a daemon if needed; the request must succeed."""
    door = local.find(time.monotonic() + PATIENCE_S)
    answer = Exchange(door, time.monotonic() + PATIENCE_S).send(f"/v1/{verb}", json.dumps(fields).encode()).receive()
    assert answer.status == 200, answer.body
    found: dict[str, Any] = json.loads(answer.body)
    return found


def test_calls_around_the_idle_end_are_all_answered_and_nothing_is_lost() -> None:
    """Each client begins a call within a few milliseconds of the daemon's exit."""
    with folder() as layout:
        said: list[str] = []
        locals_ = [LocalDoor(layout, None, said.append, lambda: SHORT) for _ in range(2)]
        written: list[str] = []

        def work(local: LocalDoor, name: int) -> None:
            for number in range(4):
                written.append(
                    call(local, "remember", text=f"fact {name} {number} of many", id=f"f-{name}-{number}")["id"]
                )
                time.sleep(0.29 + 0.015 * number)

        threads = [threading.Thread(target=work, args=(local, name)) for name, local in enumerate(locals_)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert len(written) == 8
        assert {one["id"] for one in call(locals_[0], "list", limit=50)["records"]} == {*written}
        wait_until(lambda: not layout.daemon_runs())
        assert len(said) >= 1
        log = layout.log.read_text()
        assert log.count('"daemon.idle"') == log.count('"daemon.stopped"') == len(said)
        assert '"level": "error"' not in log


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_daemon_of_a_client_has_nothing_of_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, text in SECRETS.items():
        monkeypatch.setenv(name, text)
    monkeypatch.chdir(tmp_path)
    with folder() as layout, open(tmp_path / "secret", "w") as secret:
        os.set_inheritable(secret.fileno(), True)
        call(LocalDoor(layout, None, lambda _: None), "recall", query="anything")
        assert layout.holder is not None
        process = psutil.Process(layout.holder.pid)
        environment = Path(f"/proc/{process.pid}/environ").read_bytes()
        assert b"HOME=" in environment
        assert not [text for text in SECRETS.values() if text.encode() in environment]
        files = {os.readlink(f"/proc/{process.pid}/fd/{number}") for number in range(3)}
        assert files == {os.devnull, str(layout.log)}
        assert not [file.path for file in process.open_files() if str(tmp_path) in file.path]
        assert process.cwd() == str(layout.data_dir)
        assert os.getsid(process.pid) == process.pid
        assert "Umask:\t0077" in Path(f"/proc/{process.pid}/status").read_text()
        assert process.children() == []  # a child would write to the old log after a rotation
        assert [path for path in layout.data_dir.rglob("*") if path.is_file() and path.stat().st_mode & 0o077] == []
        claim = layout.claim_start()
        assert claim is not None, "it has released the start lock"
        claim.close()


def test_stop_ends_the_daemons_of_several_folders_and_no_hook_starts_them_again() -> None:
    with folder() as first, folder() as second:
        for layout in (first, second):
            call(LocalDoor(layout, None, lambda _: None), "recall", query="anything")
        assert first.start.exists()
        done = invoke("stop", "--data-dir", str(first.data_dir))
        assert done.stdout == f"the daemon of {first.data_dir} has stopped\n"
        assert not first.daemon_runs()
        assert second.daemon_runs()
        assert not first.start.exists()
        again = invoke("stop", "--data-dir", str(first.data_dir))
        assert again.exit_code == 1
        assert again.stderr == f"error: no daemon serves {first.data_dir}\n"


def test_a_client_of_the_library_and_a_run_in_progress_keep_the_daemon_until_they_end() -> None:
    with folder() as layout:
        local = LocalDoor(layout, None, lambda _: None, lambda: SHORT)
        local.find(time.monotonic() + PATIENCE_S)
        with MemoryClient(data_dir=layout.data_dir) as client:
            client.remember("Staging needs the VPN")
            began_s = client.status().uptime_s
            wait_until(lambda: client.status().uptime_s > began_s + 1)
            run = call(local, "run_begin", objective="Deploy to staging", event_id="e-1")["id"]
        assert layout.holder is not None
        process = psutil.Process(layout.holder.pid)
        time.sleep(2.0)  # much longer than the idle time; a daemon that is slow to end makes this test pass, not fail
        assert process.is_running()
        assert layout.daemon_runs()
        call(local, "run_end", run_id=run, event_id="e-2")
        wait_until(lambda: not layout.daemon_runs())


def hook(layout: Layout, text: str, turn: str) -> str:
    """Answer a prompt as the hook process does, with a longer deadline than a client sets; return the block."""
    said = {
        "hook_event_name": "UserPromptSubmit",
        "session_id": "s-1",
        "prompt_id": turn,
        "prompt": text,
        "cwd": "/shop",
    }
    done = run(
        "hook", "claude-code", "--data-dir", str(layout.data_dir), "--deadline-ms", "50000", input=json.dumps(said)
    )
    assert (done.returncode, done.stderr) == (0, "")
    return str(json.loads(done.stdout)["hookSpecificOutput"]["additionalContext"]) if done.stdout else ""


def test_hooks_start_the_daemon_and_no_event_is_lost_while_it_starts() -> None:
    """Regression: without `mcp` or `serve`, hooks only stored their events and never returned a block."""
    with folder() as layout:
        assert hook(layout, "The staging deploy needs the VPN", "p-1") == ""
        wait_until(layout.http.exists)
        call(LocalDoor(layout, None, lambda _: None, None), "remember", text="The VPN needs a token")
        assert "VPN" in hook(layout, "which VPN does the deploy need?", "p-2")
        assert not list(layout.hooks.rglob("*.jsonl"))
        with MemoryClient(data_dir=layout.data_dir) as client:
            wait_until(lambda: "The staging deploy needs the VPN" in {one.text for one in client.list().records})


def test_hooks_start_no_daemon_in_the_folder_of_a_service(own_daemon: DaemonProcess) -> None:
    """A client started an earlier daemon; then the user installed a service, which is now being restarted."""
    layout = Layout(own_daemon.data_dir)
    record_start(layout, SHORT)
    own_daemon.start()
    own_daemon.kill()
    assert restart_daemon(layout) is None


def test_a_hook_starts_the_daemon_again_after_its_idle_end_with_its_settings() -> None:
    with folder() as layout:
        local = LocalDoor(layout, None, lambda _: None, lambda: SHORT)
        call(local, "remember", text="The staging deploy needs the VPN")
        wait_until(lambda: not layout.daemon_runs())
        os.utime(layout.start_lock, (0, 0))  # hooks wait half a minute between attempts
        assert hook(layout, "what does the deploy need?", "p-1") == ""
        wait_until(lambda: layout.log.read_text().count('"daemon.idle"') == 2)
        assert json.loads(layout.start.read_text())["options"] == list(SHORT.options)
