"""Measures the cost of an in-process recall relative to that of embedding its query, for stores of several sizes.

For each question, the embedding alone and a full recall are timed, in alternating order, with the same model and no
query cache. A recall evicts most of the model from the processor's caches, so embedding questions consecutively is
faster; both times are shown. Processor time includes all threads of this process. Python function calls are counted in
the calling thread, excluding C functions. SQLite statements are counted across all connections.

To run only this benchmark: `python -m ops.bench --only cost [--quick]`.
"""

from __future__ import annotations

import gc
import sqlite3
import statistics
import sys
from collections.abc import Callable
from functools import partial
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from memory_agent import Memory
from memory_agent.embedders import Embedder, open_embedder
from memory_agent.settings import EmbedderSettings
from ops.bench.grown_stores import Growth, opened
from ops.bench.spread import percentile, spread
from ops.bench.texts import queries
from ops.bench.timing import timed_s

TARGETS = {10_000: 3.0, 100_000: 4.5}
"""Maximum time of a recall by number of memories, in multiples of the time to embed one query. At 10,000 memories, 0.5
of the 3.0 are for word matching.
"""
TARGET_CALLS = 3_000

_TURNS = 6
_QUESTIONS = 50
_WARM_UP = 40
_COUNTED = 20
_DEADLINE_MS = 60_000.0  # high enough that no recall times out
_TOP_K = 10


class Cost(NamedTuple):
    """The wall time and processor time of one action."""

    wall_ms: float
    processor_ms: float


def measure(growth: Growth) -> dict[str, Any]:
    """Return the measurements by store size; the stores are not changed."""
    model = open_embedder(EmbedderSettings(allow_download=False, query_cache=0))
    try:
        return {str(size): _measure_one(folder, model, size) for size, folder in growth.folders.items()}
    finally:
        model.close()


def _measure_one(folder: Path, model: Embedder, size: int) -> dict[str, Any]:
    with opened(folder, model) as memory:
        return _take_turns(memory, model) | {"target": TARGETS.get(size), "target_calls": TARGET_CALLS}


def _take_turns(memory: Memory, model: Embedder) -> dict[str, Any]:
    for question in queries(_WARM_UP, seed=500):
        _recall(memory, question)
    in_a_row: list[list[Cost]] = []
    embedded: list[list[Cost]] = []
    recalled: list[list[Cost]] = []
    for turn in range(_TURNS):
        in_a_row.append([_timed(model.embed_query, question) for question in queries(_QUESTIONS, seed=551 + turn)])
        embedded.append([])
        recalled.append([])
        for place, question in enumerate(queries(_QUESTIONS, seed=501 + turn)):
            actions: list[tuple[Callable[[str], object], list[list[Cost]]]]
            actions = [(model.embed_query, embedded), (partial(_recall, memory), recalled)]
            for action, costs in actions if place % 2 else reversed(actions):
                costs[-1].append(_timed(action, question))
    counted = queries(_COUNTED, seed=600)
    return {
        "embedding_ms": spread([_median(block, 0) for block in embedded]),
        "embedding_in_a_row_ms": spread([_median(block, 0) for block in in_a_row]),
        "recall_ms": spread([_median(block, 0) for block in recalled]),
        "recall_p99_ms": round(percentile([cost.wall_ms for cost in chain.from_iterable(recalled)], 99), 2),
        "recall_processor_ms": spread([_median(block, 1) for block in recalled]),
        "in_embeddings": spread(_ratios(embedded, recalled, 0)),
        "in_embeddings_by_processor": spread(_ratios(embedded, recalled, 1)),
        "calls": round(statistics.median(python_calls(partial(_recall, memory, text)) for text in counted)),
        "statements": round(statistics.median(_statements(memory, text) for text in counted)),
    }


def python_calls(action: Callable[[], object]) -> int:
    """Return the number of Python function calls that `action` makes in this thread, including the call to `action`."""
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        action()
    finally:
        sys.setprofile(before)
    return calls


def _statements(memory: Memory, question: str) -> int:
    """Return the number of SQL statements that a recall runs, across all open connections."""
    seen: list[str] = []
    connections = [found for found in gc.get_objects() if isinstance(found, sqlite3.Connection)]
    for connection in connections:
        connection.set_trace_callback(seen.append)
    try:
        _recall(memory, question)
    finally:
        for connection in connections:
            connection.set_trace_callback(None)
    return sum(not statement.startswith("--") for statement in seen)  # "--" marks a nested statement


def _recall(memory: Memory, question: str) -> None:
    result = memory.recall(question, _TOP_K, deadline_ms=_DEADLINE_MS, min_relevance=0.0)
    assert len(result.memories) == _TOP_K
    assert not result.degraded, result.degraded


def _timed(action: Callable[[str], object], question: str) -> Cost:
    wall_s, processor_s = timed_s(action, question)
    return Cost(wall_s * 1000, processor_s * 1000)


def _ratios(base: list[list[Cost]], other: list[list[Cost]], place: int) -> list[float]:
    """Return, for each turn, the median of `other` divided by the median of `base`."""
    return [_median(theirs, place) / _median(ours, place) for ours, theirs in zip(base, other, strict=True)]


def _median(block: list[Cost], place: int) -> float:
    return statistics.median(cost[place] for cost in block)
