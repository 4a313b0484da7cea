"""Test the attribution figures, on synthetic scores and runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from ops.bench.attribution import Scored
from ops.bench.attribution_airline import airline_lines


def message(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content, "tool_calls": None}


def airline_run(task: int, trial: int, said: str) -> dict[str, Any]:
    return {
        "task_id": task,
        "trial": trial,
        "instruction": f"You are some_person_{1000 + task}.",
        "messages": [message("user", "Hello, please help."), message("assistant", said)],
    }


def test_precision_and_recall_are_reported_for_both_halves() -> None:
    scored = Scored(
        scores=np.array([5.0, 4.0, 1.0, 5.0, 0.0]),
        used=np.array([True, False, True, True, True]),
        chosen_on=np.array([True, True, True, False, False]),
    )
    assert scored.cells(4.0) == ["0.50", "0.50", "2", "1.00", "0.50", "1"]
    assert scored.cells(9.0) == ["-", "0.00", "0", "-", "0.00", "0"]


def test_a_threshold_for_a_precision_is_the_lowest_that_has_it_on_the_part_chosen_on() -> None:
    scores = np.arange(1.0, 101.0)
    scored = Scored(scores=scores, used=scores > 50, chosen_on=np.ones(100, dtype=bool))
    assert scored.least_with(1.0) == 51.0
    assert Scored(scores, scores < 0, scored.chosen_on).least_with(0.1) is None


def test_the_same_said_again_is_named_for_the_runs_own_task_and_not_for_others(tmp_path: Path) -> None:
    said = [f"Booked flight HAT{task:03} to Springfield{task} for passenger Quimby{task}." for task in range(12)]
    runs = [airline_run(task, trial, said[task]) for trial in range(2) for task in range(12)]
    file = tmp_path / "runs.json"
    file.write_text(json.dumps(runs), encoding="utf-8")
    lines = list(airline_lines(file))
    assert "| all its messages | its last message | 100.0% of 12 | 0.0% of 108 |" in lines
    assert "| all its messages | its tool calls | 0.0% of 12 | 0.0% of 108 |" in lines
