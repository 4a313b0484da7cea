from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
from agent_framework import (
    Agent,
    BaseChatClient,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionInvocationLayer,
    Message,
    ResponseStream,
)

from memory_agent import MemoryClient
from memory_agent.errors import UnavailableError
from memory_agent.frameworks.agent_framework import MemoryProvider, OutcomesMiddleware, episodic_memory

REQUEST = "Deploy the shop to staging"


class Model(FunctionInvocationLayer[Any], BaseChatClient[Any]):
    """A model that returns these answers in order, and records the messages that it receives."""

    def __init__(self, *answers: Any) -> None:
        super().__init__()
        self.answers = list(answers)
        self.shown: list[list[Message]] = []
        self.tools: list[str] = []

    def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, options: Mapping[str, Any], **kwargs: Any
    ) -> Any:
        self.shown.append(list(messages))
        self.tools = [tool.name for tool in options.get("tools") or ()]
        answer = self.answers.pop(0)

        async def respond() -> ChatResponse:
            if isinstance(answer, Exception):
                raise answer
            if callable(answer):
                await answer()
            return ChatResponse(messages=[Message(role="assistant", contents=[answer])])

        async def updates() -> Any:
            if isinstance(answer, Exception):
                raise answer
            for word in str(answer).split(" "):
                yield ChatResponseUpdate(role="assistant", contents=[Content.from_text(f"{word} ")])

        return ResponseStream(updates(), finalizer=ChatResponse.from_updates) if stream else respond()


@pytest.fixture
def memory(user: str) -> Iterator[MemoryClient]:
    with MemoryClient(user) as memory:
        memory.remember("Staging needs the VPN")
        yield memory


def outcomes(memory: MemoryClient) -> list[tuple[str | None, bool]]:
    return [(run.outcome, run.is_cancelled) for run in memory.runs.list()]


def agent_of(memory: MemoryClient, *answers: Any, **options: Any) -> tuple[Agent[Any], Model]:
    model = Model(*answers)
    return Agent(model, name="deployer", **episodic_memory(memory, **options)), model


def test_the_model_sees_the_block_and_the_history_does_not(memory: MemoryClient) -> None:
    agent, model = agent_of(memory, "Connected to the VPN, then deployed.", "Rolled back.")

    async def talk() -> str:
        session = agent.create_session()
        first = await agent.run(REQUEST, session=session)
        await agent.run("Roll it back", session=session)
        return first.text

    assert asyncio.run(talk()) == "Connected to the VPN, then deployed."
    assert any("VPN" in message.text for message in model.shown[0] if message.role == "user")
    told = [message.text for message in model.shown[1]]
    assert REQUEST in told
    assert sum("recalled_memories" in text for text in told) <= 1  # only the block of this run
    runs = memory.runs.list()
    assert [(run.outcome, len(run.recall_ids)) for run in runs] == [("completed", 1)] * 2
    assert len({run.session_id for run in runs}) == 1


def test_the_tools_recall_and_remember_within_the_run(memory: MemoryClient) -> None:
    def call(name: str, **arguments: str) -> Content:
        return Content.from_function_call(call_id=name, name=name, arguments=arguments)

    calls = (call("recall_memories", query="staging?"), call("remember", text="The VPN certificate ends in May"))
    agent, model = agent_of(memory, *calls, "Done.")
    asyncio.run(agent.run(REQUEST))
    assert model.tools == ["recall_memories", "remember"]
    assert "The VPN certificate ends in May" in {record.text for record in memory.list().records}
    (run,) = memory.runs.list()
    assert len(run.recall_ids) == 2
    quiet, model = agent_of(memory, "Done.", tools=False)
    asyncio.run(quiet.run(REQUEST))
    assert model.tools == []


def test_errors_and_cancellation_are_the_outcome_of_the_run(memory: MemoryClient, cancel: Callable[..., None]) -> None:
    failing, _ = agent_of(memory, ZeroDivisionError("no instances"))
    with pytest.raises(ZeroDivisionError):
        asyncio.run(failing.run(REQUEST))

    stuck, _ = agent_of(memory, asyncio.Event().wait)
    cancel(memory, lambda: stuck.run("wait"))
    assert outcomes(memory) == [(None, True), ("failed", False)]


def test_a_streamed_run_is_completed_when_it_was_read_and_else_cancelled(memory: MemoryClient) -> None:
    async def read() -> str:
        agent, _ = agent_of(memory, "Connected to the VPN.")
        return "".join([update.text async for update in agent.run(REQUEST, stream=True)])

    async def fail() -> None:
        agent, _ = agent_of(memory, ZeroDivisionError("no instances"))
        async for _ in agent.run("fail", stream=True):
            pass

    assert asyncio.run(read()).strip() == "Connected to the VPN."
    with pytest.raises(ZeroDivisionError):
        asyncio.run(fail())
    assert outcomes(memory) == [(None, True), ("completed", False)]
    assert len(memory.runs.list()[1].recall_ids) == 1


def test_a_streamed_run_that_does_not_start_ends_as_failed(memory: MemoryClient) -> None:
    class Broken(MemoryProvider):
        async def before_run(self, **_: Any) -> None:
            raise ZeroDivisionError("no instances")

    async def fail() -> None:
        agent = Agent(Model("Done."), context_providers=[Broken(memory)], middleware=[OutcomesMiddleware(memory)])
        async for _ in agent.run(REQUEST, stream=True):
            pass

    with pytest.raises(ZeroDivisionError):
        asyncio.run(fail())
    assert outcomes(memory) == [("failed", False)]


def test_an_agent_runs_in_a_forked_child(memory: MemoryClient) -> None:
    agent, _ = agent_of(memory, "Done.")
    memory.stats()
    child = os.fork()
    if child == 0:
        os._exit(0 if asyncio.run(agent.run(REQUEST)).text == "Done." else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert outcomes(memory) == [("completed", False)]


def test_without_a_daemon_the_error_says_how_to_start_one(tmp_path: os.PathLike[str]) -> None:
    agent, _ = agent_of(MemoryClient(data_dir=tmp_path), "Done.")
    with pytest.raises(UnavailableError, match="memory-agent serve"):
        asyncio.run(agent.run(REQUEST))


def test_the_example_runs(example: Callable[..., str]) -> None:
    assert example(model=Model("Connected to the VPN, then deployed.")) == (
        "Connected to the VPN, then deployed. completed\n"
    )
