"""ATIF, the Agent Trajectory Interchange Format 1.x: one JSON document with a list of steps per run.

The format has no field for the outcome, so the outcome is read from `extra.reward` (0 to 1), which evaluations add.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from memory_agent.sessions.entries import Bad, Entry, Found, Left, Session, What, request, text_of, time_of
from memory_agent.sessions.readers import Reader
from memory_agent.sessions.tool_calls import Call, Result, entry_of
from relay import described

NAME = "atif"
_VERSION = re.compile(r"ATIF-v1\.\d+")


class _ToolCall(msgspec.Struct, frozen=True):
    tool_call_id: str
    function_name: str
    arguments: dict[str, Any] = {}


class _Result(msgspec.Struct, frozen=True):
    source_call_id: str | None = None
    content: Any = None
    extra: Any = None


class _Observation(msgspec.Struct, frozen=True):
    results: list[_Result] = []


class _Step(msgspec.Struct, frozen=True):
    step_id: int
    source: str
    message: Any = None
    timestamp: Any = None
    tool_calls: list[_ToolCall] | None = None
    observation: _Observation | None = None
    is_copied_context: bool | None = None


class _Trajectory(msgspec.Struct, frozen=True):
    steps: list[_Step]
    trajectory_id: str | None = None


_steps = msgspec.json.Decoder(described(_Step))
_trajectories = msgspec.json.Decoder(described(_Trajectory))
_texts = msgspec.json.Decoder(str | None)
_objects = msgspec.json.Decoder(dict[str, Any] | None)


class AtifReader(Reader):
    """Reads one trajectory. A run without an id gets one from the name of its file."""

    def __init__(self, path: Path) -> None:
        super().__init__(Session(client=NAME, id=f"{path.absolute().parent.name}/{path.stem}"))
        self._is_known = False
        self._has_task = False
        self._reward: float | None = None
        self._at: Any = None

    def begin(self, head: Mapping[str, bytes]) -> Iterator[Found]:
        version = _texts.decode(head.get("schema_version", b"null")) or ""
        self._is_known = _VERSION.fullmatch(version) is not None
        if not self._is_known:
            yield Bad("has a schema_version that is not ATIF-v1.x")
        ids = (_texts.decode(head.get(name, b"null")) for name in ("trajectory_id", "session_id"))
        self.session.id = next(filter(None, ids), self.session.id)
        extra = _objects.decode(head.get("extra", b"null")) or {}
        self._reward = next((value for value in (extra.get("reward"),) if _is_share(value)), None)

    def read(self, item: bytes, number: int, member: str = "") -> Iterator[Found]:
        if not self._is_known:
            yield Left.BOOKKEEPING
        elif member == "steps":
            yield from self._step(_steps.decode(item), "")
        elif member == "subagent_trajectories":
            embedded = _trajectories.decode(item)
            agent = embedded.trajectory_id or f"subagent-{number}"
            for step in embedded.steps:
                yield from self._step(step, agent)
        else:
            yield Left.BOOKKEEPING

    def end(self) -> Iterator[Found]:
        if self._has_task and self._reward is not None:
            what: What = "failed" if self._reward == 0 else "completed"
            yield Entry(
                what=what,
                id=f"{self.session.id}:end",
                text=f"Ended with a reward of {self._reward:g}",
                at=time_of(self._at),
                run=self._run,
                quality=self._reward,
            )

    def _step(self, step: _Step, agent: str) -> Iterator[Found]:
        self._at = step.timestamp or self._at
        if step.is_copied_context:
            yield Left.COPIED
        elif step.source == "system":
            yield Left.HARNESS
        else:
            yield from self._message(step, agent)
            yield from self._called_tools(step, agent)

    def _message(self, step: _Step, agent: str) -> Iterator[Found]:
        text = text_of(step.message)
        if not text:
            yield Left.NO_TEXT
        elif step.source != "user":
            yield self._entry(step, "assistant", text, agent)
        elif agent:
            yield self._entry(step, "assignment", text, agent)
        else:
            begins, self._has_task = not self._has_task, True
            yield from request(self._entry(step, "user", text, agent), begins_run=begins)

    def _called_tools(self, step: _Step, agent: str) -> Iterator[Found]:
        results = [] if step.observation is None else step.observation.results
        by_call = {result.source_call_id: result for result in results}
        for call in step.tool_calls or ():
            result = by_call.get(call.tool_call_id, results[0] if len(results) == 1 else _Result())
            yield entry_of(
                Call(name=call.function_name, arguments=call.arguments),
                Result(output=text_of(result.content), exit_code=_exit_code(result)),
                f"{self._id(step, agent)}:{call.tool_call_id}",
                time_of(self._at),
                run=self._run,
                agent=agent or None,
            )

    def _entry(self, step: _Step, what: What, text: str, agent: str) -> Entry:
        id, at = self._id(step, agent), time_of(self._at)
        return Entry(what=what, id=id, text=text, at=at, run=self._run, agent=agent or None)

    def _id(self, step: _Step, agent: str) -> str:
        return ":".join(filter(None, (self.session.id, agent, str(step.step_id))))

    @property
    def _run(self) -> str | None:
        return f"{NAME}:{self.session.id}" if self._has_task else None


def _exit_code(result: _Result) -> int | None:
    code = result.extra.get("exit_code") if isinstance(result.extra, dict) else None
    return code if type(code) is int else None


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
