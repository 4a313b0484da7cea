"""What is measured, whatever file it came from: users, what each of them told, questions, and what answers them.

A reader per format makes a `Dataset` (`locomo`, `beam`, `jsonl`); everything behind it knows no format. What this does
not do: read files, ask, count.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any

import msgspec

from memory_agent.records import Kind

_EVENTS: dict[Kind, tuple[str, str]] = {
    "episode": ("chat.user_msg", "text"),
    "finding": ("worker.task.finding", "claim"),
    "strategy": ("conductor.assignment.dispatched", "objective"),
    "pattern": ("feedback.note", "comment"),
}
"""The event type, and the place of the text in its payload, that the default table turns into a memory of a kind."""


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """Something to remember. `session` groups what belongs together; without a timestamp it is dated on arrival."""

    id: str
    text: str
    timestamp: datetime | None = None
    session: str | None = None
    kind: Kind = "episode"


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A question, and the items that answer it with their grades, 1 or more. `asked_at`: when it is asked, where known.

    `id` is unique in the dataset. Where nothing answers it, `relevant` is empty, and the question is not asked.
    """

    id: str
    text: str
    category: str
    relevant: dict[str, int]
    asked_at: datetime | None = None


class History(msgspec.Struct, frozen=True, kw_only=True):
    """What one user told, in order, and the questions about it. `unmatched` counts ids of evidence no item has."""

    user: str
    items: tuple[Item, ...]
    questions: tuple[Question, ...]
    unmatched: int = 0

    @property
    def answerable(self) -> list[Question]:
        """The questions whose answer stands in the history."""
        return [question for question in self.questions if question.relevant]

    def events(self, user_id: str) -> list[dict[str, Any]]:
        """Return the items as events that `user_id` emits; the same file gives the same ids, so a repeat is known."""
        return [_event(item, user_id) for item in self.items]


class Dataset(msgspec.Struct, frozen=True, kw_only=True):
    """One input. `digest` is the SHA-256 of what was read.

    `main_categories` are those that others report alone. A dataset that has them follows the custom that goes with it:
    in the recall of sessions over all questions, one without evidence counts as answered.
    """

    name: str
    digest: str
    histories: tuple[History, ...]
    main_categories: tuple[str, ...] = ()

    def only(self, users: Collection[str]) -> Dataset:
        """Return the dataset with the histories of these users alone."""
        return msgspec.structs.replace(self, histories=tuple(part for part in self.histories if part.user in users))


def event_id(user_id: str, item_id: str) -> str:
    """Return the id of the event that carries an item."""
    return f"{user_id}:{item_id}"


def _event(item: Item, user_id: str) -> dict[str, Any]:
    event_type, place = _EVENTS[item.kind]
    return {
        "event_id": event_id(user_id, item.id),
        "event_type": event_type,
        "timestamp": item.timestamp.isoformat() if item.timestamp else None,
        "user_id": user_id,
        "session_id": item.session,
        "payload": {place: item.text},
    }
