"""The cost of a recall, independent of the machine: few Python function calls, and no SQL."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from memory_samples import NOW

from memory_agent.embedders import Embedder
from memory_agent.memory import Memory
from memory_agent.records.memories import Mode
from ops.bench.cost import TARGET_CALLS, python_calls
from ops.bench.grown_stores import MixedVectors
from ops.bench.texts import events, passages, queries

MEMORIES = 2_000
ASKED = 12
WARM_UP = 5

_connections: list[str] = []


def _audit(event: str, _arguments: tuple[object, ...]) -> None:
    if event in ("sqlite3.connect", "sqlite3.connect/handle", "sqlcipher3.connect"):
        _connections.append(event)


@pytest.fixture(scope="module")
def connections() -> list[str]:
    """Record every SQLite database that this process opens, with an audit hook."""
    sys.addaudithook(_audit)
    return _connections


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory, embedder: Embedder, connections: list[str]) -> Iterator[Memory]:
    """A memory of passages, 30 per session, after enough recalls to finish imports and fill caches. Read-only.

    The vectors are mixtures of a few real vectors, because embedding all passages would take 12 s of processor time.
    """
    connections.clear()
    folder = tmp_path_factory.mktemp("filled") / "alice"
    with Memory.open(folder, embedder=MixedVectors(embedder, basis=100)) as memory:
        memory.ingest(events(passages(MEMORIES, seed=1), "alice", "fill"), now=NOW)
    with Memory.open(folder, embedder=embedder) as memory:
        assert memory.stats().without_vector == 0
        for query in ["what failed yesterday?", *queries(WARM_UP, seed=2)]:  # a time word imports date parsing
            memory.recall(query, now=NOW)
        yield memory


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["hybrid", "vector", "lexical"])
def test_a_recall_calls_no_more_than_three_thousand_python_functions(filled: Memory, mode: Mode) -> None:
    """Counts calls of Python functions in the calling thread. The embedder works in other threads."""
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


@pytest.mark.slow
def test_no_database_is_opened_to_ingest_and_recall(
    tmp_path: Path, embedder: Embedder, filled: Memory, connections: list[str]
) -> None:
    filled.recall("how is an iterator made", filter={"sources": ["worker_result"]}, now=NOW)
    with Memory.open(tmp_path / "bob", embedder=embedder) as memory:
        memory.ingest(events(passages(10, seed=5), "bob", "few"), now=NOW)
        memory.recall("how is an iterator made", now=NOW)
    assert connections == []
