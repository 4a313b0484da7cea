"""Samples all of a daemon's processes: memory, open files, shared-memory files and processes started.

Memory is measured as resident and as `own`, which excludes file mappings, because the system reclaims them when needed.
Only `own` distinguishes a leak from a journal that is being read.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Self

import psutil

from ops.process_memory import process_tree, role_of

_SHARED = re.compile(r"(/dev/shm/[^/\s]+)$", re.MULTILINE)


class Watch:
    """Samples every `interval_s` seconds in a thread while entered."""

    def __init__(self, root_pid: int, interval_s: float) -> None:
        self._root_pid = root_pid
        self._interval_s = interval_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.times_s: list[float] = []
        self.own: defaultdict[str, list[float]] = defaultdict(list)
        """The own memory, in bytes, of all of a part's processes at each of `times_s`, by part."""
        self.largest_rss: defaultdict[str, int] = defaultdict(int)
        self.seen: dict[int, psutil.Process] = {}
        self.shared_files: set[str] = set()
        self.started: defaultdict[str, set[int]] = defaultdict(set)
        """The ids of all processes seen, by part."""

    def __enter__(self) -> Self:
        self._began_s = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def census(self) -> dict[str, dict[str, int]]:
        """Return each part's numbers of processes and open files."""
        found: defaultdict[str, dict[str, int]] = defaultdict(lambda: {"processes": 0, "open_files": 0})
        for process in self._family():
            with contextlib.suppress(psutil.Error):
                part = found[role_of(process)]
                part["open_files"] += process.num_fds()
                part["processes"] += 1
        return dict(sorted(found.items()))

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
        own: defaultdict[str, float] = defaultdict(float)
        resident: defaultdict[str, int] = defaultdict(int)
        for process in self._family():
            with contextlib.suppress(psutil.Error, OSError):
                role, memory = role_of(process), process.memory_info()
                self.started[role].add(process.pid)
                own[role] += memory.rss - memory.shared
                resident[role] += memory.rss
                self.shared_files.update(_SHARED.findall(Path(f"/proc/{process.pid}/maps").read_text()))
        for role in set(own) | set(self.own):
            self.own[role] += [0.0] * (len(self.times_s) - len(self.own[role])) + [own[role]]
            self.largest_rss[role] = max(self.largest_rss[role], resident[role])
        self.times_s.append(time.monotonic() - self._began_s)

    def _family(self) -> list[psutil.Process]:
        try:
            family = process_tree(self._root_pid)
        except psutil.NoSuchProcess:
            return []
        self.seen.update((process.pid, process) for process in family)
        return family
