"""The time that a hook has, counted from the start of its process: then it ends, whatever it waits for.

The main thread waits, and another one works. Rejected: a timer (`SIGALRM`), whose handler runs only when the code that
it interrupts comes back to Python: reading an endless input does not, nor does looking up a host for seconds.
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
"""What is left at least: where the start alone took that long, the events are still written down."""
_USUAL_START_S = 0.05
_LONGEST_START_S = 10.0
_WHOLE_S = 1.0
"""How long what must be done whole may go on after the deadline: a client may never read what is written."""


class Deadline:
    """The deadline of a hook: the process ends then, whatever its work waits for."""

    def __init__(self, limit_ms: int = USUAL_MS) -> None:
        self.until_s = max(_started_s() + limit_ms / 1000, time.monotonic() + _LEAST_S)
        self._guard = threading.Lock()

    @property
    def left_s(self) -> float:
        """The time that is left; 0 or less when it is over."""
        return self.until_s - time.monotonic()

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Do something whole or, after the deadline, not at all."""
        with self._guard:
            yield

    def keep(self, work: Callable[[], None]) -> None:
        """Return when `work`, which runs in a thread, is done or may not go on: the caller ends the process then."""
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(max(self.left_s, 0))
        self._guard.acquire(timeout=_WHOLE_S)


def _started_s() -> float:
    """Return when this process started, on the monotonic clock; an estimate where the system does not say."""
    now_s = time.monotonic()
    try:
        with open("/proc/self/stat") as stat:
            ticks = int(stat.read().rpartition(")")[2].split()[19])
        took_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return now_s - _USUAL_START_S
    return now_s - (took_s if 0 <= took_s < _LONGEST_START_S else _USUAL_START_S)
