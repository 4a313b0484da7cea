"""A gate before something that many use and one must now and then have alone: a file that is replaced under them.

Who waits to be alone lets nobody new in, so a busy place cannot keep it waiting; whoever is inside may enter again, so
nesting cannot deadlock. Pure.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class Gate:
    """Lets any number of threads pass, or one be alone."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside: Counter[int] = Counter()
        self._is_shut = False

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Be inside for the block; waits while somebody is alone, or about to be."""
        me = threading.get_ident()
        with self._changed:
            self._changed.wait_for(lambda: not self._is_shut or me in self._inside)
            self._inside[me] += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside[me] -= 1
                if not self._inside[me]:
                    del self._inside[me]
                if self._is_shut:
                    self._changed.notify_all()

    @contextmanager
    def alone(self, patience_s: float) -> Iterator[None]:
        """Be the only one for the block. Raises `TimeoutError` when the others do not leave in time."""
        with self._changed:
            if not self._changed.wait_for(lambda: not self._is_shut, patience_s):
                raise TimeoutError("somebody else is alone")
            self._is_shut = True
            if not self._changed.wait_for(lambda: not self._inside, patience_s):
                self._open()
                raise TimeoutError("others do not leave")
        try:
            yield
        finally:
            with self._changed:
                self._open()

    def _open(self) -> None:
        self._is_shut = False
        self._changed.notify_all()
