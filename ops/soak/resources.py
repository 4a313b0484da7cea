"""Samples a daemon's memory, open files, threads and processor time by role, and its disk usage by folder."""

from __future__ import annotations

import contextlib
import os
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import psutil

from ops.process_memory import process_tree, role_of


def sample(pid: int, data_dir: Path) -> dict[str, Any]:
    """Return the resources used by the daemon `pid`, its descendants and this process (`load`), and the disk usage.
    Sizes are in bytes. Processes that exit in the meantime are omitted. A daemon that has exited has no roles.
    """
    roles: defaultdict[str, Counter[str]] = defaultdict(Counter)
    with contextlib.suppress(psutil.Error):
        for process in process_tree(pid):
            _add(roles, process, "")
    _add(roles, psutil.Process(), "load")
    return {"roles": {role: dict(counts) for role, counts in sorted(roles.items())}, "disk": disk(data_dir)}


def disk(data_dir: Path) -> dict[str, int]:
    """Return the allocated bytes of each folder directly below the data folder, and the number of files (`files`)."""
    used: Counter[str] = Counter()
    for folder, _, names in os.walk(data_dir):
        part = os.path.relpath(folder, data_dir).partition(os.sep)[0]
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                used[part] += os.lstat(os.path.join(folder, name)).st_blocks * 512
                used["files"] += 1
    return dict(sorted(used.items()))


def _add(roles: defaultdict[str, Counter[str]], process: psutil.Process, role: str) -> None:
    with contextlib.suppress(psutil.Error), process.oneshot():
        memory = process.memory_full_info()
        times = process.cpu_times()
        counts = {
            "rss": memory.rss,
            "pss": getattr(memory, "pss", memory.rss),
            "files": process.num_fds(),
            "threads": process.num_threads(),
            "processes": 1,
            "cpu_s": round(times.user + times.system, 2),
        }
        roles[role or role_of(process)].update(counts)
