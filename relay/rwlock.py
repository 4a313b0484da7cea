"""A read/write lock for threads. Writers have priority: while one waits, no new reader enters."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class ReadWriteLock:
    """A lock with a shared, reentrant side and an exclusive side. A shared lock cannot be upgraded."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._readers: Counter[int] = Counter()
        self._has_writer = False

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Hold the lock with other readers; waits while a writer has it or waits for it."""
        me = threading.get_ident()
        with self._changed:
            while self._has_writer and me not in self._readers:
                self._changed.wait()
            self._readers[me] += 1
        try:
            yield
        finally:
            with self._changed:
                self._readers[me] -= 1
                if not self._readers[me]:
                    del self._readers[me]
                if self._has_writer:
                    self._changed.notify_all()

    @contextmanager
    def exclusive(self, timeout_s: float | None = None) -> Iterator[None]:
        """Hold the lock alone. Waits `timeout_s` for other writers, and as long again for readers.

        Without a timeout it waits for ever. Raises `TimeoutError`.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: not self._has_writer, timeout_s):
                raise TimeoutError("another writer holds the lock")
            self._has_writer = True
            if not self._changed.wait_for(lambda: not self._readers, timeout_s):
                self._release()
                raise TimeoutError("readers hold the lock")
        try:
            yield
        finally:
            with self._changed:
                self._release()

    def _release(self) -> None:
        self._has_writer = False
        self._changed.notify_all()
