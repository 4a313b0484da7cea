"""Stops a daemon that was started by a client, once it has been idle for a while. Nothing is lost: the next call starts
a new daemon.

Local clients hold a shared lock during each call. The daemon exits only while it holds this lock exclusively, and keeps
the lock until its process has ended. A call that arrives later waits for the lock, and then starts a new daemon.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import resource
import signal
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from memory_agent.layout import Layout

_LOOKS = 20
"""The number of checks during the idle time."""
_LONGEST_LOOK_S = 15.0
_SETTLE_S = 0.2
"""Clients that name an endpoint do not take the lock. A request from such a client is noticed within this time."""
_LIMITS = (resource.RLIMIT_CPU, resource.RLIMIT_FSIZE, resource.RLIMIT_AS, resource.RLIMIT_DATA, resource.RLIMIT_NPROC)


class Activity(NamedTuple):
    """What a daemon is doing: `is_busy` is true while it works; `mark` changes with each request and event."""

    is_busy: bool
    mark: Hashable


class IdleEnd:
    """Waits until a daemon is idle. `observe` returns what the daemon is doing; `now` is a monotonic clock, in
    seconds."""

    def __init__(self, calls: int, idle_s: float, now: Callable[[], float] = time.monotonic) -> None:
        """`calls` is a file descriptor for `Layout.calls_lock`, which the caller closes after the daemon has ended."""
        self._calls = calls
        self._idle_s = idle_s
        self._now = now

    async def wait(self, observe: Callable[[], Activity]) -> None:
        """Return once the daemon has been idle for long enough. The lock is then held, so no local client can call."""
        since_s, mark = self._now(), observe().mark
        while True:
            await asyncio.sleep(min(self._idle_s / _LOOKS, _LONGEST_LOOK_S))
            seen = observe()
            if seen.is_busy or seen.mark != mark:
                since_s, mark = self._now(), seen.mark
            elif self._now() - since_s >= self._idle_s:
                if await self._claim(observe, mark):
                    return
                since_s = self._now()

    async def _claim(self, observe: Callable[[], Activity], mark: Hashable) -> bool:
        """Lock out local clients; return False if a local client is calling, or if any other client has called in the
        meantime.
        """
        try:
            fcntl.flock(self._calls, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        await asyncio.sleep(min(self._idle_s, _SETTLE_S))
        if observe() == Activity(False, mark):
            return True
        fcntl.flock(self._calls, fcntl.LOCK_UN)
        return False


@contextmanager
def calls_lock(layout: Layout) -> Iterator[int]:
    lock = os.open(layout.calls_lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        yield lock
    finally:
        os.close(lock)


def forget_client() -> None:
    """Reset the state that this process inherited from its client. Disable core files, because they would contain
    memories.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.umask(0o077)
    for limit in _LIMITS:
        hard = resource.getrlimit(limit)[1]
        with suppress(ValueError, OSError):
            resource.setrlimit(limit, (hard, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def release_start() -> None:
    """Close the lock file on standard input, which this process inherited. Other processes may then start a daemon."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
