"""Test what a daemon inherits from the client that starts it, and under which conditions a hook starts one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import memory_agent
from memory_agent import starting
from memory_agent.layout import Layout
from memory_agent.starting import Start, daemon_environment, record_start, restart_daemon, start_daemon

REPORT = """
import json, os, sys
here = sys.argv[2]
said = {"environment": dict(os.environ), "cwd": os.getcwd(), "session": os.getsid(0) == os.getpid()}
said["umask"], said["arguments"], said["files"] = os.umask(0), sys.argv[1:], {}
for name in os.listdir("/proc/self/fd") if sys.platform == "linux" else ():
    if os.path.exists(f"/proc/self/fd/{name}"):  # unlike that of this list
        said["files"][name] = os.readlink(f"/proc/self/fd/{name}")
with open(here + "/said.tmp", "w") as file:
    json.dump(said, file)
os.rename(here + "/said.tmp", here + "/said")
"""
OF_AGENTS = {
    "ANTHROPIC_API_KEY": "sk-ant",
    "OPENAI_API_KEY": "sk-own",
    "AWS_SECRET_ACCESS_KEY": "s",
    "CLAUDE_CODE_SESSION_ID": "s-1",
    "MEMORY_AGENT_TOKEN": "t",
    "MEMORY_AGENT_KEY_FILE": "/k",
    "SSH_AUTH_SOCK": "/tmp/agent",
    "VIRTUAL_ENV": "/home/ann/shop/.venv",
    "LD_PRELOAD": "",
    "NODE_OPTIONS": "--inspect",
}


@pytest.fixture
def reporting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the daemon with a program that reports what it inherited."""
    monkeypatch.setattr(starting, "_COMMAND", ("-c", REPORT))
    for name in [name for name in os.environ if name.startswith("MEMORY_AGENT_")]:
        monkeypatch.delenv(name)


def test_a_daemon_gets_what_it_needs_and_nothing_else_of_the_client(
    reporting: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {"HTTPS_PROXY": "http://p:1", "no_proxy": "x", "LC_ALL": "C", "MEMORY_AGENT_RECALL__MODE": "hybrid"}
    for name, text in (OF_AGENTS | own).items():
        monkeypatch.setenv(name, text)
    with open(tmp_path / "secret", "w") as secret:
        os.set_inheritable(secret.fileno(), True)  # like the pipes that an agent's children inherit from Node.js
        layout = Layout(tmp_path / "data")
        process = start_daemon(layout, Start(("--set", "a=b"), ("OPENAI_API_KEY",)))
        assert process.wait(60) == 0
    said = json.loads((layout.data_dir / "said").read_text())
    assert said["environment"].keys() & OF_AGENTS.keys() == {"OPENAI_API_KEY"}  # the settings name it
    assert said["environment"].items() >= own.items()
    assert Path(said["environment"]["HOME"]) == Path.home()
    assert (said["cwd"], said["session"], said["umask"]) == (str(layout.data_dir), True, 0o077)
    assert said["arguments"] == ["--data-dir", str(layout.data_dir), "--set", "a=b"]
    if sys.platform == "linux":
        assert {*said["files"].values()} == {str(layout.start_lock), os.devnull, str(layout.log)}
    assert all(file.stat().st_mode & 0o077 == 0 for file in (layout.log, layout.start))


def test_only_the_folder_that_has_this_program_stays_on_the_import_path() -> None:
    own = str(Path(memory_agent.__file__).parents[1])
    both = os.pathsep.join(("/home/ann/shop", own))
    assert daemon_environment((), {"PYTHONPATH": both}) == {"PYTHONPATH": own}
    assert daemon_environment((), {"PYTHONPATH": os.path.relpath(own) + os.sep}) == {"PYTHONPATH": own}
    assert daemon_environment((), {"PYTHONPATH": "/home/ann/shop"}) == {}
    assert daemon_environment(["PYTHONPATH"], {"PYTHONPATH": both}) == {"PYTHONPATH": both}


def test_nobody_else_starts_a_daemon_until_it_holds_the_folder_or_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starting, "_COMMAND", ("-c", "import signal; signal.pause()"))
    layout = Layout(tmp_path)
    process = start_daemon(layout, Start())
    assert start_daemon(layout, Start()) is None
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    again = start_daemon(layout, Start())
    assert again is not None
    again.kill()
    again.wait(60)


def restarted(layout: Layout) -> bool:
    """Run a hook, wait until any daemon that it started has exited, and return whether it started one."""
    if layout.start_lock.exists():
        os.utime(layout.start_lock, (0, 0))  # as if no hook had just tried to start a daemon
    process = restart_daemon(layout)
    return process is not None and process.wait(60) == 0


def test_a_hook_starts_a_daemon_as_a_client_last_started_it(
    reporting: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = Layout(tmp_path / "data")
    assert restarted(layout)  # this folder has not been used yet, so the default settings apply
    layout.lock.touch()
    start_daemon(layout, Start(("--set", "a=b"), ("OWN_KEY",))).wait(60)
    assert not restarted(layout), "the variable that its settings name is missing"
    monkeypatch.setenv("OWN_KEY", "k")
    assert restarted(layout)
    said = json.loads((layout.data_dir / "said").read_text())
    assert (said["arguments"][2:], said["environment"]["OWN_KEY"]) == (["--set", "a=b"], "k")
    assert restart_daemon(layout) is None, "it may be unable to start, so not every hook tries it"
    with layout.hold():
        assert not restarted(layout)
    layout.start.unlink()  # as `memory-agent stop` does
    assert not restarted(layout), "someone else serves this folder, with unknown settings"
    layout.start.write_text("{")
    assert not restarted(layout)


def test_a_hook_with_settings_starts_the_first_daemon_with_them(
    reporting: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = Layout(tmp_path)
    record_start(layout, Start(("--set", "a=b")))
    record_start(layout, Start())
    assert restarted(layout)
    assert json.loads((tmp_path / "said").read_text())["arguments"][2:] == ["--set", "a=b"]
    monkeypatch.setenv("MEMORY_AGENT_RECALL__MODE", "lexical")
    assert not restarted(Layout(tmp_path / "other")), "which variables these settings name is unknown"


def test_a_hook_ignores_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert restart_daemon(Layout(tmp_path / "file" / "data")) is None


def test_a_failing_start_leaves_its_reason_in_the_log(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    process: subprocess.Popen[bytes] = start_daemon(layout, Start(("--nonsense",)))
    assert process.wait(60) == 2
    assert "--nonsense" in layout.log.read_text()
