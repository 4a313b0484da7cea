"""Distinguish a full disk from other write errors, for an engine that reports only that a write failed.

When a file system accepts only part of a write, LMDB reports an I/O error (measured: on a file system with room for 10
pages of 25). The process must not end for that, since a full disk is temporary. So after an I/O error the disk is
checked twice: for the free space of its file system (without root's reserve), and by allocating that much space in a
file (quotas and limits appear in no figure). A broken disk still grants both.

Rejected: comparing free bytes exactly. Other processes free space between the write and the check.
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
    """Whether the error is a full disk or a used-up quota."""
    return error.errno in _NO_ROOM


def means_no_room(message: str, folder: Path) -> bool:
    """Whether an engine's message about a write in `folder`, which quotes `strerror`, means a full disk."""
    if any(os.strerror(code) in message for code in _NO_ROOM):
        return True
    return os.strerror(errno.EIO) in message and not has_room(folder)


def has_room(folder: Path, size_bytes: int = _LITTLE_BYTES) -> bool:
    """Whether the disk would grant a file in `folder` `size_bytes`; True if that is unknown."""
    try:
        free = free_bytes(folder)
        if free is not None and free < size_bytes:
            return False
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            _allocate(file.fileno(), size_bytes)
    except OSError as error:
        return not says_no_room(error)
    return True


def free_bytes(folder: Path) -> int | None:
    """Return the free bytes for unprivileged users; None if the file system has no size, like an unlimited tmpfs.

    Raises `OSError`.
    """
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize if disk.f_blocks else None


def keep_reserve(folder: Path, size_bytes: int) -> bool:
    """Occupy disk space in `folder` that `release_reserve` frees; False when there is too little."""
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
    """Free the reserved disk space, so that deleting finds some; False when there was none."""
    try:
        (folder / _RESERVE_FILE).unlink()
    except OSError:
        return False
    return True


def _allocate(descriptor: int, size_bytes: int) -> None:
    """Reserve disk space for a file. Raises `OSError`."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size_bytes)
        return
    for offset in range(0, size_bytes, len(_ZEROS)):
        os.pwrite(descriptor, _ZEROS[: size_bytes - offset], offset)
