from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from agents import Agent, RunConfig, Runner, set_tracing_disabled
from agents.memory import Session, SessionSettings
from agents.testing import ScriptedModel, assistant_message, function_call

from memory_agent import MemoryClient
from memory_agent.errors import InvalidInputError, UnavailableError
from memory_agent.frameworks.agent_run import AgentRun
from memory_agent.frameworks.openai_agents import MemorySession, memory_tools, run_with_memory, with_block

REQUEST = "Deploy the shop to staging"
set_tracing_disabled(True)


@pytest.fixture
def memory(user: str) -> Iterator[MemoryClient]:
    with MemoryClient(user) as memory:
        memory.remember("Staging needs the VPN")
        yield memory


def answering(*answers: Any) -> tuple[Agent[Any], ScriptedModel]:
    model = ScriptedModel([answer if isinstance(answer, Exception) else [answer] for answer in answers])
    return Agent(name="deployer", model=model), model


def outcomes(memory: MemoryClient) -> list[tuple[str | None, bool]]:
    return [(run.outcome, run.is_cancelled) for run in memory.runs.list()]


def test_the_model_sees_the_block_and_the_session_does_not(memory: MemoryClient) -> None:
    agent, model = answering(assistant_message("Connected to the VPN, then deployed."))
    session = MemorySession(memory, "session-1")
    result = asyncio.run(run_with_memory(memory, agent, REQUEST, session=session))
    assert result.final_output == "Connected to the VPN, then deployed."
    assert model.first_call is not None
    shown = model.first_call.input
    assert ("VPN" in shown[0]["content"], shown[-1]["content"]) == (True, REQUEST)
    kept = asyncio.run(session.get_items())
    assert [item["role"] for item in kept] == ["user", "assistant"]
    (run,) = memory.runs.list()
    assert (run.outcome, run.session_id, len(run.recall_ids)) == ("completed", "session-1", 1)


def test_a_second_turn_has_the_history_and_a_filter_of_the_caller_is_kept(memory: MemoryClient) -> None:
    agent, model = answering(assistant_message("Deployed."), assistant_message("Rolled back."))
    session = MemorySession(memory, "session-1")

    def shorten(data: Any) -> Any:
        data.model_data.instructions = "Be brief."
        return data.model_data

    async def talk() -> None:
        config = RunConfig(call_model_input_filter=shorten)
        await run_with_memory(memory, agent, REQUEST, session=session, run_config=config)
        await run_with_memory(memory, agent, "Roll it back", session=session, run_config=config)

    asyncio.run(talk())
    assert model.last_call is not None
    assert model.last_call.system_instructions == "Be brief."
    texts = [item["content"] for item in model.last_call.input if item.get("role") == "user"]
    assert texts[-2:] == [REQUEST, "Roll it back"]
    assert outcomes(memory) == [("completed", False)] * 2


def test_the_tools_recall_and_remember_within_the_run(memory: MemoryClient) -> None:
    agent, model = answering(
        function_call("recall_memories", {"query": "what does staging need?"}, call_id="1"),
        function_call("remember", {"text": "The VPN certificate ends in May"}, call_id="2"),
        assistant_message("Done."),
    )
    agent.tools = memory_tools(memory)
    asyncio.run(run_with_memory(memory, agent, REQUEST))
    assert model.last_call is not None
    outputs = [item["output"] for item in model.last_call.input if item.get("type") == "function_call_output"]
    assert ("VPN" in outputs[0], outputs[1]) == (True, "Remembered.")
    assert "VPN certificate ends in May" in [record.text[4:] for record in memory.list().records]
    (run,) = memory.runs.list()
    assert len(run.recall_ids) == 2
    assert agent.tools[0].description.startswith("Recall past events")


def test_errors_and_cancellation_are_the_outcome_of_the_run(memory: MemoryClient, cancel: Callable[..., None]) -> None:
    agent, _ = answering(ZeroDivisionError("no instances"))
    with pytest.raises(ZeroDivisionError):
        asyncio.run(run_with_memory(memory, agent, REQUEST))

    class Stuck(ScriptedModel):
        async def get_response(self, *arguments: Any, **keywords: Any) -> Any:
            await asyncio.Event().wait()

    cancel(memory, lambda: run_with_memory(memory, Agent(name="stuck", model=Stuck()), "wait"))
    assert outcomes(memory) == [(None, True), ("failed", False)]


def test_a_streamed_run_gets_the_block_too(memory: MemoryClient) -> None:
    agent, model = answering(assistant_message("Deployed."))

    async def stream() -> None:
        async with AgentRun(memory, REQUEST) as run:
            result = Runner.run_streamed(agent, REQUEST, run_config=with_block(run))
            async for _ in result.stream_events():
                pass
            run.output = result.final_output

    asyncio.run(stream())
    assert model.first_call is not None
    assert "VPN" in model.first_call.input[0]["content"]
    assert "Deployed." in {record.text for record in memory.list().records}


def test_a_session_keeps_items_in_any_loop_and_child(memory: MemoryClient) -> None:
    session = MemorySession(memory, "session-1")
    assert isinstance(session, Session)
    items = [{"role": "user", "content": [{"type": "input_text", "text": f"turn {number}"}]} for number in range(5)]
    asyncio.run(session.add_items(items))
    child = os.fork()
    if child == 0:
        os._exit(0 if asyncio.run(session.get_items()) == items else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert asyncio.run(session.get_items(2)) == items[3:]
    short = MemorySession(memory, "session-1", SessionSettings(limit=3))
    assert [len(asyncio.run(short.get_items(limit))) for limit in (None, 4, 0)] == [3, 4, 0]
    assert asyncio.run(session.pop_item()) == items[4]
    asyncio.run(session.clear_session())
    assert asyncio.run(session.get_items()) == []
    assert asyncio.run(session.pop_item()) is None


def test_a_cancelled_addition_is_complete_before_the_next_one(memory: MemoryClient) -> None:
    session = MemorySession(memory, "session-1")
    first, second = ([{"role": "user", "content": f"{turn} {number}"} for number in range(10)] for turn in "ab")

    async def add() -> None:
        adding = asyncio.create_task(session.add_items(first))
        await asyncio.sleep(0)
        adding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await adding
        await session.add_items(second)

    asyncio.run(add())
    assert asyncio.run(session.get_items()) == first + second


def test_an_item_that_is_not_json_is_named_and_nothing_is_stored(memory: MemoryClient) -> None:
    session = MemorySession(memory, "session-1")
    with pytest.raises(InvalidInputError, match=r"message\.content"):
        asyncio.run(session.add_items([{"role": "user", "content": "x"}, {"role": "user", "content": b"\x89PNG"}]))
    assert asyncio.run(session.get_items()) == []


def test_without_a_daemon_the_error_says_how_to_start_one(tmp_path: os.PathLike[str]) -> None:
    agent, _ = answering(assistant_message("Deployed."))
    with pytest.raises(UnavailableError, match="memory-agent serve"):
        asyncio.run(run_with_memory(MemoryClient(data_dir=tmp_path), agent, REQUEST))


def test_the_example_runs(example: Callable[..., str]) -> None:
    model = ScriptedModel([[assistant_message("Connected to the VPN, then deployed.")]])
    assert example(model=model) == "Connected to the VPN, then deployed. completed\n"
