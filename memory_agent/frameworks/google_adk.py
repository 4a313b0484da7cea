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
from memory_agent.frameworks.agent_run import AgentRun, current_run_id, searched_text
from memory_agent.records.memories import MemoryFilter, MemoryRecord, Source

TYPE = "google_adk"
"""The `type` of a memory that the service stored."""


class _Clients:
    """One client for each user, made by `client_of` at first use."""

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
    """A memory service of ADK over the memories of its users.

    An event with text becomes an episode with an id made from app, session and event, so adding a session again stores
    only what is new, and an event whose memory was forgotten is stored again. A search is a recall among the memories
    of the app, and belongs to the invocation's run (`OutcomesPlugin`). `client_of` returns the client of a user; by
    default, that of the daemon on the default data folder. May be used in any event loop.
    """

    def __init__(self, client_of: Callable[[str], MemoryClient] = MemoryClient, *, top_k: int = 10) -> None:
        self._clients = _Clients(client_of)
        self._top_k = top_k

    async def add_session_to_memory(self, session: Session) -> None:
        """Store the events of a session that have text."""
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
        """Store events that have text. Durable on return; all are stored even if the caller is cancelled meanwhile."""
        memory = self._clients.of(user_id)
        metadata = {**(custom_metadata or {}), "app_name": app_name}
        await asyncio.shield(asyncio.to_thread(_store, memory, app_name, session_id, list(events), metadata))

    async def add_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        memories: Sequence[MemoryEntry],
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Store findings."""
        memory = self._clients.of(user_id)

        def store() -> None:
            for entry in memories:
                metadata = {**(custom_metadata or {}), **entry.custom_metadata, "app_name": app_name}
                if text := _text_of(entry.content):
                    memory.remember(text, source="worker_result", type=TYPE, metadata=metadata)

        await asyncio.shield(asyncio.to_thread(store))

    async def search_memory(self, *, app_name: str, user_id: str, query: str) -> SearchMemoryResponse:
        """Recall among the memories of the app."""
        memory = self._clients.of(user_id)

        def recall() -> list[MemoryEntry]:
            wanted = MemoryFilter(metadata={"app_name": app_name})
            answer = memory.recall(query, self._top_k, wanted, by_run=current_run_id(memory))
            return [_entry(one.record) for one in answer.memories]

        return SearchMemoryResponse(memories=await asyncio.to_thread(recall))


class OutcomesPlugin(BasePlugin):
    """Makes each invocation a run of the memory, whose outcome the searches of `MemoryService` are credited with.

    Pass it to the runner (`App(plugins=[...])`). An exception ends the run as failed. ADK does not report that an
    invocation was cancelled or abandoned: its run stays open, expires, and teaches nothing.
    """

    def __init__(self, client_of: Callable[[str], MemoryClient] = MemoryClient) -> None:
        super().__init__(name="memory_agent_outcomes")
        self._clients = _Clients(client_of)
        self._runs: dict[str, AgentRun] = {}

    async def before_run_callback(self, *, invocation_context: Any) -> None:
        """Begin a run for the user's message."""
        session = invocation_context.session
        request = _text_of(invocation_context.user_content)
        run = AgentRun(self._clients.of(session.user_id), request, session_id=session.id, recalls=False)
        await asyncio.to_thread(run.begin)
        run.enter()
        self._runs[invocation_context.invocation_id] = run

    async def on_event_callback(self, *, invocation_context: Any, event: Event) -> None:
        """Keep the text of the last answer as the run's output."""
        run = self._runs.get(invocation_context.invocation_id)
        if run is not None and event.is_final_response():
            run.output = _text_of(event.content) or run.output

    async def after_run_callback(self, *, invocation_context: Any) -> None:
        """End the run as completed."""
        await self._end(invocation_context, None)

    async def on_run_error_callback(self, *, invocation_context: Any, error: Exception) -> None:
        """End the run as failed."""
        await self._end(invocation_context, error)

    async def _end(self, invocation_context: Any, error: Exception | None) -> None:
        if run := self._runs.pop(invocation_context.invocation_id, None):
            await asyncio.to_thread(run.end_with, error)


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


def _entry(record: MemoryRecord) -> MemoryEntry:
    role = "user" if record.source == "user_input" else "model"
    return MemoryEntry(
        id=record.id,
        author=record.agent_id or role,
        timestamp=record.timestamp.isoformat(),
        content=types.Content(role=role, parts=[types.Part(text=record.text)]),
    )


def _text_of(content: types.Content | None) -> str:
    parts = (content.parts if content is not None else None) or []
    return searched_text("\n".join(part.text for part in parts if part.text and not part.thought))
