"""The messages and actions of a session as entries with stable ids. Avoids `msgspec`, so that hooks start fast.

Hooks and the transcript reader produce the same id for a message or action, so that each is stored once. A turn is a
prompt and everything up to the next prompt: `promptId` in Claude Code, `turn_id` in Codex. Gemini CLI passes no ids to
its hooks, so its texts are identified by their digests.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Literal, NamedTuple

CLAUDE_CODE = "claude-code"
CODEX = "codex"
GEMINI = "gemini"

_REMINDER = re.compile(r"<system-reminder>.*?(?:</system-reminder>|\Z)", re.DOTALL)
_HOOK = re.compile(r"<hook_context>.*?(?:</hook_context>|\Z)", re.DOTALL)
_FEWEST_WORDS = 3
"""A Claude Code prompt with fewer words ("yes", "go on") continues the previous run."""

What = Literal["user", "assistant", "command", "step", "assignment", "begin", "completed", "failed", "cancelled"]
"""The kind of an entry. `begin` starts a run; `completed`, `failed` and `cancelled` end it."""


class Session:
    """The fields are set as the session is read. `folder` is the project's folder on the session's machine."""

    def __init__(self, client: str, id: str = "", folder: str | None = None, title: str | None = None) -> None:
        self.client = client
        self.id = id
        self.folder = folder
        self.title = title


class Entry(NamedTuple):
    """One message or action. `id` is unique per client, and the same each time the session is read.

    `at` is None if the format records no times. For a command, `text` is its output. `quality` is the log's verdict.
    """

    what: What
    id: str
    text: str
    at: datetime | None = None
    run: str | None = None
    agent: str | None = None
    command: str = ""
    exit_code: int | None = None
    quality: float | None = None


class Left(Enum):
    """The reasons for skipping a part of a session."""

    INJECTED = "injected context"
    HARNESS = "written by the client"
    NO_TEXT = "no text"
    OTHER_TOOL = "output of a lookup or read tool"
    UNKNOWN = "unknown type"
    BOOKKEEPING = "bookkeeping"
    REASONING = "reasoning"
    UNANSWERED = "call without a result"
    OTHER_BRANCH = "another branch of the conversation"
    COPIED = "copied from another trajectory"
    OWN_ANSWER = "answer of this memory"


class Bad(NamedTuple):
    """The reason why a part of a session cannot be read, without quoting text from the session."""

    reason: str


Found = Entry | Left | Bad


def request(entry: Entry, *, begins_run: bool) -> Iterator[Entry]:
    """Yield a user's request and, if it begins a run, the start of that run."""
    yield entry
    if begins_run:
        yield entry._replace(what="begin")


def time_of(value: Any) -> datetime | None:
    """Return the UTC time denoted by ISO text or by seconds since 1970, or None for anything else."""
    try:
        if isinstance(value, str) and value:
            moment = datetime.fromisoformat(value)
            return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return datetime.fromtimestamp(value, UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return None


def text_of(content: Any) -> str:
    """Return the text of a message's content: a string, or parts with `text`. Each part becomes a paragraph."""
    if isinstance(content, str):
        return content.strip()
    if isinstance(content, Mapping):
        content = [content]
    if not isinstance(content, list):
        return ""
    parts = (
        part if isinstance(part, str) else part.get("text") if isinstance(part, Mapping) else "" for part in content
    )
    return "\n".join(part.strip() for part in parts if isinstance(part, str) and part.strip())


def without_reminders(text: str) -> str:
    return _REMINDER.sub("", text).strip()


def without_hook_context(text: str) -> str:
    return _HOOK.sub("", text).strip()


def run_of(client: str, turn: str) -> str:
    return f"{client}:{turn}"


def begins_run(prompt: str) -> bool:
    return len(prompt.split()) >= _FEWEST_WORDS


def call_id(turn: str, call: str) -> str:
    """Return an id for a tool call. The client's id `call` is unique only within a turn."""
    return f"{turn}:{call}"


def said_id(place: str, text: str) -> str:
    """Return an id for a text that has none. `place` is the id of its turn or session."""
    return f"{place}:{_digest(text.strip())}"


def made_id(session: str, name: str, arguments: Mapping[str, Any], output: str) -> str:
    """Return an id for a tool call that has none, derived from its name, arguments and output."""
    import json  # imported here, because only Gemini CLI needs it

    return said_id(session, json.dumps([name, arguments, output.strip()], sort_keys=True))


def _digest(text: str) -> str:
    from hashlib import blake2b  # imported here: it takes 3 ms, and only some hooks need it

    return blake2b(text.encode(errors="replace"), digest_size=12).hexdigest()
