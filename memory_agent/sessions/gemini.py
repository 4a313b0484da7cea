"""Gemini CLI: `~/.gemini/tmp/<project>/chats/session-*.jsonl`, with lines that are messages or patches to the session.

A message that changes is written again, and its last version counts, so the latest messages are held back. The log does
not record how a turn ended, so there are no runs. Older versions wrote one document with the same messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from memory_agent.sessions.entries import (
    GEMINI,
    Entry,
    Found,
    Left,
    Session,
    What,
    made_id,
    said_id,
    text_of,
    time_of,
    without_hook_context,
)
from memory_agent.sessions.readers import Pending, Reader
from memory_agent.sessions.tool_calls import Call, Result, arguments_of, entry_of, exit_code_in
from relay import described

NAME = GEMINI
_FOLDER = re.compile(r"Workspace Directories:\*\*\n\s*- ([^\n]+)")
_SUBAGENT = "subagent"
_SETUP = ("<session_context>", "This is the Gemini CLI. We are setting up the context for our chat.")
_ENDED = {"success": False, "error": True}
_UNDER_WAY = frozenset({"validating", "scheduled", "executing", "awaiting_approval"})


class _ToolCall(msgspec.Struct, frozen=True, rename="camel"):
    id: str
    name: str
    args: Any = None
    status: str = ""
    timestamp: Any = None
    result: Any = None
    result_display: Any = None


class _Message(msgspec.Struct, frozen=True, rename="camel"):
    id: str
    type: str
    timestamp: Any = None
    content: Any = None
    tool_calls: list[_ToolCall] | None = None


class _Patch(msgspec.Struct, frozen=True):
    messages: list[_Message] | None = None


class _Line(msgspec.Struct, frozen=True, rename={"patch": "$set", "rewind": "$rewindTo"}):
    sessionId: str | None = None  # noqa: N815 - the format's name
    kind: str | None = None
    directories: list[str] | None = None
    id: str | None = None
    patch: _Patch | None = None
    rewind: Any = None


_lines = msgspec.json.Decoder(described(_Line))
_messages = msgspec.json.Decoder(described(_Message))


class GeminiReader(Reader):
    def __init__(self) -> None:
        super().__init__(Session(client=NAME))
        self._latest: Pending[_Message] = Pending()
        self._is_subagent = False

    def begin(self, head: Mapping[str, bytes]) -> Iterator[Found]:
        known = (b'"%s":%s' % (name.encode(), head[name]) for name in ("sessionId", "kind") if name in head)
        yield from self.read(b"{%s}" % b",".join(known), 0)

    def read(self, item: bytes, number: int, member: str = "") -> Iterator[Found]:
        if member not in ("", "messages"):
            yield Left.BOOKKEEPING
            return
        line = _lines.decode(item)
        if line.sessionId is not None:
            self.session.id = line.sessionId
            self._is_subagent = line.kind == _SUBAGENT
        if line.directories:
            self.session.folder = self.session.folder or line.directories[0]
        if line.patch is not None and line.patch.messages:
            for message in line.patch.messages:
                yield from self._held_back(message)
        elif line.id is not None:
            yield from self._held_back(_messages.decode(item))
        else:
            yield Left.BOOKKEEPING

    def release(self) -> Iterator[Found]:
        for message in self._latest.clear():
            yield from self._message(message)

    def _held_back(self, message: _Message) -> Iterator[Found]:
        if self.session.folder is None and message.type == "user":
            named = _FOLDER.search(text_of(message.content))
            self.session.folder = None if named is None else named[1].strip()
        for earlier in self._latest.put(message.id, message):
            yield from self._message(earlier)

    def _message(self, message: _Message) -> Iterator[Found]:
        if message.type not in ("user", "gemini"):
            yield Left.HARNESS if message.type in ("info", "warning", "error") else Left.UNKNOWN
            return
        content = text_of(message.content)
        text = without_hook_context(content)
        if text.startswith(_SETUP):
            yield Left.HARNESS
        elif text:
            asked: What = "assignment" if self._is_subagent else "user"
            what = asked if message.type == "user" else "assistant"
            id = said_id(self.session.id, text)
            yield Entry(what=what, id=id, text=text, at=time_of(message.timestamp), agent=self._agent)
        elif not message.tool_calls:
            yield Left.INJECTED if content else Left.NO_TEXT
        for call in message.tool_calls or ():
            at = time_of(call.timestamp) or time_of(message.timestamp)
            made, result = Call(name=call.name, arguments=arguments_of(call.args)), _result(call)
            id = made_id(self.session.id, made.name, made.arguments, result.output)
            is_open = call.status in _UNDER_WAY
            yield Left.UNANSWERED if is_open else entry_of(made, result, id, at, agent=self._agent)

    @property
    def _agent(self) -> str | None:
        return self.session.id if self._is_subagent else None


def _result(call: _ToolCall) -> Result:
    shown = call.result_display if isinstance(call.result_display, str) else _output(call.result)
    failed, exit_code = _ENDED.get(call.status), exit_code_in(_output(call.result))
    return Result(output=without_hook_context(shown), failed=failed, exit_code=exit_code)


def _output(result: Any) -> str:
    texts = []
    for part in result if isinstance(result, list) else [result]:
        answer = part.get("functionResponse") if isinstance(part, Mapping) else None
        response = answer.get("response") if isinstance(answer, Mapping) else None
        if isinstance(response, Mapping):
            texts.append(text_of(response.get("output") or response.get("error")))
    return "\n".join(text for text in texts if text)
