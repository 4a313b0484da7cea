"""CrewAI: a memory for a crew. It stores and recalls without LLM calls and needs no separate embedder."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from crewai import Memory
from crewai.context import get_current_task_id
from crewai.events import TaskCompletedEvent, TaskFailedEvent, crewai_event_bus
from crewai.memory.types import MemoryMatch, MemoryRecord, ScopeInfo
from crewai.memory.utils import join_scope_paths, normalize_scope_path

from memory_agent.client import MemoryClient
from memory_agent.errors import InvalidInputError
from memory_agent.frameworks.agent_run import MOST_LEVELS, MOST_TEXT_CHARS, AgentRun, current_run_id
from memory_agent.frameworks.paging import listed
from memory_agent.records import memories
from memory_agent.records.arguments import check_object

TYPE = "crewai"
_guard = threading.Lock()
_runs: dict[str, AgentRun] = {}


class CrewMemory(Memory):
    """A memory for `Crew(memory=...)` or `Agent(memory=...)`. Its scopes and slices can be used in its place.

    A task that recalls is recorded as a run. When the task completes or fails, the run ends with the same outcome. A
    recall searches all memories of the user unless it names a scope; all other operations affect only what CrewAI
    stored. CrewAI ignores a failed recall, so a missing daemon is reported when the memory is created. With `llm`,
    memories are also extracted from the results of tasks.

    >>> crew = Crew(agents=[agent], tasks=[task], memory=CrewMemory(memory))
    >>> "VPN" in crew.kickoff().raw
    True
    """

    def __init__(self, memory: MemoryClient, **options: Any) -> None:
        """`options` are those of CrewAI's `Memory`, such as `root_scope` and `read_only`."""
        memory.stats({"type": TYPE})
        super().__init__(storage=Storage(memory), embedder=_no_vectors, **options)

    def recall(
        self,
        query: str,
        scope: str | None = None,
        categories: list[str] | None = None,
        limit: int = 10,
        depth: Literal["shallow", "deep"] = "deep",
        source: str | None = None,
        include_private: bool = False,
    ) -> list[MemoryMatch]:
        """Return memories, best first. `depth` has no effect."""
        store: Storage = self._storage
        answer = store.memory.recall(
            query[:MOST_TEXT_CHARS],
            limit,
            _filter(self._within(scope), categories, stored_only=False),
            by_run=_run_of_the_task(store.memory, query) or current_run_id(store.memory),
        )
        return [
            MemoryMatch(record=record, score=one.relevance if one.relevance is not None else 1.0)
            for one in answer.memories
            if not (record := _to_crewai(one.record)).private
            or include_private
            or (source is not None and record.source == source)
        ]

    def remember(
        self,
        content: str,
        scope: str | None = None,
        categories: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        importance: float | None = None,
        source: str | None = None,
        private: bool = False,
        agent_role: str | None = None,
        root_scope: str | None = None,
    ) -> MemoryRecord | None:
        """Store a memory and return it, or None if this memory is read-only. Durable on return."""
        if self.read_only:
            return None
        record = MemoryRecord(
            content=content,
            scope=self._within(scope, root_scope) or "/",
            categories=categories or [],
            metadata=(metadata or {}) | ({"agent_role": agent_role} if agent_role else {}),
            importance=self.default_importance if importance is None else importance,
            source=source,
            private=private,
        )
        self._storage.save([record])
        return record

    def remember_many(self, contents: list[str], *args: Any, **options: Any) -> list[MemoryRecord]:
        """Store memories as `remember` does, and return them. Durable on return."""
        return [record for content in contents if (record := self.remember(content, *args, **options))]

    def extract_memories(self, content: str) -> list[str]:
        """Return the memories that `llm` finds in a task's result; none if no `llm` was passed."""
        return super().extract_memories(content) if "llm" in self.model_fields_set else []

    def _within(self, scope: str | None, root: str | None = None) -> str | None:
        root = root or self.root_scope
        return join_scope_paths(root, scope) if root else scope


class Storage:
    """CrewAI's `StorageBackend`, without its vector search: `CrewMemory` recalls by text."""

    def __init__(self, memory: MemoryClient) -> None:
        self.memory = memory

    def __deepcopy__(self, _: dict[int, Any]) -> Storage:
        return self  # when CrewAI copies a crew, it copies the memory too

    def save(self, records: list[MemoryRecord]) -> None:
        """Store records, replacing those with the same ids. Durable on return.

        Raises `InvalidInputError` with the path of a value that is not JSON, before anything is stored.
        """
        for record in records:
            check_object("metadata", record.metadata, MOST_LEVELS)
        for record in records:
            self.memory.remember(
                record.content,
                source="worker_result",
                tags=record.categories,
                metadata=_to_metadata(record),
                id=record.id,
                type=TYPE,
                timestamp=_aware(record.created_at),
            )

    def search(self, query_embedding: list[float], *_: Any, **__: Any) -> list[tuple[MemoryRecord, float]]:
        """Raise `InvalidInputError`."""
        raise InvalidInputError("storage", "cannot search by vector: pass CrewMemory(memory), not Memory(storage=...)")

    def delete(
        self,
        scope_prefix: str | None = None,
        categories: list[str] | None = None,
        record_ids: list[str] | None = None,
        older_than: datetime | None = None,
        metadata_filter: dict[str, Any] | None = None,
    ) -> int:
        """Forget the records that match all conditions; return the number of forgotten records."""
        matching = _filter(scope_prefix, categories, older_than, metadata_filter)
        ids = [record.id for record in listed(self.memory, matching)]
        return self.memory.forget(ids if record_ids is None else list({*ids} & {*record_ids}))

    def update(self, record: MemoryRecord) -> None:
        self.save([record])

    def get_record(self, record_id: str) -> MemoryRecord | None:
        """Return a record, even one that CrewAI did not store."""
        found = self.memory.get([record_id])
        return _to_crewai(found[0]) if found else None

    def list_records(self, scope_prefix: str | None = None, limit: int = 200, offset: int = 0) -> list[MemoryRecord]:
        """Return records, newest first."""
        return self._in_scope(scope_prefix)[offset : offset + limit]

    def get_scope_info(self, scope: str) -> ScopeInfo:
        """Return the number, times, categories and child scopes of a scope's records."""
        records = self._in_scope(scope)
        times = [record.created_at for record in records]
        return ScopeInfo(
            path=scope,
            record_count=len(records),
            categories=sorted({category for record in records for category in record.categories}),
            oldest_record=min(times, default=None),
            newest_record=max(times, default=None),
            child_scopes=self.list_scopes(scope),
        )

    def list_scopes(self, parent: str = "/") -> list[str]:
        start = normalize_scope_path(parent).rstrip("/") + "/"
        below = [record.scope.removeprefix(start) for record in self._in_scope(parent) if record.scope != parent]
        return sorted({start + path.split("/")[0] for path in below if path.strip("/")})

    def list_categories(self, scope_prefix: str | None = None) -> dict[str, int]:
        return dict(Counter(category for record in self._in_scope(scope_prefix) for category in record.categories))

    def count(self, scope_prefix: str | None = None) -> int:
        return self.memory.stats(_filter(scope_prefix)).memories

    def reset(self, scope_prefix: str | None = None) -> None:
        """Forget the records of a scope, or of all scopes."""
        self.delete(scope_prefix)

    def _in_scope(self, scope: str | None) -> list[MemoryRecord]:
        return [_to_crewai(record) for record in listed(self.memory, _filter(scope))]


def _run_of_the_task(memory: MemoryClient, request: str) -> str | None:
    """Return the id of the current task's run. The run begins with the task's first recall, which uses the task's
    description."""
    task_id = get_current_task_id()
    if task_id is None:
        return None
    with _guard:
        if task_id not in _runs:
            _runs[task_id] = AgentRun(memory, request, recalls=False).begin()
        run = _runs[task_id]
    return run.id if run.id and run.memory.user_id == memory.user_id else None


def _end_run(source: Any, event: TaskCompletedEvent | TaskFailedEvent) -> None:
    with _guard:
        run = _runs.pop(str(event.task.id), None) if event.task is not None else None
    if run is None:
        return
    failure = RuntimeError(event.error) if isinstance(event, TaskFailedEvent) else None
    run.output = event.error if isinstance(event, TaskFailedEvent) else event.output.raw
    run.end_with(failure)


crewai_event_bus.register_handler(TaskCompletedEvent, _end_run)
crewai_event_bus.register_handler(TaskFailedEvent, _end_run)


def _no_vectors(texts: list[str]) -> list[list[float]]:
    return [[] for _ in texts]


def _filter(
    scope: str | None,
    categories: list[str] | None = None,
    until: datetime | None = None,
    metadata: Mapping[str, Any] | None = None,
    *,
    stored_only: bool = True,
) -> memories.MemoryFilter:
    path = normalize_scope_path(scope or "/")
    conditions = {f"metadata.{key}": value for key, value in (metadata or {}).items()}
    return memories.MemoryFilter(
        type=TYPE if stored_only else None,
        tags=tuple(categories or ()),
        until=_aware(until) if until is not None else None,
        metadata=conditions if path == "/" else {**conditions, "scopes": path},
    )


def _to_metadata(record: MemoryRecord) -> dict[str, Any]:
    parts = normalize_scope_path(record.scope).strip("/").split("/")
    return {
        "metadata": record.metadata,
        "scope": normalize_scope_path(record.scope),
        "scopes": ["/" + "/".join(parts[:depth]) for depth in range(1, len(parts) + 1)],
        "importance": record.importance,
        "source": record.source,
        "private": record.private,
    }


def _to_crewai(record: memories.MemoryRecord) -> MemoryRecord:
    stored = record.metadata if record.type == TYPE else {"metadata": record.metadata}
    naive = record.timestamp.astimezone(UTC).replace(tzinfo=None)  # CrewAI computes with naive times in UTC
    return MemoryRecord(
        id=record.id, content=record.text, categories=list(record.tags), created_at=naive, last_accessed=naive,
        **{key: value for key, value in stored.items() if key != "scopes"},
    )  # fmt: skip


def _aware(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
