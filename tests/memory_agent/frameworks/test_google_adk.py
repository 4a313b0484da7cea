from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.apps.app import App
from google.adk.events.event import Event
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.adk.sessions.session import Session
from google.adk.tools.preload_memory_tool import PreloadMemoryTool
from google.genai import types
from pydantic import Field

from memory_agent import MemoryClient
from memory_agent.errors import InvalidInputError, UnavailableError
from memory_agent.frameworks.google_adk import MemoryService, OutcomesPlugin

REQUEST = "Deploy the shop to staging"


class Model(BaseLlm):
    """A model that returns these answers in order, and records what it was shown."""

    model: str = "scripted"
    answers: list[Any]
    shown: list[str] = Field(default_factory=list)

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        self.shown.append(f"{llm_request.config.system_instruction} {llm_request.contents}")
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        yield LlmResponse(content=content(answer, "model"))


def content(text: str, role: str = "user") -> types.Content:
    return types.Content(role=role, parts=[types.Part(text=text)])


def event(number: int, author: str, text: str | None) -> Event:
    return Event(
        id=f"event-{number}", author=author, content=None if text is None else content(text), timestamp=1.7e9 + number
    )


def session(user: str, *events: Event, app: str = "shop") -> Session:
    return Session(id="session-1", app_name=app, user_id=user, events=list(events))


@pytest.fixture
def memory(user: str) -> Iterator[MemoryClient]:
    with MemoryClient(user) as memory:
        yield memory


def search(user: str, query: str, app: str = "shop") -> list[MemoryEntry]:
    return asyncio.run(MemoryService().search_memory(app_name=app, user_id=user, query=query)).memories


def ask(user: str, model: Model, request: str = REQUEST) -> list[str]:
    """Run an agent with the memory service and the plugin; return its final answers."""

    async def run() -> list[str]:
        agent = LlmAgent(name="deployer", model=model, tools=[PreloadMemoryTool()])
        app = App(name="shop", root_agent=agent, plugins=[OutcomesPlugin()])
        runner = Runner(app=app, session_service=InMemorySessionService(), memory_service=MemoryService())
        made = await runner.session_service.create_session(app_name="shop", user_id=user)
        answers = [
            event.content.parts[0].text
            async for event in runner.run_async(user_id=user, session_id=made.id, new_message=content(request))
            if event.is_final_response() and event.content
        ]
        finished = await runner.session_service.get_session(app_name="shop", user_id=user, session_id=made.id)
        await MemoryService().add_session_to_memory(finished)
        return answers

    return asyncio.run(run())


def test_a_session_is_added_once_and_found_with_author_and_time(user: str, memory: MemoryClient) -> None:
    said = session(
        user,
        event(1, "user", "What does staging need?"),
        event(2, "deployer", "Staging needs the VPN"),
        event(3, "x", None),
    )
    asyncio.run(MemoryService().add_session_to_memory(said))
    asyncio.run(MemoryService().add_session_to_memory(said))
    assert memory.stats().memories == 2
    found = {entry.content.parts[0].text: entry for entry in search(user, "how do I reach staging?")}
    entry = found["Staging needs the VPN"]
    assert (entry.author, entry.content.role, entry.timestamp) == ("deployer", "model", "2023-11-14T22:13:22+00:00")
    assert memory.get([entry.id or ""])[0].session_id == "session-1"


def test_apps_and_users_are_apart(user: str, memory: MemoryClient) -> None:
    asyncio.run(MemoryService().add_session_to_memory(session(user, event(1, "user", "Staging needs the VPN"))))
    asyncio.run(MemoryService().add_session_to_memory(session(user, event(1, "user", "Staging is blue"), app="zoo")))
    texts = [[entry.content.parts[0].text for entry in search(user, "staging", app)] for app in ("shop", "zoo")]
    assert texts == [["Staging needs the VPN"], ["Staging is blue"]]
    assert search(f"{user}-other", "staging") == []


def test_memories_are_added_with_their_metadata_and_bad_metadata_is_named(user: str, memory: MemoryClient) -> None:
    def add(*entries: MemoryEntry) -> None:
        shared = {"topic": "all", "by": "hand"}
        service = MemoryService()
        asyncio.run(service.add_memory(app_name="shop", user_id=user, memories=list(entries), custom_metadata=shared))

    text = content("Staging needs the VPN")
    good = MemoryEntry(
        content=text, author="ops", timestamp="2024-01-02T03:04:05+00:00", custom_metadata={"topic": "deploys"}
    )
    with pytest.raises(InvalidInputError, match=r"custom_metadata\.lock"):
        add(good, MemoryEntry(content=text, custom_metadata={"lock": object()}))
    with pytest.raises(InvalidInputError, match="timestamp: must be a time in ISO 8601"):
        add(good, MemoryEntry(content=text, timestamp="yesterday"))
    assert memory.stats().memories == 0
    add(good)
    (found,) = search(user, "staging")
    assert (found.author, found.timestamp) == ("ops", "2024-01-02T03:04:05+00:00")
    assert found.custom_metadata == {"topic": "deploys", "by": "hand"}


def test_a_memory_is_deleted_only_within_its_app(user: str, memory: MemoryClient) -> None:
    service = MemoryService()
    asyncio.run(service.add_session_to_memory(session(user, event(1, "user", "Staging needs the VPN"))))
    (found,) = search(user, "staging")
    for app, memory_id in (("zoo", found.id), ("shop", None), ("shop", "unknown")):
        asyncio.run(service.delete_memory(app_name=app, user_id=user, memory_id=memory_id))
    assert memory.stats().memories == 1
    asyncio.run(service.delete_memory(app_name="shop", user_id=user, memory_id=found.id))
    assert search(user, "staging") == []


def test_an_invocation_is_a_run_that_its_searches_belong_to(user: str, memory: MemoryClient) -> None:
    asyncio.run(MemoryService().add_session_to_memory(session(user, event(1, "user", "Staging needs the VPN"))))
    model = Model(answers=["Connected to the VPN, then deployed."])
    assert ask(user, model) == ["Connected to the VPN, then deployed."]
    assert "Staging needs the VPN" in model.shown[0]
    (run,) = memory.runs.list()
    assert (run.objective, run.outcome, len(run.recall_ids)) == (REQUEST, "completed", 1)
    (conclusion,) = run.conclusions
    assert memory.get([conclusion.record_id or ""])[0].text == "Connected to the VPN, then deployed."


def test_an_error_is_the_outcome_of_the_run(user: str, memory: MemoryClient) -> None:
    with pytest.raises(ZeroDivisionError):
        ask(user, Model(answers=[ZeroDivisionError("no instances")]))
    assert [run.outcome for run in memory.runs.list()] == ["failed"]


@pytest.mark.parametrize("how", ["cancelled", "timed out"])
def test_an_invocation_that_is_stopped_is_a_cancelled_run(user: str, memory: MemoryClient, how: str) -> None:
    class Stuck(Model):
        async def generate_content_async(
            self, llm_request: LlmRequest, stream: bool = False
        ) -> AsyncGenerator[LlmResponse, None]:
            await asyncio.Event().wait()
            yield LlmResponse()

    async def stop() -> None:
        app = App(name="shop", root_agent=LlmAgent(name="x", model=Stuck(answers=[])), plugins=[OutcomesPlugin()])
        runner = Runner(app=app, session_service=InMemorySessionService())
        made = await runner.session_service.create_session(app_name="shop", user_id=user)

        async def invoke() -> None:
            async with limit:
                async for _ in runner.run_async(user_id=user, session_id=made.id, new_message=content(REQUEST)):
                    pass

        limit = asyncio.timeout(None)
        invoking = asyncio.create_task(invoke())
        while not memory.runs.list("open"):
            await asyncio.sleep(0.01)
        if how == "timed out":
            limit.reschedule(asyncio.get_running_loop().time())
            with pytest.raises(TimeoutError):
                await invoking
            await runner.close()
        else:
            invoking.cancel()
            await asyncio.gather(invoking, return_exceptions=True)

    asyncio.run(stop())  # waits for the threads of the loop
    assert [run.is_cancelled for run in memory.runs.list()] == [True]


def test_a_cancelled_addition_stores_everything_and_a_child_can_search(user: str, memory: MemoryClient) -> None:
    service = MemoryService()

    async def cancel() -> None:
        events = [event(number, "user", f"Staging step {number}") for number in range(20)]
        task = asyncio.create_task(service.add_session_to_memory(session(user, *events)))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(cancel())
    child = os.fork()
    if child == 0:
        found = asyncio.run(service.search_memory(app_name="shop", user_id=user, query="staging step 7")).memories
        os._exit(0 if found else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert memory.stats().memories == 20


def test_without_a_daemon_the_error_says_how_to_start_one(user: str, tmp_path: os.PathLike[str]) -> None:
    service = MemoryService(lambda user: MemoryClient(user, data_dir=tmp_path))
    with pytest.raises(UnavailableError, match="memory-agent serve"):
        asyncio.run(service.search_memory(app_name="shop", user_id=user, query="staging"))


def test_the_example_runs(example: Callable[..., str]) -> None:
    assert example(model=Model(answers=["Connected to the VPN, then deployed."])) == "completed\n"
