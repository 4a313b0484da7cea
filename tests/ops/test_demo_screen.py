"""Test that the demo's screen fits every width, with and without colour, and describes memories as blocks do."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from memory_agent import context_block
from memory_agent.records.memories import MemoryRecord, RecallResult, RetrievedMemory
from ops.demo.screen import Screen

NOW = datetime(2026, 11, 21, 10, 0, tzinfo=UTC)
TEXT = "Customers are logged out in the middle of checkout: two refreshes of one session race.\nAssigned to: mender"


def shown_in(width: int, *, is_terminal: bool = False) -> str:
    """Return an example of each kind of output of a screen, at this width."""
    output = io.StringIO()
    screen = Screen(Console(file=output, width=width, highlight=False, force_terminal=is_terminal))
    screen.title("An episodic memory for agents", "What resembles it comes back. " * 6)
    screen.scene("1  The daemon starts")
    screen.say("  because of page-073 “The disk of db-9 is full, inserts are refused”, 67 % alike, ended: completed")
    screen.promise("every event was acknowledged: it was on disk, synced, before its acknowledgement left", holds=True)
    screen.promise("a promise that does not hold is shown on as many lines as it takes to say it", holds=False)
    screen.answer(answer(0.4, None), NOW)
    screen.block("what the planner gets", context_block(answer(1.0, 0.4, None), now=NOW))
    screen.listing(("now", "how it ended", "run and what it says"), [("1", "approved (1.0)", TEXT)])
    screen.table([("week 1", "36 (16) of 54", "25 (5) of 43")], header=("", "all pages", "likeness misleads"))
    return output.getvalue()


def answer(*qualities: float | None) -> RecallResult:
    """Return memories whose runs had these qualities. A quality may be in the explanation but not in the record."""
    records = [
        MemoryRecord(
            id=str(place), text=TEXT, source="user_input", kind="episode", timestamp=NOW - timedelta(days=21),
            run_id=f"pay-{place}", quality_score=quality,
        )
        for place, quality in enumerate(qualities)
    ]  # fmt: skip
    memories = (
        RetrievedMemory(
            record=record, score=0.5, lexical_score=None, sona_score=0.45, retrieval="vector", relevance=0.9,
            explanation={"quality": 0.0},
        )
        for record in records
    )  # fmt: skip
    return RecallResult(recall_id="r", memories=tuple(memories))


@pytest.mark.parametrize("width", [50, 80, 100, 120])
@pytest.mark.parametrize("is_terminal", [False, True])
def test_no_line_is_longer_than_the_screen(width: int, is_terminal: bool) -> None:
    lines = Text.from_ansi(shown_in(width, is_terminal=is_terminal)).plain.splitlines()
    assert len(lines) > 30
    assert max(map(cell_len, lines)) <= width


@pytest.mark.parametrize("width", [50, 80])
def test_no_fact_of_a_memory_is_lost(width: int) -> None:
    assert "0.45 ████ 0.90 3 weeks ago retried (0.4) pay-0" in " ".join(shown_in(width).split())


def test_facts_without_room_for_columns_are_lines_that_wrap() -> None:
    assert "0.90  3 weeks ago  retried" in shown_in(50)


@pytest.mark.parametrize(("columns", "width"), [(None, 100), ("80", 80), ("300", 100), ("7", 40)])
def test_the_width_is_that_of_the_terminal_or_of_the_variable_within_bounds(
    columns: str | None, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    assert Screen().console.width == width


def test_what_goes_on_begins_below_its_first_word() -> None:
    lines = shown_in(60).splitlines()
    place = next(place for place, line in enumerate(lines) if "✓ every event" in line)
    assert lines[place + 1].startswith("      ")
    quoted = next(place for place, line in enumerate(lines) if "│ | Customers" in line)
    assert lines[quoted + 1].startswith("    │   ")


def test_without_a_terminal_there_is_neither_colour_nor_a_blank_at_an_end() -> None:
    shown = shown_in(80)
    assert "\x1b" not in shown
    assert not any(line != line.rstrip() for line in shown.splitlines())


def test_no_color_leaves_out_the_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[32m" in shown_in(80, is_terminal=True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not any(f"[{code}m" in shown_in(80, is_terminal=True) for code in (31, 32, 33, 36))


def test_the_table_says_how_a_memory_ended_as_its_block_does() -> None:
    shown, block = shown_in(100), context_block(answer(0.4, None), now=NOW)
    for ended in ("retried (0.4)", "failed (0.0)"):
        assert f"3 weeks ago  {ended}" in shown
        assert f"ended: {ended}" in block


def test_one_is_no_plural_and_the_columns_are_explained_once() -> None:
    output = io.StringIO()
    screen = Screen(Console(file=output, width=100, highlight=False))
    screen.answer(answer(), NOW)
    screen.answer(answer(1.0), NOW)
    screen.answer(answer(1.0, 0.4), NOW)
    said = output.getvalue()
    assert [f"{count} in 0 ms" in said for count in ("0 memories", "1 memory", "2 memories")] == [True] * 3
    assert said.count("relevance: the probability") == 1
