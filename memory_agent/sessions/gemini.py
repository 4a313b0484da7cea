"""Gemini CLI: `~/.gemini/tmp/<project>/chats/session-*.jsonl`, lines that are messages or patches of the session.

A message comes again when it changes, and its last form counts: the latest ones are held back. The log does not say
how a turn ended, so there are no runs. Former versions wrote one document, `session-*.json`, with the same messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from memory_agent.sessions.entries import (
    BOOKKEEPING,
    HARNESS,
    INJECTED,
    NO_TEXT,
    UNANSWERED,
    UNKNOWN,
    DocumentReader,
    Entry,
    Found,
    LineReader,
    Session,
    What,
    text_of,
    time_of,
    without_hook_context,
)
from memory_agent.sessions.pending import Pending
from memory_agent.sessions.tool_calls import Call, Result, arguments_of, entry_of, exit_code_in
from memory_agent.sessions.turns import GEMINI, made_id, said_id

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


_lines = msgspec.json.Decoder(_Line)
_messages = msgspec.json.Decoder(_Message)


class GeminiReader(LineReader):
    """Reads the lines of one session."""

    def __init__(self) -> None:
        self.session = Session(client=NAME)
        self._latest: Pending[_Message] = Pending()
        self._is_subagent = False

    def read(self, number: int, line: bytes) -> Iterator[Found]:
        """Yield what a line says. Raises `msgspec.DecodeError`."""
        said = _lines.decode(line)
        if said.sessionId is not None:
            self.session.id = said.sessionId
            self._is_subagent = said.kind == _SUBAGENT
        if said.directories:
            self.session.folder = self.session.folder or said.directories[0]
        if said.patch is not None and said.patch.messages:
            for message in said.patch.messages:
                yield from self._hold(message)
        elif said.id is not None:
            yield from self._hold(_messages.decode(line))
        else:
            yield BOOKKEEPING

    def release(self) -> Iterator[Found]:
        """Yield the latest messages, which may have changed again."""
        for message in self._latest.clear():
            yield from self._message(message)

    def _hold(self, message: _Message) -> Iterator[Found]:
        if self.session.folder is None and message.type == "user":
            named = _FOLDER.search(text_of(message.content))
            self.session.folder = None if named is None else named[1].strip()
        for earlier in self._latest.put(message.id, message):
            yield from self._message(earlier)

    def _message(self, message: _Message) -> Iterator[Found]:
        if message.type not in ("user", "gemini"):
            yield HARNESS if message.type in ("info", "warning", "error") else UNKNOWN
            return
        content = text_of(message.content)
        text = without_hook_context(content)
        if text.startswith(_SETUP):
            yield HARNESS
        elif text:
            asked: What = "assignment" if self._is_subagent else "user"
            what = asked if message.type == "user" else "assistant"
            id = said_id(self.session.id, text)
            yield Entry(what=what, id=id, text=text, at=time_of(message.timestamp), agent=self._agent)
        elif not message.tool_calls:
            yield INJECTED if content else NO_TEXT
        for call in message.tool_calls or ():
            at = time_of(call.timestamp) or time_of(message.timestamp)
            made, result = Call(name=call.name, arguments=arguments_of(call.args)), _result(call)
            id = made_id(self.session.id, made.name, made.arguments, result.output)
            is_open = call.status in _UNDER_WAY
            yield UNANSWERED if is_open else entry_of(made, result, id, at, agent=self._agent)

    @property
    def _agent(self) -> str | None:
        return self.session.id if self._is_subagent else None


class GeminiDocumentReader(DocumentReader):
    """Reads a session of former versions, which is one document."""

    def __init__(self) -> None:
        self._lines = GeminiReader()
        self.session = self._lines.session

    def begin(self, head: Mapping[str, bytes]) -> Iterator[Found]:
        """Take the ids. Raises `msgspec.DecodeError`."""
        known = (b'"%s":%s' % (name.encode(), head[name]) for name in ("sessionId", "kind") if name in head)
        yield from self._lines.read(0, b"{%s}" % b",".join(known))
        self.session = self._lines.session

    def read(self, member: str, number: int, item: bytes) -> Iterator[Found]:
        """Yield what a message says. Raises `msgspec.DecodeError`."""
        if member == "messages":
            yield from self._lines.read(number, item)
        else:
            yield BOOKKEEPING

    def end(self) -> Iterator[Found]:
        """Yield the latest messages."""
        yield from self._lines.release()


def _result(call: _ToolCall) -> Result:
    shown = call.result_display if isinstance(call.result_display, str) else _output(call.result)
    failed, exit_code = _ENDED.get(call.status), exit_code_in(_output(call.result))
    return Result(output=without_hook_context(shown), failed=failed, exit_code=exit_code)


def _output(result: Any) -> str:
    """Return the text of the responses that the model saw."""
    texts = []
    for part in result if isinstance(result, list) else [result]:
        answer = part.get("functionResponse") if isinstance(part, Mapping) else None
        said = answer.get("response") if isinstance(answer, Mapping) else None
        texts.append(text_of(said.get("output") or said.get("error")) if isinstance(said, Mapping) else "")
    return "\n".join(text for text in texts if text)
