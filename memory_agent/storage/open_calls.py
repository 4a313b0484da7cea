"""The calls into an open memory: closing waits for those under way and refuses later ones."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from memory_agent.errors import StoreError
from relay.locks import ReadWriteLock

InUse = Callable[[], AbstractContextManager[None]]
"""Keeps the files open for one call."""


class OpenCalls:
    """Counts the calls into one memory. Calls may nest."""

    def __init__(self, name: str) -> None:
        """`name` begins the message of the error that calls get once it is shut."""
        self._name = name
        self._calls = ReadWriteLock()
        self._shut = threading.Lock()  # taken once, for good

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Keep everything open for one call. Raises `StoreError` once it is shut, without waiting."""
        self._require_open()
        with self._calls.shared():
            self._require_open()
            yield

    def shut(self) -> bool:
        """Refuse new calls, wait for those under way; return whether this was the first call of `shut`."""
        if not self._shut.acquire(blocking=False):
            return False
        with self._calls.exclusive():
            return True

    def _require_open(self) -> None:
        if self._shut.locked():
            raise StoreError(f"{self._name} is closed")
