"""Reads an airline agent's runs (tau-bench, Yao et al. 2024): request, steps, and whether the run succeeded.

A file is a list of `{task_id, trial, reward, messages: [{role, content, tool_calls?: [{name, arguments}]}]}`; the
reward is 0 or 1, depending on the final state of the airline's database. The request is the user's first message. A run
is converted to the events that a conductor would publish: the agent's messages and tool calls are steps, its last
message is the summary, and the reward determines whether the run completed or failed. Tool results are omitted because
they are JSON. The instruction is omitted because the agent never saw it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from memory_agent.errors import InvalidInputError

_END = "###STOP###"


class _ToolCall(msgspec.Struct, frozen=True):
    name: str
    arguments: str = ""


class _Message(msgspec.Struct, frozen=True):
    role: str
    content: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Entry(msgspec.Struct, frozen=True):
    task_id: int
    trial: int
    reward: float
    messages: list[_Message]


class RecordedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run. `steps` are (event type, text) pairs, in order; `ending` is the agent's last message."""

    task: int
    trial: int
    succeeded: bool
    request: str
    steps: tuple[tuple[str, str], ...]
    ending: str

    @property
    def run_id(self) -> str:
        """The run's id in published events."""
        return f"task-{self.task}-trial-{self.trial}"


class AirlineRuns(msgspec.Struct, frozen=True, kw_only=True):
    """The runs in a file, and the file's SHA-256 digest."""

    digest: str
    runs: tuple[RecordedRun, ...]


def read_airline(file: Path) -> AirlineRuns:
    """Read a file of runs. Raises `InvalidInputError`."""
    try:
        content = file.read_bytes()
        entries = msgspec.json.decode(content, type=list[_Entry])
    except OSError as error:
        raise InvalidInputError(str(file), f"cannot be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise InvalidInputError(str(file), f"is not a file of airline runs: {error}") from error
    runs = tuple(_run(entry) for entry in entries if any(message.role == "user" for message in entry.messages))
    if len({(run.task, run.trial) for run in runs}) != len(runs):
        raise InvalidInputError(str(file), "contains a duplicate combination of task and trial")
    return AirlineRuns(digest=sha256(content).hexdigest(), runs=runs)


def events_of(run: RecordedRun, user_id: str, at: datetime, recall_ids: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the events of a run that started at `at`, one second apart; `recall_ids` are the ids of its recalls."""
    asked = {"recall_ids": list(recall_ids)} if recall_ids else {}
    events = [_event(run, user_id, at, 0, "conductor.run.started", {"objective": run.request} | asked)]
    for place, (event_type, text) in enumerate(run.steps, 1):
        key = "objective" if event_type == "conductor.assignment.dispatched" else "message"
        events.append(_event(run, user_id, at, place, event_type, {key: text}))
    event_type, key = ("completed", "summary") if run.succeeded else ("failed", "error")
    return [*events, _event(run, user_id, at, len(events), f"conductor.run.{event_type}", {key: run.ending})]


def _run(entry: _Entry) -> RecordedRun:
    said = [message.content.strip() for message in entry.messages if message.role == "assistant" and message.content]
    return RecordedRun(
        task=entry.task_id,
        trial=entry.trial,
        succeeded=entry.reward > 0,
        request=next(m.content or "" for m in entry.messages if m.role == "user").replace(_END, "").strip(),
        steps=tuple(_steps(entry.messages)),
        ending=said[-1] if said else "The conversation ended.",
    )


def _steps(messages: list[_Message]) -> Iterator[tuple[str, str]]:
    for message in messages:
        if message.role == "assistant" and message.content:
            yield "worker.report.received", message.content.strip()
        for call in message.tool_calls or ():
            yield "conductor.assignment.dispatched", f"{call.name} {call.arguments}"


def _event(
    run: RecordedRun, user_id: str, at: datetime, place: int, event_type: str, payload: dict[str, Any]
) -> dict[str, Any]:
    return {
        "event_id": f"{user_id}:{run.run_id}:{place}",
        "event_type": event_type,
        "timestamp": (at + timedelta(seconds=place)).isoformat(),
        "user_id": user_id,
        "session_id": run.run_id,
        "payload": payload | {"run_id": run.run_id},
    }
