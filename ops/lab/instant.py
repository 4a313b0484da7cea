"""Measures the instant layer by comparing the shipped learner with the same learner without the layer.

The layer is active, and is therefore measured, in two states: while the bank is nearly empty, and once it cannot hold
every lesson. In the *cold* state, half of a conversation's other questions are asked after 15 lessons. In the *full*
state, all conversations are in one memory: 85 % of their questions (more than the bank's 512 exemplars) serve as
lessons, and the others are asked. Each course is taught once, with the layer, and then tested both with and without it,
so both tests use the same lessons. The bank is measured both by itself and with the learner's other parts, as shipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Literal, get_args

import msgspec
import numpy as np

from memory_agent.evaluation import History, Question
from ops.lab.arms import ARMS, BANK, Arm, Signal
from ops.lab.course import Figures, Setup, course
from ops.lab.gains import METRICS, Array, Difference, difference
from sona import Learner

State = Literal["cold", "full"]
STATES: tuple[State, ...] = get_args(State)
SIGNALS: tuple[Signal, ...] = ("oracle", "cite")
Parts = Literal["bank alone", "as shipped"]
PARTS: tuple[Parts, ...] = get_args(Parts)
Group = Literal["repeated", "new"]
GROUPS: tuple[Group, ...] = get_args(Group)

_COLD_LESSONS = 15
_FULL_SHARE = 0.85
_BANK_ALONE = next(arm.parts for arm in ARMS if arm.name == BANK)


@dataclass(frozen=True)
class InstantJob:
    """One course. `place` is the history's position, which is part of the random seed."""

    state: State
    seed: int
    place: int
    history: History
    signal: Signal
    parts: Parts


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """One question with and without the instant layer; `is_repeated` if it shares evidence with a taught question."""

    state: State
    signal: Signal
    parts: Parts
    unit: str
    is_repeated: bool
    with_layer: Figures
    without: Figures


class InstantGain(msgspec.Struct, frozen=True, kw_only=True):
    """The layer's effect on each metric; `changed` counts the answers whose metrics it changed."""

    state: State
    signal: Signal
    parts: Parts
    group: Group
    answers: int
    changed: int
    differences: dict[str, Difference]


class InstantReport(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one measurement of the layer."""

    conversations: int
    seeds: int
    took_s: float
    gains: tuple[InstantGain, ...]


def jobs(histories: Sequence[History], everything: History, seeds: Sequence[int]) -> list[InstantJob]:
    """Return the courses to run: cold on each history, and full on `everything`."""
    places: list[tuple[State, int, History]] = [
        *(("cold", place, history) for place, history in enumerate(histories)),
        ("full", len(histories), everything),
    ]
    return [
        InstantJob(state, seed, place, history, signal, parts)
        for seed in seeds
        for state, place, history in places
        for signal in SIGNALS
        for parts in PARTS
    ]


def run_job(setup: Setup, job: InstantJob) -> list[Compared]:
    """Teach one course, and ask its test questions with and without the layer."""
    random = np.random.default_rng((job.seed, job.place, 7))
    questions = job.history.answerable
    shuffled = [questions[place] for place in random.permutation(len(questions))]
    most = _COLD_LESSONS if job.state == "cold" else round(len(shuffled) * _FULL_SHARE)
    train, rest = shuffled[:most], shuffled[most:]
    test = rest[: len(rest) // 2] if job.state == "cold" else rest
    arm = Arm("instant layer", job.signal, "on", (), parts=_BANK_ALONE if job.parts == "bank alone" else {})
    with course(setup, arm, job.history, random) as taught:
        taught.teach(train)
        with_layer = taught.ask(test)
        with _without_layer():
            without = taught.ask(test)
    return list(_compared(job, train, test, with_layer, without))


def summarise(compared: Sequence[Compared]) -> list[InstantGain]:
    """Return the layer's effects by state, signal, parts and group, omitting empty groups."""
    by_kind: dict[tuple[State, Signal, Parts, Group], list[Compared]] = {}
    for one in compared:
        group: Group = "repeated" if one.is_repeated else "new"
        by_kind.setdefault((one.state, one.signal, one.parts, group), []).append(one)
    kinds = product(STATES, SIGNALS, PARTS, GROUPS)
    return [_gain(*kind, by_kind[kind]) for kind in kinds if kind in by_kind]


def _compared(
    job: InstantJob,
    train: Sequence[Question],
    test: Sequence[Question],
    with_layer: dict[str, Figures],
    without: dict[str, Figures],
) -> Iterator[Compared]:
    taught_items = {item for question in train for item in question.relevant}
    for question in test:
        yield Compared(
            state=job.state,
            signal=job.signal,
            parts=job.parts,
            unit=job.history.user if job.state == "cold" else next(iter(question.relevant)).split("/")[0],
            is_repeated=not taught_items.isdisjoint(question.relevant),
            with_layer=with_layer[question.id],
            without=without[question.id],
        )


def _gain(state: State, signal: Signal, parts: Parts, group: Group, compared: Sequence[Compared]) -> InstantGain:
    ahead: Array = np.array([one.with_layer for one in compared]) - np.array([one.without for one in compared])
    return InstantGain(
        state=state,
        signal=signal,
        parts=parts,
        group=group,
        answers=len(compared),
        changed=int((ahead != 0.0).any(axis=1).sum()),
        differences=dict(zip(METRICS, difference(ahead, [one.unit for one in compared]), strict=True)),
    )


@contextmanager
def _without_layer() -> Iterator[None]:
    """Turn the layer off within the `with` block, since no setting does so."""
    usual = Learner.uses_instant
    Learner.uses_instant = False  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        Learner.uses_instant = usual  # type: ignore[method-assign]
