"""Tracks all of this process's descendants, including orphans, and the files they leave behind.

Orphans are reparented to this process instead of init (`PR_SET_CHILD_SUBREAPER`), so none is missed between samples.
Linux only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Self

import psutil

from ops.process_memory import role_of

_PR_SET_CHILD_SUBREAPER = 36
_SHARED_FILE = re.compile(r"(/dev/shm/[^/\s]+)$", re.MULTILINE)
_RAY_FOLDER = re.compile(r"(/\S*?/memory-ray-[^/\s]+)/")


class Family:
    """This process's descendants that started after the family was created."""

    def __init__(self) -> None:
        """Start adopting orphans. Raises `OSError` if the system does not support this."""
        if sys.platform != "linux":
            raise OSError("adopting orphans requires Linux")
        self._before = frozenset(process.pid for process in psutil.Process().children())
        self.shared_files: set[str] = set()
        self.ray_folders: set[str] = set()

    def __enter__(self) -> Self:
        _keep_orphans(True)
        return self

    def __exit__(self, *_: object) -> None:
        _keep_orphans(False)

    def alive(self) -> list[psutil.Process]:
        """Return the running processes and record their files; reap processes that have exited."""
        return [process for process in _below(self._before) if self._is_alive(process)]

    def by_role(self) -> dict[str, list[psutil.Process]]:
        """Return the running processes by role."""
        found: defaultdict[str, list[psutil.Process]] = defaultdict(list)
        for process in self.alive():
            with contextlib.suppress(psutil.Error):
                found[role_of(process)].append(process)
        return dict(found)

    def left(self) -> list[str]:
        """Return the recorded processes, shared-memory files and Ray folders that still exist."""
        files = sorted(file for file in self.shared_files | self.ray_folders if Path(file).exists())
        return [f"{role} {len(those)}" for role, those in self.by_role().items()] + files

    def _is_alive(self, process: psutil.Process) -> bool:
        with contextlib.suppress(psutil.Error, OSError):
            if process.status() != psutil.STATUS_ZOMBIE:
                self.shared_files.update(_SHARED_FILE.findall(Path(f"/proc/{process.pid}/maps").read_text()))
                self.ray_folders.update(_RAY_FOLDER.findall(" ".join(process.cmdline())))
                return True
            # Python processes are reaped by their parents.
            if process.ppid() == os.getpid() and process.name() != "python":
                os.waitpid(process.pid, os.WNOHANG)
        return False


def _below(but: frozenset[int]) -> list[psutil.Process]:
    """Return all of this process's descendants, except the children in `but` and their descendants."""
    ours = [child for child in psutil.Process().children() if child.pid not in but]
    found = list(ours)
    for child in ours:
        with contextlib.suppress(psutil.Error):
            found += child.children(recursive=True)
    return found


def _keep_orphans(wanted: bool) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")
