"""Waiting for what other threads change under a lock.

Rejected: `threading.Condition`, whose methods are Python code, and so `Event`, `Semaphore` and
`concurrent.futures.Future`. A `KeyboardInterrupt` inside one can leave its lock taken, so that every other thread waits
for ever. Python does not interrupt `with lock`, nor a single call of C code.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue

_LOOK_AGAIN_S = 1.0  # a `notify` that was interrupted may have reached some threads only


class Changes:
    """A lock, and news of what changes under it. A `KeyboardInterrupt` leaves both usable."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._waiting: dict[SimpleQueue[None], None] = {}

    def until(self, step: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Call `step` under the lock, again after each change, until it is true; return False after `timeout_s`.

        >>> changes, events = Changes(), ["e-1"]
        >>> changes.until(lambda: bool(events), timeout_s=1.0), changes.until(lambda: not events, timeout_s=0.01)
        (True, False)
        """
        deadline_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        news = SimpleQueue[None]()
        try:
            while True:
                with self.lock:
                    if step():
                        return True
                    self._waiting[news] = None
                remaining_s = deadline_s - time.monotonic()
                if remaining_s <= 0:
                    return False
                with suppress(Empty):
                    news.get(timeout=min(remaining_s, _LOOK_AGAIN_S))
        finally:
            self._waiting.pop(news, None)

    def notify(self) -> None:
        """Let every waiting thread look again. The caller holds the lock."""
        for news in tuple(self._waiting):
            news.put(None)


@contextmanager
def holding(lock: threading.RLock, timeout_s: float) -> Iterator[bool]:
    """Hold a lock in the block, not yet held here; yield False if it was not free within `timeout_s`.

    A `KeyboardInterrupt` leaves it free, which between `acquire` and `try` it would not.

    >>> lock = threading.RLock()
    >>> with holding(lock, timeout_s=1.0) as is_held:
    ...     is_held
    True
    """
    try:
        yield lock.acquire(timeout=timeout_s)
    finally:
        try:  # noqa: SIM105 - an interrupt in `suppress` would come before the release
            lock.release()
        except RuntimeError:  # it was not taken
            pass
