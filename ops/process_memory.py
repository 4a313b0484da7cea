"""Measures the resident and proportional set sizes of a daemon's processes, including Ray's.

The resident set size (RSS) counts shared pages in every process. The proportional set size (PSS) divides these pages
among the processes, so only PSS can be summed. PSS exists only on Linux; other systems use RSS, which is an upper
bound.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass

import psutil

_ROLES = (
    ("memory_agent.embedders", "embedder"),
    ("memory_agent serve", "daemon"),
    ("bin/memory-agent serve", "daemon"),
    ("-m relay", "relay"),
    ("gcs_server", "Ray gcs"),
    ("raylet/raylet", "Ray raylet"),
    ("cat -", "Ray agent"),
    ("DashboardAgent", "Ray dashboard agent"),
    ("dashboard/dashboard", "Ray dashboard"),
    ("RuntimeEnvAgent", "Ray runtime env"),
    ("runtime_env_agent.py", "Ray runtime env"),
    ("log_monitor", "Ray log monitor"),
    ("autoscaler", "Ray monitor"),
    (":HostActor", "host"),
    ("ray::IDLE", "Ray idle worker"),
)


@dataclass(frozen=True)
class ProcessMemory:
    """A process's id, role and memory in bytes."""

    role: str
    pid: int
    rss_bytes: int
    pss_bytes: int


def process_tree(pid: int) -> list[psutil.Process]:
    """Return a process and all of its descendants."""
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def measure_tree(pid: int, names: Mapping[int, str] | None = None) -> list[ProcessMemory]:
    """Measure a process and its descendants; `names` maps process ids to known roles."""
    measured = []
    for process in process_tree(pid):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            memory = process.memory_full_info()
            role = (names or {}).get(process.pid) or role_of(process)
            pss_bytes = getattr(memory, "pss", memory.rss)
            measured.append(ProcessMemory(role, process.pid, memory.rss, pss_bytes))
    return measured


def role_of(process: psutil.Process) -> str:
    """Return a daemon process's role. Raises `psutil.Error` if the process has exited."""
    command, name = " ".join(process.cmdline()), process.name()
    return next((role for part, role in _ROLES if part in command), name)


def still_running(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Return the processes that have not exited."""
    return [process for process in processes if process.is_running() and not _is_zombie(process)]


def own_memory() -> int:
    """Return this process's resident memory in bytes."""
    return int(psutil.Process(os.getpid()).memory_info().rss)


def _is_zombie(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
