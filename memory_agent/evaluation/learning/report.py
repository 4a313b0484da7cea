"""What `eval sona` prints: every figure of the experiments, and beside each target what was measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from memory_agent.evaluation.learning.course import ASKED, Heard
from memory_agent.evaluation.learning.forgetting import Forgetting
from memory_agent.evaluation.learning.forgetting import sum_up as sum_forgetting
from memory_agent.evaluation.learning.gains import Point, Standing, curve, standings
from memory_agent.evaluation.learning.planning import Planning
from memory_agent.evaluation.learning.planning import sum_up as sum_planning
from memory_agent.evaluation.learning.protocol import Evidence, Protocol
from memory_agent.evaluation.learning.splits import SplitName
from memory_agent.evaluation.learning.targets import Target, targets
from memory_agent.evaluation.learning.trials import Report
from memory_agent.evaluation.learning.vigil import Stream, Vigil
from memory_agent.evaluation.learning.vigil import sum_up as sum_vigils
from memory_agent.evaluation.results import ranking_settings
from memory_agent.version import VERSION


class Taught(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the feedback of one arm, summed over courses, and where its gates stood at their ends."""

    arm: str
    split: SplitName
    courses: int
    heard: Heard
    gates: dict[str, int]
    served: dict[str, int]


class LearningReport(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement. Shares are 0 to 1; differences are to learning off unless they say otherwise.

    `inputs` are the SHA-256 of the files by their kind, `users` and `questions` those that were measured.
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
    vigils: tuple[Vigil, ...]
    streams: tuple[Stream, ...]
    planning: tuple[Planning, ...]


def summarise(protocol: Protocol, evidence: Evidence) -> LearningReport:
    """Return the figures of what came of a protocol."""
    answered = [answer for report in evidence.reports for answer in report.answered]
    stand, points = standings(answered), curve(answered)
    kept, watched, planned = (
        sum_forgetting(evidence.moments),
        sum_vigils(evidence.streams),
        sum_planning(evidence.requested),
    )
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
        targets=tuple(targets(stand, points, kept, watched, planned)),
        standings=tuple(stand),
        curve=tuple(points),
        taught=tuple(_taught(evidence.reports)),
        forgetting=tuple(kept),
        vigils=tuple(watched),
        streams=evidence.streams,
        planning=tuple(planned),
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


def _sum_heard(heard: Sequence[Heard]) -> Heard:
    return Heard(
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
