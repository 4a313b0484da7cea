"""Distinguishes a full disk from other write errors.

LMDB may report an I/O error when the disk is full. After an I/O error, this module checks whether the file system has
16 MiB of free space and, to detect quotas, whether a file of that size can be allocated. A broken disk passes both
checks.
"""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_LITTLE_BYTES = 16 << 20
_ZEROS = bytes(1 << 20)
_RESERVE_FILE = "reserve"


def says_no_room(error: OSError) -> bool:
    """Whether the error means a full disk or an exhausted quota."""
    return error.errno in _NO_ROOM


def means_no_room(message: str, folder: Path) -> bool:
    """Whether an engine's error message for a write in `folder` means that the disk is full."""
    if any(os.strerror(code) in message for code in _NO_ROOM):
        return True
    return os.strerror(errno.EIO) in message and not has_room(folder)


def has_room(folder: Path) -> bool:
    """Whether a file of 16 MiB would fit in `folder`; True if this is unknown."""
    try:
        free = free_bytes(folder)
        if free is not None and free < _LITTLE_BYTES:
            return False
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            _allocate(file.fileno(), _LITTLE_BYTES)
    except OSError as error:
        return not says_no_room(error)
    return True


def free_bytes(folder: Path) -> int | None:
    """Return the number of bytes that unprivileged users can write, or None if the file system reports no size. Raises
    `OSError`.
    """
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize if disk.f_blocks else None


def keep_reserve(folder: Path, size_bytes: int) -> bool:
    """Reserve disk space in `folder` until `release_reserve` frees it; return False if there is not enough space."""
    file = folder / _RESERVE_FILE
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if size_bytes > os.fstat(descriptor).st_size:
                _allocate(descriptor, size_bytes)
        finally:
            os.close(descriptor)
    except OSError:
        file.unlink(missing_ok=True)
        return False
    return True


def release_reserve(folder: Path) -> bool:
    """Free the reserved disk space, so that data can be deleted; return False if none was reserved."""
    try:
        (folder / _RESERVE_FILE).unlink()
    except OSError:
        return False
    return True


def _allocate(descriptor: int, size_bytes: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size_bytes)
        return
    for offset in range(0, size_bytes, len(_ZEROS)):
        os.pwrite(descriptor, _ZEROS[: size_bytes - offset], offset)
