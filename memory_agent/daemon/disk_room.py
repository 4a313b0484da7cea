"""Whether a machine that joined can still write: each host reports it with the renewals of its lease.

The daemon places no users on a machine without room, and moves its users away, before their stores refuse to write.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from relay.disk import free_bytes
from relay.log import log

_FULL = 2
_ROOMY = 8
"""A disk is full with less than `_FULL` times the stores' reserve, and has room again with `_ROOMY` times as much."""


class DiskRoom:
    """The disk of one data folder. Thread-safe."""

    def __init__(self, folder: Path, reserve_bytes: int) -> None:
        """`reserve_bytes` is what the stores leave free (`store.reserve_bytes`)."""
        self._folder = folder
        self._reserve_bytes = reserve_bytes
        self._is_full = False
        self._is_suspect = False

    def suspect(self) -> None:
        """Let the next check try to write: a write has failed, although bytes may be free."""
        self._is_suspect = True

    def check(self) -> bool:
        """Return whether there is room. Takes microseconds unless a write has failed."""
        needed = self._reserve_bytes * (_ROOMY if self._is_full else _FULL)
        free = free_bytes(self._folder)
        if free is not None and free < needed:
            self._is_full = True
        elif self._is_full or self._is_suspect:
            self._is_suspect, self._is_full = False, not self._can_write(needed)
        return not self._is_full

    def _can_write(self, size_bytes: int) -> bool:
        """Whether a file can be written; not with a quota, or on a disk that became read-only."""
        try:
            with tempfile.TemporaryFile(dir=self._folder, buffering=0) as file:
                while size_bytes > 0:
                    size_bytes -= file.write(bytes(min(size_bytes, 1 << 20)))
        except OSError as error:
            log.warning("disk.refuses", folder=str(self._folder), reason=error.strerror)
            return False
        return True
