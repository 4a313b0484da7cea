"""SWE-agent (`*.traj`) and mini-swe-agent (`*.traj.json`): one JSON document per run.

SWE-agent lists steps without times; mini-swe-agent lists the model's messages with times. `info.resolved`, added by
evaluations, states whether the run solved the issue.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from memory_agent.sessions.entries import Entry, Found, Left, Session, What, request, text_of, time_of
from memory_agent.sessions.readers import Reader
from memory_agent.sessions.tool_calls import Call, Result, arguments_of, entry_of
from relay import described

NAME = "swe-agent"
MINI = "mini-swe-agent"
_MARKS = (
    *((f"<{tag}>", f"</{tag}>") for tag in ("pr_description", "issue", "task", "problem_statement")),
    ("ISSUE:\n", "\nINSTRUCTIONS:"),
)
_LEAD = re.compile(r"\A(?:Consider the following|Please solve this|Solve this)[^\n]*:\s*\n", re.IGNORECASE)
_OUTPUT = re.compile(r"</?(?:output|output_head|output_tail)>|<returncode>-?\d+</returncode>\n?")
_RETURN_CODE = re.compile(r"<returncode>(-?\d+)</returncode>")
_FENCED = re.compile(r"```(?:bash|mswea_bash_command)?\n(.*?)\n```", re.DOTALL)
_SUBMITTED = "submitted"
_MOST_TASK_CHARS = 6_000


class _Info(msgspec.Struct, frozen=True):
    exit_status: str | None = None
    submission: str | None = None
    resolved: bool | None = None


class _Step(msgspec.Struct, frozen=True):
    thought: str | None = None
    action: str | None = None
    observation: str | None = None
    response: str | None = None


class _Message(msgspec.Struct, frozen=True):
    role: str = ""
    content: Any = None
    extra: Any = None
    tool_calls: Any = None
    tool_call_id: str | None = None
    timestamp: Any = None
    is_demo: bool = False


_infos = msgspec.json.Decoder(described(_Info))
_steps = msgspec.json.Decoder(described(_Step))
_messages = msgspec.json.Decoder(described(_Message))


class SweAgentReader(Reader):
    """Reads one run of either agent. The session is named after its file, `<instance>.traj`, and the file's folder."""

    def __init__(self, path: Path) -> None:
        name = path.name.removesuffix(".json").removesuffix(".traj")
        folder = path.absolute().parent
        place = folder.parent.name if folder.name == name else folder.name
        super().__init__(Session(client=MINI if path.name.endswith(".json") else NAME, id=f"{place}/{name}"))
        self._info = _Info()
        self._has_task = False
        self._at: Any = None
        self._open: list[str] = []

    def begin(self, head: Mapping[str, bytes]) -> Iterator[Found]:
        if "info" in head:
            self._info = _infos.decode(head["info"])
        first = (_messages.decode(item) for name, item in head.items() if name.startswith("history["))
        task = next((one for one in first if one.role == "user" and not one.is_demo), None)
        if task is not None:
            yield from self._requested(text_of(task.content), "history")

    def read(self, item: bytes, number: int, member: str = "") -> Iterator[Found]:
        if member == "trajectory":
            yield from self._step(_steps.decode(item), number)
        elif member == "messages":
            yield from self._message(_messages.decode(item), number)
        else:
            yield Left.BOOKKEEPING

    def end(self) -> Iterator[Found]:
        yield from super().end()
        status = self._info.exit_status
        if not self._has_task or not status:
            return
        is_done = status.lower() == _SUBMITTED and self._info.resolved is not False
        quality = 1.0 if self._info.resolved else None
        text = f"Ended as: {status}"
        if self._info.resolved is not None:
            text += "; the issue is solved" if self._info.resolved else "; the issue is not solved"
        yield self._entry("completed" if is_done else "failed", "end", text, quality=quality)

    def _step(self, step: _Step, number: int) -> Iterator[Found]:
        thought, action = (step.thought or "").strip(), (step.action or "").strip()
        if thought:
            yield self._entry("assistant", f"trajectory:{number}", thought)
        if action:
            call = Call(name="bash", arguments={"command": action})
            result = Result(output=step.observation or "")
            yield entry_of(call, result, self._id(f"trajectory:{number}"), None, run=self._run)
        if not thought and not action:
            yield Left.NO_TEXT

    def _requested(self, text: str, id: str) -> Iterator[Found]:
        self._has_task = True
        yield from request(self._entry("user", id, _task(text)), begins_run=True)

    def _message(self, message: _Message, number: int) -> Iterator[Found]:
        extra = message.extra if isinstance(message.extra, dict) else {}
        self._at = extra.get("timestamp") or message.timestamp or self._at
        text, id = text_of(message.content), f"messages:{number}"
        if message.role == "system" or message.role == "exit":
            yield Left.HARNESS
        elif message.role == "user" and not self._has_task:
            yield from self._requested(text, id)
        elif message.role == "assistant":
            yield from self._answered(message, extra, text, id)
        elif message.role in ("tool", "user"):
            yield self._observed(message, extra, text, id)
        else:
            yield Left.NO_TEXT

    def _answered(self, message: _Message, extra: Mapping[str, Any], text: str, id: str) -> Iterator[Found]:
        thought = _FENCED.sub("", text).strip()
        yield self._entry("assistant", id, thought) if thought else Left.NO_TEXT
        calls = message.tool_calls if isinstance(message.tool_calls, list) else []
        made = [(_call_id(call), _call_of(call)) for call in calls if isinstance(call, dict)]
        if not made:
            actions = extra.get("actions") if isinstance(extra.get("actions"), list) else None
            commands = [text_of(action.get("command")) for action in actions or () if isinstance(action, dict)]
            commands = commands or _FENCED.findall(text)
            made = [(f"{id}:{place}", _shell(command)) for place, command in enumerate(commands)]
        self._open = [call_id for call_id, _ in made]
        for call_id, call in made:
            yield from self._called(call_id, call)

    def _observed(self, message: _Message, extra: Mapping[str, Any], text: str, id: str) -> Found:
        """Return the entry for a result and its call: the call that the message names, or else the first open call."""
        call_id = message.tool_call_id or (self._open.pop(0) if self._open else "")
        call = self._calls.take(call_id)
        if call is None:
            return Left.HARNESS
        raw, code = extra.get("raw_output"), extra.get("returncode")
        stated = _RETURN_CODE.match(text)
        exit_code = code if type(code) is int else None if stated is None else int(stated[1])
        output = raw if isinstance(raw, str) else _OUTPUT.sub("", text)
        result = Result(output=output, exit_code=exit_code)
        return entry_of(call, result, self._id(id), time_of(self._at), run=self._run)

    @property
    def _run(self) -> str:
        return f"{self.session.client}:{self.session.id}"

    def _entry(self, what: What, id: str, text: str, quality: float | None = None) -> Entry:
        return Entry(what=what, id=self._id(id), text=text, at=time_of(self._at), run=self._run, quality=quality)

    def _id(self, part: str) -> str:
        return f"{self.session.id}:{part}"


def _task(text: str) -> str:
    """Return the issue in a prompt, without the instructions to the agent."""
    for opening, closing in _MARKS:
        begin = text.find(opening)
        end = text.find(closing, begin)
        if 0 <= begin < end:
            text = text[begin + len(opening) : end].strip()
            break
    return _LEAD.sub("", text).strip()[:_MOST_TASK_CHARS]


def _call_id(call: Mapping[str, Any]) -> str:
    return str(call.get("id", ""))


def _call_of(call: Mapping[str, Any]) -> Call:
    function = call.get("function")
    function = function if isinstance(function, dict) else {}
    return Call(name=str(function.get("name", "")), arguments=arguments_of(function.get("arguments")))


def _shell(command: str) -> Call:
    return Call(name="bash", arguments={"command": command})
