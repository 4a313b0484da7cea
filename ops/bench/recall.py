"""Measures recall through the daemon, in process, and by vectors alone, on copies of one store.

In process is `Memory.recall`: embedding and search. Through RPC adds the sockets of gateway, host and embedder. Vectors
alone is the mode `vector` through RPC, which answers like a plain vector store. They alternate in blocks; every
question is new to all.

Run alone: `python -m ops.bench.recall [--quick]`.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

from memory_agent import Memory, MemoryClient, RecallResult
from memory_agent.evaluation.daemon_process import temporary_daemon
from memory_agent.records import Mode
from memory_agent.settings import EmbedderSettings, Settings
from memory_agent.storage.folders import user_folder
from ops.bench.filled_store import MEMORIES, QUICK_MEMORIES, filled_store
from ops.bench.spread import percentile, spread
from ops.bench.texts import queries

TARGET_P50_RATIO = 2.5
TARGET_P99_RATIO = 5.0
TARGET_OVER_VECTORS = 1.5

_USER = "bench"
_TURNS = 6
_QUESTIONS = 100
_WARM_UP = 30
_TOP_K = 5

Ask = Callable[[str], RecallResult]


def measure(store: Path) -> dict[str, Any]:
    """Return p50 and p99 of each variant on a filled store, which is not changed."""
    settings = EmbedderSettings(allow_download=False)
    with temporary_daemon(Settings()) as data_dir, tempfile.TemporaryDirectory() as scratch:
        shutil.copytree(store, user_folder(data_dir, _USER))
        near = Path(shutil.copytree(store, Path(scratch) / "near"))
        with (
            Memory.open(near, embedder_settings=settings) as memory,
            MemoryClient(_USER, data_dir=data_dir) as client,
        ):
            ways = {"in_process": _asking(memory), "rpc": _asking(client), "vectors": _asking(client, "vector")}
            assert client.stats().memories == memory.stats().memories
            return {"memories": memory.stats().memories} | _take_turns(ways)


def _asking(memory: Memory | MemoryClient, mode: Mode | None = None) -> Ask:
    return lambda question: memory.recall(question, _TOP_K, mode=mode)


def _take_turns(ways: dict[str, Ask]) -> dict[str, Any]:
    taken_ms: dict[str, list[list[float]]] = {name: [] for name in ways}
    for turn in range(-1, _TURNS):
        for place, (name, ask) in enumerate(ways.items()):
            questions = queries(_WARM_UP if turn < 0 else _QUESTIONS, seed=1_000 + 10 * turn + place)
            block = [_milliseconds(ask, question) for question in questions]
            if turn >= 0:
                taken_ms[name].append(block)
    return _report(taken_ms["in_process"], taken_ms["rpc"], taken_ms["vectors"])


def _report(near: list[list[float]], far: list[list[float]], vectors: list[list[float]]) -> dict[str, Any]:
    ratios = _ratios(near, far)
    p50, p99 = (percentile(list(chain.from_iterable(far)), percent) for percent in (50, 99))
    return {
        "in_process_p50_ms": spread([statistics.median(block) for block in near]),
        "in_process_p99_ms": round(percentile(list(chain.from_iterable(near)), 99), 2),
        "rpc_p50_ms": spread([statistics.median(block) for block in far]),
        "rpc_p99_ms": round(p99, 2),
        "vectors_p50_ms": spread([statistics.median(block) for block in vectors]),
        "p50_ratio": spread(ratios),
        "p50_over_vectors": spread(_ratios(vectors, far)),
        "target_over_vectors": TARGET_OVER_VECTORS,
        "p99_over_p50": round(p99 / p50, 2),
        "target_p50_ratio": TARGET_P50_RATIO,
        "target_p99_over_p50": TARGET_P99_RATIO,
    }


def _ratios(base: list[list[float]], other: list[list[float]]) -> list[float]:
    """Return the ratio of the medians of `other` and `base`, per block."""
    return [statistics.median(theirs) / statistics.median(ours) for ours, theirs in zip(base, other, strict=True)]


def _milliseconds(ask: Ask, question: str) -> float:
    started_s = time.perf_counter()
    result = ask(question)
    took_ms = (time.perf_counter() - started_s) * 1000
    assert len(result.memories) == _TOP_K
    assert not result.degraded, result.degraded
    return took_ms


def main(arguments: list[str]) -> None:
    """Print the figures as JSON."""
    with filled_store(QUICK_MEMORIES if "--quick" in arguments else MEMORIES) as store:
        print(json.dumps(measure(store), indent=2))


if __name__ == "__main__":
    main(sys.argv[1:])
