"""Measures searches of shared items beside recalls of as many own memories, and what both tiers cost a recall.

One user of a daemon has the memories of a grown store; the shared store has the same texts as items. The same questions
are asked in turns: of the own memories, of the items, and of both, each way first in turn.

Run alone: `python -m ops.bench --only shared [--quick]`.
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from memory_agent import MemoryClient
from memory_agent.evaluation.daemon_process import temporary_daemon
from memory_agent.records import MemoryRecord, Tier
from memory_agent.settings import DaemonSettings, Settings, SharedSettings, StoreSettings
from memory_agent.storage.archive import Archive
from memory_agent.storage.folders import user_folder
from ops.bench.grown_stores import Growth
from ops.bench.spread import percentile, spread
from ops.bench.texts import queries
from relay import SHARED_USER

TARGET_OVER_OWN = 1.5
TARGET_BOTH_OVER_OWN = 1.1

_USER = "bench"
_TURNS = 6
_QUESTIONS = 50
_WARM_UP = 40
_AT_ONCE = 1_000
_TOP_K = 5
_POLL_S = 0.2
_SETTINGS = Settings(
    shared=SharedSettings(searches=1_000_000, searches_per_s=1e6), daemon=DaemonSettings(upkeep_interval_s=600.0)
)

Ask = Callable[[str], None]


def measure(growth: Growth) -> dict[str, Any]:
    """Return the figures of each size; the folders are not changed."""
    return {str(size): _measure_one(folder) for size, folder in growth.folders.items()}


def _measure_one(folder: Path) -> dict[str, Any]:
    with temporary_daemon(_SETTINGS) as data_dir, MemoryClient(_USER, data_dir=data_dir) as client:
        shutil.copytree(folder, user_folder(data_dir, _USER))
        _share(Path(shutil.copytree(folder, user_folder(data_dir, SHARED_USER))))
        client.shared.set_name(None)  # wakes its host
        while client.recall("are the words there", deadline_ms=60_000.0).degraded:
            time.sleep(_POLL_S)  # a large store loads them in the background
        ways: dict[str, Ask] = {"own": partial(_recall, client), "items": partial(_search, client)}
        ways["both"] = partial(_recall, client, tiers=("local", "global"))
        figures = _take_turns(ways)
        return figures | {"target_over_own": TARGET_OVER_OWN, "target_both_over_own": TARGET_BOTH_OVER_OWN}


def _share(folder: Path) -> None:
    """Make every memory of a store an item that all users may see."""
    archive = Archive.open(folder, StoreSettings(), "library")
    try:
        with archive.store.snapshot() as snapshot:
            rows = [row for row, _ in snapshot.scan()]
        for start in range(0, len(rows), _AT_ONCE):
            with archive.batch() as batch:
                for row in rows[start : start + _AT_ONCE]:
                    record = batch.record(row)
                    assert record is not None
                    batch.update(_item(record))
    finally:
        archive.close()


def _item(record: MemoryRecord) -> MemoryRecord:
    about = {
        "author": "user-1",
        "version": "1",
        "content_type": "document",
        "policy": "public",
        "digest": "",
        "summary_chars": len(record.text),
    }
    return msgspec.structs.replace(record, metadata={"shared": about}, session_id=None, run_id=None)


def _recall(client: MemoryClient, question: str, tiers: tuple[Tier, ...] = ("local",)) -> None:
    result = client.recall(question, _TOP_K, min_relevance=0.0, tiers=tiers)
    assert len(result.memories) == _TOP_K
    assert not result.degraded, result.degraded
    assert len(tiers) == 1 or any(found.shared for found in result.memories)


def _search(client: MemoryClient, question: str) -> None:
    assert len(client.shared.search(question, _TOP_K, min_relevance=0.0)) == _TOP_K


def _take_turns(ways: dict[str, Ask]) -> dict[str, Any]:
    names = list(ways)
    taken_ms: dict[str, list[list[float]]] = {name: [[] for _ in range(_TURNS)] for name in names}
    for question in queries(_WARM_UP, seed=700):
        for ask in ways.values():
            ask(question)
    for turn in range(_TURNS):
        for place in range(_QUESTIONS):
            first = place % len(names)
            for way, name in enumerate((*names[first:], *names[:first])):
                (question,) = queries(1, seed=10_000 + 1_000 * turn + 10 * place + way)  # new to all caches
                began_s = time.perf_counter()
                ways[name](question)
                taken_ms[name][turn].append((time.perf_counter() - began_s) * 1000)
    p50 = {name: [statistics.median(block) for block in blocks] for name, blocks in taken_ms.items()}
    every = {name: list(chain.from_iterable(blocks)) for name, blocks in taken_ms.items()}
    return {
        **{f"{name}_ms": spread(found) | {"p99": round(percentile(every[name], 99), 1)} for name, found in p50.items()},
        "items_over_own": spread([ours / one for ours, one in zip(p50["items"], p50["own"], strict=True)]),
        "both_over_own": spread([ours / one for ours, one in zip(p50["both"], p50["own"], strict=True)]),
    }
