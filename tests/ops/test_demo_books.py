"""Test the demo's ledger: nothing is lost, a loss would be visible, and broken promises are listed."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from memory_agent.records.memories import MemoryRecord, MemoryStats, RecallResult, RetrievedMemory
from memory_agent.verbs.protocol import DaemonStatus
from ops.demo.ledger import make_ledger
from ops.demo.screen import Screen

ROOT = Path(__file__).parents[2]
NOW = datetime(2026, 11, 21, 10, 0, tzinfo=UTC)
COUNT = st.integers(0, 1000)


def status(entries: int, quarantined: int) -> DaemonStatus:
    return DaemonStatus(
        version="1",
        uptime_s=1.0,
        endpoints={},
        parts=(),
        active_users=(),
        journal={"entries": entries, "quarantined": quarantined},
        dispatched={},
        recalls={},
        model=None,
    )


def stats(kept: int, dropped: dict[str, int], again: int = 0) -> MemoryStats:
    return MemoryStats(
        user_id="alice",
        memories=kept,
        by_kind={},
        by_source={},
        without_vector=0,
        events_kept=kept,
        events_duplicate=again,
        events_dropped=dropped,
        cursor=0,
        oldest=None,
        newest=None,
        model=None,
        index="exact",
        disk_bytes=0,
    )


@given(kept=COUNT, other=COUNT, noise=COUNT, repeats=COUNT, torn=COUNT, again=COUNT, missing=COUNT)
def test_only_an_event_in_no_place_is_lost(
    kept: int, other: int, noise: int, repeats: int, torn: int, again: int, missing: int
) -> None:
    published = kept + other + noise + repeats + torn + missing
    users = [stats(kept, {"heartbeat": noise}, again), stats(other, {})]
    ledger = make_ledger(published, repeats, status(kept + other + noise, torn), users)
    assert ledger.lost == missing


def test_an_event_that_is_in_two_places_shows_below_zero() -> None:
    assert make_ledger(1, 0, status(1, 1), [stats(1, {})]).lost == -1


def screen() -> tuple[Screen, io.StringIO]:
    output = io.StringIO()
    return Screen(Console(file=output, width=100, highlight=False)), output


def test_a_broken_promise_is_shown_and_collected() -> None:
    shown, output = screen()
    shown.promise("the sun rises", holds=True)
    shown.promise("it never rains", holds=False)
    assert shown.broken == ["it never rains"]
    assert shown.kept == 1
    assert "BROKEN it never rains" in output.getvalue()


def test_a_memory_cannot_use_the_markup_of_the_screen() -> None:
    shown, output = screen()
    record = MemoryRecord(
        id="1", text="[bold red]lost[/] everything", source="user_input", kind="episode", timestamp=NOW
    )
    found = RetrievedMemory(record=record, score=0.5, lexical_score=None, sona_score=0.5, retrieval="vector")
    shown.answer(RecallResult(recall_id="r", memories=(found,)), NOW)
    assert "[bold red]lost[/] everything" in output.getvalue()


@pytest.mark.slow
@pytest.mark.ray
def test_the_demo_tells_its_story_without_a_terminal_and_leaves_nothing_behind() -> None:
    with tempfile.TemporaryDirectory(prefix="d-") as folder:
        environment = os.environ | {"TMPDIR": folder}
        done = subprocess.run(
            [sys.executable, "-m", "ops.demo"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "BROKEN" not in done.stdout
        assert "lost                                     0" in done.stdout
        assert "\x1b" not in done.stdout
        assert os.listdir(folder) == []
