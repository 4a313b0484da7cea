"""A recall is linked to the run that names it, that requested it, or that has the same request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from run_samples import LATER, OBJECTIVE, SMALL, at, begin, end, note, step, things_to_use, whole, without_model
from store_checks import verified

from memory_agent.memory import Memory
from memory_agent.settings import EmbedderSettings
from memory_agent.storage.stored_runs import vector_of_query

RECALLS = [f"01KHJY9080NWG22H9Q8BBD7B{number}" for number in range(80, 90)]


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    with without_model(tmp_path / "alice") as memory:
        yield memory


def recalls(memory: Memory, run_id: str) -> tuple[str, ...]:
    run = memory.runs.get(run_id)
    assert run is not None
    assert verified(memory._archive.store)
    return run.recall_ids


def test_a_recall_by_a_run_is_linked_to_it_before_and_after_the_run_begins(memory: Memory) -> None:
    note(memory, RECALLS[0], 0, [], by_run="r")
    memory.ingest([begin("r", 1)], now=LATER)
    note(memory, RECALLS[1], 2, [], by_run="r")
    assert recalls(memory, "r") == tuple(RECALLS[:2])  # before the link was written
    memory.ingest([end("r", 3)], now=LATER)
    note(memory, RECALLS[2], 4, [], by_run="r")
    memory.expire(at(5))
    assert recalls(memory, "r") == tuple(RECALLS[:3])


def test_a_recall_by_a_run_is_linked_after_a_restart(tmp_path: Path) -> None:
    with without_model(tmp_path / "a") as memory:
        note(memory, RECALLS[0], 0, [], by_run="r")
    with without_model(tmp_path / "a") as memory:
        memory.ingest([begin("r", 1)], now=LATER)
        assert recalls(memory, "r") == (RECALLS[0],)


def test_the_same_request_shortly_before_a_run_began_is_its_recall(memory: Memory) -> None:
    note(memory, RECALLS[0], -11, [], query=OBJECTIVE)  # too early
    note(memory, RECALLS[1], -9, [], query=f" {OBJECTIVE.lower()}")
    note(memory, RECALLS[2], -8, [], query="Bake bread")
    note(memory, RECALLS[3], 1, [], query=OBJECTIVE)  # too late
    note(memory, RECALLS[4], -1, [], query=OBJECTIVE, by_run="another")
    memory.ingest([begin("r", 0)], now=LATER)
    assert recalls(memory, "r") == (RECALLS[1],)


def test_a_recall_of_another_session_is_not_linked(memory: Memory) -> None:
    note(memory, RECALLS[0], -3, [], query=OBJECTIVE, session_id="s-1")
    note(memory, RECALLS[1], -2, [], query=OBJECTIVE, session_id="s-2")
    note(memory, RECALLS[2], -1, [], query=OBJECTIVE)
    memory.ingest([begin("r", 0, session_id="s-2")], now=LATER)
    assert recalls(memory, "r") == (RECALLS[1], RECALLS[2])


def test_an_explicit_link_replaces_a_guessed_one(memory: Memory) -> None:
    things = things_to_use(memory)
    note(memory, RECALLS[0], -1, things[:2], query=OBJECTIVE)
    memory.ingest(whole("guessed", 0), now=LATER)
    memory.feedback(RECALLS[0], things[:1], 0.5, now=at(6))
    assert (recalls(memory, "guessed"), memory.runs.get("guessed").quality) == ((RECALLS[0],), 0.5)  # type: ignore[union-attr]
    memory.ingest([begin("named", 7, "Bake bread", recall_id=RECALLS[0]), end("named", 8)], now=LATER)
    guessed, named = memory.runs.get("guessed"), memory.runs.get("named")
    assert guessed is not None
    assert named is not None
    assert (guessed.recall_ids, guessed.quality, guessed.used) == ((), 0.8, ())
    assert (named.recall_ids, named.quality, len(named.used)) == ((RECALLS[0],), 0.5, 1)


def test_a_recall_that_two_runs_name_credits_each_for_what_it_used(memory: Memory) -> None:
    things = things_to_use(memory)
    note(memory, RECALLS[0], -1, things[:3])
    memory.ingest([begin("one", 0, recall_id=RECALLS[0]), end("one", 1, memory_ids=things[:1])], now=LATER)
    memory.ingest([begin("two", 2, "Bake", recall_id=RECALLS[0]), end("two", 3, memory_ids=things[1:2])], now=LATER)
    assert recalls(memory, "one") == recalls(memory, "two") == (RECALLS[0],)


def test_a_memory_is_credited_to_the_latest_recall_that_had_shown_it(memory: Memory) -> None:
    things = things_to_use(memory)
    for number, minute in enumerate((1, 3, 9)):
        note(memory, RECALLS[number], minute, things[: 3 - number], by_run="r")
    memory.ingest([begin("r", 0), step("r", 1, 5, memory_ids=[things[1], things[4]])], now=LATER)
    run = memory.runs.get("r")
    assert run is not None
    assert [use.recall_id for use in run.used] == [RECALLS[1], None]


def test_a_near_request_is_the_same_where_there_is_a_model(tmp_path: Path) -> None:
    settings = EmbedderSettings(allow_download=False)
    with Memory.open(tmp_path / "a", embedder_settings=settings, store_settings=SMALL) as memory:
        embedder = memory._embedder.get()
        texts = ["Fix the race in the authentication module", "Fix the login page"]
        for recall_id, vector in zip(RECALLS, embedder.embed_texts(texts), strict=False):
            note(memory, recall_id, -1, [], vector=vector_of_query(np.asarray(vector)), stamp=embedder.info.stamp)
        memory.ingest([begin("r", 0)], now=LATER)
        assert recalls(memory, "r") == (RECALLS[0],)
