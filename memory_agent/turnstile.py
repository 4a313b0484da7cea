"""Counts who is inside, so that closing waits for calls under way and lets no more of them in."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from memory_agent.errors import StoreError


class Turnstile:
    """The way into what is open, until it is shut. Any number of threads pass at a time."""

    def __init__(self, name: str) -> None:
        """`name` stands in the error of whoever comes too late."""
        self._name = name
        self._idle = threading.Condition()
        self._inside = 0
        self._is_shut = False

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Keep everything open for one call. Raises `StoreError` once it is shut."""
        with self._idle:
            if self._is_shut:
                raise StoreError(f"{self._name} is closed")
            self._inside += 1
        try:
            yield
        finally:
            with self._idle:
                self._inside -= 1
                self._idle.notify_all()

    def shut(self) -> bool:
        """Let no more in and wait for those inside; return whether this was the first to ask."""
        with self._idle:
            if self._is_shut:
                return False
            self._is_shut = True
            self._idle.wait_for(lambda: self._inside == 0)
            return True
