"""Test `sessions` and `map`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

Run = Callable[..., Result]
RunJson = Callable[..., Any]


@pytest.fixture
def filled(run: Run) -> None:
    for number in range(4):
        words = ["--session", f"s-{number % 3}", "--channel", f"c-{number % 2}", "--at", f"2026-02-1{number}"]
        result = run("remember", f"Request\n{number}", *words)
        assert result.exit_code == 0, result.output


def test_sessions_are_a_table_with_the_cursor_of_the_next_page(filled: None, run: Run) -> None:
    lines = run("sessions", "--limit", "2").stdout.splitlines()
    assert lines[0] == "2 of 3 sessions"
    assert lines[2].split() == ["2026-02-13", "00:00", "UTC", "2", "0", "Request", "0", "s-0"]
    cursor = lines[-1].removeprefix("next page: --after ")
    assert [line.split()[-1] for line in run("sessions", "--after", cursor).stdout.splitlines()[2:]] == ["s-1"]


def test_the_json_of_sessions_is_that_of_the_verb(filled: None, run_json: RunJson) -> None:
    page = run_json("sessions", "--in-channel", "c-1", "--limit", "1")
    assert (page["total"], page["next_cursor"] is None) == (2, False)
    assert page["sessions"] == [
        {
            "session_id": "s-0",
            "first": "2026-02-13T00:00:00Z",
            "last": "2026-02-13T00:00:00Z",
            "memories": 1,
            "runs": 0,
            "kinds": {"finding": 1},
            "channel_id": "c-1",
            "title": "Request 0",
        }
    ]


def test_a_map_is_printed_as_figures_and_as_columns(filled: None, run: Run, run_json: RunJson) -> None:
    lines = run("map").stdout.splitlines()
    assert lines[1].split() == ["memories", "with", "a", "position", "4", "of", "4"]
    assert lines[2].split() == ["sessions", "3"]
    columns = run_json("map", "--limit", "3")
    assert (len(columns["ids"]), len(columns["x"]), len(columns["y"]), columns["total"]) == (3, 3, 3, 4)
    assert set(columns["titles"]) < {f"Request {number}" for number in range(4)}


def test_an_unknown_user_has_no_sessions_and_no_map(run: Run) -> None:
    for verb in ("sessions", "map"):
        result = run(verb, "--user", "nobody")
        assert result.exit_code == 0
        assert "nobody" in result.stderr
