"""An LMDB file put in the place of another, so that at every moment a whole one is there.

LMDB keeps the number of the last commit in its lock file as well, and believes it while any process holds that file; a
compact copy counts from 1 again. So the lock file goes first: between the two steps the old data stand without one, and
whoever opens them makes another. The caller makes sure that nobody opens, or writes, the environment meanwhile: with
`swapping` and `opening`, or a lock of its own.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from relay.durable import flush
from relay.pages import DATA_FILE

LOCK_FILE = "lock.mdb"
_COPY = "compact"
_SWAP_FILE = "swap.lock"
_POLL_S = 0.01


@contextmanager
def swapping(folder: Path, patience_s: float) -> Iterator[None]:
    """Keep others from opening the file for the block. Raises `TimeoutError` when one who is opening it does not end.

    The writer of a folder has called `allow_opening` before.
    """
    deadline = time.monotonic() + patience_s
    descriptor = os.open(folder / _SWAP_FILE, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while not _is_locked(descriptor):
            if time.monotonic() > deadline:
                raise TimeoutError("somebody is opening the file")
            time.sleep(_POLL_S)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def opening(folder: Path) -> Iterator[None]:
    """Keep the file from being replaced while one who does not write it opens it in the block; waits for a swap."""
    try:
        descriptor = os.open(folder / _SWAP_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:  # a copy, which nobody replaces
        yield
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def allow_opening(folder: Path) -> None:
    """Make what `swapping` and `opening` meet at."""
    (folder / _SWAP_FILE).touch(mode=0o600)


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def room_for_copy(folder: Path) -> Path:
    """Return an empty folder for the copy, inside `folder`; what an interrupted one left there is removed."""
    copy = folder / _COPY
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir(mode=0o700)
    return copy


def flush_copy(copy: Path) -> None:
    """Bring the copy to the disk."""
    flush(copy / DATA_FILE)
    flush(copy)


def replace_by_copy(copy: Path) -> None:
    """Put the copy in the place of the file that it was made of. Durable on return."""
    folder = copy.parent
    (folder / LOCK_FILE).unlink(missing_ok=True)
    (copy / DATA_FILE).replace(folder / DATA_FILE)
    flush(folder)
    discard_copy(copy)


def discard_copy(copy: Path) -> None:
    """Remove the copy."""
    shutil.rmtree(copy, ignore_errors=True)
