"""Measures the memory that each stopped host process leaves allocated in Ray's other processes."""

from __future__ import annotations

import asyncio
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import psutil

from memory_agent.daemon.capacity import capacity_here
from memory_agent.daemon.ray_supervisor import Cluster
from memory_agent.layout import Layout
from memory_agent.settings import Settings
from ops.process_memory import process_tree, role_of
from ops.soak.slope import slope_of

_START_WITHIN_S = 120.0


def hosts(count: int) -> dict[str, Any]:
    """Start and stop `count` hosts (at least 24) in turn; return the KB that each adds, with a confidence interval."""
    own: defaultdict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="hosts-") as folder:
        layout = Layout(Path(folder))
        layout.create()
        cluster = Cluster(Settings(), layout, capacity_here(Settings().daemon))
        cluster.open()
        try:
            for _ in range(count):
                asyncio.run(_came_and_went(cluster))
                for role, size in _own().items():
                    own[role].append(size)
        finally:
            cluster.close()
    return {role: _added(values) for role, values in sorted(own.items()) if len(values) == count}


async def _came_and_went(cluster: Cluster) -> None:
    host = cluster.start_host()
    await host.pid(_START_WITHIN_S)
    host.end()


def _own() -> dict[str, float]:
    found: defaultdict[str, float] = defaultdict(float)
    for process in process_tree(psutil.Process().pid):
        try:
            memory = process.memory_info()
            found[role_of(process)] += memory.rss - memory.shared
        except psutil.Error:
            continue
    return found


def _added(values: list[float]) -> dict[str, float]:
    slope, low, high = slope_of([float(number) for number in range(len(values))], values)
    return {name: round(value / 1e3, 1) for name, value in (("kb_a_host", slope), ("low", low), ("high", high))}
