from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

os.environ |= {"CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true", "CREWAI_TRACING_ENABLED": "false"}
from crewai import Agent, BaseLLM, Crew, Task

from memory_agent import MemoryClient
from memory_agent.errors import InvalidInputError, UnavailableError
from memory_agent.frameworks.crewai import CrewMemory, kickoff_with_memory

TASK = "Deploy the {name} to staging"
ANSWER = "Connected to the VPN, then deployed."


class Scripted(BaseLLM):
    """A model that gives these answers in order, and keeps what it was shown."""

    answers: list[Any]
    shown: list[str]

    def call(self, messages: Any, *arguments: Any, **options: Any) -> str:
        self.shown.append(str(messages))
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return str(answer)

    def supports_function_calling(self) -> bool:
        return False


@pytest.fixture
def memory(user: str) -> Iterator[MemoryClient]:
    with MemoryClient(user) as memory:
        yield memory


def crew_of(memory: MemoryClient, *answers: Any) -> tuple[Crew, Scripted]:
    model = Scripted(model="scripted", answers=list(answers), shown=[])
    agent = Agent(role="deployer", goal="Deploy", backstory="You deploy.", llm=model, max_retry_limit=0)
    task = Task(description=TASK, expected_output="what was done", agent=agent)
    return Crew(agents=[agent], tasks=[task], memory=CrewMemory(memory), verbose=False), model


def outcomes(memory: MemoryClient) -> list[tuple[str | None, bool]]:
    return [(run.outcome, run.is_cancelled) for run in memory.runs.list()]


def test_a_crew_recalls_and_stores_within_a_run_without_any_other_model(memory: MemoryClient) -> None:
    memory.remember("Staging needs the VPN")
    crew, model = crew_of(memory, f"Thought: I now can give a great answer\nFinal Answer: {ANSWER}")
    assert kickoff_with_memory(memory, crew, {"name": "shop"}).raw == ANSWER
    assert "Staging needs the VPN" in model.shown[0]
    (run,) = memory.runs.list()
    assert (run.objective, run.outcome) == ("Deploy the shop to staging", "completed")
    assert len(run.recall_ids) >= 1
    assert any(ANSWER in record.text for record in memory.list({"type": "crewai"}).records)


def test_an_error_and_an_interrupt_are_the_outcome_of_the_run(memory: MemoryClient) -> None:
    for error in (ZeroDivisionError("no instances"), KeyboardInterrupt()):
        crew, _ = crew_of(memory, *[error] * 5)
        with pytest.raises(type(error)):
            kickoff_with_memory(memory, crew, {"name": "shop"})
    assert outcomes(memory) == [(None, True), ("failed", False)]


def test_memories_are_recalled_by_scope_and_category(memory: MemoryClient) -> None:
    crew_memory = CrewMemory(memory)
    crew_memory.remember("Staging needs the VPN", scope="/shop/deploys", categories=["network"], metadata={"team": "a"})
    crew_memory.remember_many(["Staging is blue", "  "], scope="/zoo")

    def texts(**wanted: Any) -> list[str]:
        return [match.record.content for match in crew_memory.recall("staging", **wanted)]

    assert sorted(texts()) == ["Staging is blue", "Staging needs the VPN"]
    assert (
        texts(scope="/shop")
        == texts(categories=["network"])
        == texts(scope="shop/deploys")
        == ["Staging needs the VPN"]
    )
    assert texts(scope="/sho") == texts(categories=["blue"]) == []
    (match,) = crew_memory.recall("staging", scope="/shop", limit=1)
    assert (match.record.scope, match.record.categories) == ("/shop/deploys", ["network"])
    assert memory.get([match.record.id])[0].metadata["team"] == "a"


def test_a_read_only_memory_stores_nothing(memory: MemoryClient) -> None:
    assert CrewMemory(memory, read_only=True).remember("Staging needs the VPN") is None
    assert memory.stats().memories == 0


def test_what_is_not_supported_and_bad_values_are_named(memory: MemoryClient) -> None:
    crew_memory = CrewMemory(memory)
    with pytest.raises(InvalidInputError, match="MemoryClient"):
        crew_memory.list_records()
    with pytest.raises(InvalidInputError, match="metadata"):
        crew_memory.remember("Staging needs the VPN", metadata={"lock": object()})
    assert memory.stats().memories == 0


def test_a_memory_is_used_in_a_forked_child(memory: MemoryClient) -> None:
    crew_memory = CrewMemory(memory)
    crew_memory.remember("Staging needs the VPN")
    child = os.fork()
    if child == 0:
        os._exit(0 if crew_memory.recall("staging") else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_without_a_daemon_the_error_says_how_to_start_one(tmp_path: os.PathLike[str]) -> None:
    memory = MemoryClient(data_dir=tmp_path)
    crew, _ = crew_of(memory, ANSWER)
    with pytest.raises(UnavailableError, match="memory-agent serve"):
        kickoff_with_memory(memory, crew, {"name": "shop"})


def test_the_example_runs(example: Callable[..., str]) -> None:
    model = Scripted(
        model="scripted", shown=[], answers=[f"Thought: I now can give a great answer\nFinal Answer: {ANSWER}"]
    )
    assert example(model=model).splitlines()[-1] == f"{ANSWER} completed"
