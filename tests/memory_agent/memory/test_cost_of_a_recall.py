"""What a recall costs whatever the machine: Python functions called, threads woken, and statements of SQL: none."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from memory_samples import NOW

from memory_agent.embedders import Embedder
from memory_agent.memory import Memory
from memory_agent.records.memories import Mode
from ops.bench.cost import TARGET_CALLS, python_calls
from ops.bench.texts import events, passages, queries

MEMORIES = 2_000
ASKED = 12
WARM_UP = 5

SELECTING = """
import time
import numpy as np
from memory_agent.recall.duplicates import Leader
from memory_agent.recall.selection import mmr

for _ in range(5):
    started_s, own_s = time.process_time(), time.thread_time()
    for number in (35, 75, 300):
        leaders = [Leader(place, place, []) for place in range(number)]
        vectors = np.random.default_rng(number).normal(size=(number, 384)).astype(np.float32)
        for _ in range(6):
            mmr(leaders, vectors, vectors[:, 0].astype(np.float64), 10, 0.5)
    print((time.process_time() - started_s) / (time.thread_time() - own_s))
"""

_connections: list[str] = []


def _audit(event: str, _arguments: tuple[object, ...]) -> None:
    if event in ("sqlite3.connect", "sqlite3.connect/handle", "sqlcipher3.connect"):
        _connections.append(event)


@pytest.fixture(scope="module")
def connections() -> list[str]:
    """Record every SQLite database that this process opens, by an audit hook."""
    sys.addaudithook(_audit)
    return _connections


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory, embedder: Embedder, connections: list[str]) -> Iterator[Memory]:
    """Passages in sessions of 30, asked often enough that nothing is done for the first time. Read-only."""
    connections.clear()
    with Memory.open(tmp_path_factory.mktemp("filled") / "alice", embedder=embedder) as memory:
        memory.ingest(events(passages(MEMORIES, seed=1), "alice", "fill"), now=NOW)
        for query in ["what failed yesterday?", *queries(WARM_UP, seed=2)]:  # the first time word imports the dates
            memory.recall(query, now=NOW)
        yield memory


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["hybrid", "vector", "lexical"])
def test_a_recall_calls_no_more_than_three_thousand_python_functions(filled: Memory, mode: Mode) -> None:
    """Functions of C are not counted. In the calling thread; the embedder works in others."""
    calls = [
        python_calls(lambda query=query: filled.recall(query, 10, mode=mode, now=NOW)) for query in queries(ASKED, 3)
    ]
    assert max(calls) <= TARGET_CALLS, calls


@pytest.mark.slow
def test_a_recall_with_a_filter_costs_no_more_than_one_without(filled: Memory) -> None:
    chosen = {"session_id": "fill-7", "sources": ["worker_result"], "until": NOW}
    calls = [
        python_calls(lambda query=query: filled.recall(query, 10, filter=chosen, now=NOW))
        for query in queries(ASKED, 4)
    ]
    assert max(calls) <= TARGET_CALLS, calls


def test_a_selection_wakes_no_thread_of_blas() -> None:
    """Where it did, a recall on two busy cores took 3 to 13 ms longer, and the threads spun for milliseconds more.

    They also spin for a while after NumPy has started them, so the round with the least time of others counts.
    """
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", SELECTING], env=environment, capture_output=True, text=True, check=True
    )
    assert min(map(float, done.stdout.split())) < 1.25


@pytest.mark.slow
def test_no_database_is_opened_to_ingest_and_recall(
    tmp_path: Path, embedder: Embedder, filled: Memory, connections: list[str]
) -> None:
    filled.recall("how is an iterator made", filter={"sources": ["worker_result"]}, now=NOW)
    with Memory.open(tmp_path / "bob", embedder=embedder) as memory:
        memory.ingest(events(passages(10, seed=5), "bob", "few"), now=NOW)
        memory.recall("how is an iterator made", now=NOW)
    assert connections == []
