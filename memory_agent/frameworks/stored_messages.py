"""The messages of one session in order, each stored as a memory whose metadata contains the whole message."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from typing import Any, NamedTuple
from uuid import uuid4

from memory_agent.client import MemoryClient
from memory_agent.errors import MemoryAgentError
from memory_agent.frameworks.agent_run import MOST_LEVELS, searched_text
from memory_agent.frameworks.paging import listed
from memory_agent.records.arguments import MOST_LISTED, check_object
from memory_agent.records.memories import MemoryFilter, MemoryRecord, Source


class Message(NamedTuple):
    """A message: the text to search, whether the user wrote it, and the whole message as JSON."""

    text: str
    is_users: bool
    fields: dict[str, Any]


class StoredMessages:
    """One session's messages, unchanged except for masked secrets, and visible at once to every process.

    Their texts are episodes that later sessions recall. Every method raises the client's errors.

    >>> messages = StoredMessages(memory, "session-1", "example")
    >>> messages.append([Message("Deploy to staging", True, {"content": "Deploy to staging"})])
    >>> messages.read()
    [{'content': 'Deploy to staging'}]
    """

    def __init__(self, memory: MemoryClient, session_id: str, type: str) -> None:
        self._memory = memory
        self._session_id = session_id
        self._type = type
        self._matching = MemoryFilter(session_id=session_id, type=type)

    def append(self, messages: Iterable[Message]) -> None:
        """Store messages. Durable on return.

        Raises `InvalidInputError` for a value that is not JSON, before any message is stored. If a later message is
        refused, the messages that this call has stored are forgotten. Messages keep the order of the calls: if the
        clock was set back, a message gets the time of the previous message.
        """
        checked = [(message, check_object("message", message.fields, MOST_LEVELS)) for message in messages]
        latest = self._latest(1) if checked else []
        earliest = latest[0].timestamp if latest else None
        ids: list[str] = []
        try:
            for message, fields in checked:
                ids.append(uuid4().hex)  # before the request: it may succeed even if no answer arrives
                earliest = self._remember(ids[-1], message, fields, earliest).timestamp
        except MemoryAgentError:
            with suppress(MemoryAgentError):
                self._memory.forget(ids)
            raise

    def _remember(self, id: str, message: Message, fields: dict[str, Any], earliest: datetime | None) -> MemoryRecord:
        source: Source = "user_input" if message.is_users else "worker_result"
        return self._memory.remember(
            searched_text(message.text) or "(a message without text)",
            kind="episode",
            source=source,
            session_id=self._session_id,
            id=id,
            type=self._type,
            timestamp=earliest if earliest is not None and earliest > datetime.now(UTC) else None,
            metadata={"message": fields},
        )

    def read(self, limit: int | None = None) -> list[dict[str, Any]]:
        """Return the messages, or the latest `limit` of them, oldest first."""
        records = self._records() if limit is None else self._latest(limit)
        return [record.metadata["message"] for record in records]

    def pop(self) -> dict[str, Any] | None:
        """Forget the latest message, and return it."""
        latest = self._latest(1)
        self._memory.forget([record.id for record in latest])
        return latest[0].metadata["message"] if latest else None

    def clear(self) -> None:
        while ids := [record.id for record in self._records()]:
            self._memory.forget(ids)

    def _latest(self, limit: int) -> list[MemoryRecord]:
        if limit <= 0:
            return []
        found = listed(self._memory, self._matching, "newest", page=min(limit, MOST_LISTED))
        return list(islice(found, limit))[::-1]

    def _records(self) -> list[MemoryRecord]:
        return list(listed(self._memory, self._matching, "oldest"))
