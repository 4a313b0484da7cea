from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from memory_agent import MemoryClient
from memory_agent.errors import UnavailableError
from memory_agent.frameworks.pydantic_ai import EpisodicMemory

REQUEST = "Deploy the shop to staging"


class Model:
    """A model that returns these answers in order and records its inputs."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.shown: list[list[ModelMessage]] = []
        self.tools: list[str] = []
        self.model = FunctionModel(self._answer)

    async def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.shown.append(messages)
        self.tools = [tool.name for tool in info.function_tools]
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if callable(answer):
            await answer()
        return ModelResponse(parts=[TextPart(answer) if isinstance(answer, str) else answer])


@pytest.fixture
def memory(user: str) -> Iterator[MemoryClient]:
    with MemoryClient(user) as memory:
        memory.remember("Staging needs the VPN")
        yield memory


def outcomes(memory: MemoryClient) -> list[tuple[str | None, bool]]:
    return [(run.outcome, run.is_cancelled) for run in memory.runs.list()]


def test_the_model_sees_the_block_and_the_history_does_not(memory: MemoryClient) -> None:
    model = Model("Connected to the VPN, then deployed.", "Rolled back.")
    agent = Agent(model.model, capabilities=[EpisodicMemory(memory)])
    first = agent.run_sync(REQUEST)
    agent.run_sync("Roll it back", message_history=first.all_messages())
    assert "VPN" in str(model.shown[0][0])
    assert "recalled_memories" not in str(first.all_messages())
    assert REQUEST in str(model.shown[1])
    runs = memory.runs.list()
    assert [(run.outcome, len(run.recall_ids)) for run in runs] == [("completed", 1)] * 2
    assert len({run.session_id for run in runs}) == 1  # the conversation


def test_the_tools_recall_and_remember_within_the_run(memory: MemoryClient) -> None:
    model = Model(
        ToolCallPart("recall_memories", {"query": "what does staging need?"}),
        ToolCallPart("remember", {"text": "The VPN certificate ends in May"}),
        "Done.",
    )
    Agent(model.model, capabilities=[EpisodicMemory(memory)]).run_sync(REQUEST)
    assert model.tools == ["recall_memories", "remember"]
    assert "The VPN certificate ends in May" in {record.text for record in memory.list().records}
    (run,) = memory.runs.list()
    assert len(run.recall_ids) == 2
    quiet = Model("Done.")
    Agent(quiet.model, capabilities=[EpisodicMemory(memory, tools=False)]).run_sync(REQUEST)
    assert quiet.tools == []


def test_errors_and_cancellation_are_the_outcome_of_the_run(memory: MemoryClient, cancel: Callable[..., None]) -> None:
    failing = Agent(Model(ZeroDivisionError("no instances")).model, capabilities=[EpisodicMemory(memory)])
    with pytest.raises(ZeroDivisionError):
        failing.run_sync(REQUEST)

    stuck = Agent(Model(asyncio.Event().wait).model, capabilities=[EpisodicMemory(memory)])
    cancel(memory, lambda: stuck.run("wait"))
    assert outcomes(memory) == [(None, True), ("failed", False)]


def test_concurrent_runs_of_one_agent_are_apart_and_a_child_can_run_it(memory: MemoryClient) -> None:
    agent = Agent(Model(*["Done."] * 4).model, capabilities=[EpisodicMemory(memory)])

    async def both() -> None:
        await asyncio.gather(agent.run(REQUEST), agent.run("Roll it back"))

    asyncio.run(both())
    child = os.fork()
    if child == 0:
        os._exit(0 if agent.run_sync(REQUEST).output == "Done." else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert sorted(run.objective or "" for run in memory.runs.list()) == [REQUEST, REQUEST, "Roll it back"]
    assert outcomes(memory) == [("completed", False)] * 3


def test_a_prompt_of_parts_is_recalled_for_by_its_text(memory: MemoryClient) -> None:
    agent = Agent(Model("Done.").model, capabilities=[EpisodicMemory(memory)])
    agent.run_sync(["Deploy the shop", "to staging"])
    assert [run.objective for run in memory.runs.list()] == ["Deploy the shop\nto staging"]


def test_without_a_daemon_the_error_says_how_to_start_one(tmp_path: os.PathLike[str]) -> None:
    agent = Agent(Model("Done.").model, capabilities=[EpisodicMemory(MemoryClient(data_dir=tmp_path))])
    with pytest.raises(UnavailableError, match="memory-agent serve"):
        agent.run_sync(REQUEST)


def test_the_example_runs(example: Callable[..., str]) -> None:
    model = Model("Connected to the VPN, then deployed.").model
    assert example(model=model) == "Connected to the VPN, then deployed. completed\n"
