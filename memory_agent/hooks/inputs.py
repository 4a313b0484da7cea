"""Reads the input of a hook: entries, as a transcript of the session has them, and the prompt.

The ids are those that a reader of the transcript gives (`sessions.entries`), so a session that is imported later is not
stored twice. Hooks that report nothing new, such as those before a call, are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from memory_agent.recall.fence import without_blocks
from memory_agent.sessions.entries import (
    CLAUDE_CODE,
    CODEX,
    GEMINI,
    Entry,
    Left,
    What,
    begins_run,
    call_id,
    made_id,
    run_of,
    said_id,
    text_of,
    time_of,
    without_hook_context,
    without_reminders,
)
from memory_agent.sessions.tool_calls import Call, Result, entry_of, exit_code_in, result_of

_COMMAND = re.compile(r"/[\w:-]+(?:\s|\Z)|<(?:command|local-command|bash)-")
"""Matches a prompt of Claude Code that is a command to the client."""


class Heard(NamedTuple):
    """What an input says. `prompt` and `starts` ask for memories; `ended` is the reason of the session's end."""

    entries: tuple[Entry, ...] = ()
    prompt: str = ""
    starts: bool = False
    ended: str | None = None


NOTHING = Heard()


class Input:
    """The input of one hook. Fields that are missing, or of another type, read as empty."""

    def __init__(self, client: str, fields: Mapping[str, Any]) -> None:
        self.client = client
        self.name = self._text(fields, "hook_event_name")
        self.session = self._text(fields, "session_id")
        self.folder = self._text(fields, "cwd")
        self.turn = self._text(fields, "prompt_id") or self._text(fields, "turn_id")
        self.at = time_of(fields.get("timestamp")) or datetime.now(UTC)
        self._fields = fields

    def heard(self) -> Heard:
        """Return what the input says; `NOTHING` for a hook that is not in the table."""
        listen = _HOOKS[self.client].get(self.name)
        return NOTHING if listen is None else listen(self)

    def text(self, name: str) -> str:
        """Return a text field, "" if there is none."""
        return self._text(self._fields, name)

    def flag(self, name: str) -> bool:
        """Return whether a field is true."""
        return self._fields.get(name) is True

    def call(self) -> Call:
        """Return the tool call that the input is about."""
        arguments = self._fields.get("tool_input")
        return Call(name=self.text("tool_name"), arguments=arguments if isinstance(arguments, dict) else {})

    @property
    def response(self) -> Any:
        """What the tool answered."""
        return self._fields.get("tool_response")

    @property
    def run(self) -> str | None:
        """The run of this turn, None where the client names no turn."""
        return run_of(self.client, self.turn) if self.turn else None

    def entry(self, what: What, id: str, text: str) -> Entry:
        """Return an entry of this session and turn."""
        return Entry(what=what, id=id, text=text, at=self.at, run=self.run)

    @staticmethod
    def _text(fields: Mapping[str, Any], name: str) -> str:
        value = fields.get(name)
        return value if isinstance(value, str) else ""


def _start(_: Input) -> Heard:
    return Heard(starts=True)


def _end(said: Input) -> Heard:
    return Heard(ended=said.text("reason"))


def _claude_prompt(said: Input) -> Heard:
    text = without_blocks(without_reminders(said.text("prompt"))).strip()
    if not text or _COMMAND.match(text):
        return NOTHING
    id = said.turn or said_id(said.session, text)
    begin = (said.entry("begin", id, text),) if said.turn and begins_run(text) else ()
    return Heard((said.entry("user", id, text), *begin), prompt=text)


def _codex_prompt(said: Input) -> Heard:
    text = without_blocks(said.text("prompt")).strip()
    if not text:
        return NOTHING
    begin = (said.entry("begin", said.turn, text),) if said.turn else ()
    return Heard((said.entry("user", said_id(said.turn or said.session, text), text), *begin), prompt=text)


def _gemini_prompt(said: Input) -> Heard:
    text = without_blocks(without_hook_context(said.text("prompt"))).strip()
    if not text:
        return NOTHING
    return Heard((said.entry("user", said_id(said.session, text), text),), prompt=text)


def _claude_call(said: Input) -> Heard:
    answer = said.response
    if isinstance(answer, Mapping) and ("stdout" in answer or "stderr" in answer):
        output = "\n".join(str(answer[name]) for name in ("stdout", "stderr") if answer.get(name))
    else:
        output = text_of(answer)
    return _called(said, Result(output=without_reminders(output), failed=False))


def _claude_failure(said: Input) -> Heard:
    if said.flag("is_interrupt"):
        return _ended(said, "cancelled", "Interrupted by the user")
    return _called(said, Result(output=without_reminders(said.text("error")), failed=True))


def _codex_call(said: Input) -> Heard:
    return _called(said, result_of(said.response))


def _gemini_call(said: Input) -> Heard:
    answer = said.response if isinstance(said.response, Mapping) else {}
    seen, shown = text_of(answer.get("llmContent")), answer.get("returnDisplay")
    output = without_hook_context(shown if isinstance(shown, str) else seen)
    failed = bool(answer.get("error"))
    call = said.call()
    id = made_id(said.session, call.name, call.arguments, output)
    return _told(entry_of(call, Result(output=output, failed=failed, exit_code=exit_code_in(seen)), id, said.at))


def _called(said: Input, result: Result) -> Heard:
    id = call_id(said.turn or said.session, said.text("tool_use_id") or said.at.isoformat())
    return _told(entry_of(said.call(), result, id, said.at, run=said.run))


def _told(entry: Entry | Left) -> Heard:
    return Heard((entry,)) if isinstance(entry, Entry) else NOTHING


def _turn_end(said: Input) -> Heard:
    if said.flag("stop_hook_active"):  # the turn had ended, and another hook made it go on
        return NOTHING
    return _ended(said, "completed", said.text("last_assistant_message").strip() or "Completed")


def _ended(said: Input, what: What, text: str) -> Heard:
    return Heard((said.entry(what, said.turn, text),)) if said.turn else NOTHING


def _gemini_answer(said: Input) -> Heard:
    text = said.text("prompt_response").strip()
    return Heard((said.entry("assistant", said_id(said.session, text), text),)) if text else NOTHING


_HOOKS: dict[str, dict[str, Callable[[Input], Heard]]] = {
    CLAUDE_CODE: {
        "SessionStart": _start,
        "UserPromptSubmit": _claude_prompt,
        "PostToolUse": _claude_call,
        "PostToolUseFailure": _claude_failure,
        "Stop": _turn_end,
        "SessionEnd": _end,
    },
    CODEX: {
        "SessionStart": _start,
        "UserPromptSubmit": _codex_prompt,
        "PostToolUse": _codex_call,
        "Stop": _turn_end,
        "SessionEnd": _end,
    },
    GEMINI: {
        "SessionStart": _start,
        "BeforeAgent": _gemini_prompt,
        "AfterTool": _gemini_call,
        "AfterAgent": _gemini_answer,
        "SessionEnd": _end,
    },
}
LISTENED: dict[str, tuple[str, ...]] = {client: tuple(hooks) for client, hooks in _HOOKS.items()}
"""The hooks of each client that report something."""
