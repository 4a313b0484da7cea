"""Measures false attributions on 100 real runs of an airline agent. No run was shown a memory.

A run's messages are treated as its output. Records from earlier runs, both of the same task and of other customers'
tasks, are treated as if they had been shown to the run. Naming a record of a different task is always wrong. Records
named within the same task show the limit of word overlap: using a memory looks the same as finding the same facts
again.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from memory_agent.learning.attribution import THRESHOLD, ShownText, weigh
from ops.bench.counted_texts import CountedTexts

_SHOWN = 10


def airline_lines(file: Path) -> Iterator[str]:
    """Yield the lines of the page's airline section."""
    runs: list[dict[str, Any]] = json.loads(file.read_bytes())
    yield from ("", "## Airline runs: share of earlier runs' records named (no run had access to any)", "")
    yield "| run output | run record | same task | other customers' tasks |"
    yield "|---|---|---|---|"
    for output_name, output_of in _OUTPUTS.items():
        for record_name, record_of in _RECORDS.items():
            own, other = _named(runs, output_of, record_of)
            yield f"| {output_name} | {record_name} | {_share(own)} | {_share(other)} |"


def _share(named: Sequence[bool]) -> str:
    return f"{np.mean(named):.1%} of {len(named)}"


def _named(
    runs: Sequence[dict[str, Any]], output_of: Callable[[Any], str], record_of: Callable[[Any], str]
) -> tuple[list[bool], list[bool]]:
    """Return whether each shown record is named: first for records of the run's own task, then for records of other
    customers' tasks.
    """
    chance, store = random.Random(0), CountedTexts(record_of(run) for run in runs)
    own: list[bool] = []
    other: list[bool] = []
    for run in runs:
        before = [one for one in runs if one["trial"] < run["trial"]]
        same = [one for one in before if one["task_id"] == run["task_id"]]
        strangers = [one for one in before if _customer(one) != _customer(run)]
        if same:
            shown = same + chance.sample(strangers, _SHOWN - len(same))
            texts = [ShownText(at, record_of(one)) for at, one in enumerate(shown)]
            weighed = weigh(output_of(run), _messages(run, "user")[0], texts, store)
            found = {one.row for one in weighed if one.score >= THRESHOLD}
            own += [at in found for at in range(len(same))]
            other += [at in found for at in range(len(same), len(shown))]
    return own, other


def _messages(run: Mapping[str, Any], role: str) -> list[str]:
    return [message["content"] for message in run["messages"] if message["role"] == role and message["content"]]


def _customer(run: Mapping[str, Any]) -> str:
    found = re.search(r"[a-z]+_[a-z]+_\d{4}", run["instruction"])
    return found[0] if found else str(run["task_id"])


def _calls(run: Mapping[str, Any]) -> str:
    calls = (call for message in run["messages"] for call in message["tool_calls"] or ())
    return "\n".join(f"{call['name']} {call['arguments']}" for call in calls)


_OUTPUTS: dict[str, Callable[[Any], str]] = {
    "all its messages": lambda run: "\n".join(_messages(run, "assistant")),
    "the longest of its last three messages": lambda run: max(_messages(run, "assistant")[-3:], key=len),
}
_RECORDS: dict[str, Callable[[Any], str]] = {
    "its last message": lambda run: _messages(run, "assistant")[-1],
    "the longest of its last three messages": _OUTPUTS["the longest of its last three messages"],
    "its tool calls": _calls,
    "all its messages": _OUTPUTS["all its messages"],
}
