"""CrewAI: a memory for crews, agents and flows, and a kickoff that reports how the crew's work ended."""

from __future__ import annotations

from typing import Any

from crewai import Crew
from crewai.memory.types import MemoryMatch, MemoryRecord
from crewai.memory.unified_memory import Memory
from pydantic import PrivateAttr

from memory_agent.client import MemoryClient
from memory_agent.errors import InvalidInputError
from memory_agent.frameworks.agent_run import AgentRun, current_run_id, searched_text
from memory_agent.records.memories import MemoryFilter, RetrievedMemory

TYPE = "crewai"
"""The `type` of a memory that a crew stored."""


class CrewMemory(Memory):
    """A CrewAI memory over one user's memory: `Crew(memory=CrewMemory(memory))`.

    Recall is one hybrid search among all memories of the user, and what a crew stores is durable at once. Neither calls
    a model, so no key of a provider is needed: a task's result is stored whole instead of analysed. `categories` are
    tags. Scopes are kept in the metadata, and recall finds memories in and below one. Raises the errors of the client.
    """

    _client: MemoryClient = PrivateAttr()

    def __init__(self, client: MemoryClient, **fields: Any) -> None:
        super().__init__(storage=_NoStorage(), **fields)
        self._client = client

    def extract_memories(self, content: str) -> list[str]:
        """Return the content as one memory."""
        text = searched_text(content)
        return [text] if text else []

    def remember(
        self,
        content: str,
        scope: str | None = None,
        categories: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        *_: Any,
        agent_role: str | None = None,
        **__: Any,
    ) -> MemoryRecord | None:
        """Store a memory; return it, or None if the memory is read-only or there is no text."""
        text = searched_text(content)
        if self.read_only or not text:
            return None
        kept = {**(metadata or {}), "scopes": _scopes_of(scope or self.root_scope or "/")}
        stored = self._client.remember(
            text,
            source="worker_result",
            type=TYPE,
            tags=categories or (),
            agent_id=agent_role,
            run_id=current_run_id(self._client),
            metadata=kept,
        )
        return MemoryRecord(id=stored.id, content=stored.text, scope=kept["scopes"][-1], categories=list(stored.tags))

    def remember_many(self, contents: list[str], *arguments: Any, **options: Any) -> list[MemoryRecord]:
        """Store memories in order."""
        stored = [self.remember(content, *arguments, **options) for content in contents]
        return [record for record in stored if record is not None]

    def recall(
        self,
        query: str,
        scope: str | None = None,
        categories: list[str] | None = None,
        limit: int = 10,
        *_: Any,
        **__: Any,
    ) -> list[MemoryMatch]:
        """Recall memories, best first."""
        text = searched_text(query)
        if not text:
            return []
        wanted = MemoryFilter(
            tags=tuple(categories or ()), metadata={} if scope in (None, "/") else {"scopes": _scopes_of(scope)[-1]}
        )
        answer = self._client.recall(text, limit, wanted, by_run=current_run_id(self._client))
        return [_match(one) for one in answer.memories]


def kickoff_with_memory(memory: MemoryClient, crew: Crew, inputs: dict[str, Any] | None = None, **options: Any) -> Any:
    """Start a crew as `crew.kickoff` does, as a run of the memory, whose outcome its recalls are credited with.

    The request is the descriptions of the crew's tasks. An exception ends the run as failed.
    """
    request = "\n".join(task.description for task in crew.tasks)
    for name, value in (inputs or {}).items():
        request = request.replace("{" + name + "}", str(value))
    with AgentRun(memory, request, recalls=False) as run:
        result = crew.kickoff(inputs, **options)
        run.output = result.raw
        return result


class _NoStorage:
    """What CrewAI's other methods find instead of its own storage: an error that names the client."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise InvalidInputError(name, "is not supported by CrewMemory; use the methods of MemoryClient")


def _scopes_of(scope: str) -> list[str]:
    """Return the scope and those above it, the widest first."""
    parts = [part for part in scope.split("/") if part]
    return ["/", *("/" + "/".join(parts[: depth + 1]) for depth in range(len(parts)))]


def _match(one: RetrievedMemory) -> MemoryMatch:
    scopes = one.record.metadata.get("scopes") or ["/"]
    record = MemoryRecord(
        id=one.record.id,
        content=one.record.text,
        scope=scopes[-1],
        categories=list(one.record.tags),
        created_at=one.record.timestamp,
        last_accessed=one.record.timestamp,
    )
    return MemoryMatch(record=record, score=max(0.0, one.sona_score), match_reasons=["recalled"])
