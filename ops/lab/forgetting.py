"""Measures two projects in one memory: whether teaching B destroys gains from A, and whether teaching A harms B.

A user's memory contains two conversations. One learner is taught A and then B; a second learner, on the same memory, is
taught only B. Both projects' repeated questions are measured. After only A has been taught, all of B's test questions
are measured too. Every result is the difference from the result for the same questions with learning off.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np

from memory_agent.evaluation import History, Question
from ops.lab.arms import CITE, OFF, ORACLE, Arm
from ops.lab.course import Course, Setup, course
from ops.lab.gains import Array, Difference, difference
from ops.lab.histories import make_split, merged, project

Moment = Literal["A after A", "A after B", "B after A", "B after B", "B alone"]
"""The project tested, and the project taught just before the test; in `B alone`, A was never taught."""

KEPT = 0.8
"""The share of a gain that must remain."""


@dataclass(frozen=True)
class PairJob:
    """One pair of projects with one seed and arm. `user`'s memory contains both."""

    seed: int
    place: int
    user: str
    first: History
    second: History
    arm: Arm


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """How much of one project's gain in recall at 5 remains if another project is taught too.

    `alone` is the gain before or without the other project, `beside` is the gain with it, and `share` is `beside` /
    `alone`, or None if there is no gain. `margin` is `beside` minus .8 times `alone`; the target is reached if `margin`
    is at least 0.
    """

    project: Literal["A", "B"]
    alone: Difference
    beside: Difference
    share: float | None
    margin: Difference


class Forgetting(msgspec.Struct, frozen=True, kw_only=True):
    """The retention of a learner taught by one signal; `harm` is the change in recall for B after only A is taught."""

    arm: str
    pairs: int
    seeds: int
    kept: tuple[Kept, ...]
    harm: Difference


class Moments(msgspec.Struct, frozen=True, kw_only=True):
    """Recall at 5 for each question in a job, measured at each moment."""

    arm: str
    seed: int
    user: str
    asked: dict[Moment, dict[str, float]]


Compared = tuple[Moments, Moments]
"""A learner's results, and the results with learning off."""


def pairs(histories: Sequence[History]) -> list[tuple[History, History]]:
    """Pair each history with the next, and the last with the first. Two histories make one pair, and a single history
    makes none."""
    following = [*histories[1:], *histories[:1]]
    return list(zip(histories, following, strict=True))[: len(histories) if len(histories) > 2 else len(histories) - 1]


def pair_user(first: History, second: History) -> str:
    """Return the id of the user whose memory contains both projects."""
    return f"{first.user}+{second.user}"


def jobs(histories: Sequence[History], arms: Sequence[Arm], seeds: Sequence[int]) -> list[PairJob]:
    """Return the experiment's jobs, for the arms `OFF`, `ORACLE` and `CITE`."""
    arms = [arm for arm in arms if arm.name in (OFF, ORACLE, CITE)]
    return [
        PairJob(seed, place, pair_user(first, second), first, second, arm)
        for seed in seeds
        for place, (first, second) in enumerate(pairs(histories))
        for arm in arms
    ]


def run_job(setup: Setup, job: PairJob) -> Moments:
    """Teach the learners, and measure their recall at each `Moment`."""
    random = np.random.default_rng((job.seed, job.place, 2))
    a, b = (make_split("random", project(part), random) for part in (job.first, job.second))
    again_a, again_b = (tuple(q for q in split.test if q.id in split.repeated) for split in (a, b))
    asked: dict[Moment, dict[str, float]] = {}
    with _course(setup, job) as both:
        both.teach(a.train)
        asked["A after A"], asked["B after A"] = _found(both, again_a), _found(both, b.test)
        both.teach(b.train)
        asked["A after B"], asked["B after B"] = _found(both, again_a), _found(both, again_b)
    with _course(setup, job) as alone:
        alone.teach(b.train)
        asked["B alone"] = _found(alone, again_b)
    return Moments(arm=job.arm.name, seed=job.seed, user=job.user, asked=asked)


def summarise(moments: Sequence[Moments]) -> list[Forgetting]:
    """Return, for each arm, the retained gain over the arm `OFF`."""
    off = {(part.seed, part.user): part for part in moments if part.arm == OFF}
    by_arm: dict[str, list[tuple[Moments, Moments]]] = {}
    for part in moments:
        if part.arm != OFF:
            by_arm.setdefault(part.arm, []).append((part, off[part.seed, part.user]))
    return [
        Forgetting(
            arm=arm,
            pairs=len({own.user for own, _ in of_arm}),
            seeds=len({own.seed for own, _ in of_arm}),
            kept=(
                *_kept("A", of_arm, "A after A", "A after B"),
                *_kept("B", of_arm, "B alone", "B after B"),
            ),
            harm=_mean(*_gains(of_arm, "B after A")),
        )
        for arm, of_arm in by_arm.items()
    ]


def _course(setup: Setup, job: PairJob) -> AbstractContextManager[Course]:
    history = merged((job.first, job.second), job.user)
    return course(setup, job.arm, history, np.random.default_rng((job.seed, job.place, 3)))


def _found(taught: Course, questions: Sequence[Question]) -> dict[str, float]:
    return {id_: figures.recall_at_5 for id_, figures in taught.ask(questions).items()}


def _kept(name: Literal["A", "B"], of_arm: Sequence[Compared], alone: Moment, beside: Moment) -> Iterator[Kept]:
    """Yield how much of a gain remains; yield nothing if no questions were repeated."""
    before, units = _gains(of_arm, alone)
    after, _ = _gains(of_arm, beside)
    if not units:
        return
    gain = float(before.mean())
    yield Kept(
        project=name,
        alone=_mean(before, units),
        beside=_mean(after, units),
        share=float(after.mean()) / gain if gain > 0 else None,
        margin=_mean(after - KEPT * before, units),
    )


def _gains(of_arm: Sequence[Compared], moment: Moment) -> tuple[Array, list[str]]:
    """Return each question's gain over the arm `OFF`, (q,), and its user."""
    gains, units = [], []
    for own, off in of_arm:
        gains += [recall - off.asked[moment][id_] for id_, recall in own.asked[moment].items()]
        units += [own.user] * len(own.asked[moment])
    return np.array(gains), units


def _mean(values: Array, units: Sequence[str]) -> Difference:
    return difference(values[:, None], units)[0]
