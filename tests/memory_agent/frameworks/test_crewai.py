"""Test the CrewAI adapter in an environment with CrewAI."""

from __future__ import annotations

import os

os.environ |= {"CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true", "CREWAI_TRACING_ENABLED": "false"}

import asyncio
import socket
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any, ClassVar

import pytest
from crewai import Agent, BaseLLM, Crew, Task
from crewai.events import crewai_event_bus
from crewai.memory.storage.backend import StorageBackend
from crewai.memory.types import MemoryRecord

from memory_agent import MemoryClient
from memory_agent.errors import InvalidInputError, UnavailableError
from memory_agent.frameworks import crewai as adapter
from memory_agent.frameworks.crewai import CrewMemory, Storage

REQUEST = "Deploy the shop to staging"
JANUARY = datetime(2026, 1, 1)  # noqa: DTZ001 - as CrewAI writes times


class Model(BaseLLM):
    """Returns the request as its answer; raises an error if `fails`, and KeyboardInterrupt if `interrupts`."""

    fails: bool = False
    interrupts: ClassVar[bool] = False

    def call(self, messages: Any, *args: Any, **_: Any) -> str:
        if self.interrupts:
            raise KeyboardInterrupt
        if self.fails:
            raise ZeroDivisionError("no instances")
        return f"Thought: I now can give a great answer\nFinal Answer: {messages[-1]['content']}"


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("CrewAI went to the network")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture
def memory(user: str) -> Iterator[MemoryClient]:
    with MemoryClient(user) as memory:
        yield memory


def operator(**options: Any) -> Agent:
    model = Model(model="fake", **options)
    return Agent(role="operator", goal="deploy", backstory="careful", llm=model, max_retry_limit=0)


def crew(memory: MemoryClient, **options: Any) -> Crew:
    agent = Agent(
        role="operator", goal="deploy", backstory="careful", llm=Model(model="fake", **options), max_retry_limit=0
    )
    task = Task(description=REQUEST, expected_output="what was done", agent=agent)
    return Crew(agents=[agent], tasks=[task], memory=CrewMemory(memory))


def outcomes(memory: MemoryClient) -> list[tuple[str, str | None]]:
    crewai_event_bus.flush()
    return [(run.state, run.outcome) for run in reversed(memory.runs.list())]


def test_a_task_is_a_run_that_recalls_and_ends_with_the_task(memory: MemoryClient) -> None:
    memory.remember("Staging is reachable through the VPN at Falkenstein")
    assert "Falkenstein" in crew(memory).kickoff().raw
    assert outcomes(memory) == [("ended", "completed")]
    assert memory.runs.list()[0].objective == REQUEST
    assert memory.stats({"type": "crewai"}).memories == 0, "a task's result is kept as its run"
    with pytest.raises(ZeroDivisionError):
        crew(memory, fails=True).kickoff()
    assert outcomes(memory) == [("ended", "completed"), ("ended", "failed")]


def test_a_crew_runs_in_another_event_loop_and_thread(memory: MemoryClient) -> None:
    memory.remember("Staging needs the VPN")
    assert "VPN" in asyncio.run(crew(memory).kickoff_async()).raw
    assert "VPN" in asyncio.run(crew(memory).akickoff()).raw
    assert ["VPN" in output.raw for output in crew(memory).kickoff_for_each([{}, {}])] == [True, True]
    assert outcomes(memory) == [("ended", "completed")] * 4


def test_an_interrupted_task_leaves_its_run_open_until_it_is_repeated(
    memory: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.remember("Staging needs the VPN")
    work = crew(memory)
    monkeypatch.setattr(Model, "interrupts", True)
    with pytest.raises(KeyboardInterrupt):
        work.kickoff()
    monkeypatch.setattr(Model, "interrupts", False)
    assert outcomes(memory) == [("open", None)]
    assert "VPN" in work.kickoff().raw
    assert outcomes(memory) == [("ended", "completed")]


def test_memories_have_scopes_categories_and_private_sources(memory: MemoryClient) -> None:
    own = CrewMemory(memory, root_scope="/crew/shop")
    first = own.remember("Staging needs the VPN", scope="/ops", categories=["net"], metadata={"n": 1}, importance=0.9)
    own.remember_many(["The shop sells tea", "The shop sells coffee"], private=True, source="alice")
    own.remember("The shop sells milk", private=True, source="")
    assert first is not None
    assert own.recall("what does staging need?", scope="/ops")[0].record.model_dump(exclude={"last_accessed"}) == (
        first.model_dump(exclude={"last_accessed"})
    )
    assert own.recall("tea", scope="/ops/net", categories=["net"]) == []
    assert [match.record.source for match in own.recall("which shop sells tea?", source="alice")][:1] == ["alice"]
    assert all(not match.record.private for match in own.recall("which shop sells tea?"))
    assert own.list_categories() == {"net": 1}
    assert (own.info().record_count, own.list_scopes("/")) == (4, ["/crew/shop/ops"])
    assert own.scope("/ops").recall("VPN")[0].record.id == first.id
    changed = own.update(first.id, content="Staging needs no VPN")
    assert (changed.content, own.list_records("/ops")[0].content) == ("Staging needs no VPN",) * 2
    assert own.forget(scope="/ops", metadata_filter={"n": 2}) == 0
    assert own.forget(record_ids=[first.id]) == 1


def test_a_reset_leaves_other_memories_and_read_only_stores_nothing(memory: MemoryClient) -> None:
    memory.remember("The shop sells tea")
    own = CrewMemory(memory)
    own.remember("Staging needs the VPN")
    assert CrewMemory(memory, read_only=True).remember("x") is None
    assert [match.record.content for match in own.recall("what does the shop sell?")][:1] == ["The shop sells tea"]
    own.reset()
    assert [record.text for record in memory.list().records] == ["The shop sells tea"]


def test_the_storage_follows_the_protocol(memory: MemoryClient) -> None:
    storage = Storage(memory)
    assert isinstance(CrewMemory(memory)._storage, type(storage))
    asked = {name for name in vars(StorageBackend) if not name.startswith("_")}
    assert {name for name in asked if not hasattr(storage, name)} == {"asave", "asearch", "adelete"}  # not called
    with pytest.raises(InvalidInputError, match="CrewMemory"):
        storage.search([0.0])
    records = [MemoryRecord(content=f"fact {number}", created_at=JANUARY + timedelta(number)) for number in range(3)]
    storage.save(records)
    assert [record.content for record in storage.list_records(limit=1, offset=1)] == ["fact 1"]
    assert storage.delete(older_than=JANUARY + timedelta(1)) == 1
    assert storage.count() == 2


def test_a_value_that_is_not_json_is_named_and_nothing_of_the_batch_is_stored(memory: MemoryClient) -> None:
    records = [MemoryRecord(content="one"), MemoryRecord(content="two", metadata={"a": {"b": object()}})]
    with pytest.raises(InvalidInputError, match=r"metadata\.a\.b"):
        Storage(memory).save(records)
    assert memory.stats().memories == 0


def test_without_a_daemon_the_memory_says_how_to_start_one(tmp_path: os.PathLike[str]) -> None:
    with pytest.raises(UnavailableError, match="memory-agent serve"):
        CrewMemory(MemoryClient(data_dir=tmp_path))


def test_the_example_runs(example: Callable[..., str]) -> None:
    assert "Staging needs the VPN" in example(model=Model(model="fake"))


def test_the_docstrings_run(run_docstrings: Callable[..., None]) -> None:
    agent = operator()
    task = Task(description=REQUEST, expected_output="what was done", agent=agent)
    run_docstrings(adapter, Crew=Crew, agent=agent, task=task)
