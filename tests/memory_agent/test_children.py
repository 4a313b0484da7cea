"""Child processes: restarted whatever their start meets, ended with their parent's wish."""

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


async def until(fact: Callable[[], bool]) -> None:
    async with asyncio.timeout(20.0):
        while not fact():
            await asyncio.sleep(0.005)


def test_a_part_that_the_system_cannot_start_now_is_started_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No process, no memory, an upgrade under way: the watch used to end there, and the part stayed dead in silence."""
    program = tmp_path / "program"
    program.write_text(PROGRAM)
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))

    async def go() -> None:
        child = Child("part", "none", ())
        await child.start()
        try:
            first = child.status().pid
            assert first is not None
            away = program.rename(tmp_path / "away")
            os.kill(first, signal.SIGKILL)
            await until(lambda: child.status().restarts >= 2)
            assert child.status().state == "restarting"
            away.rename(program)
            await until(lambda: child.status().pid not in (None, first))
        finally:
            await child.stop()
        assert child.status().pid is None

    asyncio.run(go())
