"""Claude Code: `~/.claude/projects/<folder>/<session>.jsonl`, and subagents in files below a session's folder.

Each line is one block of one message. A prompt begins a run; the message with which the model ends its turn completes
it, and an interruption by the user cancels it. What hooks, memories and the client itself put into the conversation
are attachments or marked, and left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from memory_agent.sessions.entries import (
    BOOKKEEPING,
    HARNESS,
    INJECTED,
    NO_TEXT,
    REASONING,
    UNANSWERED,
    UNKNOWN,
    Entry,
    Found,
    LineReader,
    Session,
    What,
    text_of,
    time_of,
    without_reminders,
)
from memory_agent.sessions.pending import Pending
from memory_agent.sessions.tool_calls import Call, Result, arguments_of, entry_of
from memory_agent.sessions.turns import CLAUDE_CODE, begins_run, call_id, run_of

NAME = CLAUDE_CODE
_BOOKKEEPING = frozenset(
    {
        *("queue-operation", "last-prompt", "cost-state", "file-history-snapshot", "summary", "system", "progress"),
        *("prompt_snapshot", "skill_listing", "ai-title", "custom-title", "agent-name", "pr-link", "tag", "mode"),
    }
)
_COMMANDS = ("<command-name>", "<command-message>", "<local-command-", "<bash-input>", "<bash-stdout>", "Caveat: ")
_INTERRUPTED = "[Request interrupted by user"


class _Message(msgspec.Struct, frozen=True):
    content: str | list[dict[str, Any]]
    stop_reason: str | None = None


class _Line(msgspec.Struct, frozen=True, rename="camel"):
    type: str
    uuid: str = ""
    prompt_id: str = ""
    session_id: str = ""
    timestamp: str = ""
    cwd: str | None = None
    message: _Message | None = None
    is_sidechain: bool = False
    is_meta: bool = False
    is_compact_summary: bool = False
    is_visible_in_transcript_only: bool = False
    agent_id: str | None = None
    subtype: str = ""


_lines = msgspec.json.Decoder(_Line)


class ClaudeCodeReader(LineReader):
    """Reads the lines of one session."""

    def __init__(self) -> None:
        self.session = Session(client=NAME)
        self._run: str | None = None
        self._turn = ""
        self._is_ended = False
        self._calls: Pending[Call] = Pending()

    def read(self, number: int, line: bytes) -> Iterator[Found]:
        """Yield what a line says. Raises `msgspec.DecodeError`."""
        said = _lines.decode(line)
        self.session.id = said.session_id or self.session.id
        self.session.folder = self.session.folder or said.cwd
        if said.type == "attachment":
            yield INJECTED
        elif said.type in _BOOKKEEPING or said.type.startswith("api-request"):
            yield BOOKKEEPING
        elif said.type not in ("user", "assistant"):
            yield UNKNOWN
        elif said.message is None or not said.uuid:
            raise msgspec.ValidationError("has no message")
        elif said.is_meta or said.is_compact_summary or said.is_visible_in_transcript_only:
            yield HARNESS
        elif isinstance(said.message.content, str):
            yield from self._text(said, said.message.content, 0)
        else:
            for place, block in enumerate(said.message.content):
                yield from self._block(said, block, place)

    def end(self) -> Iterator[Found]:
        """Yield the calls whose results are not there."""
        yield from (UNANSWERED for _ in self._calls.clear())

    def _block(self, said: _Line, block: dict[str, Any], place: int) -> Iterator[Found]:
        match block.get("type"):
            case "text":
                yield from self._text(said, text_of(block), place)
            case "tool_use" if isinstance(block.get("id"), str):
                call = Call(name=str(block.get("name", "")), arguments=arguments_of(block.get("input")))
                yield from (UNANSWERED for _ in self._calls.put(block["id"], call))
            case "tool_result":
                yield self._result(said, block, place)
            case "thinking" | "redacted_thinking":
                yield REASONING
            case _:
                yield NO_TEXT

    def _result(self, said: _Line, block: dict[str, Any], place: int) -> Found:
        call = self._calls.take(str(block.get("tool_use_id")))
        if call is None:
            return UNKNOWN
        result = Result(output=without_reminders(text_of(block.get("content"))), failed=bool(block.get("is_error")))
        id = call_id(said.prompt_id, str(block.get("tool_use_id"))) if said.prompt_id else _id(said, place)
        return entry_of(call, result, id, time_of(said.timestamp), run=self._run_of(said), agent=_agent(said))

    def _text(self, said: _Line, content: str, place: int) -> Iterator[Found]:
        text = without_reminders(content)
        if not text:
            yield INJECTED if content.strip() else NO_TEXT
        elif said.type == "assistant":
            is_last = said.message is not None and said.message.stop_reason == "end_turn"
            run = self._run_of(said)
            what: What = "completed" if is_last and run is not None else "assistant"
            yield self._entry(
                said, what, text, self._end(said, place) if what == "completed" else _id(said, place), run
            )
        elif text.startswith(_COMMANDS):
            yield HARNESS
        elif said.is_sidechain:
            yield self._entry(said, "assignment", text, _id(said, place), None)
        elif text.startswith(_INTERRUPTED):
            yield (
                HARNESS
                if self._run is None
                else self._entry(said, "cancelled", "Interrupted by the user", self._end(said, place), self._run)
            )
            self._run = None
        else:
            yield from self._prompt(said, text, place)

    def _prompt(self, said: _Line, text: str, place: int) -> Iterator[Found]:
        begins = self._run is None or begins_run(text)
        if begins:
            self._run = run_of(NAME, said.prompt_id or said.uuid)
        id = _id(said, place)
        if said.prompt_id != self._turn:  # the first text of its turn
            self._turn, self._is_ended = said.prompt_id, False
            id = said.prompt_id or id
        yield self._entry(said, "user", text, id, self._run)
        if begins:
            yield self._entry(said, "begin", text, id, self._run)

    def _end(self, said: _Line, place: int) -> str:
        """Return the id of what ends a turn: the turn's, once."""
        is_first, self._is_ended = not self._is_ended, True
        return self._turn if self._turn and is_first else _id(said, place)

    def _entry(self, said: _Line, what: What, text: str, id: str, run: str | None) -> Entry:
        return Entry(what=what, id=id, text=text, at=time_of(said.timestamp), run=run, agent=_agent(said))

    def _run_of(self, said: _Line) -> str | None:
        return None if said.is_sidechain else self._run


def _id(said: _Line, place: int) -> str:
    return f"{said.uuid}:{place}"


def _agent(said: _Line) -> str | None:
    return (said.agent_id or "subagent") if said.is_sidechain else None
