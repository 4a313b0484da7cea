"""Test that child processes are restarted after any startup failure, and that they exit on request."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from polling import until

from memory_agent.daemon.children import Child

PROGRAM = "#!/bin/sh\necho '{\"ready\": true}'\nexec sleep 1000\n"


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a program that runs in place of Python."""
    path = tmp_path / "program"
    path.write_text(PROGRAM)
    path.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(path))
    return path


def test_a_part_that_cannot_be_started_is_retried(program: Path) -> None:
    """Regression: if no process could be started, the watch ended, and the part was never restarted or reported."""

    async def go() -> None:
        child = Child("part", "none", ())
        await child.start()
        try:
            first = child.status().pid
            assert first is not None
            away = program.rename(program.with_name("away"))
            os.kill(first, signal.SIGKILL)
            await until(lambda: child.status().restarts >= 2)
            assert child.status().state == "restarting"
            away.rename(program)
            await until(lambda: child.status().pid not in (None, first))
        finally:
            await child.stop()
        assert child.status().pid is None

    asyncio.run(go())


def test_environment_variables_of_this_process_override_those_of_a_part(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = 'echo "{\\"seen\\": \\"$OF_THE_PART $OF_BOTH\\"}"'
    program.write_text(f"#!/bin/sh\n{ready}\nexec sleep 60\n")
    monkeypatch.setenv("OF_BOTH", "of this process")

    async def go() -> None:
        child = Child("part", "none", (), {"OF_THE_PART": "its own,", "OF_BOTH": "its own"})
        await child.start()
        await child.stop()
        assert child.ready == {"seen": "its own, of this process"}

    asyncio.run(go())


def test_a_part_stopped_during_its_start_is_not_restarted(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: a part was stopped because another part had failed, but it became ready, died, and was restarted."""
    started = program.with_name("started")
    program.write_text(f"#!/bin/sh\ntrap '' TERM\necho $$ >> {started}\nsleep 0.3\n" + PROGRAM.partition("\n")[2])

    async def go() -> None:
        child = Child("part", "none", ())
        starting = asyncio.create_task(child.start())
        await until(lambda: started.exists() and started.read_text() != "")
        await asyncio.wait_for(child.stop(), 30.0)
        await asyncio.gather(starting, return_exceptions=True)
        assert child.status().pid is None

    monkeypatch.setattr("memory_agent.daemon.children._STOP_TIMEOUT_S", 1.0)
    asyncio.run(go())
    assert len(started.read_text().split()) == 1


def test_a_cancelled_start_leaves_no_process(program: Path) -> None:
    program.write_text("#!/bin/sh\nexec sleep 1000\n")

    async def go() -> None:
        child = Child("part", "none", ())
        starting = asyncio.create_task(child.start())
        await until(lambda: child.status().pid is not None)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await asyncio.wait_for(child.stop(), 30.0)
        assert child.status().pid is None

    asyncio.run(go())


def test_ctrl_c_in_the_daemons_terminal_does_not_reach_a_part(program: Path) -> None:
    """Regression: the relay ended before its publisher, and was reported as dead."""

    async def go() -> None:
        child = Child("part", "none", ())
        await child.start()
        pid = child.status().pid
        assert pid is not None
        assert os.getpgid(pid) == pid != os.getpgrp()
        await child.stop()

    asyncio.run(go())
