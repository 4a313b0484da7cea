"""Measures one user's store as it grows: the cost of ingest, the slowest batch, and the size in memory and on disk.

Ingest is measured with `Memory.ingest` and precomputed vectors, which excludes embedding. Resident memory is that of a
separate process that opens the folder and recalls, minus that of a process with an empty folder. The anonymous part is
not backed by a file, so the system cannot drop it under memory pressure.

To run only this benchmark: `python -m ops.bench --only storage [--quick]`.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from memory_agent import Memory
from memory_agent.embedders import open_embedder
from memory_agent.settings import EmbedderSettings
from ops.bench.grown_stores import WINDOW, Batch, Growth, await_words
from ops.bench.texts import queries

TARGET_GROWTH = 1.2
TARGET_WORST = 10.0
TARGETS = {10_000: {"resident_mb": 60, "disk_mb": 30}, 100_000: {"resident_mb": 400, "disk_mb": 300}}

_RECALLS = 50
_MEGABYTE = 1e6


def measure(growth: Growth) -> dict[str, Any]:
    """Return the measurements of the growth and of each store size."""
    batches = _without_first(growth)
    with tempfile.TemporaryDirectory() as empty:
        none = _resident_apart(Path(empty) / "user")
    sizes = {size: _of_size(folder, _around(size, batches), none) for size, folder in growth.folders.items()}
    costs = [one["processor_ms_a_memory"] for one in sizes.values()]
    return {
        "sizes": {str(size): one | {"targets": TARGETS.get(size, {})} for size, one in sizes.items()},
        "growth": round(costs[-1] / costs[0], 2),
        "target_growth": TARGET_GROWTH,
        "worst": _worst([batch.wall_ms for batch in batches]),
        "worst_by_processor": _worst([batch.processor_ms for batch in batches]),
        "target_worst": TARGET_WORST,
    }


def _without_first(growth: Growth) -> list[Batch]:
    """Return the batches except the first after each opening of the store, which a running daemon never reopens."""
    return [batch for batch in growth.batches if batch.memories not in (0, *growth.folders)]


def _around(size: int, batches: Sequence[Batch]) -> list[Batch]:
    return [batch for batch in batches if size * (1 - WINDOW) <= batch.memories < size * (1 + WINDOW)]


def _worst(taken_ms: Sequence[float]) -> dict[str, float]:
    median, most = statistics.median(taken_ms), max(taken_ms)
    return {"median_ms": round(median, 2), "most_ms": round(most, 1), "ratio": round(most / median, 2)}


def _of_size(folder: Path, batches: Sequence[Batch], none: dict[str, float]) -> dict[str, Any]:
    """`none`: the memory use of a process that opens an empty folder."""
    memories = sum(batch.count for batch in batches)
    grown = _resident_apart(folder)
    return {
        "processor_ms_a_memory": round(sum(batch.processor_ms for batch in batches) / memories, 3),
        "wall_ms_a_memory": round(sum(batch.wall_ms for batch in batches) / memories, 3),
        "resident_mb": round(grown["resident_mb"] - none["resident_mb"], 1),
        "anonymous_mb": round(grown["anonymous_mb"] - none["anonymous_mb"], 1),
        "disk_mb": round(sum(file.stat().st_blocks * 512 for file in folder.rglob("*")) / _MEGABYTE, 1),
        "open_ms": round(grown["open_ms"], 1),
    }


def _resident_apart(folder: Path) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "user"
        if folder.exists():
            shutil.copytree(folder, copy)
        done = subprocess.run([sys.executable, "-m", __name__, str(copy)], stdout=subprocess.PIPE, check=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def _resident(folder: Path) -> dict[str, float]:
    """Open the folder in this process and recall; return the opening time and this process's memory use."""
    model = open_embedder(EmbedderSettings(allow_download=False))
    began_s = time.perf_counter()
    with Memory.open(folder, embedder=model) as memory:
        open_ms = (time.perf_counter() - began_s) * 1000
        await_words(memory)
        for question in queries(_RECALLS, seed=800):
            memory.recall(question)
        used = psutil.Process().memory_info()
    model.close()
    anonymous_bytes = used.rss - getattr(used, "shared", 0)
    return {"open_ms": open_ms, "resident_mb": used.rss / _MEGABYTE, "anonymous_mb": anonymous_bytes / _MEGABYTE}


if __name__ == "__main__":
    print(json.dumps(_resident(Path(sys.argv[1]))))
