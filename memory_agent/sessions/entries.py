"""The messages and actions of a session as entries with stable ids. Does not import `msgspec`, to start hooks fast.

Hooks and the reader of the transcript produce the same id for the same message or action, so it is stored once. A turn
is a prompt and everything up to the next prompt: `promptId` of Claude Code, `turn_id` of Codex. Gemini CLI gives its
hooks no ids, so its texts are identified by their digests, and equal texts of one session are stored once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

CLAUDE_CODE = "claude-code"
CODEX = "codex"
GEMINI = "gemini"

_REMINDER = re.compile(r"<system-reminder>.*?(?:</system-reminder>|\Z)", re.DOTALL)
_HOOK = re.compile(r"<hook_context>.*?(?:</hook_context>|\Z)", re.DOTALL)
_FEWEST_WORDS = 3
"""A prompt of Claude Code with fewer words ("yes", "go on") continues the run before it."""

What = Literal["user", "assistant", "command", "step", "assignment", "begin", "completed", "failed", "cancelled"]
"""The kind of an entry. `begin` starts a run; `completed`, `failed` and `cancelled` end it."""


class Session:
    """A session, as far as it has been read. `folder` is the project's folder on the session's machine."""

    def __init__(self, client: str, id: str = "", folder: str | None = None, title: str | None = None) -> None:
        self.client = client
        self.id = id
        self.folder = folder
        self.title = title


class Entry(NamedTuple):
    """One message or action. `id` is unique within the client and the same at every reading.

    `at` is None if the format has no times. For a command, `text` is its output. `quality` is set if the log contains a
    verdict.
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


class Left(NamedTuple):
    """A part of a session that is skipped, and the reason."""

    reason: str


class Bad(NamedTuple):
    """A part of a session that cannot be read, and the reason. The reason quotes no text of the session."""

    reason: str


Found = Entry | Left | Bad

INJECTED = Left("injected context")
HARNESS = Left("written by the client")
NO_TEXT = Left("no text")
OTHER_TOOL = Left("output of a tool that looks up or reads")
UNKNOWN = Left("unknown type")
BOOKKEEPING = Left("bookkeeping")
REASONING = Left("reasoning")
UNANSWERED = Left("call without a result")


def request(entry: Entry, *, begins_run: bool) -> Iterator[Entry]:
    """Yield a request of the user, followed by the beginning of its run if it begins one."""
    yield entry
    if begins_run:
        yield entry._replace(what="begin")


def time_of(value: Any) -> datetime | None:
    """Return the UTC time of an ISO text or of seconds since 1970, or None for anything else."""
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
    """Return the text of a message's content, which is a text or parts with `text`; each part becomes a paragraph."""
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
    """Return a text of Claude Code without the reminders that the client inserted."""
    return _REMINDER.sub("", text).strip()


def without_hook_context(text: str) -> str:
    """Return a text of Gemini CLI without the context that hooks added."""
    return _HOOK.sub("", text).strip()


def run_of(client: str, turn: str) -> str:
    """Return the run id of a turn."""
    return f"{client}:{turn}"


def begins_run(prompt: str) -> bool:
    """Return whether a prompt of Claude Code is a new request."""
    return len(prompt.split()) >= _FEWEST_WORDS


def call_id(turn: str, call: str) -> str:
    """Return the id of a tool call. The client's id `call` is unique within a turn, not within a session."""
    return f"{turn}:{call}"


def said_id(place: str, text: str) -> str:
    """Return an id for a text without an id. `place` is the id of its turn or session."""
    return f"{place}:{_digest(text.strip())}"


def made_id(session: str, name: str, arguments: Mapping[str, Any], output: str) -> str:
    """Return an id for a tool call without an id, from its name, arguments and output."""
    import json  # imported late, because only Gemini CLI needs it

    return said_id(session, json.dumps([name, arguments, output.strip()], sort_keys=True))


def _digest(text: str) -> str:
    from hashlib import blake2b  # imported late: it takes 3 ms, and only some hooks need it

    return blake2b(text.encode(errors="replace"), digest_size=12).hexdigest()
