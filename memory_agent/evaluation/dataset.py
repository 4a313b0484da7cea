"""A measurement's input, independent of the file format: users, items, questions and evidence."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

from memory_agent.errors import InvalidInputError
from memory_agent.records.memories import Kind

Role = Literal["user", "assistant"]

_EVENTS: dict[Kind, tuple[str, str]] = {
    "episode": ("chat.user_msg", "text"),
    "finding": ("worker.task.finding", "claim"),
    "strategy": ("conductor.assignment.dispatched", "objective"),
    "pattern": ("feedback.note", "comment"),
}  # for each kind, the event type and payload field from which the default signal table creates it
_ANSWER = ("chat.assistant_msg", "text")


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """A text to remember. An item with a `type` is an event of this type with this `payload`, with no kind or role."""

    id: str
    text: str
    timestamp: datetime | None = None  # None: the time of ingestion
    session: str | None = None
    kind: Kind = "episode"
    role: Role = "user"
    type: str | None = None
    payload: dict[str, Any] = {}


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A question and the items that answer it, each with a grade of 1 or more. A question without such items is not
    asked."""

    id: str
    text: str
    category: str
    relevant: dict[str, int]
    asked_at: datetime | None = None
    group: str = ""  # questions of one group (or of one user, without groups) are not independent
    outside_session: str | None = None  # the question's own session, whose memories no answer may contain


class History(msgspec.Struct, frozen=True, kw_only=True):
    """A user's items, in order, and questions about them. `unmatched` counts evidence ids without an item."""

    user: str
    items: tuple[Item, ...]
    questions: tuple[Question, ...]
    unmatched: int = 0

    @property
    def answerable(self) -> list[Question]:
        """The questions with relevant items."""
        return [question for question in self.questions if question.relevant]

    def events(self, user_id: str) -> list[dict[str, Any]]:
        """Return the items as events of `user_id`. Their ids depend only on the file and the user, so ingestion is
        idempotent.
        """
        return [_event(item, user_id) for item in self.items]


class Dataset(msgspec.Struct, frozen=True, kw_only=True):
    """One input. `digest` is the SHA-256 of the files."""

    name: str
    digest: str
    histories: tuple[History, ...]
    main_categories: tuple[str, ...] = ()  # if set, session recall counts questions without evidence as answered

    def only(self, users: Collection[str]) -> Dataset:
        return msgspec.structs.replace(self, histories=tuple(part for part in self.histories if part.user in users))


def read_file(file: Path) -> bytes:
    """Return a file's content. Raises `InvalidInputError`."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise InvalidInputError(str(file), f"cannot be read: {error.strerror}") from error


def event_id(user_id: str, item_id: str) -> str:
    return f"{user_id}:{item_id}"


def _event(item: Item, user_id: str) -> dict[str, Any]:
    is_answer = item.kind == "episode" and item.role == "assistant"
    event_type, place = _ANSWER if is_answer else _EVENTS[item.kind]
    payload = {place: item.text} if item.type is None else item.payload
    return {
        "event_id": event_id(user_id, item.id),
        "event_type": item.type or event_type,
        "timestamp": item.timestamp.isoformat() if item.timestamp else None,
        "user_id": user_id,
        "session_id": item.session,
        "payload": payload,
    }
