"""OpenHands: a conversation's folder `events/` with one `event-<number>-<id>.json` for each event, told by `kind`.

The conversation is a run. The action `FinishAction` completes it; an error of the conversation fails it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from memory_agent.sessions.entries import (
    BOOKKEEPING,
    HARNESS,
    NO_TEXT,
    UNANSWERED,
    UNKNOWN,
    Entry,
    Found,
    LineReader,
    Session,
    What,
    text_of,
    time_of,
)
from memory_agent.sessions.pending import Pending
from memory_agent.sessions.tool_calls import Call, Result, entry_of

NAME = "openhands"
_BOOKKEEPING = frozenset(
    {
        *("ConversationStateUpdateEvent", "CondensationRequest", "Condensation", "CondensationSummaryEvent"),
        *("PauseEvent", "TokenEvent", "LLMCompletionLogEvent", "StreamingDeltaEvent", "HookExecutionEvent"),
    }
)
_FINISH, _THINK = "FinishAction", "ThinkAction"
_ERRORS = ("AgentErrorEvent", "UserRejectObservation")


class _Event(msgspec.Struct, frozen=True):
    id: str
    kind: str
    timestamp: Any = None
    source: str = ""
    llm_message: Any = None
    thought: Any = None
    action: Any = None
    tool_name: str = ""
    tool_call_id: str = ""
    observation: Any = None
    error: str = ""
    rejection_reason: str = ""
    detail: str = ""


_events = msgspec.json.Decoder(_Event)


class OpenHandsReader(LineReader):
    """Reads the events of one conversation, a file each, in order."""

    def __init__(self, id: str) -> None:
        self.session = Session(client=NAME, id=id)
        self._run: str | None = None
        self._calls: Pending[Call] = Pending()

    def read(self, number: int, line: bytes) -> Iterator[Found]:
        """Yield what the event in a file says. Raises `msgspec.DecodeError`."""
        event = _events.decode(line)
        if event.kind == "MessageEvent":
            yield from self._message(event)
        elif event.kind == "ActionEvent":
            yield from self._action(event)
        elif event.kind == "ObservationEvent" or event.kind in _ERRORS:
            yield self._result(event)
        elif event.kind == "ConversationErrorEvent":
            yield self._entry(event, "failed", event.detail or "The conversation ended with an error")
        elif event.kind == "SystemPromptEvent":
            yield HARNESS
        else:
            yield BOOKKEEPING if event.kind in _BOOKKEEPING else UNKNOWN

    def end(self) -> Iterator[Found]:
        """Yield the calls whose results are not there."""
        yield from (UNANSWERED for _ in self._calls.clear())

    def _message(self, event: _Event) -> Iterator[Found]:
        message = event.llm_message
        text = text_of(message.get("content")) if isinstance(message, Mapping) else ""
        if not text:
            yield NO_TEXT
        elif event.source == "user":
            begins = self._run is None
            self._run = self._run or f"{NAME}:{self.session.id}"
            yield self._entry(event, "user", text)
            if begins:
                yield self._entry(event, "begin", text)
        else:
            yield self._entry(event, "assistant", text) if event.source == "agent" else HARNESS

    def _action(self, event: _Event) -> Iterator[Found]:
        action = event.action if isinstance(event.action, dict) else {}
        thought = text_of(event.thought)
        if thought:
            yield self._entry(event, "assistant", thought)
        if action.get("kind") == _FINISH:
            yield self._entry(event, "completed", text_of(action.get("message")) or "Completed", "finish")
        elif action.get("kind") == _THINK and not thought:
            yield self._entry(event, "assistant", text_of(action.get("thought")) or "…")
        elif action.get("kind") != _THINK:
            call = Call(name=event.tool_name, arguments=action)
            yield from (UNANSWERED for _ in self._calls.put(event.tool_call_id, call))

    def _result(self, event: _Event) -> Found:
        call = self._calls.take(event.tool_call_id)
        if call is None:
            return BOOKKEEPING  # of finishing or thinking
        seen = event.observation if isinstance(event.observation, dict) else {}
        code = seen.get("exit_code")
        result = Result(
            output=text_of(seen.get("content") or seen.get("output")) or event.error or event.rejection_reason,
            exit_code=code if type(code) is int else None,
            failed=True if event.kind in _ERRORS or seen.get("is_error") else None,
        )
        return entry_of(call, result, self._id(event), time_of(event.timestamp), run=self._run)

    def _entry(self, event: _Event, what: What, text: str, part: str = "") -> Entry:
        return Entry(what=what, id=self._id(event, part), text=text, at=time_of(event.timestamp), run=self._run)

    def _id(self, event: _Event, part: str = "") -> str:
        return ":".join(filter(None, (self.session.id, event.id, part)))
