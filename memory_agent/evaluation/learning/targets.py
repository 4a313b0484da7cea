"""What learning is held to, and beside each bound what was measured. A target without its figures is left out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from memory_agent.evaluation.learning.arms import CITE, GATED, ORACLE
from memory_agent.evaluation.learning.forgetting import KEPT, Forgetting
from memory_agent.evaluation.learning.gains import HEADLINE, Group, Point, Standing
from memory_agent.evaluation.learning.planning import HELD, ON, Planning
from memory_agent.evaluation.learning.splits import SplitName
from memory_agent.evaluation.learning.vigil import Vigil

ORACLE_GAIN, CITE_GAIN = 0.04, 0.015
MOST_HARM = -0.01
MOST_FALSE_ALARMS = 0.05


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A figure and its bound. `measured` is None where there were too few units to tell; then so is `reached`."""

    name: str
    measured: float | None
    bound: str
    reached: bool | None


def targets(
    standings: Sequence[Standing],
    curve: Sequence[Point],
    forgetting: Sequence[Forgetting],
    vigils: Sequence[Vigil],
    planning: Sequence[Planning],
) -> list[Target]:
    """Return the targets whose figures were measured."""
    return [
        *_gains(standings),
        *_no_gain_before(curve),
        *_kept(forgetting),
        *_gate(vigils),
        *_planned(planning),
    ]


def _gains(standings: Sequence[Standing]) -> Iterator[Target]:
    for arm, bound in ((ORACLE, ORACLE_GAIN), (CITE, CITE_GAIN)):
        if standing := _find(standings, arm, "random", "repeated"):
            over_off, over_control = standing.over_off[HEADLINE], standing.over_control
            yield _at_least(f"{arm}, repeated evidence: recall at 5 over learning off", over_off.mean, bound)
            yield _above(f"{arm}, repeated evidence: lower 95 % bound of that", over_off.low, 0.0)
            if over_control is not None:
                yield _above(f"{arm}, repeated evidence: over its shuffled control", over_control.mean, 0.0)
    if standing := _find(standings, GATED, "disjoint", "new"):
        name = f"{GATED}, evidence never used: recall at 5 over learning off"
        yield _at_least(name, standing.over_off[HEADLINE].mean, MOST_HARM)


def _no_gain_before(curve: Sequence[Point]) -> Iterator[Target]:
    before = [abs(point.over_off.mean) for point in curve if point.taught == 0]
    if before:
        yield _at_most("any gain before training", max(before), 0.0)


def _kept(forgetting: Sequence[Forgetting]) -> Iterator[Target]:
    for part in forgetting:
        for kept in part.kept:
            yield _at_least(f"{part.arm}, two projects: share of its gain that {kept.project} has", kept.share, KEPT)
        yield _above(f"{part.arm}, two projects: harm to the other one, lower 95 % bound", part.harm.low, MOST_HARM)


def _gate(vigils: Sequence[Vigil]) -> Iterator[Target]:
    for vigil in vigils:
        share = vigil.opened / vigil.streams
        if vigil.signal == "list":
            yield _at_most("list: share of streams in which the gate opened", share, 0.0)
        elif vigil.signal == "shuffled cite":
            yield _at_most("shuffled cite: share of streams in which the gate opened", share, MOST_FALSE_ALARMS)


def _planned(planning: Sequence[Planning]) -> Iterator[Target]:
    for held in HELD:
        for part in (part for part in planning if (part.arm, part.held, part.group) == (ON, held, "all")):
            over, by = part.over_off, f"airline, by {held}"
            yield _above(f"{by}: succeeded in first place, over learning off", over["succeeded_1"].mean, 0.0)
            yield _above(f"{by}: succeeded among the top three, over learning off", over["succeeded_3"].mean, 0.0)
            yield _at_least(f"{by}: same task in first place, over learning off", over["same_task_1"].mean, 0.0)
            yield _at_least(f"{by}: same task among the top three, over learning off", over["same_task_3"].mean, 0.0)


def _find(standings: Iterable[Standing], arm: str, split: SplitName, group: Group) -> Standing | None:
    return next((part for part in standings if (part.arm, part.split, part.group) == (arm, split, group)), None)


def _at_least(name: str, measured: float | None, bound: float) -> Target:
    reached = None if measured is None else measured >= bound
    return Target(name=name, measured=measured, bound=f"≥ {bound:g}", reached=reached)


def _at_most(name: str, measured: float, bound: float) -> Target:
    return Target(name=name, measured=measured, bound=f"≤ {bound:g}", reached=measured <= bound)


def _above(name: str, measured: float | None, bound: float) -> Target:
    reached = None if measured is None else measured > bound
    return Target(name=name, measured=measured, bound=f"> {bound:g}", reached=reached)
