"""Compares an arm both with the arm `OFF` and with its own control, and computes each difference with its interval.

Differences per question and seed are resampled by whole conversations (`evaluation.bootstrap`), because a
conversation's questions share turns, and a question's seeds are not independent. The gain is the smaller of the
differences from `OFF` and from the control, because a gain that the control also shows does not come from use.

Shapes: q answers (one per question and seed), m metrics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, get_args

import msgspec
import numpy as np
import numpy.typing as npt

from memory_agent.evaluation import FEWEST, RESAMPLES, SEED, bootstrap
from ops.lab.arms import CONTROLS, OFF
from ops.lab.course import Figures
from ops.lab.histories import SplitName
from ops.lab.trials import STAGES, Answered

Group = Literal["repeated", "new", "all"]
GROUPS: tuple[Group, ...] = get_args(Group)
METRICS = Figures._fields
HEADLINE = "recall_at_5"

Array = npt.NDArray[np.float64]
Key = tuple[int, str]
"""A seed and a question id."""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A mean difference with its 95 % bootstrap interval, which is None if there are too few units."""

    mean: float
    low: float | None
    high: float | None


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """An arm's results on one group of a split's test questions, after all training.

    `means` and `over_off` are keyed by metric; `over_control` refers to recall at 5. `gain` is the smaller of the
    differences in recall at 5, or None for arms without a control.
    """

    arm: str
    split: SplitName
    group: Group
    answers: int
    means: dict[str, float]
    over_off: dict[str, Difference]
    over_control: Difference | None
    gain: float | None


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A point on a learning curve: recall at 5 for repeated questions, minus the recall with learning off at the same
    stage."""

    arm: str
    taught: int
    mean: float
    over_off: Difference


def standings(answered: Sequence[Answered]) -> list[Standing]:
    """Return each arm's results by split and group, without empty or redundant groups."""
    final = [answer for answer in answered if answer.taught == STAGES[-1]]
    found = []
    for split in dict.fromkeys(answer.split for answer in final):
        groups: tuple[Group, ...] = GROUPS if split == "random" else ("new",)
        for group in groups:
            by_arm = _by_arm(answer for answer in final if answer.split == split and _is_in(answer, group))
            found += [_standing(arm, split, group, by_arm) for arm in by_arm]
    return found


def curve(answered: Sequence[Answered]) -> list[Point]:
    """Return the learning curves of the arms that were evaluated at every stage."""
    points = []
    for stage in STAGES:
        by_arm = _by_arm(a for a in answered if a.taught == stage and a.split == "random" and a.is_repeated)
        points += [(arm, stage, _values(of_arm), _over(of_arm, by_arm[OFF])) for arm, of_arm in by_arm.items()]
    column = METRICS.index(HEADLINE)
    whole = {arm for arm, stage, *_ in points if stage == STAGES[0]}
    return [
        Point(arm=arm, taught=stage, mean=float(values[:, column].mean()), over_off=differences[column])
        for arm, stage, values, differences in points
        if arm in whole
    ]


def difference(differences: Array, units: Sequence[str]) -> list[Difference]:
    """Return the mean and interval of each column of `differences` (q, m), resampling whole `units` (q,)."""
    numbers = {unit: number for number, unit in enumerate(dict.fromkeys(units))}
    resampled = bootstrap(differences, np.array([numbers[unit] for unit in units]), RESAMPLES, SEED)
    low, high = np.nanpercentile(resampled, (2.5, 97.5), axis=0)
    is_known = len(numbers) >= FEWEST
    return [
        Difference(
            mean=float(differences[:, column].mean()),
            low=float(low[column]) if is_known else None,
            high=float(high[column]) if is_known else None,
        )
        for column in range(differences.shape[1])
    ]


def _standing(arm: str, split: SplitName, group: Group, by_arm: Mapping[str, dict[Key, Answered]]) -> Standing:
    over_off = dict(zip(METRICS, _over(by_arm[arm], by_arm[OFF]), strict=True))
    control = by_arm.get(CONTROLS.get(arm, ""))
    over_control = None if control is None else _over(by_arm[arm], control)[METRICS.index(HEADLINE)]
    return Standing(
        arm=arm,
        split=split,
        group=group,
        answers=len(by_arm[arm]),
        means=dict(zip(METRICS, map(float, _values(by_arm[arm]).mean(axis=0)), strict=True)),
        over_off=over_off,
        over_control=over_control,
        gain=None if over_control is None else min(over_off[HEADLINE].mean, over_control.mean),
    )


def _over(own: Mapping[Key, Answered], other: Mapping[Key, Answered]) -> list[Difference]:
    return difference(_values(own) - _values({key: other[key] for key in own}), [own[key].user for key in own])


def _values(answers: Mapping[Key, Answered]) -> Array:
    """Return the answers' metrics, (q, m)."""
    return np.array([answer.figures for answer in answers.values()], dtype=np.float64)


def _by_arm(answered: Iterable[Answered]) -> dict[str, dict[Key, Answered]]:
    found: dict[str, dict[Key, Answered]] = {}
    for answer in answered:
        found.setdefault(answer.arm, {})[answer.seed, answer.question] = answer
    return found


def _is_in(answer: Answered, group: Group) -> bool:
    return group == "all" or answer.is_repeated == (group == "repeated")
