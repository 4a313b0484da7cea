"""Test the questions about kinds that `ops.bench.kinds` derives from runs, and the page that it writes."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from memory_agent.evaluation import Dataset, History
from ops.bench import kinds
from ops.bench.kind_questions import HALVES, read_kinds


def run(number: int) -> dict[str, Any]:
    steps = [
        ("Let me see which modules read the header", 'grep -rn "read_header" src', 0, f"src/reader_{number}.py:3"),
        ("Now I run the tests", f"python -m pytest tests/test_{number}.py", 1, "E   assert 1 == 2"),
        ("And again", f"python -m pytest tests/test_{number}.py -q", 0, "3 passed"),
        ("The header is read in full now; all tests pass", "submit", None, ""),
    ]
    return {
        "instance_id": f"headers-{number}",
        "task": f"Header {number} loses its last line\n\nIt begins at one.",
        "steps": [
            {
                "thought": thought,
                "command": json.dumps({"command": command}),
                "output": None if code is None else f"<returncode>{code}</returncode>\n<output>\n{output}\n</output>",
            }
            for thought, command, code, output in steps
        ],
    }


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("runs") / "swe_runs_dev.json"
    file.write_text(json.dumps([run(number) for number in range(6)]))
    return file


@pytest.fixture(scope="module")
def dataset(file: Path) -> Dataset:
    return read_kinds(file)


def answers(history: History, id_: str) -> list[tuple[str | None, str]]:
    """Return the types and texts of the items that answer a question."""
    question = next(question for question in history.questions if question.id == id_)
    return [(item.type, item.text) for item in history.items if item.id in question.relevant]


def test_each_half_has_its_own_issues_and_wordings(dataset: Dataset) -> None:
    users = [history.user for history in dataset.histories]
    assert sorted(user.partition("-")[0] for user in users) == sorted(HALVES)
    for history in dataset.histories:
        categories = {question.category for question in history.answerable}
        assert {"conclusion", "failure, last", "command, yesterday", "request", "error", "issue"} <= categories
        assert ("in de" in categories, "error, reworded" in categories) == (history.user.startswith("held"),) * 2


def test_answers_follow_from_exit_codes_types_and_places(dataset: Dataset) -> None:
    history = dataset.histories[0]
    issue = history.questions[0].group
    tests = ("history.command.completed", "1\n\nE   assert 1 == 2"), ("history.command.completed", "0\n\n3 passed")
    assert answers(history, f"{issue}:failure:0") == [tests[0]]
    assert answers(history, f"{issue}:command:0") == list(tests)
    assert answers(history, f"{issue}:error:0") == [tests[0]]
    ending = "The header is read in full now; all tests pass"
    assert answers(history, f"{issue}:conclusion:0") == [("history.run.completed", ending)]
    assert [type_ for type_, _ in answers(history, f"{issue}:request:0")] == ["history.user_msg", "history.run.started"]
    (event, *_) = history.events("alice")
    assert (event["event_type"], event["payload"]["run_id"]) == ("history.user_msg", "run-0")


def test_the_weight_finds_what_was_not_found(file: Path) -> None:
    pairs = kinds.measure("held", file, None, lambda _: None)
    asked = [(before, after) for before, after in pairs if before.question.category == "conclusion"]
    assert not any(before.metrics["recall@1"] for before, _ in asked)
    assert all(after.metrics["recall@1"] for _, after in asked)
    text = kinds.page({"held": pairs}, {"cores": "2"}, datetime(2026, 11, 28, tzinfo=UTC))
    rows = [line for line in text.splitlines() if line.startswith("| conclusion |")]
    assert [row.split(" | ")[2].partition(" ")[0] for row in rows] == ["0.0"]
    assert [row.split(" | ")[5].partition(" ")[0] for row in rows] == ["+100.0"]
