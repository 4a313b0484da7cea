"""Measures query latency during bulk embedding, compared with an idle bulk lane, and the bulk throughput lost to
queries.

In process, one model with two lanes is measured, with texts of 256 tokens in the bulk lane and as many bulk threads as
cores, or one fewer. A user's recalls over RPC are measured while the same user's events are published and ingested.
Variants alternate, and no query is repeated. A query should be delayed by at most one embedding, so the median and
99th-percentile delays are given as multiples of the time it takes to embed the longest text.

To run only this benchmark: `python -m ops.bench --only load [--quick] [--json]`.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from memory_agent import MemoryClient
from memory_agent.embedders.lanes import LanedEmbedder, usable_cores
from memory_agent.embedders.minilm import MiniLM, open_minilm
from memory_agent.embedders.weights import PACKAGE, cache_folder
from memory_agent.evaluation import publish_events, temporary_daemon
from memory_agent.settings import EmbedderSettings, Settings
from memory_agent.storage.folders import user_folder
from ops.bench.spread import Block, medians, pooled, spread
from ops.bench.texts import events, passages, queries

TARGET_EMBEDDINGS = 1.0

_USER = "bench"
_TURNS = 4
_QUESTIONS = 60
_RPC_TURNS = 3
_RPC_QUESTIONS = 120
_EVENTS = 1_500  # number of events per turn, more than are ingested during the queries
_PAUSE_S = (0.01, 0.04)  # pause between queries, so that the bulk lane can run
_ALONE_S = 2.0
_BULK_TEXTS = 400
_LONGEST_OF = 16  # number of passages that form a text of at least 256 tokens
_TIMEOUT_S = 600.0

Ask = Callable[[str], object]


def measure(store: Path) -> dict[str, Any]:
    """Return the results measured in process and through RPC; the filled store is not changed."""
    model = open_minilm(EmbedderSettings(allow_download=False), cache_folder(), PACKAGE)
    longest_ms = min(_milliseconds(model.embed, text) for text in _longest(20, seed=1))  # the strictest baseline
    return {
        "longest_ms": round(longest_ms, 1),
        "target_embeddings": TARGET_EMBEDDINGS,
        "lanes": _measure_lanes(model, longest_ms),
        "rpc": _measure_rpc(store, longest_ms),
    }


def _measure_lanes(model: MiniLM, longest_ms: float) -> dict[str, Any]:
    cores = usable_cores()
    counts = [cores, cores - 1] if cores > 1 else [cores]
    kinds = {"idle": 0} | {f"{count} bulk thread{'s' * (count > 1)}": count for count in counts}
    blocks: dict[str, list[Block]] = {name: [] for name in kinds}
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in kinds}
    for turn in range(_TURNS):
        for place, (name, threads) in enumerate(kinds.items()):
            block, *rate = _in_lanes(model, threads, seed=100 + 10 * turn + place)
            blocks[name].append(block)
            rates[name].append((rate[0], rate[1]))
    return {
        name: _figures(blocks["idle"], blocks[name], longest_ms) | (_rates(rates[name]) if threads else {})
        for name, threads in kinds.items()
    }


def _rates(pairs: list[tuple[float, float]]) -> dict[str, Any]:
    alone, beside = zip(*pairs, strict=True)
    return {"bulk_alone_per_s": spread(alone), "bulk_per_s": spread(beside)}


def _in_lanes(model: MiniLM, bulk_threads: int, seed: int) -> tuple[Block, float, float]:
    """Return each query's latency, and the bulk texts per second before and during the queries."""
    lanes = LanedEmbedder(model, bulk_threads=max(bulk_threads, 1))
    try:
        done = [0]
        if bulk_threads:
            lanes.submit_texts(_longest(_BULK_TEXTS, seed), lambda number: done.__setitem__(0, number))
        alone = _rate(lambda: time.sleep(_ALONE_S if bulk_threads else 0.0), done)
        block: Block = []
        beside = _rate(lambda: block.extend(_asked(lanes.embed_query, queries(_QUESTIONS, seed))), done)
        assert done[0] < _BULK_TEXTS, "bulk embedding finished before the queries"
        return block, alone, beside
    finally:
        lanes.close()


def _rate(run: Callable[[], object], done: list[int]) -> float:
    before, started_s = done[0], time.perf_counter()
    run()
    return (done[0] - before) / (time.perf_counter() - started_s)


def _measure_rpc(store: Path, longest_ms: float) -> dict[str, Any]:
    idle: list[Block] = []
    loaded: list[Block] = []
    rates: Block = []
    with temporary_daemon(Settings()) as data_dir, tempfile.TemporaryDirectory() as scratch:
        shutil.copytree(store, user_folder(data_dir, _USER))
        with MemoryClient(_USER, data_dir=data_dir) as client:
            _asked(client.recall, queries(_QUESTIONS, seed=1))
            for turn in range(_RPC_TURNS):
                idle.append(_asked(client.recall, queries(_RPC_QUESTIONS, seed=200 + turn)))
                block, rate = _while_ingesting(client, data_dir, Path(scratch) / "events.jsonl", turn)
                loaded.append(block)
                rates.append(rate)
    return {
        "idle": _figures(idle, idle, longest_ms),
        "ingesting": _figures(idle, loaded, longest_ms) | {"bulk_per_s": spread(rates, 0)},
    }


def _while_ingesting(client: MemoryClient, data_dir: Path, file: Path, turn: int) -> tuple[Block, float]:
    """Return each recall's latency during ingest, and the events ingested per second."""
    rates: list[float] = []
    ended = threading.Event()

    def publish() -> None:
        try:
            made = events(passages(_EVENTS, seed=300 + turn), _USER, f"load-{turn}")
            rates.append(_EVENTS / (publish_events(made, file, data_dir, _TIMEOUT_S).recallable_s or float("inf")))
        finally:
            ended.set()

    before = client.stats().memories
    publisher = threading.Thread(target=publish)
    publisher.start()
    while client.stats().memories == before and not ended.is_set():
        time.sleep(0.05)
    block = _asked(client.recall, queries(_RPC_QUESTIONS, seed=400 + turn), ended.is_set)
    publisher.join()
    assert len(block) > _RPC_QUESTIONS // 4, "ingest finished before the recalls"
    return block, rates[0]


def _asked(ask: Ask, texts: list[str], is_over: Callable[[], bool] = lambda: False) -> Block:
    """Return the time of each query in milliseconds, pausing between queries; stop once `is_over` returns true."""
    pauses = random.Random(len(texts))
    block: Block = []
    for text in texts:
        time.sleep(pauses.uniform(*_PAUSE_S))
        taken_ms = _milliseconds(ask, text)
        if is_over():
            break
        block.append(taken_ms)
    return block


def _figures(idle: list[Block], blocks: list[Block], longest_ms: float) -> dict[str, Any]:
    """Return p50 and p99, and how far they exceed those of `idle`, in multiples of the longest text's embedding
    time.
    """
    delays = {f"p{at}": pooled(blocks, at) - pooled(idle, at) for at in (50, 99)}
    return {
        "p50_ms": spread(medians(blocks)),
        "p99_ms": round(pooled(blocks, 99), 2),
        "delay_in_embeddings": {name: round(delay / longest_ms, 2) for name, delay in delays.items()},
    }


def _milliseconds(ask: Ask, text: str) -> float:
    started_s = time.perf_counter()
    answer = ask(text)
    taken_ms = (time.perf_counter() - started_s) * 1000
    assert not getattr(answer, "degraded", ()), "a recall was degraded"
    return taken_ms


def _longest(count: int, seed: int) -> list[str]:
    """Return `count` texts longer than 256 tokens."""
    parts = passages(count * _LONGEST_OF, seed)
    return [" ".join(parts[start::count]) for start in range(count)]
