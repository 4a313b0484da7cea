"""OpenHands: a conversation's folder `events/` contains one file `event-<number>-<id>.json` per event, typed by `kind`.

A conversation is a run. A `FinishAction` completes the run; a `ConversationErrorEvent` marks it as failed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from memory_agent.sessions.entries import Entry, Found, Left, Session, What, request, text_of, time_of
from memory_agent.sessions.readers import Reader
from memory_agent.sessions.tool_calls import Call, Result, entry_of
from relay import described

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


_events = msgspec.json.Decoder(described(_Event))


class OpenHandsReader(Reader):
    """Reads the events of one conversation in order; each file contains one event."""

    def __init__(self, id: str) -> None:
        super().__init__(Session(client=NAME, id=id))
        self._run: str | None = None

    def read(self, item: bytes, number: int, member: str = "") -> Iterator[Found]:
        event = _events.decode(item)
        if event.kind == "MessageEvent":
            yield from self._message(event)
        elif event.kind == "ActionEvent":
            yield from self._action(event)
        elif event.kind == "ObservationEvent" or event.kind in _ERRORS:
            yield self._result(event)
        elif event.kind == "ConversationErrorEvent":
            yield self._entry(event, "failed", event.detail or "The conversation ended with an error")
        elif event.kind == "SystemPromptEvent":
            yield Left.HARNESS
        else:
            yield Left.BOOKKEEPING if event.kind in _BOOKKEEPING else Left.UNKNOWN

    def _message(self, event: _Event) -> Iterator[Found]:
        message = event.llm_message
        text = text_of(message.get("content")) if isinstance(message, Mapping) else ""
        if not text:
            yield Left.NO_TEXT
        elif event.source == "user":
            begins = self._run is None
            self._run = self._run or f"{NAME}:{self.session.id}"
            yield from request(self._entry(event, "user", text), begins_run=begins)
        else:
            yield self._entry(event, "assistant", text) if event.source == "agent" else Left.HARNESS

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
            yield from self._called(event.tool_call_id, call)

    def _result(self, event: _Event) -> Found:
        call = self._calls.take(event.tool_call_id)
        if call is None:
            return Left.BOOKKEEPING  # the result of a finish or think action
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
