"""Measures `memory-agent mcp`: start-up time, memory use, and the time of a recall compared with a recall over ZeroMQ.

The baseline for start-up time and memory use is an interpreter that only echoes a line. Variants alternate, and no
query is repeated.

To run only this benchmark: `python -m ops.bench --only mcp [--quick] [--json]`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from memory_agent import MemoryClient
from memory_agent.evaluation import child_environment, temporary_daemon
from memory_agent.settings import Settings
from memory_agent.storage.folders import user_folder
from ops.bench.spread import latencies, spread
from ops.bench.texts import queries
from ops.bench.timing import milliseconds

_USER = "bench"
_STARTS = 15
_TURNS = 5
_QUESTIONS = 60
_WARM_UP = 20
_BARE = "import sys; print(sys.stdin.readline(), flush=True); sys.stdin.read()"


def measure(store: Path) -> dict[str, Any]:
    """Return the measurements; the filled store is not changed."""
    with temporary_daemon(Settings()) as data_dir:
        shutil.copytree(store, user_folder(data_dir, _USER))
        command = [str(Path(sys.executable).with_name("memory-agent")), "mcp", "--data-dir", str(data_dir)]
        programs = {"mcp": [*command, "--user", _USER], "bare": [sys.executable, "-c", _BARE]}
        starts: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
        for _ in range(_STARTS):
            for name, program in programs.items():
                starts[name].append(_started(program))
        took: dict[str, list[list[float]]] = {"mcp": [], "zmq": []}
        with MemoryClient(_USER, data_dir=data_dir) as client, _running(programs["mcp"]) as process:
            asks = {"mcp": partial(_recall, process), "zmq": client.recall}
            for place, ask in enumerate(asks.values()):
                for text in queries(_WARM_UP, seed=1 + place):
                    ask(text)
            for turn in range(_TURNS):
                for place, (name, ask) in enumerate(asks.items()):
                    asked = queries(_QUESTIONS, 2_000 + 10 * turn + place)
                    took[name].append([milliseconds(ask, text) for text in asked])
            resident = psutil.Process(process.pid).memory_info().rss
    return {
        "start": {
            name: {"ms": spread([ms for ms, _ in found], 0), "mb": spread([mb for _, mb in found], 1)}
            for name, found in starts.items()
        },
        "in_use_mb": round(resident / 1e6, 1),
        "recall": {name: latencies(turns) for name, turns in took.items()},
    }


@contextmanager
def _running(program: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=child_environment())
    try:
        yield process
    finally:
        process.communicate()


def _started(program: list[str]) -> tuple[float, float]:
    """Return the milliseconds until the first line is answered, and the resident memory in MB at that time."""
    started_s = time.perf_counter()
    with _running(program) as process:
        _exchange(process, "initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {}})
        return (time.perf_counter() - started_s) * 1000, psutil.Process(process.pid).memory_info().rss / 1e6


def _recall(process: subprocess.Popen[bytes], text: str) -> None:
    answer = json.loads(_exchange(process, "tools/call", {"name": "recall", "arguments": {"query": text}}))
    assert "recall_id" in answer["result"]["structuredContent"], answer


def _exchange(process: subprocess.Popen[bytes], method: str, params: object) -> bytes:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode() + b"\n")
    process.stdin.flush()
    return process.stdout.readline()
