"""Test `recall` with `--explain`, `--dates`, `--at` and `--profile`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import Result

from memory_agent.cli.explanation import Asked, print_explanation
from memory_agent.cli.render import print_memories
from memory_agent.memory import Memory
from memory_agent.records.memories import Judgement, MemoryFilter, MemoryRecord, Origin, RecallResult, RetrievedMemory
from memory_agent.records.shared import QualityMetrics, SharedOrigin
from memory_agent.storage.folders import user_folder

Run = Callable[..., Result]
RunJson = Callable[..., Any]

HANGS = "Why does the deploy of the billing service hang at the health check?"
VPN = "It was the tunnel: reconnecting fixed it"


def said(day: int, session: str, text: str) -> dict[str, Any]:
    return {
        "event_type": "chat.user_msg",
        "timestamp": f"2026-02-{day:02}T10:{len(text) % 60:02}:00Z",
        "user_id": "default",
        "session_id": session,
        "payload": {"text": text},
    }


@pytest.fixture
def diary(data_dir: Path) -> None:
    """Two weeks in which the same question is asked twice and answered once."""
    with Memory.open(user_folder(data_dir, "default"), user_id="default") as memory:
        memory.ingest(
            [
                said(10, "s-1", VPN),
                said(10, "s-1", HANGS),
                said(17, "s-2", HANGS.lower() + "!"),
                said(18, "s-3", "Write the release notes of version three"),
            ]
        )


QUESTION = ("recall", "why did the deploy hang last week?", "--at", "2026-02-25")


@pytest.mark.usefixtures("diary")
def test_the_table_shows_parts_dates_filters_and_neighbours(run: Run) -> None:
    result = run(*QUESTION, "--explain", "--kind", "episode")
    assert result.exit_code == 0, result.output
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "dates understood last week = 2026-02-16 … 2026-02-22" in lines
    assert "filters kinds episode" in lines
    assert "memories that pass 4" in lines
    assert "# score cosine words fused date context lent alike when what" in lines
    assert "words: word match relative to the best match" in lines
    assert any("**deploy**" in line and line.startswith("matched: ") for line in lines)
    assert sum(line.startswith("seen 2 times, ") for line in lines) == 1
    assert any(line.startswith("lent by #") for line in lines)
    assert any(line.startswith("also ") and line.endswith("in session s-1") for line in lines)


@pytest.mark.usefixtures("diary")
def test_the_columns_of_a_row_add_up_to_its_score(run: Run) -> None:
    shown = run(*QUESTION, "--explain", "--min-relevance", "0").stdout.splitlines()
    rows = [line.split() for line in shown if line[:1].isdigit()]
    assert len(rows) == 3
    for _, score, _cosine, _words, *parts in rows:
        fused, date, context, lent, alike = map(float, parts[:5])
        assert float(score) == pytest.approx(fused + date + context + lent - alike, abs=0.003)


@pytest.mark.usefixtures("diary")
def test_a_time_in_the_query_filters_on_request(run: Run, run_json: RunJson) -> None:
    document = run_json(*QUESTION, "--dates", "filter", "--min-relevance", "0")
    assert [memory["record"]["session_id"] for memory in document["memories"]] == ["s-2", "s-3"]
    assert document["dates"] == [
        {"phrase": "last week", "since": "2026-02-16T00:00:00Z", "until": "2026-02-23T00:00:00Z"}
    ]
    assert run_json(*QUESTION, "--dates", "ignore")["dates"] == []
    shown = {mode: run(*QUESTION, "--explain", "--dates", mode).stdout for mode in ("filter", "boost")}
    assert "date last week = 2026-02-16 … 2026-02-22" in shown["filter"]
    assert "date last week" not in shown["boost"]


@pytest.mark.usefixtures("diary")
def test_a_profile_sets_number_and_kinds(run: Run, run_json: RunJson) -> None:
    asked = ("recall", "deploy", "--min-relevance", "0", "--profile")
    assert run_json(*asked, "document")["memories"] == []
    assert len(run_json(*asked, "before_planning")["memories"]) == 3
    refused = run("recall", "deploy", "--profile", "bedtime")
    assert (refused.exit_code, "before_planning" in refused.stderr) == (2, True)


@pytest.mark.usefixtures("diary")
def test_nothing_found_is_explained_too(run: Run) -> None:
    words = ("--session", "none", "--dates", "filter", "--profile", "document")
    result = run(*QUESTION, "--explain", *words)
    assert result.exit_code == 0
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "dates understood last week = 2026-02-16 … 2026-02-22" in lines
    assert "dates do filter" in lines
    assert "filters kinds finding, pattern, session_id none, date last week = 2026-02-16 … 2026-02-22" in lines
    assert "memories that pass none was found" in lines


@pytest.mark.usefixtures("diary")
def test_later_memories_are_shown_as_in_the_future(run: Run) -> None:
    for words in ((), ("--explain",)):
        shown = run("recall", "why did the deploy hang", "--at", "2024-02-10", *words).stdout
        assert "in 2 years" in shown
        assert "just now" not in shown


def memory(record_id: str, day: int, **fields: Any) -> RetrievedMemory:
    record = MemoryRecord(
        id=record_id, text="The deploy hangs", source="user_input", kind="episode",
        timestamp=datetime(2026, 2, day, tzinfo=UTC), quality_score=1.0,
    )  # fmt: skip
    parts = dict.fromkeys(
        ("vector", "lexical", "fused", "date_boost", "context", "contiguity", "likeness", "alpha"), 0.5
    )
    explanation: dict[str, Any] = parts | {
        "lent_by": [],
        "like": None,
        "filters": {},
        "dates_mode": "boost",
    }
    explanation |= fields.pop("explanation", {})
    return RetrievedMemory(
        record=record,
        score=0.5,
        lexical_score=1.0,
        sona_score=0.5,
        retrieval="hybrid",
        explanation=explanation,
        **fields,
    )


def shared(record_id: str, **fields: Any) -> RetrievedMemory:
    """Return another user's memory, whose explanation is empty."""
    origin = SharedOrigin(
        author="Ann \x1b[2J Lee", version="2", content_type="document", access_policy="org:acme",
        published_at=datetime(2026, 2, 18, tzinfo=UTC), metrics=QualityMetrics(distinct_users=10), is_proven=True,
    )  # fmt: skip
    return msgspec.structs.replace(memory(record_id, 10, **fields), tier="global", explanation={}, shared=origin)


def explained(capsys: pytest.CaptureFixture[str], *memories: RetrievedMemory) -> list[str]:
    result = RecallResult(recall_id="r", memories=memories)
    print_explanation(result, datetime(2026, 2, 25, tzinfo=UTC), Asked(MemoryFilter(), None))
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("explanation", [{}, {"centred": False}, {"centred": True, "words": 0.4, "near": 0.5}])
def test_the_parts_of_a_score_are_columns(capsys: pytest.CaptureFixture[str], explanation: dict[str, Any]) -> None:
    """Explanations from daemons older and newer than this version."""
    lines = explained(capsys, memory("a", 10, explanation=explanation))
    assert "# score cosine words fused date context lent alike when what" in lines
    assert not any("centred" in line for line in lines)


def test_duplicates_that_are_not_listed_are_counted_and_do_not_boost_their_original(
    capsys: pytest.CaptureFixture[str],
) -> None:
    times = [datetime(2026, 2, day, tzinfo=UTC) for day in range(24, 16, -1)]
    origins = tuple(Origin(id=f"o{t.day}", timestamp=t, source="user_input", quality_score=0.1) for t in times)
    much = memory("a", 10, count=12, origins=origins, first_seen=datetime(2026, 2, 1, tzinfo=UTC), last_seen=times[0],
                  explanation={"lent_by": ["o20", "b"]})  # fmt: skip
    lines = explained(capsys, much, memory("b", 11))
    assert "… and 3 more" in lines
    assert sum(line.startswith("also ") for line in lines) == 8
    assert "lent by another copy of it, #2" in lines
    assert "ended: approved (1.0)" in lines
    assert "seen 12 times, first 3 weeks ago, last 1 day ago: failed (0.1)" in lines
    (row,) = (line for line in lines if line.startswith("1 0.500"))
    assert "2 weeks ago" in row


def test_what_others_shared_is_marked_in_both_forms(capsys: pytest.CaptureFixture[str]) -> None:
    said = 'shared by "Ann 2J Lee", version 2, used by 10+ people'
    also = msgspec.structs.replace(memory("b", 11), shared=shared("s").shared)
    for memories in ((shared("s"), memory("a", 10), also), (shared("s"),)):
        lines = explained(capsys, *memories)
        assert "document of another user" in lines
        assert f"{said}; proven by use; access org:acme" in lines
        assert (f"also {said}; proven by use; access org:acme" in lines) is (also in memories)
        assert any(line.startswith("1 0.500 - - - ") and "7 days ago" in line for line in lines)
        print_memories(RecallResult(recall_id="r", memories=memories), datetime(2026, 2, 25, tzinfo=UTC))
        lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
        assert lines[:3] == ["1 7 days ago · document · score 0.50 (hybrid, cosine 0.50) · ended: approved (1.0) · s",
                             said, "| The deploy hangs"]  # fmt: skip
        assert (f"also {said}" in lines) is (also in memories)


def test_it_shows_what_the_judge_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    judgement = Judgement(offered=50, selected=2, left_out=("b", "c"), notes="one\u202e fits", is_cached=True)
    result = RecallResult(recall_id="r", memories=(memory("a", 10, explanation={"by_score": 7}),), judgement=judgement)
    print_explanation(result, datetime(2026, 2, 25, tzinfo=UTC), Asked(MemoryFilter(), None))
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert {"judge selected 2 of 50 (cached)", "judge left out b, c", "judge's notes one\ufffd fits"} <= set(lines)
    assert "selected by the judge; number 7 by score" in lines


def test_no_memory_controls_the_terminal(run: Run, data_dir: Path) -> None:
    with Memory.open(user_folder(data_dir, "default"), user_id="default") as memory:
        memory.remember("deploy \x1b[2J\x07 gone \u202e txt", title="a\x1b]0;b")
    assert not {"\x1b", "\x07", "\u202e"} & set(run("recall", "deploy", "--explain").stdout)


def test_the_learned_part_has_a_column_and_names_its_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = {"trajectory_id": "run-7", "similarity": 0.82, "quality": 1.0}
    learned = {
        "arm": "learned",
        "learned": 0.31,
        "association": 0.25,
        "shift": 0.0,
        "outcome": 0.06,
        "caused_by": [run],
    }
    lines = explained(capsys, memory("a", 10, explanation=learned), memory("b", 11, explanation={"learned": 0.0}))
    assert "score = fused + date + context + lent + learned - alike" in lines
    assert "# score cosine words fused date context lent learned alike when what" in lines
    assert "learned: used before +0.250, how its run ended +0.060" in lines
    assert "because of run run-7, whose request has a similarity of 82%, which ended with 1.0" in lines


def test_an_outcome_has_a_column_where_it_changed_a_score(capsys: pytest.CaptureFixture[str]) -> None:
    ended = {"quality": 0.8, "outcome": 0.06}
    lines = explained(
        capsys, memory("a", 10, explanation=ended), memory("b", 11, explanation={"quality": None, "outcome": 0.0})
    )
    assert "score = fused + date + context + lent + outcome - alike" in lines
    assert "# score cosine words fused date context lent outcome alike when what" in lines
    assert [line for line in lines if line.startswith("outcome")] == ["outcome +0.060: ended with 0.8"]
    neutral = explained(capsys, memory("a", 10, explanation={"quality": 0.5, "outcome": 0.0}))
    assert "score = fused + date + context + lent - alike" in neutral


def test_a_request_shows_how_many_similar_ones_it_stands_for(data_dir: Path, run: Run) -> None:
    wordings = (
        "the billing service to the second cluster",
        "billing to cluster two, the second",
        "cluster two: billing",
    )
    with Memory.open(user_folder(data_dir, "default"), user_id="default") as memory:
        for number, wording in enumerate(wordings):
            memory.runs.begin(f"deploy {wording}", f"run-{number}")
            memory.runs.end(f"run-{number}", quality=1.0 if number == 0 else 0.5)
        for number in range(8):
            memory.remember(f"The billing service has {number} replicas in cluster {number}, said the deploy log")
    lines = run("recall", f"deploy {wordings[0]} today", "--explain").stdout.splitlines()
    told = [line.strip() for line in lines if "requests represented" in line]
    assert told == ["similar requests represented: 2, ended 0.5, 0.5"]
