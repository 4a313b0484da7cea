"""The main experiment measures how much teaching improves answers, for each seed, split, user and arm.

All arms receive the same lessons and the same questions in the same order, on copies of the same store. In the random
split, arms with a learning curve are also asked the repeated questions at 0, 10, 25, 50 and 100 % of the training.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from memory_agent.evaluation import History
from memory_agent.records.trajectories import GateState
from ops.lab.arms import FEW, Arm
from ops.lab.course import Course, FeedbackCounts, Figures, Setup, course
from ops.lab.histories import SPLITS, Split, SplitName, make_split

STAGES = (0, 10, 25, 50, 100)
"""The points of the training, in percent, at which arms with a learning curve are asked the questions."""


@dataclass(frozen=True)
class CourseJob:
    """One course. `place` is the history's position, which is part of the random seed."""

    seed: int
    split: SplitName
    place: int
    history: History
    arm: Arm


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """One question's metrics in one course, after `taught` percent of the training."""

    arm: str
    split: SplitName
    seed: int
    user: str
    taught: int
    question: str
    is_repeated: bool
    figures: Figures


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A course's results: answers, feedback counts, and the gate's final state."""

    arm: str
    split: SplitName
    answered: tuple[Answered, ...]
    heard: FeedbackCounts
    gate: GateState
    served: dict[str, int]


def jobs(histories: Sequence[History], arms: Iterable[Arm], seeds: Iterable[int]) -> list[CourseJob]:
    """Return the courses to run; `histories` must contain only the measured questions."""
    arms = tuple(arms)
    return [
        CourseJob(seed, split, place, history, arm)
        for seed in seeds
        for split in SPLITS
        for place, history in enumerate(histories)
        for arm in arms
        if split in arm.splits and (seed < FEW or not arm.few)
    ]


def run_job(setup: Setup, job: CourseJob) -> Report:
    """Run one course."""
    split = split_of(job.split, job.history, job.seed, job.place)
    answered: list[Answered] = []
    with course(setup, job.arm, job.history, np.random.default_rng((job.seed, job.place, 1))) as taught:
        begun = 0
        for stage in STAGES if job.arm.curve and job.split == "random" else STAGES[-1:]:
            due = round(len(split.train) * stage / 100)
            status = taught.teach(split.train[begun:due])
            begun = due
            answered += _ask(taught, job, split, stage)
    return Report(
        arm=job.arm.name,
        split=job.split,
        answered=tuple(answered),
        heard=taught.heard,
        gate=status.gate.state,
        served=status.served,
    )


def split_of(name: SplitName, history: History, seed: int, place: int) -> Split:
    """Return the history's split for a seed, which is the same for every arm."""
    return make_split(name, history.answerable, np.random.default_rng((seed, place, 0)))


def _ask(taught: Course, job: CourseJob, split: Split, stage: int) -> Iterator[Answered]:
    """Ask the repeated questions or, after all training, all test questions."""
    asked = [question for question in split.test if stage == STAGES[-1] or question.id in split.repeated]
    for question, figures in taught.ask(asked).items():
        yield Answered(
            arm=job.arm.name,
            split=job.split,
            seed=job.seed,
            user=job.history.user,
            taught=stage,
            question=question,
            is_repeated=question in split.repeated,
            figures=figures,
        )
