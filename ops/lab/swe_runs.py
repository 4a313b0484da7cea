"""Reads a software-engineering agent's runs on GitHub issues (SWE-bench; Jimenez et al. 2024), with their outcomes.

A file is a list of `{instance_id, resolved, task, steps: [{thought}]}`; `resolved` is true if hidden tests passed. The
request is the beginning of the issue, the thoughts are steps, and the last long thought is the summary. Commands and
their outputs are omitted, since the thoughts describe them.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec

from memory_agent.errors import InvalidInputError
from ops.lab.airline import RecordedRun

_REQUEST_CHARS = 1_500
_LONG_CHARS = 140


class _Step(msgspec.Struct, frozen=True):
    thought: str | None = None


class _Entry(msgspec.Struct, frozen=True):
    instance_id: str
    resolved: bool
    task: str
    steps: list[_Step]


def read_swe_runs(file: Path) -> tuple[RecordedRun, ...]:
    """Read a file of runs, with each issue as a task. Raises `InvalidInputError`."""
    try:
        entries = msgspec.json.decode(file.read_bytes(), type=list[_Entry])
    except OSError as error:
        raise InvalidInputError(str(file), f"cannot be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise InvalidInputError(str(file), f"is not a file of runs: {error}") from error
    issues = {name: place for place, name in enumerate(dict.fromkeys(entry.instance_id for entry in entries))}
    trials = Counter[str]()
    runs = []
    for entry in entries:
        runs.append(_run(entry, issues[entry.instance_id], trials[entry.instance_id]))
        trials[entry.instance_id] += 1
    return tuple(runs)


def _run(entry: _Entry, task: int, trial: int) -> RecordedRun:
    thoughts = [step.thought.strip() for step in entry.steps if step.thought and step.thought.strip()]
    long = [thought for thought in thoughts if len(thought) > _LONG_CHARS]
    return RecordedRun(
        task=task,
        trial=trial,
        succeeded=entry.resolved,
        request=entry.task.strip()[:_REQUEST_CHARS],
        steps=tuple(("worker.report.received", thought) for thought in thoughts),
        ending=(long or thoughts or ["The run ended."])[-1],
    )
