"""Whether the disk under a folder has room, asked when an engine says that a write failed. Knows no engine.

A disk that takes only a part of a write says no more than that, and LMDB calls it an I/O error (measured: on a file
system with room for 10 pages of 25). To end for it would be wrong: it is a full disk, and passes. So for an I/O error
the disk itself is asked, twice: what its file system says is free for everybody (root's reserve not counted), and
whether it gives that much to a file here (quotas and limits are in no figure). One that fails altogether gives it.

Rejected: counting what is free to the byte. Others on the disk give room back between the write and the question.
"""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_NEXT_TO_NOTHING = 16 << 20
_ZEROS = bytes(1 << 20)


def says_no_room(error: OSError) -> bool:
    """Whether the system says that there is no room, or none for this user."""
    return error.errno in _NO_ROOM


def means_no_room(said: str, folder: Path) -> bool:
    """Whether what an engine said of a write in `folder`, in the system's words, means that there is no room."""
    if any(os.strerror(code) in said for code in _NO_ROOM):
        return True
    return os.strerror(errno.EIO) in said and not has_room(folder)


def has_room(folder: Path, size_bytes: int = _NEXT_TO_NOTHING) -> bool:
    """Whether the disk would give `size_bytes` to a file in `folder`; also where it cannot be told."""
    try:
        free = free_bytes(folder)
        if free is not None and free < size_bytes:
            return False
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            allocate(file.fileno(), size_bytes)
    except OSError as error:
        return not says_no_room(error)
    return True


def free_bytes(folder: Path) -> int | None:
    """Return what is free for everybody, in bytes; None where the file system tells no size, as an unlimited tmpfs.

    Raises `OSError`.
    """
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize if disk.f_blocks else None


def allocate(descriptor: int, size_bytes: int) -> None:
    """Give the file disk room for so many bytes. Raises `OSError`."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size_bytes)
        return
    for offset in range(0, size_bytes, len(_ZEROS)):
        os.pwrite(descriptor, _ZEROS[: size_bytes - offset], offset)
