"""Parses a hook's input into transcript entries and a prompt. Hooks that report nothing new are ignored.

Entries get the same ids as in the transcript readers (`sessions`), so a later import does not store them twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from memory_agent.records.prompt_block import without_blocks
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
"""Matches a Claude Code prompt that is a command to the client."""


class Content(NamedTuple):
    """The content of an input. `prompt` and `starts` trigger a recall; `ended` is the reason why the session ended."""

    entries: tuple[Entry, ...] = ()
    prompt: str = ""
    starts: bool = False
    ended: str | None = None


NOTHING = Content()


class Input:
    """The input of one hook. Missing fields, and fields of the wrong type, are empty."""

    def __init__(self, client: str, fields: Mapping[str, Any]) -> None:
        self._fields = fields
        self.client = client
        self.name = self.text("hook_event_name")
        self.session = self.text("session_id")
        self.folder = self.text("cwd")
        self.turn = self.text("prompt_id") or self.text("turn_id")
        self.at = time_of(fields.get("timestamp")) or datetime.now(UTC)

    def content(self) -> Content:
        """Return the content, or `NOTHING` for a hook that is not in the table."""
        parse = _HOOKS[self.client].get(self.name)
        return NOTHING if parse is None else parse(self)

    def text(self, name: str) -> str:
        value = self._fields.get(name)
        return value if isinstance(value, str) else ""

    def flag(self, name: str) -> bool:
        return self._fields.get(name) is True

    def call(self) -> Call:
        arguments = self._fields.get("tool_input")
        return Call(name=self.text("tool_name"), arguments=arguments if isinstance(arguments, dict) else {})

    @property
    def response(self) -> Any:
        """The output of the tool."""
        return self._fields.get("tool_response")

    @property
    def run(self) -> str | None:
        """The run of this turn, or None if the client sends no turn."""
        return run_of(self.client, self.turn) if self.turn else None

    def entry(self, what: What, id: str, text: str) -> Entry:
        """Return an entry of this session and turn."""
        return Entry(what=what, id=id, text=text, at=self.at, run=self.run)


def _start(_: Input) -> Content:
    return Content(starts=True)


def _end(report: Input) -> Content:
    return Content(ended=report.text("reason"))


def _claude_prompt(report: Input) -> Content:
    text = without_blocks(without_reminders(report.text("prompt"))).strip()
    if not text or _COMMAND.match(text):
        return NOTHING
    id = report.turn or said_id(report.session, text)
    begin = (report.entry("begin", id, text),) if report.turn and begins_run(text) else ()
    return Content((report.entry("user", id, text), *begin), prompt=text)


def _codex_prompt(report: Input) -> Content:
    text = without_blocks(report.text("prompt")).strip()
    if not text:
        return NOTHING
    begin = (report.entry("begin", report.turn, text),) if report.turn else ()
    return Content((report.entry("user", said_id(report.turn or report.session, text), text), *begin), prompt=text)


def _gemini_prompt(report: Input) -> Content:
    text = without_blocks(without_hook_context(report.text("prompt"))).strip()
    if not text:
        return NOTHING
    return Content((report.entry("user", said_id(report.session, text), text),), prompt=text)


def _claude_call(report: Input) -> Content:
    answer = report.response
    if isinstance(answer, Mapping) and ("stdout" in answer or "stderr" in answer):
        output = "\n".join(str(answer[name]) for name in ("stdout", "stderr") if answer.get(name))
    else:
        output = text_of(answer)
    return _called(report, Result(output=without_reminders(output), failed=False))


def _claude_failure(report: Input) -> Content:
    if report.flag("is_interrupt"):
        return _ended(report, "cancelled", "Interrupted by the user")
    return _called(report, Result(output=without_reminders(report.text("error")), failed=True))


def _codex_call(report: Input) -> Content:
    return _called(report, result_of(report.response))


def _gemini_call(report: Input) -> Content:
    answer = report.response if isinstance(report.response, Mapping) else {}
    seen, shown = text_of(answer.get("llmContent")), answer.get("returnDisplay")
    output = without_hook_context(shown if isinstance(shown, str) else seen)
    failed = bool(answer.get("error"))
    call = report.call()
    id = made_id(report.session, call.name, call.arguments, output)
    return _tool_entry(
        entry_of(call, Result(output=output, failed=failed, exit_code=exit_code_in(seen)), id, report.at)
    )


def _called(report: Input, result: Result) -> Content:
    id = call_id(report.turn or report.session, report.text("tool_use_id") or report.at.isoformat())
    return _tool_entry(entry_of(report.call(), result, id, report.at, run=report.run))


def _tool_entry(entry: Entry | Left) -> Content:
    return Content((entry,)) if isinstance(entry, Entry) else NOTHING


def _turn_end(report: Input) -> Content:
    if report.flag("stop_hook_active"):  # the turn's end was reported earlier; another hook continued the turn
        return NOTHING
    return _ended(report, "completed", report.text("last_assistant_message").strip() or "Completed")


def _ended(report: Input, what: What, text: str) -> Content:
    return Content((report.entry(what, report.turn, text),)) if report.turn else NOTHING


def _gemini_answer(report: Input) -> Content:
    text = report.text("prompt_response").strip()
    return Content((report.entry("assistant", said_id(report.session, text), text),)) if text else NOTHING


_HOOKS: dict[str, dict[str, Callable[[Input], Content]]] = {
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
