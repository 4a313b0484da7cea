"""The protocol's report: all results, and each target with its measured value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from memory_agent.evaluation import ranking_settings
from memory_agent.version import VERSION
from ops.lab.arms import CITE, GATED, ORACLE
from ops.lab.course import ASKED, FeedbackCounts
from ops.lab.forgetting import KEPT, Forgetting
from ops.lab.forgetting import summarise as sum_forgetting
from ops.lab.gains import HEADLINE, Group, Point, Standing, curve, standings
from ops.lab.gate_streams import GateSummary, Stream
from ops.lab.gate_streams import summarise as sum_gates
from ops.lab.histories import SplitName
from ops.lab.planning import HELD, ON, OUTCOMES, Planning
from ops.lab.planning import summarise as sum_planning
from ops.lab.protocol import Evidence, Protocol
from ops.lab.recurring_users import EARLY, RUNS, RecurringSummary
from ops.lab.recurring_users import summarise as sum_recurring
from ops.lab.trials import Report


class Taught(msgspec.Struct, frozen=True, kw_only=True):
    """One arm's feedback, summed over courses, and the final states of its gates."""

    arm: str
    split: SplitName
    courses: int
    heard: FeedbackCounts
    gates: dict[str, int]
    served: dict[str, int]


class LearningReport(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one measurement. Shares range from 0 to 1; differences are relative to the results with
    learning off, unless stated otherwise.

    `inputs` are the files' SHA-256 digests, by kind. `users` and `questions` are the numbers of measured users and
    questions.
    """

    version: str
    model: str
    settings: dict[str, Any]
    inputs: dict[str, str]
    users: int
    questions: int
    runs: int
    seeds: int
    signals: tuple[str, ...]
    shown: int
    asked: int
    took_s: float
    targets: tuple[Target, ...]
    standings: tuple[Standing, ...]
    curve: tuple[Point, ...]
    taught: tuple[Taught, ...]
    forgetting: tuple[Forgetting, ...]
    vigils: tuple[GateSummary, ...]
    streams: tuple[Stream, ...]
    planning: tuple[Planning, ...]
    recurring: tuple[RecurringSummary, ...]


def summarise(protocol: Protocol, evidence: Evidence) -> LearningReport:
    """Summarise the evidence that a protocol produced."""
    answered = [answer for report in evidence.reports for answer in report.answered]
    stand, points = standings(answered), curve(answered)
    kept, watched = sum_forgetting(evidence.moments), sum_gates(evidence.streams)
    planned, recurred = sum_planning(evidence.requested), sum_recurring(evidence.recurring)
    return LearningReport(
        version=VERSION,
        model=evidence.model,
        settings=ranking_settings(protocol.settings),
        inputs=_inputs(protocol),
        users=len(protocol.histories),
        questions=sum(len(history.questions) for history in protocol.histories),
        runs=len(protocol.runs.runs) if protocol.runs else 0,
        seeds=protocol.seeds,
        signals=protocol.signals,
        shown=protocol.shown,
        asked=ASKED,
        took_s=round(evidence.took_s, 1),
        targets=tuple(targets(stand, points, kept, watched, planned, recurred)),
        standings=tuple(stand),
        curve=tuple(points),
        taught=tuple(_taught(evidence.reports)),
        forgetting=tuple(kept),
        vigils=tuple(watched),
        streams=evidence.streams,
        planning=tuple(planned),
        recurring=tuple(recurred),
    )


def _inputs(protocol: Protocol) -> dict[str, str]:
    dataset, runs = protocol.conversations, protocol.runs
    return ({dataset.name: dataset.digest} if dataset else {}) | ({"airline": runs.digest} if runs else {})


def _taught(reports: Sequence[Report]) -> Iterable[Taught]:
    by_arm: dict[tuple[str, SplitName], list[Report]] = {}
    for report in reports:
        by_arm.setdefault((report.arm, report.split), []).append(report)
    for (arm, split), of_arm in by_arm.items():
        yield Taught(
            arm=arm,
            split=split,
            courses=len(of_arm),
            heard=_sum_heard([report.heard for report in of_arm]),
            gates=dict(Counter(report.gate for report in of_arm)),
            served=dict(_sum_counts(report.served for report in of_arm)),
        )


def _sum_heard(heard: Sequence[FeedbackCounts]) -> FeedbackCounts:
    return FeedbackCounts(
        feedbacks=sum(part.feedbacks for part in heard),
        named=sum(part.named for part in heard),
        credited=sum(part.credited for part in heard),
        not_credited=dict(_sum_counts(part.not_credited for part in heard)),
    )


def _sum_counts(counts: Iterable[dict[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for part in counts:
        total.update(part)
    return total


ORACLE_GAIN, CITE_GAIN = 0.08, 0.04
MOST_HARM = -0.01
OUTCOME_GAIN, OUTCOME_HARM = 0.08, -0.005
"""The minimum changes that outcomes must cause: in the share of answers with a successful run in first place, and in
the share of runs of the same task among the first three.
"""
MOST_FALSE_ALARMS = 0.05
BY_EARLY, BY_END, MOST_OPENED = 0.15, 0.5, 0.036
"""The minimum shares of users whose gate must be open early and by the end, and the maximum share if citations are
shuffled.
"""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A target: a measured value and its bound. `measured` and `reached` are None if there are too few units."""

    name: str
    measured: float | None
    bound: str
    reached: bool | None


def targets(
    standings: Sequence[Standing],
    curve: Sequence[Point],
    forgetting: Sequence[Forgetting],
    gates: Sequence[GateSummary],
    planning: Sequence[Planning],
    recurring: Sequence[RecurringSummary] = (),
) -> list[Target]:
    """Return the targets for which there are measurements."""
    return [
        *_gains(standings),
        *_no_gain_before(curve),
        *_kept(forgetting),
        *_gate(gates),
        *_recurring(recurring),
        *_planned(planning),
    ]


def _gains(standings: Sequence[Standing]) -> Iterator[Target]:
    for arm, bound in ((ORACLE, ORACLE_GAIN), (CITE, CITE_GAIN)):
        if standing := _find(standings, arm, "random", "repeated"):
            over_off, over_control = standing.over_off[HEADLINE], standing.over_control
            yield _at_least(f"{arm}, repeated evidence: recall at 5 minus that with learning off", over_off.mean, bound)
            yield _above(f"{arm}, repeated evidence: lower 95 % bound of that difference", over_off.low, 0.0)
            if over_control is not None:
                yield _above(f"{arm}, repeated evidence: recall at 5 minus shuffled control", over_control.mean, 0.0)
    if standing := _find(standings, GATED, "disjoint", "new"):
        name = f"{GATED}, evidence never used: recall at 5 minus that with learning off"
        yield _at_least(name, standing.over_off[HEADLINE].mean, MOST_HARM)


def _no_gain_before(curve: Sequence[Point]) -> Iterator[Target]:
    before = [abs(point.over_off.mean) for point in curve if point.taught == 0]
    if before:
        yield _at_most("any gain before training", max(before), 0.0)


def _kept(forgetting: Sequence[Forgetting]) -> Iterator[Target]:
    for part in forgetting:
        for kept in part.kept:
            yield _at_least(f"{part.arm}, two projects: share of {kept.project}'s gain retained", kept.share, KEPT)
        yield _above(f"{part.arm}, two projects: change in B due to A, lower 95 % bound", part.harm.low, MOST_HARM)


def _gate(gates: Sequence[GateSummary]) -> Iterator[Target]:
    for gate in gates:
        share = gate.opened / gate.streams
        if gate.signal == "list":
            yield _at_most("list: share of streams in which the gate opened", share, 0.0)
        elif gate.signal == "shuffled cite":
            yield _at_most("shuffled cite: share of streams in which the gate opened", share, MOST_FALSE_ALARMS)


def _recurring(recurring: Sequence[RecurringSummary]) -> Iterator[Target]:
    for part in recurring:
        if part.signal == "cite":
            yield _at_least(f"recurring work, cite: gate open by run {EARLY}", part.opened_early / part.users, BY_EARLY)
            yield _at_least(f"recurring work, cite: gate open by run {RUNS}", part.opened / part.users, BY_END)
            again, new = part.again[HEADLINE], part.new[HEADLINE]
            yield _above(f"recurring work, cite: recall at 5 of recurring topics after {RUNS} runs", again.low, 0.0)
            yield _at_least("recurring work, cite: recall at 5 of new questions, lower 95 % bound", new.low, MOST_HARM)
        else:
            name = f"recurring work, {part.signal}: gate open by run {RUNS}"
            yield _at_most(name, part.opened / part.users, MOST_OPENED)


def _planned(planning: Sequence[Planning]) -> Iterator[Target]:
    for held in HELD:
        for part in (part for part in planning if (part.held, part.group) == (held, "all")):
            over, by = part.over_similarity, f"airline, by {held}, {part.arm}"
            if part.arm == OUTCOMES:
                yield _at_least(f"{by}: successful run in first place", over["succeeded_1"].mean, OUTCOME_GAIN)
                yield _at_least(f"{by}: same task among the top three", over["same_task_3"].mean, OUTCOME_HARM)
            elif part.arm == ON:
                yield _above(f"{by}: successful run in first place", over["succeeded_1"].mean, 0.0)
                yield _above(f"{by}: successful run among the top three", over["succeeded_3"].mean, 0.0)
                yield _at_least(f"{by}: same task in first place", over["same_task_1"].mean, 0.0)
                yield _at_least(f"{by}: same task among the top three", over["same_task_3"].mean, 0.0)


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
