"""Measures the daemon without Ray (`serve --light`): start-up time, memory use with a filled store, and recall latency
when idle.

The full form is measured once for comparison. A start is timed from the launch of the process to the ready line. Memory
use is the proportional set size (PSS) of all processes.

To run only this benchmark: `python -m ops.bench --only light [--quick] [--json]`.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import psutil

from memory_agent import MemoryClient
from memory_agent.evaluation import temporary_daemon
from memory_agent.settings import DaemonSettings, Settings
from memory_agent.storage.folders import user_folder
from ops.bench.spread import spread
from ops.bench.texts import queries
from ops.bench.timing import milliseconds
from ops.process_memory import measure_tree, process_tree

TARGET_MB = 200
TARGET_START_S = 1.5

_STARTS = {True: 5, False: 1}
_RECALLS = 200
_IDLE_S = 5.0
_USER = "one"
_MEGABYTE = 1e6


def measure(store: Path) -> dict[str, Any]:
    """Return the figures for both forms, `light` and `full`, with the targets for the light form."""
    forms = {name: _form(store, is_light=name == "light") for name in ("light", "full")}
    return {
        **forms,
        "memories": forms["light"].pop("memories"),
        "target_mb": TARGET_MB,
        "target_start_s": TARGET_START_S,
    }


def _form(store: Path, *, is_light: bool) -> dict[str, Any]:
    settings = Settings(daemon=DaemonSettings(light=is_light))
    starts = []
    for turn in range(_STARTS[is_light]):
        started_s = time.perf_counter()
        with temporary_daemon(settings) as data_dir:
            starts.append(time.perf_counter() - started_s)
            if turn == 0:
                shutil.copytree(store, user_folder(data_dir, _USER))
                figures = _used(data_dir)
    return {"start_s": spread(starts, digits=2), **figures}


def _used(data_dir: Path) -> dict[str, Any]:
    """Recall as a planner does; return memory use, latency, and the share of a core that the idle daemon uses."""
    with MemoryClient(_USER, data_dir=data_dir) as client:
        took_ms = [milliseconds(client.recall, question) for question in queries(_RECALLS, seed=6)]
        memories = client.stats().memories
        daemon = next(part.pid for part in client.status().parts if part.name == "daemon")
    assert daemon is not None
    before_s = _processor_s(daemon)
    time.sleep(_IDLE_S)
    idle = (_processor_s(daemon) - before_s) / _IDLE_S
    processes = measure_tree(daemon)
    return {
        "memories": memories,
        "recall_ms": spread(took_ms, digits=2),
        "idle_share_of_a_core": round(idle, 4),
        "pss_mb": round(sum(process.pss_bytes for process in processes) / _MEGABYTE, 1),
        "rss_mb": round(sum(process.rss_bytes for process in processes) / _MEGABYTE, 1),
        "processes": len(processes),
    }


def _processor_s(pid: int) -> float:
    times = [process.cpu_times() for process in process_tree(pid) if psutil.pid_exists(process.pid)]
    return sum(one.user + one.system for one in times)
