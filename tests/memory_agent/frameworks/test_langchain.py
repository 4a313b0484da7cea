"""Test the LangChain adapters in an environment with LangChain."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda
from langchain_tests.integration_tests import RetrieversIntegrationTests

from memory_agent import MemoryClient
from memory_agent.errors import InvalidInputError, UnavailableError
from memory_agent.frameworks import langchain
from memory_agent.frameworks.langchain import MemoryChatHistory, MemoryRetriever, RunOutcomes
from memory_agent.records.prompt_block import CLOSE, OPEN
from tests.polling import wait_until


@pytest.fixture
def memory(user: str) -> Iterator[MemoryClient]:
    with MemoryClient(user) as memory:
        yield memory


class TestConformance(RetrieversIntegrationTests):
    """LangChain's own tests for a retriever."""

    @pytest.fixture(autouse=True)
    def _memories(self, memory: MemoryClient) -> None:
        self.memory = memory
        for host in ("staging", "production", "testing", "review"):
            memory.remember(f"The {host} servers need the VPN for a deploy")

    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return MemoryRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"memory": self.memory}

    @property
    def retriever_query_example(self) -> str:
        return "which servers need the VPN for a deploy?"


def outcomes(memory: MemoryClient) -> list[tuple[str, str | None, bool]]:
    return [(run.objective, run.outcome, run.is_cancelled) for run in memory.runs.list()]


def test_a_run_credits_what_its_retriever_returned_and_its_answer_repeats(memory: MemoryClient) -> None:
    record = memory.remember("Staging is reachable through the VPN gateway at Falkenstein")
    for number in range(20):
        memory.remember(f"Shop {number} has {number} gigabytes of memory")
    model = FakeListChatModel(responses=["The VPN gateway at Falkenstein was reachable, so it is deployed."])
    chain = MemoryRetriever(memory=memory) | (lambda documents: documents[0].page_content) | model
    chain.invoke("deploy the shop to staging", {"callbacks": [RunOutcomes(memory)]})
    chain.invoke("deploy the shop to staging")
    wait_until(lambda: memory.runs.list()[0].used)
    run = memory.runs.list()[0]
    assert (run.objective, run.outcome) == ("deploy the shop to staging", "completed")
    assert [use.record_id for use in run.used] == [record.id]
    assert len(memory.runs.list()) == 1


def test_an_exception_ends_the_run_as_failed_and_cancellation_as_cancelled(memory: MemoryClient) -> None:
    async def hang(request: str) -> str:
        started.set()
        await asyncio.Event().wait()
        return request

    async def cancel() -> None:
        task = asyncio.create_task(RunnableLambda(hang).ainvoke("roll back", {"callbacks": [RunOutcomes(memory)]}))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with pytest.raises(ZeroDivisionError):
        RunnableLambda(lambda _: 1 / 0).invoke("deploy", {"callbacks": [RunOutcomes(memory)]})
    started = asyncio.Event()
    asyncio.run(cancel())
    assert outcomes(memory) == [("roll back", None, True), ("deploy", "failed", False)]


@pytest.mark.parametrize("value", [7, [1, 2], [{"a": 1}], {"x": object()}, {"messages": 3}, "", " ", None])
def test_a_chain_without_a_request_has_no_run(memory: MemoryClient, value: Any) -> None:
    assert RunnableLambda(lambda given: given).invoke(value, {"callbacks": [RunOutcomes(memory)]}) is value
    assert memory.runs.list() == []


@pytest.mark.parametrize(
    "request_in",
    ["deploy", {"input": "deploy"}, {"messages": [("user", "deploy"), ("ai", "which?")]}, [HumanMessage("deploy")]],
)
def test_the_request_of_a_run_is_found_in_the_input(memory: MemoryClient, request_in: Any) -> None:
    RunnableLambda(lambda _: [1]).invoke(request_in, {"callbacks": [RunOutcomes(memory)]})
    assert outcomes(memory) == [("deploy", "completed", False)]


def test_a_daemon_that_stopped_during_a_run_does_not_lose_its_answer(
    memory: MemoryClient, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    def work(_: str) -> str:
        monkeypatch.setattr(memory, "_address", MemoryClient(data_dir=str(tmp_path))._address)
        return "done"

    with pytest.warns(RuntimeWarning, match="was not stored"):
        assert RunnableLambda(work).invoke("deploy", {"callbacks": [RunOutcomes(memory)]}) == "done"


def test_a_chat_history_returns_its_own_session_as_it_was(memory: MemoryClient) -> None:
    history = MemoryChatHistory(memory, "one")
    call = {"name": "deploy", "args": {"host": "staging"}, "id": "c1", "type": "tool_call"}
    messages = [HumanMessage("Deploy to staging"), AIMessage("", tool_calls=[call]), AIMessage("Done", id="m3")]
    history.add_messages(messages)
    MemoryChatHistory(memory, "two").add_user_message("Roll back")
    assert history.messages == messages
    assert asyncio.run(history.aget_messages()) == messages
    history.clear()
    assert history.messages == []
    assert [one.content for one in MemoryChatHistory(memory, "two").messages] == ["Roll back"]


def test_recalled_blocks_are_not_stored_as_memories_again(memory: MemoryClient) -> None:
    block = f"{OPEN}\n1. just now\n| Staging needs the VPN\n{CLOSE}"
    MemoryChatHistory(memory, "one").add_messages([SystemMessage(block), HumanMessage(f"{block}\nDeploy it")])
    assert {record.text for record in memory.list().records} == {"(a message without text)", "Deploy it"}


def test_a_message_that_is_no_json_is_refused_with_its_path_before_any_is_stored(memory: MemoryClient) -> None:
    history = MemoryChatHistory(memory, "one")
    bad = AIMessage("Done", additional_kwargs={"raw": {"at": datetime.datetime.now(datetime.UTC)}})
    with pytest.raises(InvalidInputError, match=r"message\.data\.additional_kwargs\.raw\.at.*datetime"):
        history.add_messages([HumanMessage("Deploy"), bad])
    assert memory.stats().memories == 0


def test_without_a_daemon_the_error_says_how_to_start_one(tmp_path: object) -> None:
    absent = MemoryClient("alice", data_dir=str(tmp_path))
    with pytest.raises(UnavailableError, match="memory-agent serve"):
        MemoryRetriever(memory=absent).invoke("deploy")
    with pytest.raises(UnavailableError, match="memory-agent serve"):
        RunnableLambda(str).invoke("deploy", {"callbacks": [RunOutcomes(absent)]})


def test_docstring_examples_run(run_docstrings: Callable[..., None]) -> None:
    run_docstrings(langchain, RunnableLambda=RunnableLambda)


def test_the_example_runs(example: Callable[..., str]) -> None:
    assert "Staging needs the VPN" in example()
