"""Measures the memory use of a daemon's processes with one user, and the memory and disk space of a filled store.

Proportional set sizes (PSS) can be summed; resident set sizes (RSS) count shared pages in every process that maps them.
The filled store is measured after use. It is compared with an actor in the same daemon that has twenty memories and is
used in the same way.

To run only this benchmark: `python -m ops.bench --only resident [--quick] [--json]`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from memory_agent import MemoryClient
from memory_agent.evaluation import temporary_daemon
from memory_agent.settings import Settings
from memory_agent.storage.folders import user_folder
from ops.bench.texts import passages, queries
from ops.process_memory import ProcessMemory, measure_tree

TARGET_DAEMON_MB = 700
TARGET_FILLED_MB = 60
TARGET_DISK_MB = 30

_ONE, _EMPTY, _FILLED = "one", "empty", "filled"
_RECALLS = 100
_TEXTS = 20
_MEGABYTE = 1e6


def measure(store: Path) -> dict[str, Any]:
    """Return each process's memory, and the filled store's disk space and additional memory, all in MB."""
    with temporary_daemon(Settings()) as data_dir:
        _use(data_dir, _ONE, remember=True)
        processes = _measure(data_dir)
        shutil.copytree(store, user_folder(data_dir, _FILLED))
        disk_mb = _use(data_dir, _FILLED) / _MEGABYTE
        _use(data_dir, _EMPTY, remember=True)
        hosts = {process.role: process for process in _measure(data_dir)}
        filled, empty = hosts[f"user-{_FILLED}"], hosts[f"user-{_EMPTY}"]
    return {
        "processes": {process.role: _megabytes(process) for process in _merged(processes)},
        "daemon_pss_mb": _sum(process.pss_bytes for process in processes),
        "daemon_rss_mb": _sum(process.rss_bytes for process in processes),
        "target_daemon_mb": TARGET_DAEMON_MB,
        "filled_pss_mb": round((filled.pss_bytes - empty.pss_bytes) / _MEGABYTE, 1),
        "filled_rss_mb": round((filled.rss_bytes - empty.rss_bytes) / _MEGABYTE, 1),
        "target_filled_mb": TARGET_FILLED_MB,
        "disk_mb": round(disk_mb, 1),
        "target_disk_mb": TARGET_DISK_MB,
    }


def _use(data_dir: Path, user: str, *, remember: bool = False) -> int:
    """Use a memory the way a planner would; return its size on disk in bytes."""
    with MemoryClient(user, data_dir=data_dir) as client:
        for text in passages(_TEXTS, seed=5) if remember else ():
            client.remember(text)
        for question in queries(_RECALLS, seed=6):
            client.recall(question)
        return client.stats().disk_bytes


def _measure(data_dir: Path) -> list[ProcessMemory]:
    with MemoryClient(_ONE, data_dir=data_dir) as client:
        parts = client.status().parts
    names = {part.pid: part.name for part in parts if part.pid is not None}
    daemon = next(part.pid for part in parts if part.name == "daemon")
    assert daemon is not None
    return measure_tree(daemon, names)


def _merged(processes: list[ProcessMemory]) -> list[ProcessMemory]:
    """Sum the processes by role, since Ray runs several processes for some roles."""
    merged: dict[str, ProcessMemory] = {}
    for process in processes:
        before = merged.get(process.role, ProcessMemory(process.role, process.pid, 0, 0))
        merged[process.role] = ProcessMemory(
            process.role, before.pid, before.rss_bytes + process.rss_bytes, before.pss_bytes + process.pss_bytes
        )
    return list(merged.values())


def _megabytes(process: ProcessMemory) -> dict[str, float]:
    return {"rss_mb": round(process.rss_bytes / _MEGABYTE, 1), "pss_mb": round(process.pss_bytes / _MEGABYTE, 1)}


def _sum(sizes: Iterable[int]) -> float:
    return round(sum(sizes) / _MEGABYTE, 1)
