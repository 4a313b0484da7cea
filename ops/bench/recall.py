"""Measures recall through the daemon, in process and with only vectors, relative to the time to embed the query.

All variants use copies of one store. In process, `Memory.recall` embeds the query and searches. RPC adds the client's
socket, the gateway, the call to the user's host and the embedder's socket. The variant with only vectors is `vector`
mode over RPC, which is equivalent to a plain vector store. Variants alternate in blocks, and no question is repeated.
The processor time of a recall over RPC is the sum over all processes, including the client, minus what they use when
idle.

To run only this benchmark: `python -m ops.bench --only recall [--quick] [--json]`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from memory_agent import Memory, MemoryClient
from memory_agent.embedders import Embedder, open_embedder
from memory_agent.evaluation import temporary_daemon
from memory_agent.records.memories import Mode
from memory_agent.settings import EmbedderSettings, Settings
from memory_agent.storage.folders import user_folder
from ops.bench.spread import Block, medians, pooled, ratios, spread
from ops.bench.texts import queries
from ops.bench.timing import milliseconds
from ops.process_memory import process_tree

TARGET_P50_RATIO = 2.5
TARGET_P99_RATIO = 5.0
TARGET_OVER_VECTORS = 1.5
TARGET_PROCESSOR = 4.0
TARGET_RPC_LESS = 1.2
"""Limits, in multiples of one query embedding: the processor time of all processes, and the time added by RPC."""

_USER = "bench"
_TURNS = 6
_QUESTIONS = 100
_WARM_UP = 30
_TOP_K = 5
_IDLE_S = 2.0

Ask = Callable[[str], object]


def measure(store: Path) -> dict[str, Any]:
    """Return each variant's p50 and p99, and the processor time of a recall over RPC; `store` is not changed."""
    settings = EmbedderSettings(allow_download=False, query_cache=0)
    with temporary_daemon(Settings()) as data_dir, tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        shutil.copytree(store, user_folder(data_dir, _USER))
        near = Path(shutil.copytree(store, Path(scratch) / "near"))
        model = open_embedder(settings)
        stack.callback(model.close)
        memory = stack.enter_context(Memory.open(near, embedder=model))
        client = stack.enter_context(MemoryClient(_USER, data_dir=data_dir))
        ways = {
            "embedding": model.embed_query,
            "in_process": _asking(memory),
            "rpc": _asking(client),
            "vectors": _asking(client, "vector"),
        }
        assert client.stats().memories == memory.stats().memories
        figures = {"memories": memory.stats().memories} | _take_turns(ways)
        return figures | _processor(client, model)


def _asking(memory: Memory | MemoryClient, mode: Mode | None = None) -> Ask:
    def ask(question: str) -> None:
        result = memory.recall(question, _TOP_K, mode=mode, min_relevance=0.0)
        assert len(result.memories) == _TOP_K
        assert not result.degraded, result.degraded

    return ask


def _take_turns(ways: dict[str, Ask]) -> dict[str, Any]:
    taken_ms: dict[str, list[Block]] = {name: [] for name in ways}
    for turn in range(-1, _TURNS):
        for place, (name, ask) in enumerate(ways.items()):
            questions = queries(_WARM_UP if turn < 0 else _QUESTIONS, seed=1_000 + 10 * turn + place)
            block = [milliseconds(ask, question) for question in questions]
            if turn >= 0:
                taken_ms[name].append(block)
    return _report(taken_ms)


def _report(taken_ms: dict[str, list[Block]]) -> dict[str, Any]:
    embedding, near, far, vectors = map(medians, taken_ms.values())
    p50, p99 = (pooled(taken_ms["rpc"], percent) for percent in (50, 99))
    less = [(there - here) / alone for alone, here, there in zip(embedding, near, far, strict=True)]
    return {
        "embedding_ms": spread(embedding),
        "in_process_p50_ms": spread(near),
        "in_process_p99_ms": round(pooled(taken_ms["in_process"], 99), 2),
        "rpc_p50_ms": spread(far),
        "rpc_p99_ms": round(p99, 2),
        "vectors_p50_ms": spread(vectors),
        "rpc_less_in_embeddings": spread(less),
        "target_rpc_less": TARGET_RPC_LESS,
        "p50_ratio": spread(ratios(far, near)),
        "p50_over_vectors": spread(ratios(far, vectors)),
        "target_over_vectors": TARGET_OVER_VECTORS,
        "p99_over_p50": round(p99 / p50, 2),
        "target_p50_ratio": TARGET_P50_RATIO,
        "target_p99_over_p50": TARGET_P99_RATIO,
    }


def _processor(client: MemoryClient, model: Embedder) -> dict[str, Any]:
    """Return the processor times of a recall over RPC (summed over all processes) and of embedding its query."""
    daemon = next(part.pid for part in client.status().parts if part.name == "daemon")
    assert daemon is not None
    processes = [process for process in process_tree(daemon) if process.pid != os.getpid()]
    embedded: list[float] = []
    recalled: list[float] = []
    idle: list[float] = []
    for turn in range(_TURNS):
        began_s = time.process_time()
        _ask_all(model.embed_query, queries(_QUESTIONS, seed=2_000 + turn))
        embedded.append((time.process_time() - began_s) * 1000 / _QUESTIONS)
        idle.append(_used_ms(processes, lambda: time.sleep(_IDLE_S)) / (_IDLE_S * 1000))
        began_s = time.perf_counter()
        asked = queries(_QUESTIONS, seed=2_100 + turn)
        used_ms = _used_ms(processes, partial(_ask_all, _asking(client), asked))
        took_ms = (time.perf_counter() - began_s) * 1000
        recalled.append((used_ms - idle[-1] * took_ms) / _QUESTIONS)
    return {
        "embedding_processor_ms": spread(embedded),
        "rpc_processor_ms": spread(recalled),
        "idle_share_of_a_core": spread(idle, 3),
        "rpc_processor_in_embeddings": spread(ratios(recalled, embedded)),
        "target_processor": TARGET_PROCESSOR,
    }


def _ask_all(ask: Ask, questions: list[str]) -> None:
    for question in questions:
        ask(question)


def _used_ms(processes: list[psutil.Process], action: Callable[[], object]) -> float:
    """Return the processor time in ms that `action` takes in `processes` and in this process."""

    def used_s() -> float:
        times = [process.cpu_times() for process in processes]
        return time.process_time() + sum(one.user + one.system for one in times)

    began_s = used_s()
    action()
    return (used_s() - began_s) * 1000
