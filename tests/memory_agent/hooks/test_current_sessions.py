"""Test that programs started by an agent process find the session that its hooks last reported."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from memory_agent.hooks.current_sessions import CurrentSessions

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


@pytest.fixture
def agent() -> Iterator[subprocess.Popen[str]]:
    """A process that starts a shell, like an agent that runs a hook, and prints the shell's process id."""
    script = "import subprocess; subprocess.run(['sh', '-c', 'echo $$; cat; :'])"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.communicate("")


def test_a_hook_of_a_shell_of_the_agent_changes_the_session_of_its_server(
    tmp_path: Path, agent: subprocess.Popen[str]
) -> None:
    sessions = CurrentSessions(tmp_path / "agents")
    assert agent.stdout is not None
    shell = int(agent.stdout.readline())
    assert sessions.get(agent.pid) is None
    for session in ("s-1", "s-2", "s-2"):
        sessions.set(shell, session)
        assert sessions.get(agent.pid) == session
    sessions.set(agent.pid, "s-3")
    assert sessions.get(agent.pid) == "s-3"
    assert sessions.get(os.getpid()) is None


def test_files_of_processes_that_ended_are_removed(tmp_path: Path) -> None:
    sessions = CurrentSessions(tmp_path)
    (tmp_path / f"{os.getpid()}-1").write_text("of a process that had this id before")
    assert sessions.get(os.getpid()) is None
    sessions.set(os.getpid(), "s-1")
    assert len(list(tmp_path.iterdir())) == 1
    assert sessions.get(os.getpid()) == "s-1"


@pytest.mark.parametrize("session", ["", "../x", "a b", "s\n", "x" * 129])
def test_ids_that_no_session_has_are_ignored(tmp_path: Path, session: str) -> None:
    sessions = CurrentSessions(tmp_path)
    sessions.set(os.getpid(), session)
    assert sessions.get(os.getpid()) is None
