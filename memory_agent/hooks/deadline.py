"""A hook's deadline, measured from the start of its process. After it, the process exits, even if it is blocked.

The main thread waits while a second thread works. A timer (`SIGALRM`) is not enough: its handler runs only when the
interrupted code returns to Python, which may take seconds while a host name is resolved.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

USUAL_MS = 300
LONGEST_MS = 60_000
_LEAST_S = 0.05
"""The minimum time allowed for the work, so that events are written to disk even after a slow start."""
_USUAL_START_S = 0.05
_LONGEST_START_S = 10.0
_WHOLE_S = 1.0
"""How long `whole` may continue after the deadline. This bounds the wait for a client that never reads the output."""


class Deadline:
    def __init__(self, limit_ms: int = USUAL_MS) -> None:
        self.until_s = max(_started_s() + limit_ms / 1000, time.monotonic() + _LEAST_S)
        self._guard = threading.Lock()

    @property
    def left_s(self) -> float:
        return self.until_s - time.monotonic()

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Let the body run to completion. If the deadline has already passed, the body does not run."""
        with self._guard:
            yield

    def keep(self, work: Callable[[], None]) -> None:
        """Run `work` in a thread; return when the work is done or the deadline has passed. The caller then ends the
        process."""
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(max(self.left_s, 0))
        self._guard.acquire(timeout=_WHOLE_S)


def _started_s() -> float:
    """Return the start time of the process, or an estimate if the system does not report it."""
    now_s = time.monotonic()
    try:
        with open("/proc/self/stat") as stat:
            ticks = int(stat.read().rpartition(")")[2].split()[19])
        took_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return now_s - _USUAL_START_S
    return now_s - (took_s if 0 <= took_s < _LONGEST_START_S else _USUAL_START_S)
