"""Converts a hook's input to events to publish and a recall to send, and formats the answer.

Used by the hook's process. The daemon uses it for inputs that the hook forwards unparsed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from memory_agent.hooks.inputs import NOTHING, Input
from memory_agent.records.prompt_block import shortened_block
from memory_agent.sessions.entries import Session
from memory_agent.sessions.events import channel_of, event_of

MOST_CHARS = 9_000
"""Maximum length of a block. Claude Code replaces blocks of more than 10,000 characters with a preview."""
MOST_INPUT_BYTES = 32 << 20
"""Maximum input size, which prevents endless input from exhausting memory. Images read by a tool can take up several
megabytes."""
_PROMPT_TOKENS, _START_TOKENS = 1_000, 400
_MOST_QUERY_CHARS = 8_000
_RECENTLY = "the last two weeks"
"""The query at the start of a session. A query that names only a time returns the memories from that time."""
_RUNS = 2
_CONTEXT = frozenset(
    {"SessionStart", "UserPromptSubmit", "PostToolUse", "PostToolUseFailure", "BeforeAgent", "AfterTool"}
)

SHORT_PATH = Path(__file__).with_name("hook.pl")

Json = dict[str, Any]


class Origin(NamedTuple):
    """The origin of an input. The session's folder is `project`, else the folder in the input, else `working`."""

    client: str
    project: str = ""
    working: str = ""
    channel: str | None = None
    user: str | None = None


class Report:
    def __init__(self, origin: Origin, fields: Json) -> None:
        self._origin = origin
        self._input = Input(origin.client, fields)
        self.content = self._input.content()
        folder = origin.project or self._input.folder or origin.working
        self._session = Session(client=origin.client, id=self._input.session, folder=folder)

    @property
    def session(self) -> str:
        return self._session.id

    @property
    def takes_context(self) -> bool:
        """Whether the client shows this hook's output to the model."""
        return self._input.name in _CONTEXT

    def events(self) -> list[Json]:
        found = (
            event_of(entry, self._session, self._origin.user, 0, self._input.at, "session")
            for entry in self.content.entries
        )
        events = [event for event in found if event is not None]
        if self.content.ended is not None:
            events.append(self._session_end(self.content.ended))
        if self._origin.channel is not None:
            events = [{**event, "channel_id": self._origin.channel} for event in events]
        return events

    def recall(self, events: list[Json], deadline_ms: float) -> Json | None:
        """Return the fields of the recall, or None if the hook needs none."""
        prompt = self.content.prompt
        if not prompt and not self.content.starts:
            return None
        asked: Json = {
            "query": prompt[:_MOST_QUERY_CHARS] or _RECENTLY,
            "context_tokens": _PROMPT_TOKENS if prompt else _START_TOKENS,
            "filter": {"in_channel" if prompt else "channel_id": self._channel},
            "deadline_ms": deadline_ms,
        }
        if prompt:
            asked |= {"profile": "before_planning", "runs": _RUNS}
        if self._session.id:
            asked["by_session"] = self._session.id
        if events:
            asked["by_event"] = events[0]["event_id"]
        return asked

    def answer(self, block: str | None) -> bytes:
        """Return the hook's output for a recalled block: a line, or nothing."""
        shown = shortened_block(block or "", MOST_CHARS)
        if not shown:
            return b""
        return encoded({"hookSpecificOutput": {"hookEventName": self._input.name, "additionalContext": shown}}) + b"\n"

    def _session_end(self, reason: str) -> Json:
        """The event creates no memory but reaches followers of the journal."""
        event = {
            "event_type": "session.ended",
            "timestamp": self._input.at.isoformat(),
            "session_id": self._session.id,
            "actor_id": self._origin.client,
            "channel_id": self._channel,
            "payload": {"client": self._origin.client, "reason": reason},
        }
        return event if self._origin.user is None else {**event, "user_id": self._origin.user}

    @property
    def _channel(self) -> str:
        return self._origin.channel or channel_of(self._session.folder or "")


def read_report(data: bytes, origin: Origin) -> Report | None:
    """Parse a hook's input; return None if it is not valid or reports nothing. Never raises."""
    try:
        fields = json.loads(data) if len(data) <= MOST_INPUT_BYTES else None
    except (ValueError, RecursionError):
        return None
    report = Report(origin, fields) if isinstance(fields, dict) else None
    return None if report is None or report.content is NOTHING else report


def encoded(fields: Json) -> bytes:
    return json.dumps(fields, ensure_ascii=False).encode(errors="replace")
