"""Tell a full disk from other write errors, for an engine that reports only that a write failed.

A file system that takes a part of a write says no more than that, and LMDB calls it an I/O error (measured: on a file
system with room for 10 pages of 25). Ending for it would be wrong: the disk is full, and that passes. So for an I/O
error the disk is asked twice: for the free space of its file system (root's reserve not counted), and for that much
space in a file here (quotas and limits appear in no figure). A disk that fails altogether still grants it.

Rejected: comparing free bytes exactly. Others free space between the write and the question.
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


def means_no_room(said: str, folder: Path) -> bool:
    """Whether an engine's message about a write in `folder`, in the words of `strerror`, means a full disk."""
    if any(os.strerror(code) in said for code in _NO_ROOM):
        return True
    return os.strerror(errno.EIO) in said and not has_room(folder)


def has_room(folder: Path, size_bytes: int = _LITTLE_BYTES) -> bool:
    """Whether the disk would grant a file in `folder` `size_bytes`; True where it cannot be told."""
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
    """Return the free bytes for unprivileged users; None where the file system has no size, as an unlimited tmpfs.

    Raises `OSError`.
    """
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize if disk.f_blocks else None


def keep_reserve(folder: Path, size_bytes: int) -> bool:
    """Occupy disk space in `folder` that `release_reserve` frees; False when there is none to be had now."""
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
