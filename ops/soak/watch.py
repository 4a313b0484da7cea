"""Samples a daemon's processes: the maximum resident memory of each part, and what is left when the daemon ends."""

from __future__ import annotations

import contextlib
import re
import threading
from collections import defaultdict
from pathlib import Path
from typing import Self

import psutil

from ops.process_memory import process_tree, role_of

_SHARED = re.compile(r"(/dev/shm/[^/\s]+)$", re.MULTILINE)


class Watch:
    """Samples every `interval_s` seconds in a thread while the context is active."""

    def __init__(self, root_pid: int, interval_s: float) -> None:
        self._root_pid = root_pid
        self._interval_s = interval_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.largest_rss: defaultdict[str, int] = defaultdict(int)
        self.seen: dict[int, psutil.Process] = {}
        self.shared_files: set[str] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def left_over(self) -> dict[str, list[str]]:
        """Return the processes and files that were seen and still exist; call it after the daemon has exited."""
        alive = [process for process in self.seen.values() if process.is_running()]
        return {
            "processes": [f"{process.pid} {process.name()}" for process in alive],
            "shared_files": sorted(file for file in self.shared_files if Path(file).exists()),
        }

    def _run(self) -> None:
        while not self._over.wait(self._interval_s):
            self._sample()

    def _sample(self) -> None:
        resident: defaultdict[str, int] = defaultdict(int)
        for process in self._family():
            with contextlib.suppress(psutil.Error, OSError):
                resident[role_of(process)] += process.memory_info().rss
                self.shared_files.update(_SHARED.findall(Path(f"/proc/{process.pid}/maps").read_text()))
        for role, size in resident.items():
            self.largest_rss[role] = max(self.largest_rss[role], size)

    def _family(self) -> list[psutil.Process]:
        try:
            family = process_tree(self._root_pid)
        except psutil.NoSuchProcess:
            return []
        self.seen.update((process.pid, process) for process in family)
        return family
