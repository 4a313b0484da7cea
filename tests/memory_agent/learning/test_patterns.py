"""Patterns of recurring requests, computed as a pure function of runs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from ulid import ULID

from memory_agent.learning.patterns import LEAST_RUNS, PastRun, find_patterns
from memory_agent.records.memories import MemoryRecord
from memory_agent.records.trajectories import Outcome

START = datetime(2026, 3, 2, 9, tzinfo=UTC)
NDIM = 384

LOGIN, INVOICES, CACHE = (np.random.default_rng(seed).standard_normal(NDIM) for seed in range(3))


def patterns(runs: Sequence[PastRun]) -> list[MemoryRecord]:
    return [found.record for found in find_patterns(runs)]


def near(
    topic: np.ndarray[tuple[int], np.dtype[np.float64]], number: int
) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Return the vector of a request about `topic`, with a cosine of about .9 to other requests about this topic."""
    vector = topic + 0.3 * np.random.default_rng([number, int(abs(topic[0]) * 1e6)]).standard_normal(NDIM)
    return (vector / np.linalg.norm(vector)).astype(np.float32)


def run(
    number: int,
    topic: np.ndarray[tuple[int], np.dtype[np.float64]] = LOGIN,
    *,
    objective: str = "fix the login",
    session: str | None = None,
    outcome: Outcome = "completed",
    quality: float = 0.8,
    steps: Sequence[str] = (),
    used: Sequence[str] = (),
    at: datetime | None = None,
) -> PastRun:
    return PastRun(
        id=f"run-{number}",
        objective=objective,
        vector=near(topic, number),
        session_id=session or f"s-{number}",
        ended_at=at or START + timedelta(days=number),
        outcome=outcome,
        quality=quality,
        steps=tuple(steps),
        used=tuple(used),
    )


def only(runs: Sequence[PastRun]) -> MemoryRecord:
    (record,) = patterns(runs)
    return record


def many() -> list[PastRun]:
    """Thirty runs that alternate between three topics, enough to centre the vectors."""
    topics = {"fix the login": LOGIN, "send the invoices": INVOICES, "clear the cache": CACHE}
    names = list(topics)
    return [run(n, topics[names[n % 3]], objective=names[n % 3]) for n in range(30)]


def test_three_similar_runs_on_different_days_are_a_pattern_with_request_count_and_outcomes() -> None:
    record = only([run(1, quality=1.0), run(2), run(3, outcome="failed", quality=0.0), run(4, quality=0.4)])
    assert record.kind == "pattern"
    assert record.source == "trajectory_outcome"
    assert record.title == "fix the login"
    assert "Asked 4 times from 2026-03-03 to 2026-03-06, most typically: fix the login" in record.text
    counts = "1 approved, 1 completed, 1 completed but retried or rated low, 1 failed; mean quality 0.55."
    assert f"How it ended: {counts}" in record.text
    assert record.quality_score == pytest.approx(0.55)
    assert record.timestamp == START + timedelta(days=4)
    assert record.metadata == {
        "run_ids": ["run-1", "run-2", "run-3", "run-4"],
        "runs": 4,
        "succeeded": 2,
        "failed": 1,
        "used": [],
        "steps": [],
        "failed_steps": [],
    }


@pytest.mark.parametrize("count", range(LEAST_RUNS))
def test_fewer_than_three_runs_are_no_pattern(count: int) -> None:
    assert patterns([run(number) for number in range(count)]) == []


def test_runs_of_one_session_on_one_day_are_one_occasion_and_no_pattern() -> None:
    same = [run(number, session="s", at=START + timedelta(minutes=number)) for number in range(5)]
    assert patterns(same) == []
    assert patterns([*same[:-1], run(9, session="s", at=START + timedelta(days=1))]) != []
    assert patterns([*same[:-1], run(9, session="t", at=START)]) != []


def test_runs_about_different_things_are_different_patterns() -> None:
    found = patterns(many())
    assert {record.title for record in found} == {"fix the login", "send the invoices", "clear the cache"}
    assert [record.metadata["runs"] for record in found] == [10, 10, 10]


def test_requests_that_are_all_alike_form_one_pattern_despite_centring() -> None:
    assert only([run(number) for number in range(40)]).metadata["runs"] == 40


def test_runs_that_resemble_no_other_are_in_no_pattern() -> None:
    strays = [run(50 + seed, np.random.default_rng(seed).standard_normal(NDIM)) for seed in range(10, 14)]
    assert only([run(1), run(2), run(3), *strays]).metadata["run_ids"] == ["run-1", "run-2", "run-3"]


def test_a_pattern_that_grows_keeps_its_id_and_another_has_another() -> None:
    runs = many()
    before, after = patterns(runs[:27]), patterns(runs)
    assert [record.id for record in before] == [record.id for record in after]
    assert len({record.id for record in after}) == 3
    assert [record.metadata["runs"] for record in before] != [record.metadata["runs"] for record in after]


def test_the_id_is_a_ulid_of_the_first_runs_time() -> None:
    runs = [run(number) for number in range(1, 5)]
    assert ULID.from_str(only(runs).id).datetime == runs[0].ended_at


def test_steps_that_successful_runs_share_are_quoted_in_their_order_with_the_runs_that_took_them() -> None:
    runs = [
        run(1, steps=["Create the structure", "Add the dependencies", "Write the tests"]),
        run(2, steps=["Create the structure", "Read the news", "Write the tests"]),
        run(3, steps=["create the structure!", "Add the dependencies", "Write the tests"], quality=1.0),
        run(4, steps=["Write the tests", "Create the structure", "Copy it all"], outcome="failed", quality=0.0),
        run(5, steps=["Copy it all"], outcome="failed", quality=0.0),
    ]
    record = only(runs)
    shared = "create the structure! (3 of 3); Add the dependencies (2 of 3); Write the tests (3 of 3)"
    assert f"What successful runs did, in this order: {shared}" in record.text
    assert "What only failed runs did: Copy it all (2 of 2)" in record.text
    assert [step["run_ids"] for step in record.metadata["steps"]] == [
        ["run-3", "run-2", "run-1"],
        ["run-3", "run-1"],
        ["run-3", "run-2", "run-1"],
    ]
    assert record.metadata["failed_steps"] == [{"text": "Copy it all", "run_ids": ["run-5", "run-4"]}]


def test_the_order_of_runs_does_not_matter() -> None:
    runs = many()
    shuffled = random.Random(3).sample(runs, len(runs))
    assert patterns(shuffled) == patterns(runs)


def test_forgetting_runs_reduces_or_removes_their_pattern() -> None:
    runs = [run(1, quality=1.0, steps=["a secret step"]), run(2), run(3), run(4)]
    assert "a secret step" in only(runs).text
    rest = only(runs[1:])
    assert "a secret step" not in rest.text
    assert "run-1" not in rest.metadata["run_ids"]
    assert rest.quality_score == pytest.approx(0.8)
    assert patterns(runs[2:]) == []


def test_the_steps_are_those_of_the_best_run_and_the_newest_of_equals() -> None:
    runs = [
        run(1, quality=0.8, steps=["restarted it"]),
        run(2, quality=1.0, steps=["read the log", "added a mutex"]),
        run(3, quality=1.0, steps=["read the log", "Read the log.", "", "added a lock"]),
        run(4, quality=1.0),
    ]
    assert "What the best run did (2026-03-05, quality 1.00): read the log; added a lock" in only(runs).text


def test_without_a_successful_run_no_steps_are_recommended() -> None:
    runs = [run(number, outcome="failed", quality=0.0, steps=["restarted it"]) for number in range(3)]
    assert "best run" not in only(runs).text
    assert "restarted it" not in only(runs).text


def test_steps_common_to_failed_runs_only_are_listed() -> None:
    failed = [
        run(n, outcome="failed", quality=0.0, steps=["read the log", "deleted the table", f"x{n}"]) for n in (1, 2)
    ]
    done = [run(n, steps=["read the log", "copied the table"]) for n in (3, 4)]
    assert "What only failed runs did: deleted the table (2 of 2)" in only(failed + done).text
    assert "no other" not in only([*failed[:1], *done]).text
    assert "no other" not in only([*failed, run(5, steps=["Read the log.", "Deleted the table!"])]).text


def test_memories_that_two_successful_runs_used_are_named_most_used_first() -> None:
    runs = [run(1, used=["a", "b"]), run(2, used=["b", "c", "a"]), run(3, used=["b"])]
    wrong = run(4, outcome="failed", quality=0.0, used=["c"])
    assert only([*runs, wrong]).metadata["used"] == ["b", "a"]


def test_the_size_of_a_pattern_is_bounded() -> None:
    steps = [f"{k} " + "step" * 900 for k in range(100)]
    runs = [run(n, objective="please\n\n" + "fix it " * 500, steps=steps) for n in range(60)]
    record = only(runs)
    assert len(record.text) < 2_500
    assert record.title is not None
    assert len(record.title) <= 80
    assert "\n" not in record.title
    assert "(92 more)" in record.text
    assert record.metadata["runs"] == 60
    assert record.metadata["run_ids"] == [f"run-{n}" for n in range(10, 60)]


def test_runs_without_a_request_or_with_a_vector_that_is_none_belong_to_no_pattern() -> None:
    broken = PastRun("x", "fix the login", np.full(NDIM, np.nan, np.float32), "s", START, "completed", 0.8)
    silent = run(7, objective="  \n")
    assert only([run(1), run(2), run(3), broken, silent]).metadata["run_ids"] == ["run-1", "run-2", "run-3"]
