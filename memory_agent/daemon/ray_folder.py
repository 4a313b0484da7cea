"""Ray's temporary folder, and the Ray processes that use it. Does not import Ray."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil

PREFIX = "memory-ray-"
_LOCK = "lock"
_TITLE = "ray::"
"""Prefix of the titles of running Ray workers and agents. While they start, one of their options names the folder. A
process that joined (`join`) has a different title and is not killed."""
END_WITHIN_S = 5.0


class RayFolder:
    """Ray's temporary folder: private, with a short path, locked until `remove` or the end of this process.

    Ray creates its own folder with mode 0777, so that folder is placed inside a private one. After a daemon has been
    killed, the next daemon to start, on any data folder, removes the killed daemon's folder and kills the Ray processes
    that still use it.
    """

    def __init__(self) -> None:
        """Create the folder, and remove folders that no process holds. Raises `OSError`."""
        _remove_left()
        self._folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._lock = os.open(self._folder / f"{_LOCK}.new", os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        (self._folder / f"{_LOCK}.new").rename(self._folder / _LOCK)  # every visible lock file is held
        self.path = self._folder / "r"
        self.path.mkdir(mode=0o700)

    def remove(self) -> None:
        _clear(self._folder)
        with suppress(OSError):
            os.close(self._lock)
        _remove_left()


def _remove_left() -> None:
    for other in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        _remove_if_left(other)


def _remove_if_left(folder: Path) -> None:
    """A folder without a lock is still being created, or is somebody else's."""
    with suppress(OSError):
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
        try:
            if os.fstat(lock).st_uid == os.getuid() and not folder.is_symlink():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _clear(folder)
        finally:
            os.close(lock)


def _clear(folder: Path) -> None:
    users = [process for process in psutil.process_iter() if _is_user_of(folder, process)]
    for process in users:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(users, timeout=END_WITHIN_S)
    shutil.rmtree(folder, ignore_errors=True)


def _is_user_of(folder: Path, process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        if process.uids().real != os.getuid():
            return False
        command = process.cmdline()
        if "".join(command).startswith(_TITLE):
            return any(Path(file.path).is_relative_to(folder) for file in process.open_files())
        return any(option.startswith("--") and f"={folder}/" in option for option in command)
    return False
