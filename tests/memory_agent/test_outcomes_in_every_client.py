"""Test without a daemon, embedded and through a client, that a successful run ranks before a failed run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from served_host import client_of_host

from memory_agent import Memory, MemoryClient
from memory_agent.embedders import Embedder


@pytest.fixture(params=["embedded", "client"])
def memory(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, embedder: Embedder
) -> Iterator[Memory | MemoryClient]:
    folder = tmp_path_factory.mktemp("host")
    if request.param == "client":
        with client_of_host(folder, embedder) as client:
            yield client
    else:
        with Memory.open(folder / "alice", embedder=embedder) as embedded:
            yield embedded


def test_successful_runs_come_first_and_repeated_failures_are_reported(memory: Memory | MemoryClient) -> None:
    """The failed runs share more words with the request."""
    memory.runs.begin("create a fresh project including a test suite", "worked", "s-1")
    memory.runs.step("worked", "Created the structure, added the dependencies, wrote the tests")
    memory.runs.end("worked", summary="The project has tests", quality=0.8)
    for number in range(3):
        memory.runs.begin("set up a new project with docs", f"failed-{number}", f"s-{number + 2}")
        memory.runs.end(f"failed-{number}", "failed")
    result = memory.recall("set up a new project with tests", 5, context_tokens=500, deadline_ms=60_000)
    by_run = {found.record.run_id: found for found in reversed(result.memories)}
    assert result.memories[0].record.run_id == "worked"
    (failed,) = (found for run_id, found in by_run.items() if run_id != "worked")
    assert (failed.count, failed.failed) == (3, 3)
    assert failed.explanation["outcome"] < 0.0 < result.memories[0].explanation["outcome"]
    assert failed.sona_score - failed.explanation["outcome"] > (
        result.memories[0].sona_score - result.memories[0].explanation["outcome"]
    )
    assert "ended: failed (0.0), failed 3 times" in (result.context or "")
