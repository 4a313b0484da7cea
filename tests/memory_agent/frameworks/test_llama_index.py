"""Test the LlamaIndex adapter in an environment where LlamaIndex is installed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, ImageBlock, MessageRole
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.core.memory import Memory

from memory_agent import MemoryClient
from memory_agent.errors import UnavailableError
from memory_agent.frameworks import llama_index
from memory_agent.frameworks.agent_run import AgentRun
from memory_agent.frameworks.llama_index import EpisodicMemoryBlock
from memory_agent.records.prompt_block import CLOSE, OPEN

REQUEST = "deploy the shop to staging"


@pytest.fixture
def client(user: str) -> Iterator[MemoryClient]:
    with MemoryClient(user) as client:
        yield client


def memory_of(client: MemoryClient, **options: Any) -> Memory:
    return Memory.from_defaults(memory_blocks=[EpisodicMemoryBlock(memory=client)], **options)


def user_says(text: str) -> ChatMessage:
    return ChatMessage(role=MessageRole.USER, content=text)


def test_an_agent_sees_memories_and_its_run_is_credited_with_the_outcome(client: MemoryClient) -> None:
    client.remember("Staging needs the VPN")
    seen: list[str] = []

    class Spy(MockFunctionCallingLLM):
        async def astream_chat_with_tools(self, *args: Any, chat_history: Any = None, **options: Any) -> Any:
            seen.extend(message.content or "" for message in chat_history)
            return await super().astream_chat_with_tools(*args, chat_history=chat_history, **options)

    async def work() -> None:
        async with AgentRun(client, REQUEST, recalls=False) as run:
            run.output = str(await FunctionAgent(llm=Spy()).run(REQUEST, memory=memory_of(client)))

    asyncio.run(work())
    asyncio.run(memory_of(client).aget(input="in another event loop, after the run"))
    (run,) = client.runs.list()
    assert "Staging needs the VPN" in "\n".join(seen)
    assert (run.objective, run.outcome) == (REQUEST, "completed")
    assert len(run.recall_ids) == 2  # one when the agent is set up, and one before the model call


def test_messages_that_leave_the_short_term_memory_become_episodes_of_their_session(client: MemoryClient) -> None:
    async def talk() -> None:
        memory = memory_of(client, session_id="s-1", token_limit=40, chat_history_token_ratio=0.5, token_flush_size=1)
        for number in range(6):
            await memory.aput(user_says(f"Request {number} of the shop about the queue of jobs"))
            await memory.aput(ChatMessage(role=MessageRole.ASSISTANT, content=f"Answer {number} about the queue"))

    asyncio.run(talk())
    records = client.list(order="oldest").records
    assert {record.session_id for record in records} == {"s-1"}
    assert {(record.kind, record.source) for record in records} == {
        ("episode", "user_input"),
        ("episode", "worker_result"),
    }
    assert records[0].text == "Request 0 of the shop about the queue of jobs"


def test_blocks_of_memories_and_messages_without_text_are_not_stored(client: MemoryClient) -> None:
    block = EpisodicMemoryBlock(memory=client)
    image = ChatMessage(role=MessageRole.USER, blocks=[ImageBlock(url="https://example.org/x.png")])
    recalled = f"{OPEN}\n1. just now\n| Staging needs the VPN\n{CLOSE}"
    asyncio.run(block.aput([image, user_says(recalled), user_says(f"{recalled}\nDeploy it")]))
    assert [record.text for record in client.list().records] == ["Deploy it"]
    assert asyncio.run(block.aget([image])) == ""
    assert asyncio.run(block.aget()) == ""


def test_a_long_message_becomes_several_memories(client: MemoryClient) -> None:
    text = f"Deploy {'x' * 200}. " * 162  # a long word is one token, so embedding takes little time
    asyncio.run(EpisodicMemoryBlock(memory=client).aput([user_says(text)]))
    parts = [record.text for record in client.list(order="oldest").records]
    assert len(parts) == 3
    assert "".join(parts).replace(" ", "") == text.replace(" ", "")


def test_a_cancelled_agent_ends_its_run_as_cancelled(client: MemoryClient) -> None:
    async def work() -> None:
        async with AgentRun(client, REQUEST):
            begun.set()
            await asyncio.Event().wait()

    async def cancel() -> None:
        task = asyncio.create_task(work())
        await begun.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    begun = asyncio.Event()
    asyncio.run(cancel())
    assert [(run.outcome, run.is_cancelled) for run in client.runs.list()] == [(None, True)]


def test_without_a_daemon_the_error_says_how_to_start_one(tmp_path: object) -> None:
    block = EpisodicMemoryBlock(memory=MemoryClient("alice", data_dir=str(tmp_path)))
    with pytest.raises(UnavailableError, match="memory-agent serve"):
        asyncio.run(block.aget([user_says("deploy")]))


def test_docstring_examples_run(run_docstrings: Callable[..., None]) -> None:
    run_docstrings(llama_index, asyncio=asyncio, ChatMessage=ChatMessage)


def test_the_example_runs(example: Callable[..., str]) -> None:
    assert example(agent=FunctionAgent(llm=MockFunctionCallingLLM())) == "completed\n"
