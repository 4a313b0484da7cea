"""Codex: `~/.codex/sessions/Y/M/D/rollout-*.jsonl`. A turn is a run.

Messages and calls are read from `response_item` entries. `event_msg` entries repeat both; only they report how a turn
ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from memory_agent.sessions.entries import (
    CODEX,
    Entry,
    Found,
    Left,
    Session,
    What,
    call_id,
    run_of,
    said_id,
    text_of,
    time_of,
)
from memory_agent.sessions.readers import Reader
from memory_agent.sessions.tool_calls import Call, arguments_of, entry_of, result_of
from relay import described

NAME = CODEX
_BOOKKEEPING = frozenset(
    {"event_msg", "turn_context", "world_state", "token_usage_record", "compacted", "ghost_snapshot"}
)
_USER_KIND = "user."
_HOOK_KIND = "hooks."
_HARNESS = ("<environment_context>", "<user_instructions>", "# AGENTS.md instructions", "<permissions instructions>")


class _Payload(msgspec.Struct, frozen=True):
    type: str = ""
    id: str | None = None
    session_id: str | None = None
    cwd: str | None = None
    turn_id: str | None = None
    role: str = ""
    content: Any = None
    name: str = ""
    arguments: Any = None
    input: Any = None
    action: Any = None
    call_id: str = ""
    output: Any = None
    last_agent_message: str | None = None
    reason: Any = None
    internal_chat_message_metadata_passthrough: Any = None


class _Line(msgspec.Struct, frozen=True):
    type: str
    timestamp: str
    payload: _Payload


_lines = msgspec.json.Decoder(described(_Line))


class CodexReader(Reader):
    """Entries that hooks do not report have their line numbers as ids."""

    def __init__(self) -> None:
        super().__init__(Session(client=NAME))
        self._turn: str | None = None
        self._run: str | None = None
        self._held: Entry | None = None

    def read(self, item: bytes, number: int, member: str = "") -> Iterator[Found]:
        line = _lines.decode(item)
        payload = line.payload
        if line.type == "session_meta":
            if not self.session.id:  # in a fork, the parent's metadata follows
                self.session.id = payload.id or payload.session_id or ""
                self.session.folder = payload.cwd
            yield Left.BOOKKEEPING
        elif line.type == "event_msg":
            yield from self._event(line, number)
        elif line.type == "response_item":
            yield from self._item(line, number)
        else:
            yield Left.BOOKKEEPING if line.type in _BOOKKEEPING else Left.UNKNOWN

    def release(self) -> Iterator[Found]:
        if self._held is not None:
            yield self._held
        self._held = None

    def _event(self, line: _Line, number: int) -> Iterator[Found]:
        payload = line.payload
        if payload.type == "task_started":
            self._turn, self._run = payload.turn_id, None
        elif payload.type in ("task_complete", "turn_aborted") and self._run is not None:
            summary = (payload.last_agent_message or "").strip()
            if payload.type == "turn_aborted":
                yield from self.release()
                yield self._entry(line, self._turn or self._id(number), "cancelled", "Interrupted by the user")
            else:
                if self._held is not None and self._held.text != summary and summary:
                    yield from self.release()
                summary = summary or ("" if self._held is None else self._held.text)
                self._held = None
                yield self._entry(line, self._turn or self._id(number), "completed", summary or "Completed")
            self._run = None
            return
        yield Left.BOOKKEEPING

    def _item(self, line: _Line, number: int) -> Iterator[Found]:
        payload = line.payload
        match payload.type:
            case "message":
                yield from self._message(line, number)
            case "function_call" | "custom_tool_call":
                arguments = arguments_of(payload.input if payload.arguments is None else payload.arguments)
                yield from self._tool_called(payload.call_id, Call(name=payload.name, arguments=arguments))
            case "local_shell_call":
                yield from self._tool_called(
                    payload.call_id, Call(name="local_shell", arguments=arguments_of(payload.action))
                )
            case "function_call_output" | "custom_tool_call_output":
                yield from self.release()
                call = self._calls.take(payload.call_id)
                at, result = time_of(line.timestamp), result_of(payload.output)
                id = call_id(self._turn, payload.call_id) if self._turn else self._id(number)
                yield Left.UNKNOWN if call is None else entry_of(call, result, id, at, run=self._run)
            case "reasoning":
                yield Left.REASONING
            case "web_search_call" | "tool_search_call" | "tool_search_output" | "image_generation_call":
                yield Left.OTHER_TOOL
            case "ghost_snapshot" | "compaction" | "compaction_summary":
                yield Left.BOOKKEEPING
            case _:
                yield Left.UNKNOWN

    def _tool_called(self, id: str, call: Call) -> Iterator[Found]:
        yield from self.release()
        yield from self._called(id, call)

    def _message(self, line: _Line, number: int) -> Iterator[Found]:
        text, reasons = _own_text(line.payload)
        yield from reasons
        if not text:
            if not reasons:
                yield Left.NO_TEXT
            return
        yield from self.release()
        if line.payload.role == "assistant":
            self._held = self._entry(line, self._id(number), "assistant", text)
            return
        begins = self._run is None
        if begins:
            self._run = run_of(NAME, self._turn or self._id(number))
        yield self._entry(line, said_id(self._turn, text) if self._turn else self._id(number), "user", text)
        if begins:
            yield self._entry(line, self._turn or self._id(number), "begin", text)

    def _entry(self, line: _Line, id: str, what: What, text: str) -> Entry:
        return Entry(what=what, id=id, text=text, at=time_of(line.timestamp), run=self._run)

    def _id(self, number: int) -> str:
        return f"{self.session.id}:{number}"


def _own_text(payload: _Payload) -> tuple[str, list[Left]]:
    """Return the text that a message's author wrote, and the reasons why its other parts are skipped."""
    if payload.role not in ("user", "assistant"):
        return "", [Left.INJECTED if any(kind.startswith(_HOOK_KIND) for kind in _kinds(payload)) else Left.HARNESS]
    if payload.role == "assistant":
        return text_of(payload.content), []
    parts = payload.content if isinstance(payload.content, list) else [payload.content]
    kinds = _kinds(payload)
    texts, reasons = [], list[Left]()
    for place, part in enumerate(parts):
        text, kind = text_of(part), kinds[place] if place < len(kinds) else ""
        if kind.startswith(_HOOK_KIND):
            reasons.append(Left.INJECTED)
        elif (kind and not kind.startswith(_USER_KIND)) or text.startswith(_HARNESS):
            reasons.append(Left.HARNESS)
        elif text:
            texts.append(text)
    return "\n".join(texts), reasons


def _kinds(payload: _Payload) -> Sequence[str]:
    """Older versions of the client do not record kinds."""
    noted = payload.internal_chat_message_metadata_passthrough
    kinds = noted.get("content_item_kinds") if isinstance(noted, dict) else None
    return [str(kind) for kind in kinds] if isinstance(kinds, list) else []
