"""Reads ChatGPT's data export: `conversations.json`, a list of conversations. A conversation is a tree of messages.

Only the branch that the user sees is read, from `current_node` up to the root.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from memory_agent.sessions.entries import Entry, Found, Left, Session, text_of, time_of
from memory_agent.sessions.readers import Reader
from relay import described

NAME = "chatgpt"
_TEXTS = ("text", "multimodal_text")


class _Author(msgspec.Struct, frozen=True):
    role: str = ""


class _Content(msgspec.Struct, frozen=True):
    content_type: str = ""
    parts: list[Any] | None = None


class _Message(msgspec.Struct, frozen=True):
    id: str
    author: _Author
    content: _Content | None = None
    create_time: float | None = None
    metadata: Any = None
    recipient: str | None = "all"


class _Node(msgspec.Struct, frozen=True):
    message: _Message | None = None
    parent: str | None = None


class _Conversation(msgspec.Struct, frozen=True):
    mapping: dict[str, _Node]
    current_node: str | None = None
    conversation_id: str | None = None
    id: str | None = None
    title: str | None = None
    create_time: float | None = None


_conversations = msgspec.json.Decoder(described(_Conversation))


class ChatGptReader(Reader):
    """Reads an export; each conversation is a session."""

    def __init__(self) -> None:
        super().__init__(Session(client=NAME))

    def read(self, item: bytes, number: int, member: str = "") -> Iterator[Found]:
        conversation = _conversations.decode(item)
        id = conversation.conversation_id or conversation.id or conversation.current_node or ""
        self.session = Session(client=NAME, id=id, title=conversation.title)
        branch = _branch(conversation)
        yield from (
            Left.OTHER_BRANCH
            for node in conversation.mapping
            if node not in branch and conversation.mapping[node].message
        )
        for name in branch:
            message = conversation.mapping[name].message
            if message is not None:
                yield _entry(message, conversation)


def _branch(conversation: _Conversation) -> dict[str, None]:
    """Return the nodes from the root to the current node, or all nodes if none is current."""
    if conversation.current_node not in conversation.mapping:
        return dict.fromkeys(conversation.mapping)
    names: dict[str, None] = {}
    name: str | None = conversation.current_node
    while name is not None and name in conversation.mapping and name not in names:
        names[name] = None
        name = conversation.mapping[name].parent
    return dict.fromkeys(reversed(names))


def _entry(message: _Message, conversation: _Conversation) -> Found:
    about = message.metadata if isinstance(message.metadata, dict) else {}
    if message.author.role not in ("user", "assistant"):
        return Left.OTHER_TOOL if message.author.role == "tool" else Left.HARNESS
    if about.get("is_visually_hidden_from_conversation") or about.get("is_user_system_message"):
        return Left.HARNESS
    if message.recipient not in (None, "all"):
        return Left.OTHER_TOOL  # a message from the model to a tool
    content = message.content
    text = "" if content is None or content.content_type not in _TEXTS else text_of(content.parts)
    if not text:
        return Left.NO_TEXT
    at = time_of(message.create_time) or time_of(conversation.create_time)
    return Entry(what="user" if message.author.role == "user" else "assistant", id=message.id, text=text, at=at)
