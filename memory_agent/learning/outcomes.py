"""Computes a run's outcome and quality by folding over its facts in chronological order. Pure.

    stated outright                  the stated value: approved 1, rejected 0, or a number; the latest counts
    cancelled                        none: neither a success nor a failure
    failed                           0
    completed                        .8
    completed, then retried          .4
    completed, and a related later run succeeded      q + (.9 - q) / 2^(hops - 1), at most three hops

A failed run remains failed even if a later run, such as its retry, succeeds. A trajectory known only from feedback ends
with the feedback. Each change of quality is a revision with a reason and a cause. A run that is cancelled after it
ended loses its quality and its revisions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from memory_agent.records.trajectories import Reason, RunEnd
from memory_agent.storage.stored_runs import Echo, Mark, StoredRevision

COMPLETED, RETRIED, LATER_SUCCESS, FAILED = 0.8, 0.4, 0.9, 0.0
SUCCEEDED = COMPLETED  # the minimum quality of a success, not counting the success of later runs
_OWN_ROLES = ("begin", "step", "end")


class Ending(NamedTuple):
    """The time and outcome of a run's end, and its quality revisions, oldest first. Only the last revision counts.

    All fields are empty while the run is open.
    """

    ended_us: int | None = None
    outcome: RunEnd | None = None
    revisions: tuple[StoredRevision, ...] = ()


class _Fact(NamedTuple):
    """A fact about a run's outcome or quality. `order` sorts facts with equal times."""

    at_us: int
    order: int
    cause: str
    outcome: RunEnd | None = None
    quality: float | None = None
    reason: Reason | None = None
    hop: int | None = None


@dataclass
class _State:
    ended_us: int | None = None
    outcome: RunEnd | None = None
    end_cause: str | None = None
    outright: _Fact | None = None
    retry: _Fact | None = None
    success: _Fact | None = None

    def take(self, fact: _Fact) -> None:
        if fact.outcome is not None and fact.outcome != self.outcome:
            self.ended_us, self.outcome, self.end_cause = fact.at_us, fact.outcome, fact.cause
        if fact.quality is not None:
            self.outright = fact
        if fact.hop == 0:
            self.retry = self.retry or fact
        elif fact.hop and (self.success is None or fact.hop < (self.success.hop or 0)):
            self.success = fact

    def quality(self) -> tuple[float, Reason, str | None] | None:
        if self.outcome is None:
            return None
        if self.outright is not None and self.outright.quality is not None:
            return self.outright.quality, self.outright.reason or "rated", self.outright.cause
        if self.outcome == "cancelled":
            return None
        if self.outcome == "failed":
            return FAILED, "failed", self.end_cause
        return self._completed()

    def _completed(self) -> tuple[float, Reason, str | None]:
        own = COMPLETED if self.retry is None else RETRIED
        if self.success is not None and self.success.hop:
            return raised(own, self.success.hop), "later_success", self.success.cause
        if self.retry is not None:
            return own, "retried", self.retry.cause
        return own, "completed", self.end_cause


def raised(quality: float, hop: int) -> float:
    """Return `quality`, increased because a later run, `hop` links away, succeeded."""
    return quality + (LATER_SUCCESS - quality) / float(1 << (hop - 1))


def ending(marks: Sequence[Mark], echoes: Iterable[Echo]) -> Ending:
    state, revisions = _State(), list[StoredRevision]()
    for fact in sorted((*_stated(marks), *_from_later_runs(marks, echoes)), key=lambda fact: fact[:3]):
        state.take(fact)
        judged = state.quality()
        if judged is None:
            revisions.clear()
        elif not revisions or judged[:2] != (revisions[-1].quality, revisions[-1].reason):
            quality, reason, cause = judged
            revisions.append(StoredRevision(quality, reason, fact.at_us, cause))
    return Ending(state.ended_us, state.outcome, tuple(revisions))


def succeeded(marks: Sequence[Mark], echoes: Iterable[Echo]) -> bool:
    """Return whether the run succeeded, judged by its own facts and retries. If so, earlier runs' quality rises."""
    own = ending(marks, [echo for echo in echoes if echo.hop == 0])
    return bool(own.revisions) and own.revisions[-1].quality >= SUCCEEDED


def _stated(marks: Sequence[Mark]) -> Iterator[_Fact]:
    is_feedback_alone = not any(mark.role in _OWN_ROLES for mark in marks)
    for mark in marks:
        outcome = mark.outcome
        if is_feedback_alone and (mark.quality is not None or mark.named):
            outcome = "failed" if mark.quality == 0.0 else "completed"
        if outcome is not None or mark.quality is not None:
            yield _Fact(mark.at_us, 0, mark.event_id, outcome, mark.quality, mark.reason)


def _from_later_runs(marks: Sequence[Mark], echoes: Iterable[Echo]) -> Iterator[_Fact]:
    """Yield the facts that follow from later runs. They take effect no earlier than the end of this run."""
    ended_us = max((mark.at_us for mark in marks if mark.outcome is not None), default=0)
    echoes = tuple(echoes)
    retrying = {echo.run_id for echo in echoes if echo.hop == 0}
    for echo in echoes:
        if echo.hop == 0 or echo.run_id not in retrying:
            yield _Fact(max(echo.at_us, ended_us), 1, echo.run_id, hop=echo.hop)
