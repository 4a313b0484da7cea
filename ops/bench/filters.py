"""Measures filtered recalls relative to unfiltered recalls, with filters that match between 1 % and all of the
memories.

Memories are filtered by time, tag or quality. Times are the calling thread's processor time, with precomputed vectors.
Variants alternate. Recall@10 is checked in `vector` mode against brute force over float32 vectors.

To run only this benchmark: `python -m ops.bench --only filters [--quick]`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from memory_agent import Memory
from memory_agent.records.embedded import Embedding
from memory_agent.records.memories import MemoryFilter
from memory_agent.settings import LearningSettings, RecallSettings, Settings
from ops.bench.grown_stores import SHARES, Growth, MixedVectors, grown_events, opened, text_of
from ops.bench.texts import queries

TARGET_RECALL = 1.0

_QUERIES = 12
_WARM_UP = 20
_TOP_K = 10
_TOLERANCE = 1e-3  # since vectors are stored as float16
_SETTINGS = Settings(
    recall=RecallSettings(dates="ignore"),
    learning=LearningSettings(mode="off"),
)

Figures = dict[str, Any]
Passing = npt.NDArray[np.bool_]
"""Whether each of n memories passes the filter, (n,)."""
Asked = tuple[str, Embedding]
"""A query, and its cosines with n memories, (n,)."""


def measure(growth: Growth) -> Figures:
    """Return the measurements by store size; the stores are not changed."""
    return {str(size): _measure_one(folder, growth.vectors, size) for size, folder in growth.folders.items()}


def _measure_one(folder: Path, embedder: MixedVectors, size: int) -> Figures:
    made = list(grown_events(0, size))
    vectors = embedder.embed_texts([text_of(event) for event in made])
    asked = [(text, vectors @ embedder.embed_query(text)) for text in queries(_QUERIES, seed=901)]
    with opened(folder, embedder, _SETTINGS) as memory:
        for text in queries(_WARM_UP, seed=900):
            memory.recall(text, _TOP_K, min_relevance=0.0)
        filters = [_compare(memory, asked, *one) for one in _filters(made)]
    over = [one["over_none"] for one in filters]
    return {
        "filters": filters,
        "over_none": {"median": round(statistics.median(over), 2), "most": max(over)},
        "recall": min(one["recall"] for one in filters),
        "target_recall": TARGET_RECALL,
    }


def _filters(made: Sequence[dict[str, Any]]) -> list[tuple[str, MemoryFilter, Passing]]:
    """Return each filter with its name (kind and share) and whether each event passes it."""
    times = [datetime.fromisoformat(event["timestamp"]) for event in made]
    qualities = np.array([event["payload"]["quality"] for event in made])
    filters = []
    for share in (*SHARES, 1.0):
        since = sorted(times)[round(len(times) * (1 - share))]
        filters.append((f"time {share:g}", MemoryFilter(since=since), np.array([time >= since for time in times])))
        least = float(np.quantile(qualities, 1 - share))
        filters.append((f"quality {share:g}", MemoryFilter(min_quality=least), qualities >= least))
        if share < 1:
            tag = f"share {share:g}"
            tagged = np.array([tag in event["payload"]["tags"] for event in made])
            filters.append((f"tag {share:g}", MemoryFilter(tags=(tag,)), tagged))
    return filters


def _compare(memory: Memory, asked: Sequence[Asked], name: str, chosen: MemoryFilter, passing: Passing) -> Figures:
    without_s, within_s, right = [], [], []
    for text, cosines in asked:
        without_s.append(_seconds(memory, text, None))
        within_s.append(_seconds(memory, text, chosen))
        found = memory.recall(text, _TOP_K, filter=chosen, mode="vector", min_relevance=0.0).memories
        right.append(_recall([one.score or 0.0 for one in found], np.sort(cosines[passing])[::-1][:_TOP_K]))
    return {
        "filter": name,
        "matching": int(passing.sum()),
        "recall_ms": round(statistics.median(within_s) * 1000, 2),
        "over_none": round(statistics.median(within_s) / statistics.median(without_s), 2),
        "recall": min(right),
    }


def _recall(found: Sequence[float], best: Embedding) -> float:
    """Return the share of the `best` cosines (in descending order) that are in `found`."""
    if len(found) != len(best):
        return 0.0
    return float(np.mean(np.abs(np.sort(found)[::-1] - best) < _TOLERANCE))


def _seconds(memory: Memory, text: str, chosen: MemoryFilter | None) -> float:
    began_s = time.thread_time()
    memory.recall(text, _TOP_K, filter=chosen, min_relevance=0.0)
    return time.thread_time() - began_s
