"""Claude.ai's data export: `conversations.json`, a list of conversations, each with its `chat_messages` in order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from memory_agent.sessions.entries import Entry, Found, Left, Session, text_of, time_of
from memory_agent.sessions.readers import Reader
from relay import described

NAME = "claude-ai"
_PARTS = {"tool_use": Left.OTHER_TOOL, "tool_result": Left.OTHER_TOOL, "thinking": Left.REASONING}


class _Message(msgspec.Struct, frozen=True):
    uuid: str
    sender: str
    text: str | None = None
    content: Any = None
    created_at: Any = None


class _Conversation(msgspec.Struct, frozen=True):
    uuid: str
    chat_messages: list[_Message]
    name: str | None = None
    created_at: Any = None


_conversations = msgspec.json.Decoder(described(_Conversation))


class ClaudeAiReader(Reader):
    """Reads an export; each conversation is a session."""

    def __init__(self) -> None:
        super().__init__(Session(client=NAME))

    def read(self, item: bytes, number: int, member: str = "") -> Iterator[Found]:
        conversation = _conversations.decode(item)
        self.session = Session(client=NAME, id=conversation.uuid, title=conversation.name)
        for message in conversation.chat_messages:
            yield from _read(message, conversation)


def _read(message: _Message, conversation: _Conversation) -> Iterator[Found]:
    parts = message.content if isinstance(message.content, list) else []
    blocks = [part for part in parts if isinstance(part, dict)]
    yield from (_PARTS[block["type"]] for block in blocks if block.get("type") in _PARTS)
    text = text_of([block for block in blocks if block.get("type") == "text"]) or (message.text or "").strip()
    if not text:
        yield Left.NO_TEXT
        return
    at = time_of(message.created_at) or time_of(conversation.created_at)
    yield Entry(what="user" if message.sender == "human" else "assistant", id=message.uuid, text=text, at=at)
