"""The exceptions that this package raises; each caller supplies its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from relay.disk.room import says_no_room


class ErrorFamily(NamedTuple):
    """One caller's classes. Each is called with the arguments of its field's comment."""

    failed: type[Exception]  # (message): unusable until it is reopened
    full: type[Exception]  # (path, limit_bytes): no room in the map or on the disk
    damaged: type[Exception]  # (message)
    in_use: type[Exception]  # (path, owner): another process may write
    fenced: Callable[[str, int, int], Exception]  # (path, own epoch, current epoch)
    is_encrypted: Callable[[str], Exception]  # (path): opened without a key
    not_encrypted: Callable[[str], Exception]  # (path): opened with a key

    def of_system(self, error: OSError, path: Path, limit_bytes: int) -> Exception:
        """Return the error to raise for one of the system's."""
        return self.full(str(path), limit_bytes) if says_no_room(error) else self.failed(f"{path}: {error.strerror}")
