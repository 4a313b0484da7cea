"""A run's quality: the rules, their order, and the cause of each revision."""

from __future__ import annotations

from typing import Any

import pytest

from memory_agent.learning.outcomes import ending, succeeded
from memory_agent.storage.stored_runs import Echo, Mark


def mark(at_us: int, role: Any = "end", **fields: Any) -> Mark:
    return Mark(at_us=at_us, event_id=f"e-{at_us}", event_type="x", role=role, **fields)


def told(marks: list[Mark], *echoes: Echo) -> list[tuple[float, str, int, str | None]]:
    revisions = ending(marks, echoes).revisions
    return [(round(told.quality, 4), told.reason, told.at_us, told.cause) for told in revisions]


BEGIN = mark(1, "begin")
DONE = mark(9, outcome="completed")


def test_an_open_run_has_no_quality_whatever_is_stated() -> None:
    judged = [BEGIN, mark(2, "feedback", quality=1.0, reason="approved")]
    assert ending(judged, [Echo("later", 1, 5), Echo("again", 0, 6)]) == (None, None, ())


def test_an_end_event_completes_or_fails_a_run() -> None:
    assert told([BEGIN, DONE]) == [(0.8, "completed", 9, "e-9")]
    assert told([mark(9, outcome="failed")]) == [(0.0, "failed", 9, "e-9")]


def test_a_cancelled_run_has_ended_and_has_no_quality_unless_it_is_stated() -> None:
    cancelled = mark(9, outcome="cancelled")
    assert ending([BEGIN, cancelled], [Echo("again", 0, 20), Echo("later", 1, 30)]) == (9, "cancelled", ())
    assert ending([DONE, mark(12, outcome="cancelled")], ()) == (12, "cancelled", ())
    assert told([cancelled, mark(12, outcome="failed")]) == [(0.0, "failed", 12, "e-12")]
    assert told([cancelled, mark(12, "feedback", quality=1.0, reason="approved")])[-1][:2] == (1.0, "approved")
    assert not succeeded([cancelled], ())


def test_of_two_ends_the_later_one_counts() -> None:
    ends = [DONE, mark(12, outcome="failed"), mark(13, outcome="failed")]
    assert told(ends) == [(0.8, "completed", 9, "e-9"), (0.0, "failed", 12, "e-12")]
    assert ending(ends, ()).ended_us == 12


def test_a_completed_run_that_was_retried_is_worth_half() -> None:
    assert told([DONE], Echo("again", 0, 20))[1:] == [(0.4, "retried", 20, "again")]
    assert told([DONE], Echo("again", 0, 4))[1:] == [(0.4, "retried", 9, "again")]  # takes effect when the run ends


def test_a_failed_run_stays_failed_whatever_later_runs_do() -> None:
    failed = [mark(9, outcome="failed")]
    assert told(failed, Echo("again", 0, 20), Echo("later", 1, 30)) == [(0.0, "failed", 9, "e-9")]


@pytest.mark.parametrize(("hop", "quality"), [(1, 0.9), (2, 0.85), (3, 0.825)])
def test_the_success_of_a_later_run_counts_half_as_much_with_each_link(hop: int, quality: float) -> None:
    assert told([DONE], Echo("later", hop, 20))[-1] == (quality, "later_success", 20, "later")


def test_the_nearest_success_counts_and_further_ones_add_nothing() -> None:
    echoes = [Echo("far", 3, 20), Echo("near", 1, 30), Echo("also", 1, 40), Echo("middle", 2, 50)]
    assert [row[0] for row in told([DONE], *echoes)] == [0.8, 0.825, 0.9]
    assert told([DONE], *echoes) == told([DONE], *reversed(echoes))


def test_a_retry_does_not_raise_the_run_it_retries_but_another_success_does() -> None:
    again = (Echo("again", 0, 20), Echo("again", 1, 20))
    assert told([DONE], *again)[-1][:2] == (0.4, "retried")
    assert told([DONE], *again, Echo("other", 1, 40))[-1][:2] == (0.9, "later_success")


def test_a_stated_quality_wins_over_all_and_the_latest_over_earlier_ones() -> None:
    feedback = [mark(30, "feedback", quality=1.0, reason="approved"), mark(40, "feedback", quality=0.3, reason="rated")]
    rows = told([DONE, *feedback], Echo("again", 0, 20), Echo("later", 1, 50))
    assert [row[:2] for row in rows] == [(0.8, "completed"), (0.4, "retried"), (1.0, "approved"), (0.3, "rated")]


def test_feedback_that_came_before_the_end_holds_from_the_end_on() -> None:
    assert told([mark(3, "feedback", quality=0.0, reason="rejected"), DONE]) == [(0.0, "rejected", 9, "e-3")]


def test_a_trajectory_of_feedback_alone_ends_with_it() -> None:
    assert told([mark(5, "feedback", named=(1,))]) == [(0.8, "completed", 5, "e-5")]
    assert ending([mark(5, "feedback", quality=0.0, reason="rejected")], ()).outcome == "failed"
    assert ending([mark(5, "feedback")], ()).ended_us is None
    assert ending([BEGIN, mark(5, "feedback", named=(1,))], ()).ended_us is None


def test_a_run_raises_earlier_runs_by_its_own_quality_without_later_successes() -> None:
    assert succeeded([DONE], [Echo("later", 1, 20)])
    assert not succeeded([DONE], [Echo("again", 0, 20), Echo("later", 1, 30)])
    assert not succeeded([DONE, mark(10, "feedback", quality=0.5, reason="rated")], [])
    assert not succeeded([BEGIN], [])
