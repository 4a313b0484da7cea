"""How nice threads get on: whether other programs keep them from the processor. Pure: no clock, no thread.

A thread at niceness 10 gets a tenth of what a normal one gets. Beside six busy programs on two cores that made 7 texts
a second of 300 (measured), and what came in was never worked off.
"""

from __future__ import annotations

_SLOW = 12.0
_STALLED_S = 0.5


class Pace:
    """What the nice threads of a lane are at. Used under the lane's lock; seconds of the monotonic clock."""

    def __init__(self) -> None:
        self._began: dict[int, float] = {}
        self._slowness = 1.0

    def began(self, thread: int, now_s: float) -> None:
        """Note that a nice thread begins a text."""
        self._began[thread] = now_s

    def ended(self, thread: int, now_s: float, processor_s: float) -> None:
        """Note that it is through, and how long it had the processor."""
        taken_s = now_s - self._began.pop(thread)
        if processor_s > 0:
            self._slowness = taken_s / processor_s

    def is_slow(self, now_s: float) -> bool:
        """Say whether the last text took four times its time on the processor and more, or one hangs."""
        hangs = any(now_s - began_s > _STALLED_S for began_s in self._began.values())
        return hangs or self._slowness > _SLOW
