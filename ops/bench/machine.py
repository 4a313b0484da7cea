"""Describes the benchmark machine: processor, cores, memory, engine versions and load."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

import psutil

_ENGINES = ("ray", "onnxruntime", "usearch", "lmdb", "pyzmq", "msgspec", "numpy")


def describe_machine() -> dict[str, str]:
    """Return the machine's properties, by name, for the header of a results page."""
    return {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "memory": f"{psutil.virtual_memory().total / 1e9:.0f} GB",
        "system": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        **{engine: version(engine) for engine in _ENGINES},
    }


def load_per_core() -> float:
    """Return the load average per core over the last minute; above 1, other programs interfered."""
    return round(os.getloadavg()[0] / (os.cpu_count() or 1), 2)


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    return names[0].partition(":")[2].strip() if names else platform.processor() or platform.machine()
