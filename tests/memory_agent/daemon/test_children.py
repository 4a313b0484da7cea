"""Child processes: restarted after any failure at the start, ended on request."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from memory_agent.daemon.children import Child

PROGRAM = "#!/bin/sh\necho '{\"ready\": true}'\nexec sleep 1000\n"


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the program that is run as Python."""
    path = tmp_path / "program"
    path.write_text(PROGRAM)
    path.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(path))
    return path


async def until(fact: Callable[[], bool]) -> None:
    async with asyncio.timeout(20.0):
        while not fact():
            await asyncio.sleep(0.005)


def test_a_part_that_the_system_cannot_start_now_is_started_later(program: Path) -> None:
    """No process, no memory, an upgrade under way: the watch used to end there, and the part stayed dead in silence."""

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


def test_a_part_has_its_own_variables_unless_this_process_has_them(
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


def test_a_part_that_is_stopped_while_it_starts_is_not_started_again(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another part had failed: this one became ready after its stop, was watched, died and was started once more."""
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


def test_a_start_that_is_given_up_leaves_nothing_behind(program: Path) -> None:
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


def test_a_part_does_not_get_the_ctrl_c_of_the_daemons_terminal(program: Path) -> None:
    """The relay ended before its publisher, and was reported as dead."""

    async def go() -> None:
        child = Child("part", "none", ())
        await child.start()
        pid = child.status().pid
        assert pid is not None
        assert os.getpgid(pid) == pid != os.getpgrp()
        await child.stop()

    asyncio.run(go())
