"""The rule by which what followed a run counts: bounded, a fraction of a run, below every verdict."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_agent.learning.implicit_quality import SOON_US, implicit_quality, taught_quality
from memory_agent.learning.outcomes import COMPLETED, FAILED, LATER_SUCCESS, RETRIED, ending, raised
from memory_agent.records.trajectories import Reason, RunEnd, SignKind
from memory_agent.storage.stored_runs import Echo, Mark, StoredSign, StoredTrajectory

END_US = 1_000_000_000_000
_BEGIN = Mark(END_US - 60_000_000, "begin", "conductor.run.started", "begin", row=1)


def run(
    *kinds: SignKind,
    outcome: RunEnd | None = "completed",
    verdict: tuple[float, Reason] | None = None,
    echoes: tuple[Echo, ...] = (),
    after_us: int = 60_000_000,
) -> StoredTrajectory:
    """A run with these signs, all `after_us` later, as `RunWriter` settles it."""
    marks = [_BEGIN]
    if outcome is not None:
        marks.append(Mark(END_US, "end", "conductor.run.completed", "end", row=2, outcome=outcome))
    if verdict is not None:
        quality, reason = verdict
        marks.append(Mark(END_US + 1, "told", "feedback.rated", "feedback", quality=quality, reason=reason))
    told = ending(marks, echoes)
    return StoredTrajectory(
        "r",
        marks=tuple(marks),
        echoes=echoes,
        begin_row=1,
        began_us=_BEGIN.at_us,
        ended_us=told.ended_us,
        outcome=told.outcome,
        revisions=told.revisions,
        signs=tuple(StoredSign(END_US + after_us, kind, 3 + place, 0.9) for place, kind in enumerate(kinds)),
    )


def test_a_completed_run_is_moved_towards_what_followed_it() -> None:
    assert implicit_quality(run()) is None
    assert implicit_quality(run("asked_again")) == pytest.approx(0.8 / 1.2)
    assert implicit_quality(run("asked_again", after_us=SOON_US + 1)) == pytest.approx(0.8 / 1.1)
    assert implicit_quality(run("later_success")) == pytest.approx(0.9 / 1.1)
    assert implicit_quality(run("went_on")) == pytest.approx(0.85 / 1.05)
    assert implicit_quality(run("went_on", "later_success")) == implicit_quality(run("later_success"))
    assert implicit_quality(run("went_on", "later_success", "asked_again")) == implicit_quality(run("asked_again"))


def test_a_run_without_an_end_is_moved_only_by_clear_signs() -> None:
    assert implicit_quality(run("asked_again", outcome=None)) == pytest.approx(0.5 / 1.2)
    assert implicit_quality(run("later_success", outcome=None)) == pytest.approx(0.6 / 1.1)
    assert implicit_quality(run("went_on", outcome=None)) is None
    assert taught_quality(run("asked_again", outcome=None)) is None


@pytest.mark.parametrize(
    "verdict",
    [(1.0, "approved"), (0.0, "rejected"), (0.8, "rated"), (0.3, "rated")],
)
def test_a_stated_verdict_wins_over_what_followed(verdict: tuple[float, Reason]) -> None:
    for outcome in ("completed", "failed", None):
        judged = run("asked_again", "went_on", "later_success", outcome=outcome, verdict=verdict)
        assert implicit_quality(judged) is None
        assert taught_quality(judged) == (None if outcome is None else verdict[0])


def test_failed_cancelled_and_retried_runs_and_linked_successes_stay_as_they_are() -> None:
    signs: tuple[SignKind, ...] = ("went_on", "later_success")
    assert implicit_quality(run(*signs, outcome="failed")) is None
    assert implicit_quality(run(*signs, outcome="cancelled")) is None
    assert implicit_quality(run(*signs, echoes=(Echo("x", 0, END_US),))) is None
    assert implicit_quality(run("asked_again", echoes=(Echo("x", 1, END_US),))) is None


_KINDS: tuple[SignKind, ...] = ("asked_again", "went_on", "later_success")


@given(st.lists(st.sampled_from(_KINDS), unique=True), st.integers(0, 4 * SOON_US))
def test_what_followed_is_bounded_and_never_turns_the_order_of_verdicts(kinds: list[SignKind], after_us: int) -> None:
    completed = implicit_quality(run(*kinds, after_us=after_us)) or COMPLETED
    unknown = implicit_quality(run(*kinds, outcome=None, after_us=after_us)) or 0.5
    assert abs(completed - COMPLETED) < 0.15
    assert abs(unknown - 0.5) < 0.15
    assert FAILED < RETRIED < unknown < completed < raised(COMPLETED, 3) <= LATER_SUCCESS


def test_the_bands_of_runs_with_and_without_an_end_do_not_meet() -> None:
    moved = {
        (outcome, kind): implicit_quality(run(kind, outcome=outcome))
        for outcome, kind in product(("completed", None), _KINDS)
    }
    ended = [quality for (outcome, _), quality in moved.items() if outcome and quality is not None]
    open_ended = [quality for (outcome, _), quality in moved.items() if not outcome and quality is not None]
    assert max(open_ended) < 0.6 < min(ended)
