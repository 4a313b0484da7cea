"""What the reader of a format finds in a session: what was said and done, and what it leaves out and why."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

_REMINDER = re.compile(r"<system-reminder>.*?(?:</system-reminder>|\Z)", re.DOTALL)
_HOOK = re.compile(r"<hook_context>.*?(?:</hook_context>|\Z)", re.DOTALL)

What = Literal["user", "assistant", "command", "step", "assignment", "begin", "completed", "failed", "cancelled"]
"""`begin` to `cancelled` begin and end a run, the others happen in it."""


class Session:
    """A session as far as it is read. `folder` is the project's folder on the machine where it took place."""

    def __init__(self, client: str, id: str = "", folder: str | None = None, title: str | None = None) -> None:
        self.client = client
        self.id = id
        self.folder = folder
        self.title = title


class Entry(NamedTuple):
    """One thing that was said or done. `id` is unique for the client: a second reading gives the same one.

    `at` is None where the format has no times. Of a command, `text` is the output. `quality` is set where the log has
    a verdict.
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
    """Something that is left out, and why."""

    reason: str


class Bad(NamedTuple):
    """Something that cannot be read, and why. The reason quotes no text of the session."""

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


class LineReader(ABC):
    """Reads a file of JSON lines. `session` is that of the entries yielded last."""

    session: Session

    @abstractmethod
    def read(self, number: int, line: bytes) -> Iterator[Found]:
        """Yield what a line says. Raises `msgspec.DecodeError` for one that is not as documented."""

    def release(self) -> Iterator[Found]:
        """Yield messages that were held back for what may follow them; called when nothing follows for now."""
        yield from ()

    def end(self) -> Iterator[Found]:
        """Yield what stayed open; called when all is read."""
        yield from ()


class DocumentReader(ABC):
    """Reads one JSON document, member by member. `session` is that of the entries yielded last."""

    session: Session

    def begin(self, head: Mapping[str, bytes]) -> Iterator[Found]:
        """Take the members that are not lists, and the first items of the lists, as `name[1]`.

        Raises `msgspec.DecodeError`.
        """
        yield from ()

    @abstractmethod
    def read(self, member: str, number: int, item: bytes) -> Iterator[Found]:
        """Yield what an item of a list says, the first being 1; `member` is "" where the document is a list.

        Raises `msgspec.DecodeError`.
        """

    def end(self) -> Iterator[Found]:
        """Yield what follows after the last item."""
        yield from ()


def time_of(value: Any) -> datetime | None:
    """Return the time in an ISO text or in seconds since 1970, in UTC; None where there is none."""
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
    """Return the text of a content: a text, or the `text` of its parts, a paragraph each."""
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
    """Return a text of Claude Code without the reminders in it."""
    return _REMINDER.sub("", text).strip()


def without_hook_context(text: str) -> str:
    """Return a text of Gemini CLI without the context that its hooks added."""
    return _HOOK.sub("", text).strip()
