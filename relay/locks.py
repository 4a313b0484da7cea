"""Thread locks that survive Ctrl-C: a condition variable and a read/write lock.

A `KeyboardInterrupt` inside `threading.Condition`, or a class built on it, can leave a lock held forever. By contrast,
Python does not interrupt `with lock` or a single C call.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue

WAIT_FOR_EVER = -1.0  # a timeout that makes `holding` wait until the lock is free

_RECHECK_S = 1.0  # an interrupted `notify_all` may have reached only some threads


class Condition:
    """A condition variable with its lock. A `KeyboardInterrupt` leaves both usable."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._waiting: dict[SimpleQueue[None], None] = {}

    def wait_for(self, step: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Call `step` while holding the lock, and again after each `notify_all`, until it returns True; return False on
        timeout.

        >>> condition, events = Condition(), ["e-1"]
        >>> condition.wait_for(lambda: bool(events), timeout_s=1.0)
        True
        >>> condition.wait_for(lambda: not events, timeout_s=0.01)
        False
        """
        deadline_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        woken = SimpleQueue[None]()
        try:
            while True:
                with self.lock:
                    if step():
                        return True
                    self._waiting[woken] = None
                remaining_s = deadline_s - time.monotonic()
                if remaining_s <= 0:
                    return False
                with suppress(Empty):
                    woken.get(timeout=min(remaining_s, _RECHECK_S))
        finally:
            self._waiting.pop(woken, None)

    def notify_all(self) -> None:
        """Make every waiting thread call its `step` again. The caller holds the lock."""
        for woken in tuple(self._waiting):
            woken.put(None)


@contextmanager
def holding(lock: threading.RLock, timeout_s: float) -> Iterator[bool]:
    """Hold a lock for the block; yield False if it was not free within `timeout_s`. Not reentrant.

    Always released after a `KeyboardInterrupt`.

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
        except RuntimeError:  # the lock was not held
            pass


class ReadWriteLock:
    """A lock with a shared, reentrant mode and an exclusive mode. A waiting writer blocks new readers."""

    def __init__(self) -> None:
        self._condition = Condition()
        self._readers: dict[object, int] = {}  # the thread that holds each token
        self._writer: object | None = None

    @contextmanager
    def shared(self) -> Iterator[None]:
        me, token = threading.get_ident(), object()

        def enter() -> bool:
            if self._writer is not None and me not in self._readers.values():
                return False
            self._readers[token] = me
            return True

        try:
            self._condition.wait_for(enter)
            yield
        finally:
            self._readers.pop(token, None)
            if self._writer is not None:
                self._notify()

    @contextmanager
    def exclusive(self, timeout_s: float | None = None) -> Iterator[None]:
        """Hold the lock exclusively. Waits up to `timeout_s` for writers, and then up to `timeout_s` for readers.
        Raises `TimeoutError`.
        """
        token = object()

        def enter() -> bool:
            if self._writer is None:
                self._writer = token
            return self._writer is token

        try:
            if not self._condition.wait_for(enter, timeout_s):
                raise TimeoutError("another writer holds the lock")
            if not self._condition.wait_for(lambda: not self._readers, timeout_s):
                raise TimeoutError("readers hold the lock")
            yield
        finally:
            if self._writer is token:
                self._writer = None
                self._notify()

    def _notify(self) -> None:
        with self._condition.lock:
            self._condition.notify_all()
