"""Claude Code: `~/.claude/projects/<folder>/<session>.jsonl`, and subagents in files below a session's folder.

Each line is one block of a message. A prompt begins a run; the message that ends the model's turn completes it, and an
interruption by the user cancels it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from memory_agent.sessions.entries import (
    CLAUDE_CODE,
    Entry,
    Found,
    Left,
    Session,
    What,
    begins_run,
    call_id,
    request,
    run_of,
    text_of,
    time_of,
    without_reminders,
)
from memory_agent.sessions.readers import Reader
from memory_agent.sessions.tool_calls import Call, Result, arguments_of, entry_of
from relay import described

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


_lines = msgspec.json.Decoder(described(_Line))


class ClaudeCodeReader(Reader):
    def __init__(self) -> None:
        super().__init__(Session(client=NAME))
        self._run: str | None = None
        self._turn = ""
        self._is_ended = False

    def read(self, item: bytes, number: int, member: str = "") -> Iterator[Found]:
        line = _lines.decode(item)
        self.session.id = line.session_id or self.session.id
        self.session.folder = self.session.folder or line.cwd
        if line.type == "attachment":
            yield Left.INJECTED
        elif line.type in _BOOKKEEPING or line.type.startswith("api-request"):
            yield Left.BOOKKEEPING
        elif line.type not in ("user", "assistant"):
            yield Left.UNKNOWN
        elif line.message is None or not line.uuid:
            raise msgspec.ValidationError("has no message")
        elif line.is_meta or line.is_compact_summary or line.is_visible_in_transcript_only:
            yield Left.HARNESS
        elif isinstance(line.message.content, str):
            yield from self._text(line, line.message.content, 0)
        else:
            for place, block in enumerate(line.message.content):
                yield from self._block(line, block, place)

    def _block(self, line: _Line, block: dict[str, Any], place: int) -> Iterator[Found]:
        match block.get("type"):
            case "text":
                yield from self._text(line, text_of(block), place)
            case "tool_use" if isinstance(block.get("id"), str):
                call = Call(name=str(block.get("name", "")), arguments=arguments_of(block.get("input")))
                yield from self._called(block["id"], call)
            case "tool_result":
                yield self._result(line, block, place)
            case "thinking" | "redacted_thinking":
                yield Left.REASONING
            case _:
                yield Left.NO_TEXT

    def _result(self, line: _Line, block: dict[str, Any], place: int) -> Found:
        call = self._calls.take(str(block.get("tool_use_id")))
        if call is None:
            return Left.UNKNOWN
        result = Result(output=without_reminders(text_of(block.get("content"))), failed=bool(block.get("is_error")))
        id = call_id(line.prompt_id, str(block.get("tool_use_id"))) if line.prompt_id else _id(line, place)
        return entry_of(call, result, id, time_of(line.timestamp), run=self._run_of(line), agent=_agent(line))

    def _text(self, line: _Line, content: str, place: int) -> Iterator[Found]:
        text = without_reminders(content)
        if not text:
            yield Left.INJECTED if content.strip() else Left.NO_TEXT
        elif line.type == "assistant":
            is_last = line.message is not None and line.message.stop_reason == "end_turn"
            run = self._run_of(line)
            if is_last and run is not None:
                yield self._entry(line, "completed", text, self._end(line, place), run)
            else:
                yield self._entry(line, "assistant", text, _id(line, place), run)
        elif text.startswith(_COMMANDS):
            yield Left.HARNESS
        elif line.is_sidechain:
            yield self._entry(line, "assignment", text, _id(line, place), None)
        elif text.startswith(_INTERRUPTED):
            if self._run is None:
                yield Left.HARNESS
            else:
                yield self._entry(line, "cancelled", "Interrupted by the user", self._end(line, place), self._run)
            self._run = None
        else:
            yield from self._prompt(line, text, place)

    def _prompt(self, line: _Line, text: str, place: int) -> Iterator[Found]:
        begins = self._run is None or begins_run(text)
        if begins:
            self._run = run_of(NAME, line.prompt_id or line.uuid)
        id = _id(line, place)
        if line.prompt_id != self._turn:  # the first text of its turn
            self._turn, self._is_ended = line.prompt_id, False
            id = line.prompt_id or id
        yield from request(self._entry(line, "user", text, id, self._run), begins_run=begins)

    def _end(self, line: _Line, place: int) -> str:
        """Return the id of an entry that ends a turn; the first such entry of a turn has the turn's id."""
        is_first, self._is_ended = not self._is_ended, True
        return self._turn if self._turn and is_first else _id(line, place)

    def _entry(self, line: _Line, what: What, text: str, id: str, run: str | None) -> Entry:
        return Entry(what=what, id=id, text=text, at=time_of(line.timestamp), run=run, agent=_agent(line))

    def _run_of(self, line: _Line) -> str | None:
        return None if line.is_sidechain else self._run


def _id(line: _Line, place: int) -> str:
    return f"{line.uuid}:{place}"


def _agent(line: _Line) -> str | None:
    return (line.agent_id or "subagent") if line.is_sidechain else None
