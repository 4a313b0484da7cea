"""Child processes of the daemon: started, watched, restarted when they die, ended with it.

A child prints one JSON line when it is ready. What this does not do: know what the children are for (`daemon`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

import psutil
import structlog

from memory_agent.errors import UnavailableError
from memory_agent.protocol import PartStatus

log = structlog.get_logger()

_READY_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 10.0
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 5.0


class Child:
    """One process, `python -m MODULE ARGUMENTS`, kept alive until `stop`."""

    def __init__(self, name: str, module: str, arguments: Sequence[str]) -> None:
        self.name = name
        self._command = (sys.executable, "-m", module, *arguments)
        self._process: asyncio.subprocess.Process | None = None
        self._watch: asyncio.Task[None] | None = None
        self._restarts = 0
        self.ready: dict[str, Any] = {}

    async def start(self) -> None:
        """Start the process and wait until it is ready. Raises `UnavailableError`."""
        await self._spawn()
        self._watch = asyncio.create_task(self._keep_alive())

    async def stop(self) -> None:
        """End the process: SIGTERM, then SIGKILL."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        if self._process is not None and self._process.returncode is None:
            await self._end(self._process)

    def status(self) -> PartStatus:
        """Return how the process is."""
        running = self._process is not None and self._process.returncode is None
        pid = self._process.pid if self._process is not None and running else None
        return PartStatus(
            name=self.name,
            state="running" if running else "restarting",
            pid=pid,
            restarts=self._restarts,
            resident_bytes=resident_bytes(pid),
        )

    async def _spawn(self) -> None:
        # The pipe on standard input tells the child when we are gone, however we end.
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
            )
        except OSError as error:
            raise UnavailableError(f"{self.name} did not start: {error.strerror}") from error
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(_READY_TIMEOUT_S):
                line = await self._process.stdout.readline()
            self.ready = json.loads(line)
        except (TimeoutError, ValueError) as error:
            await self._end(self._process)
            raise UnavailableError(f"{self.name} did not start (exit code {self._process.returncode})") from error

    async def _keep_alive(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            assert self._process is not None
            code = await self._process.wait()
            self._restarts += 1
            log.warning("part.died", part=self.name, exit_code=code)
            try:
                await self._spawn()
                pause_s = _FIRST_PAUSE_S
                log.info("part.restarted", part=self.name)
            except UnavailableError as error:
                log.warning("part.not_restarted", part=self.name, reason=str(error))
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        _signal(process, signal.SIGTERM)
        try:
            async with asyncio.timeout(_STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            _signal(process, signal.SIGKILL)
            await process.wait()


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Send a signal. asyncio's own way to do it may reap the process first, and then its exit code is lost."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


def resident_bytes(pid: int | None) -> int:
    """Return the resident memory of a process, 0 when it is gone."""
    if pid is None:
        return 0
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0
