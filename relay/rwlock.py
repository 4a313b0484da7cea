"""A read/write lock for threads. Writers have priority: while one waits, no new reader enters."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from relay.changes import Changes


class ReadWriteLock:
    """A lock with a shared, reentrant side and an exclusive side. A shared lock cannot be upgraded.

    Each block has a token. Its removal is one step, which a `KeyboardInterrupt` cannot cut in two.
    """

    def __init__(self) -> None:
        self._changes = Changes()
        self._readers: dict[object, int] = {}  # the thread of each token
        self._writer: object | None = None

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Hold the lock with other readers; waits while a writer has it or waits for it."""
        me, token = threading.get_ident(), object()

        def enter() -> bool:
            if self._writer is not None and me not in self._readers.values():
                return False
            self._readers[token] = me
            return True

        try:
            self._changes.until(enter)
            yield
        finally:
            self._readers.pop(token, None)
            if self._writer is not None:
                self._notify()

    @contextmanager
    def exclusive(self, timeout_s: float | None = None) -> Iterator[None]:
        """Hold the lock alone. Waits `timeout_s` for other writers, and as long again for readers.

        Without a timeout it waits for ever. Raises `TimeoutError`.
        """
        token = object()

        def enter() -> bool:
            if self._writer is None:
                self._writer = token
            return self._writer is token

        try:
            if not self._changes.until(enter, timeout_s):
                raise TimeoutError("another writer holds the lock")
            if not self._changes.until(lambda: not self._readers, timeout_s):
                raise TimeoutError("readers hold the lock")
            yield
        finally:
            if self._writer is token:
                self._writer = None
                self._notify()

    @property
    def _has_writer(self) -> bool:
        return self._writer is not None

    def _notify(self) -> None:
        with self._changes.lock:
            self._changes.notify()
