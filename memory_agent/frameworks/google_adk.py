"""Google ADK: a memory service, and a plugin that reports how invocations ended."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from google.adk.events.event import Event
from google.adk.memory.base_memory_service import BaseMemoryService, SearchMemoryResponse
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.sessions.session import Session
from google.genai import types

from memory_agent.client import MemoryClient
from memory_agent.errors import InvalidInputError
from memory_agent.frameworks.agent_run import AgentRun, current_run_id, in_thread, searched_text
from memory_agent.records.arguments import check_object
from memory_agent.records.memories import MemoryFilter, MemoryRecord, Source

TYPE = "google_adk"


class _Clients:
    def __init__(self, client_of: Callable[[str], MemoryClient]) -> None:
        self._client_of = client_of
        self._clients: dict[str, MemoryClient] = {}
        self._guard = threading.Lock()

    def of(self, user_id: str) -> MemoryClient:
        with self._guard:
            if user_id not in self._clients:
                self._clients[user_id] = self._client_of(user_id)
            return self._clients[user_id]


class MemoryService(BaseMemoryService):
    """An ADK memory service backed by the memories of the app's users.

    An event with text becomes an episode. Its id is derived from the app, session and event, so adding a session again
    stores only new events. A search is a recall over the memories of the app, and is part of the invocation's run
    (`OutcomesPlugin`). `client_of` returns the client of a user; by default, a client of the daemon for the default
    data folder.
    """

    def __init__(self, client_of: Callable[[str], MemoryClient] = MemoryClient, *, top_k: int = 10) -> None:
        self._clients = _Clients(client_of)
        self._top_k = top_k

    async def add_session_to_memory(self, session: Session) -> None:
        await self.add_events_to_memory(
            app_name=session.app_name, user_id=session.user_id, events=session.events, session_id=session.id
        )

    async def add_events_to_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        events: Sequence[Event],
        session_id: str | None = None,
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Store all events that have text, even if the caller is cancelled in the meantime. Durable on return."""
        memory = self._clients.of(user_id)
        metadata = {**(custom_metadata or {}), "app_name": app_name}
        await in_thread(_store, memory, app_name, session_id, list(events), metadata)

    async def add_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        memories: Sequence[MemoryEntry],
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Store findings with their authors and times, under new ids.

        Before any finding is stored, raises `InvalidInputError` for metadata that is not JSON, or a time that is not in
        ISO 8601 format.
        """
        memory = self._clients.of(user_id)
        found = [_finding(entry, custom_metadata or {}, app_name) for entry in memories]

        def store() -> None:
            for finding in found:
                if finding["text"]:
                    memory.remember(**finding)

        await in_thread(store)

    async def search_memory(self, *, app_name: str, user_id: str, query: str) -> SearchMemoryResponse:
        memory = self._clients.of(user_id)

        def recall() -> list[MemoryEntry]:
            wanted = MemoryFilter(metadata={"app_name": app_name})
            answer = memory.recall(query, self._top_k, wanted, by_run=current_run_id(memory))
            return [_entry(one.record) for one in answer.memories]

        return SearchMemoryResponse(memories=await asyncio.to_thread(recall))

    async def delete_memory(self, *, app_name: str, user_id: str, memory_id: str | None = None) -> None:
        """Idempotent."""
        memory = self._clients.of(user_id)

        def forget() -> None:
            if memory_id and any(one.metadata.get("app_name") == app_name for one in memory.get([memory_id])):
                memory.forget([memory_id])

        await in_thread(forget)


class OutcomesPlugin(BasePlugin):
    """Records each invocation as a run in the memory, and credits the searches of `MemoryService` with the outcome.

    Pass it to the runner (`App(plugins=[...])`). An exception ends the run as failed. ADK does not report cancellation,
    so a run ends as cancelled when its task is cancelled, or at the latest when the runner is closed.
    """

    def __init__(self, client_of: Callable[[str], MemoryClient] = MemoryClient) -> None:
        super().__init__(name="memory_agent_outcomes")
        self._clients = _Clients(client_of)
        self._runs: dict[str, AgentRun] = {}

    async def before_run_callback(self, *, invocation_context: Any) -> None:
        session = invocation_context.session
        request = _text_of(invocation_context.user_content)
        run = AgentRun(self._clients.of(session.user_id), request, session_id=session.id, recalls=False)
        invocation_id, loop = invocation_context.invocation_id, asyncio.get_running_loop()
        self._runs[invocation_id] = run  # before `begin`, which may be cancelled

        def end_if_cancelled(task: asyncio.Task[Any]) -> None:
            if task.cancelled() and self._runs.pop(invocation_id, None) is not None:
                loop.run_in_executor(None, run.end_with, asyncio.CancelledError())

        if (task := asyncio.current_task()) is not None:
            task.add_done_callback(end_if_cancelled)
        await in_thread(run.begin)
        run.enter()

    async def on_event_callback(self, *, invocation_context: Any, event: Event) -> None:
        run = self._runs.get(invocation_context.invocation_id)
        if run is not None and event.is_final_response():
            run.output = _text_of(event.content) or run.output

    async def after_run_callback(self, *, invocation_context: Any) -> None:
        await self._end(invocation_context, None)

    async def on_run_error_callback(self, *, invocation_context: Any, error: Exception) -> None:
        await self._end(invocation_context, error)

    async def close(self) -> None:
        while self._runs:
            _, run = self._runs.popitem()
            await in_thread(run.end_with, asyncio.CancelledError())

    async def _end(self, invocation_context: Any, error: Exception | None) -> None:
        if run := self._runs.pop(invocation_context.invocation_id, None):
            await in_thread(run.end_with, error)


def _store(
    memory: MemoryClient, app_name: str, session_id: str | None, events: Iterable[Event], metadata: dict[str, Any]
) -> None:
    for event in events:
        if text := _text_of(event.content):
            source: Source = "user_input" if event.author == "user" else "worker_result"
            memory.remember(
                text,
                kind="episode",
                source=source,
                session_id=session_id,
                id=f"google-adk-{sha256(repr((app_name, session_id, event.id)).encode()).hexdigest()}",
                type=TYPE,
                agent_id=event.author,
                timestamp=datetime.fromtimestamp(event.timestamp, UTC),
                metadata=metadata,
            )


def _finding(entry: MemoryEntry, shared: Mapping[str, object], app_name: str) -> dict[str, Any]:
    """A time without a UTC offset is local time, as in ADK."""
    try:
        time = None if entry.timestamp is None else datetime.fromisoformat(entry.timestamp).astimezone()
    except ValueError as error:
        raise InvalidInputError("timestamp", "must be a time in ISO 8601") from error
    return {
        "text": _text_of(entry.content),
        "source": "user_input" if entry.author == "user" else "worker_result",
        "type": TYPE,
        "agent_id": entry.author,
        "timestamp": time,
        "metadata": check_object("custom_metadata", {**shared, **entry.custom_metadata, "app_name": app_name}),
    }


def _entry(record: MemoryRecord) -> MemoryEntry:
    role = "user" if record.source == "user_input" else "model"
    return MemoryEntry(
        id=record.id,
        custom_metadata={name: value for name, value in record.metadata.items() if name != "app_name"},
        author=record.agent_id or role,
        timestamp=record.timestamp.isoformat(),
        content=types.Content(role=role, parts=[types.Part(text=record.text)]),
    )


def _text_of(content: types.Content | None) -> str:
    parts = (content.parts if content is not None else None) or []
    return searched_text("\n".join(part.text for part in parts if part.text and not part.thought))
