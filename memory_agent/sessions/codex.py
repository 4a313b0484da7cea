"""Codex: `~/.codex/sessions/Y/M/D/rollout-*.jsonl`.

Messages and calls are taken from `response_item`; `event_msg` repeats them, and alone says how a turn ended. A turn is
a run. Context that hooks or the client injected is marked as such, or in files of older versions known by its tags.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from memory_agent.sessions.entries import (
    BOOKKEEPING,
    HARNESS,
    INJECTED,
    NO_TEXT,
    OTHER_TOOL,
    REASONING,
    UNANSWERED,
    UNKNOWN,
    Entry,
    Found,
    Left,
    LineReader,
    Session,
    What,
    text_of,
    time_of,
)
from memory_agent.sessions.pending import Pending
from memory_agent.sessions.tool_calls import Call, arguments_of, entry_of, result_of
from memory_agent.sessions.turns import CODEX, call_id, run_of, said_id

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


_lines = msgspec.json.Decoder(_Line)


class CodexReader(LineReader):
    """Reads the lines of one session. What hooks do not see has its line for id, since lines are only added."""

    def __init__(self) -> None:
        self.session = Session(client=NAME)
        self._turn: str | None = None
        self._run: str | None = None
        self._calls: Pending[Call] = Pending()
        self._held: Entry | None = None

    def read(self, number: int, line: bytes) -> Iterator[Found]:
        """Yield what a line says. Raises `msgspec.DecodeError`."""
        said = _lines.decode(line)
        payload = said.payload
        if said.type == "session_meta":
            if not self.session.id:  # a fork repeats that of its parent below its own
                self.session.id = payload.id or payload.session_id or ""
                self.session.folder = payload.cwd
            yield BOOKKEEPING
        elif said.type == "event_msg":
            yield from self._event(said, number)
        elif said.type == "response_item":
            yield from self._item(said, number)
        else:
            yield BOOKKEEPING if said.type in _BOOKKEEPING else UNKNOWN

    def release(self) -> Iterator[Found]:
        """Yield the last message, which may have been the end of its turn."""
        if self._held is not None:
            yield self._held
        self._held = None

    def end(self) -> Iterator[Found]:
        """Yield the calls whose results are not there."""
        yield from (UNANSWERED for _ in self._calls.clear())

    def _event(self, said: _Line, number: int) -> Iterator[Found]:
        payload = said.payload
        if payload.type == "task_started":
            self._turn, self._run = payload.turn_id, None
        elif payload.type in ("task_complete", "turn_aborted") and self._run is not None:
            summary = (payload.last_agent_message or "").strip()
            if payload.type == "turn_aborted":
                yield from self.release()
                yield self._entry(said, self._turn or self._id(number), "cancelled", "Interrupted by the user")
            else:
                if self._held is not None and self._held.text != summary and summary:
                    yield from self.release()
                summary = summary or ("" if self._held is None else self._held.text)
                self._held = None
                yield self._entry(said, self._turn or self._id(number), "completed", summary or "Completed")
            self._run = None
            return
        yield BOOKKEEPING

    def _item(self, said: _Line, number: int) -> Iterator[Found]:
        payload = said.payload
        match payload.type:
            case "message":
                yield from self._message(said, number)
            case "function_call" | "custom_tool_call":
                arguments = arguments_of(payload.input if payload.arguments is None else payload.arguments)
                yield from self._called(payload.call_id, Call(name=payload.name, arguments=arguments))
            case "local_shell_call":
                yield from self._called(
                    payload.call_id, Call(name="local_shell", arguments=arguments_of(payload.action))
                )
            case "function_call_output" | "custom_tool_call_output":
                yield from self.release()
                call = self._calls.take(payload.call_id)
                at, result = time_of(said.timestamp), result_of(payload.output)
                id = call_id(self._turn, payload.call_id) if self._turn else self._id(number)
                yield UNKNOWN if call is None else entry_of(call, result, id, at, run=self._run)
            case "reasoning":
                yield REASONING
            case "web_search_call" | "tool_search_call" | "tool_search_output" | "image_generation_call":
                yield OTHER_TOOL
            case "ghost_snapshot" | "compaction" | "compaction_summary":
                yield BOOKKEEPING
            case _:
                yield UNKNOWN

    def _called(self, id: str, call: Call) -> Iterator[Found]:
        yield from self.release()
        yield from (UNANSWERED for _ in self._calls.put(id, call))

    def _message(self, said: _Line, number: int) -> Iterator[Found]:
        text, reasons = _own_text(said.payload)
        yield from reasons
        if not text:
            if not reasons:
                yield NO_TEXT
            return
        yield from self.release()
        if said.payload.role == "assistant":
            self._held = self._entry(said, self._id(number), "assistant", text)
            return
        begins = self._run is None
        if begins:
            self._run = run_of(NAME, self._turn or self._id(number))
        yield self._entry(said, said_id(self._turn, text) if self._turn else self._id(number), "user", text)
        if begins:
            yield self._entry(said, self._turn or self._id(number), "begin", text)

    def _entry(self, said: _Line, id: str, what: What, text: str) -> Entry:
        return Entry(what=what, id=id, text=text, at=time_of(said.timestamp), run=self._run)

    def _id(self, number: int) -> str:
        return f"{self.session.id}:{number}"


def _own_text(payload: _Payload) -> tuple[str, list[Left]]:
    """Return the text of a message that its author wrote, and why other parts of it are left out."""
    if payload.role not in ("user", "assistant"):
        return "", [INJECTED if any(kind.startswith(_HOOK_KIND) for kind in _kinds(payload)) else HARNESS]
    if payload.role == "assistant":
        return text_of(payload.content), []
    parts = payload.content if isinstance(payload.content, list) else [payload.content]
    kinds = _kinds(payload)
    texts, reasons = [], list[Left]()
    for place, part in enumerate(parts):
        text, kind = text_of(part), kinds[place] if place < len(kinds) else ""
        if kind.startswith(_HOOK_KIND):
            reasons.append(INJECTED)
        elif (kind and not kind.startswith(_USER_KIND)) or text.startswith(_HARNESS):
            reasons.append(HARNESS)
        elif text:
            texts.append(text)
    return "\n".join(texts), reasons


def _kinds(payload: _Payload) -> Sequence[str]:
    """Return what each part of a message is, where the version of the client says so."""
    noted = payload.internal_chat_message_metadata_passthrough
    kinds = noted.get("content_item_kinds") if isinstance(noted, dict) else None
    return [str(kind) for kind in kinds] if isinstance(kinds, list) else []
