from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from smolagents import Model, ToolCallingAgent
from smolagents.models import ChatMessage, ChatMessageToolCall, ChatMessageToolCallFunction, MessageRole
from smolagents.utils import AgentGenerationError

from memory_agent import MemoryClient
from memory_agent.errors import InvalidInputError, UnavailableError
from memory_agent.frameworks.smolagents import RecallMemories, Remember, run_with_memory

TASK = "Deploy the shop to staging"


class Scripted(Model):
    """A model that calls these tools in order, and records the messages that it receives."""

    def __init__(self, *calls: Any) -> None:
        super().__init__()
        self.calls = list(calls)
        self.shown: list[str] = []

    def generate(self, messages: Any, *arguments: Any, **options: Any) -> ChatMessage:
        self.shown.append(str(messages))
        call = self.calls.pop(0)
        if isinstance(call, BaseException):
            raise call
        name, given = call
        function = ChatMessageToolCallFunction(name=name, arguments=given)
        return ChatMessage(
            role=MessageRole.ASSISTANT, content="", tool_calls=[ChatMessageToolCall(function, id="1", type="function")]
        )


def answer(text: Any) -> tuple[str, dict[str, Any]]:
    return "final_answer", {"answer": text}


@pytest.fixture
def memory(user: str) -> Iterator[MemoryClient]:
    with MemoryClient(user) as memory:
        memory.remember("Staging needs the VPN")
        yield memory


def agent_of(model: Model, memory: MemoryClient) -> ToolCallingAgent:
    return ToolCallingAgent(tools=[RecallMemories(memory), Remember(memory)], model=model, verbosity_level=0)


def outcomes(memory: MemoryClient) -> list[tuple[str | None, bool]]:
    return [(run.outcome, run.is_cancelled) for run in memory.runs.list()]


def test_the_model_sees_the_block_and_its_tools_work_within_the_run(memory: MemoryClient) -> None:
    model = Scripted(
        ("recall_memories", {"query": "what does staging need?"}),
        ("remember", {"text": "The VPN certificate ends in May"}),
        answer("Connected to the VPN, then deployed."),
    )
    assert run_with_memory(memory, agent_of(model, memory), TASK) == "Connected to the VPN, then deployed."
    assert "Staging needs the VPN" in model.shown[0]
    assert "The VPN certificate ends in May" in {record.text for record in memory.list().records}
    (run,) = memory.runs.list()
    assert (run.objective, run.outcome, len(run.recall_ids)) == (TASK, "completed", 2)


def test_errors_interrupts_and_a_last_step_without_an_answer_are_the_outcome(memory: MemoryClient) -> None:
    with pytest.raises(AgentGenerationError):
        run_with_memory(memory, agent_of(Scripted(ZeroDivisionError("no instances")), memory), TASK)
    with pytest.raises(KeyboardInterrupt):
        run_with_memory(memory, agent_of(Scripted(KeyboardInterrupt()), memory), TASK)
    endless = Scripted(("recall_memories", {"query": "staging"}), answer("I do not know"))
    run_with_memory(memory, agent_of(endless, memory), TASK, max_steps=1)
    assert outcomes(memory) == [("failed", False), (None, True), ("failed", False)]


def test_the_last_step_s_answer_is_returned_although_its_outcome_cannot_be_stored(memory: MemoryClient) -> None:
    class Ending(Scripted):
        def generate(self, *arguments: Any, **options: Any) -> ChatMessage:
            for run in memory.runs.list("open"):
                memory.runs.end(run.id, "completed")
            return super().generate(*arguments, **options)

    model = Ending(("remember", {"text": "x"}), answer("I do not know"))
    with pytest.warns(RuntimeWarning, match="the outcome of a run was not stored"):
        assert run_with_memory(memory, agent_of(model, memory), TASK, max_steps=1) == ""


def test_a_stream_is_refused_before_anything_is_stored(memory: MemoryClient) -> None:
    with pytest.raises(InvalidInputError, match="stream"):
        run_with_memory(memory, agent_of(Scripted(), memory), TASK, stream=True)
    assert outcomes(memory) == []


def test_an_answer_that_is_not_text_and_a_full_result_are_returned_as_they_are(memory: MemoryClient) -> None:
    answered = object()
    agent = agent_of(Scripted(answer([1, 2]), answer(answered)), memory)
    assert run_with_memory(memory, agent, TASK) == [1, 2]
    assert run_with_memory(memory, agent, TASK, return_full_result=True).output is answered
    assert outcomes(memory) == [("completed", False)] * 2


def test_an_agent_runs_in_a_forked_child(memory: MemoryClient) -> None:
    agent = agent_of(Scripted(answer("Done.")), memory)
    memory.stats()
    child = os.fork()
    if child == 0:
        os._exit(0 if run_with_memory(memory, agent, TASK) == "Done." else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert outcomes(memory) == [("completed", False)]


def test_without_a_daemon_the_error_says_how_to_start_one(tmp_path: os.PathLike[str]) -> None:
    memory = MemoryClient(data_dir=tmp_path)
    with pytest.raises(UnavailableError, match="memory-agent serve"):
        run_with_memory(memory, agent_of(Scripted(answer("Done.")), memory), TASK)


def test_the_example_runs(example: Callable[..., str]) -> None:
    printed = example(model=Scripted(answer("Connected to the VPN, then deployed.")))
    assert printed.splitlines()[-1] == "Connected to the VPN, then deployed. completed"
