"""Detects full disks on joined machines. Each host reports the state of its disk with each lease renewal.

The daemon places no users on a machine with a full disk, and moves its users away before their writes fail.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from relay.disk import free_bytes
from relay.log import log

_FULL = 2
_ROOMY = 8
"""A disk counts as full if less than `_FULL` times the stores' reserve is free. It then remains full until `_ROOMY`
times the reserve is free.
"""


class DiskRoom:
    """The disk that holds one data folder. Thread-safe."""

    def __init__(self, folder: Path, reserve_bytes: int) -> None:
        """`reserve_bytes` is what the stores leave free (`store.reserve_bytes`)."""
        self._folder = folder
        self._reserve_bytes = reserve_bytes
        self._is_suspect = False

    def suspect(self) -> None:
        """Make the next check write a test file, because a write failed even though the disk may have free space."""
        self._is_suspect = True

    def check(self, *, was_full: bool) -> bool:
        """Return whether there is room. `was_full`: whether the disk was full when any process last checked it.

        Takes microseconds unless the disk was full or a write has failed.
        """
        needed = self._reserve_bytes * (_ROOMY if was_full else _FULL)
        free = free_bytes(self._folder)
        if free is not None and free < needed:
            return False
        if not (was_full or self._is_suspect):
            return True
        self._is_suspect = False
        return self._can_write(needed)

    def _can_write(self, size_bytes: int) -> bool:
        """Return whether a file can be written; a disk quota or a read-only disk may prevent writing."""
        try:
            with tempfile.TemporaryFile(dir=self._folder, buffering=0) as file:
                while size_bytes > 0:
                    size_bytes -= file.write(bytes(min(size_bytes, 1 << 20)))
        except OSError as error:
            log.warning("disk.refuses", folder=str(self._folder), reason=error.strerror)
            return False
        return True
