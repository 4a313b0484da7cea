"""Measures in-process recalls while memories are ingested at a steady rate, relative to the same recalls without
ingestion.

One thread ingests 250 memories per second in batches of 25, as a host does for one user; another thread recalls, with
pauses. The vectors are precomputed, so the embedder (see `load`) is not measured. A second pass with the model shows
the embedder's share. Idle and loaded blocks alternate.

To run only this benchmark: `python -m ops.bench --only ingesting [--quick]`.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from memory_agent import Memory
from memory_agent.embedders import Embedder, open_embedder
from memory_agent.settings import EmbedderSettings
from ops.bench.grown_stores import WINDOW, Growth, grown_events, opened, text_of
from ops.bench.spread import Block, medians, percentile, pooled, ratios, spread
from ops.bench.texts import queries

TARGET_P50 = 1.5

_TURNS = 4
_TURNS_WITH_MODEL = 2
_QUESTIONS = 120
_MOST_S = 15.0  # maximum per block; if recalls are slow, the last questions are skipped
_WARM_UP = 40
_BATCH = 25
_INTERVAL_S = 0.1
_PAUSE_S = (0.01, 0.04)
_EVENTS = 20_000
_DEADLINE_MS = 60_000.0  # high enough that no recall times out
_TOP_K = 5


def measure(growth: Growth) -> dict[str, Any]:
    """Return the measurements on the largest store, which is not changed."""
    size, folder = max(growth.folders.items())
    begin = round(size * (1 + WINDOW))
    made = list(grown_events(begin, begin + _EVENTS))
    growth.vectors.prepare([text_of(event) for event in made])
    model = open_embedder(EmbedderSettings(allow_download=False))
    try:
        return {
            "memories": size,
            "target_p50": TARGET_P50,
            "known": _measure_one(folder, growth.vectors, made, _TURNS),
            "embedded": _measure_one(folder, model, made, _TURNS_WITH_MODEL),
        }
    finally:
        model.close()


def _measure_one(folder: Path, embedder: Embedder, made: list[dict[str, Any]], turns: int) -> dict[str, Any]:
    idle: list[Block] = []
    loaded: list[Block] = []
    rates: list[float] = []
    left = list(made)
    with opened(folder, embedder) as memory:
        _ask(memory, queries(_WARM_UP, seed=700))
        for turn in range(turns):
            idle.append(_ask(memory, queries(_QUESTIONS, seed=710 + turn)))
            with _coming_in(memory, left) as came_in:
                began_s = time.perf_counter()
                loaded.append(_ask(memory, queries(_QUESTIONS, seed=730 + turn)))
                rates.append(came_in[0] / (time.perf_counter() - began_s))
    return {
        "idle_ms": spread(medians(idle)),
        "idle_p99_ms": round(pooled(idle, 99), 2),
        "loaded_ms": spread(medians(loaded)),
        "loaded_p99_ms": round(pooled(loaded, 99), 2),
        "p50_ratio": spread(ratios(medians(loaded), medians(idle))),
        "p99_ratio": spread(
            [percentile(theirs, 99) / percentile(ours, 99) for ours, theirs in zip(idle, loaded, strict=True)]
        ),
        "memories_per_s": spread(rates, 0),
    }


@contextmanager
def _coming_in(memory: Memory, left: list[dict[str, Any]]) -> Iterator[list[int]]:
    """Ingest from `left` at the fixed rate while the `with` block runs; yield a list that holds the number ingested."""
    came_in = [0]
    over = threading.Event()

    def ingest() -> None:
        next_s = time.monotonic()
        while not over.wait(max(0.0, next_s - time.monotonic())):
            batch, left[:_BATCH] = left[:_BATCH], []
            came_in[0] += memory.ingest(batch).kept
            next_s += _INTERVAL_S

    thread = threading.Thread(target=ingest)
    thread.start()
    try:
        yield came_in
    finally:
        over.set()
        thread.join()
        assert left, "ingest ran out of events"


def _ask(memory: Memory, texts: list[str]) -> Block:
    """Pause before each recall, and return the durations of the recalls in milliseconds."""
    pauses = random.Random(len(texts))
    block: Block = []
    ends_s = time.perf_counter() + _MOST_S
    for text in texts:
        if time.perf_counter() > ends_s:
            break
        time.sleep(pauses.uniform(*_PAUSE_S))
        began_s = time.perf_counter()
        result = memory.recall(text, _TOP_K, deadline_ms=_DEADLINE_MS, min_relevance=0.0)
        block.append((time.perf_counter() - began_s) * 1000)
        assert len(result.memories) == _TOP_K
        assert not result.degraded, result.degraded
    return block
