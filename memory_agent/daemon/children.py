"""Starts and monitors the daemon's child processes, restarts them when they die, and stops them.

A child prints one JSON line when it is ready. The subprocess functions of `asyncio` are not used, because they may wait
forever if they are cancelled during startup.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec
import psutil

from memory_agent.errors import UnavailableError
from memory_agent.settings import Settings, former_of
from memory_agent.verbs.protocol import PartStatus
from relay.log import log

_READY_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 10.0
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 5.0
_POLL_S = 0.05
_OWN_GROUP = 0  # Ctrl-C signals the terminal's whole process group, and would stop the parts in arbitrary order


def embedder_arguments(settings: Settings, endpoint: str) -> tuple[str, ...]:
    """Return the arguments of the embedder process.

    Keys are passed by name only, because other users can read the arguments.
    """
    parts = (settings.embedder, former_of(settings), settings.tracing)
    own, former, tracing = (msgspec.json.encode(one).decode() for one in parts)
    return ("--endpoint", endpoint, "--settings", own, "--former", former, "--tracing", tracing)


class Child:
    """One process, `python -P -m MODULE ARGUMENTS`. `-P` keeps the working folder off the import path."""

    def __init__(
        self,
        name: str,
        module: str,
        arguments: Sequence[str],
        environment: Mapping[str, str] = MappingProxyType({}),
        *,
        is_restarted: bool = True,
    ) -> None:
        """`environment` holds default values of environment variables."""
        self.name = name
        self._is_restarted = is_restarted
        self._command = (sys.executable, "-P", "-m", module, *arguments)
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False
        self._watch: asyncio.Task[None] | None = None
        self._restarts = 0
        self.ready: dict[str, Any] = {}

    async def start(self) -> None:
        """Start the process and wait until it is ready. Raises `UnavailableError`."""
        await self._spawn()
        if not self._stopped and self._is_restarted:
            self._watch = asyncio.create_task(self._keep_alive())

    async def stop(self) -> None:
        """End the process with SIGTERM, then SIGKILL, and do not restart it."""
        self._stopped = True
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        if self._process is not None:
            await _end(self._process)

    async def ended(self) -> None:
        assert self._process is not None
        await _gone(self._process)

    def status(self) -> PartStatus:
        pid = self._process.pid if self._process is not None and self._process.poll() is None else None
        return PartStatus(
            name=self.name,
            state="restarting" if pid is None else "running",
            pid=pid,
            restarts=self._restarts,
            resident_bytes=resident_bytes(pid),
        )

    async def _spawn(self) -> None:
        try:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                env={**self._environment, **os.environ},
                process_group=_OWN_GROUP,
            )
        except OSError as error:
            raise UnavailableError(f"{self.name} did not start: {error.strerror}") from error
        self._process = process
        assert process.stdout is not None
        try:
            async with asyncio.timeout(_READY_TIMEOUT_S):
                line = await asyncio.to_thread(process.stdout.readline)
            self.ready = json.loads(line)
        except (TimeoutError, ValueError) as error:
            await _end(process)
            raise UnavailableError(f"{self.name} did not start (exit code {process.returncode})") from error

    async def _keep_alive(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            assert self._process is not None
            await _gone(self._process)
            self._restarts += 1
            log.warning("part.died", part=self.name, exit_code=self._process.returncode)
            try:
                await self._spawn()
                pause_s = _FIRST_PAUSE_S
                log.info("part.restarted", part=self.name)
            except UnavailableError as error:
                log.warning("part.not_restarted", part=self.name, reason=str(error))
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


async def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        async with asyncio.timeout(_STOP_TIMEOUT_S):
            await _gone(process)
    except TimeoutError:
        process.kill()
        await _gone(process)


async def _gone(process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        await asyncio.sleep(_POLL_S)
    if process.stdout is not None:
        process.stdout.close()


def resident_bytes(pid: int | None) -> int:
    if pid is None:
        return 0
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0
