"""The time that a hook has, counted from the start of its process: then it ends, whatever it waits for."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from types import FrameType

USUAL_MS = 300
LONGEST_MS = 60_000
_LEAST_S = 0.05
"""What is left at least: where the start alone took that long, the events are still written down."""
_USUAL_START_S = 0.05
_LONGEST_START_S = 10.0


def _end(_: int, __: FrameType | None) -> None:
    os._exit(0)


class Deadline:
    """Ends this process with exit code 0 when the time is over, unless it is `off`. For the main thread."""

    def __init__(self, limit_ms: int = USUAL_MS, end: Callable[[int, FrameType | None], None] = _end) -> None:
        """`end` is the handler of the signal; it does not return."""
        self.until_s = max(_started_s() + limit_ms / 1000, time.monotonic() + _LEAST_S)
        signal.signal(signal.SIGALRM, end)
        self.on()

    @property
    def left_s(self) -> float:
        """The time that is left; 0 or less when it is over."""
        return self.until_s - time.monotonic()

    def on(self) -> None:
        """End the process from now on."""
        signal.setitimer(signal.ITIMER_REAL, max(self.left_s, 1e-6))

    def off(self) -> None:
        """Do not end the process, while something is done whole or not at all."""
        signal.setitimer(signal.ITIMER_REAL, 0)


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
