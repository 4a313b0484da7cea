"""How a learner reached its state: the gate after each lesson, and the memories with the most credit.

Both follow from the lessons' facts, so nothing more is stored. The gate is replayed; the result differs from the
learner's own gate only if lessons were revised or forgotten and the learner has not relearned since.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from memory_agent.learning.lessons import run_number, run_of_number
from memory_agent.records.memories import time_of
from memory_agent.records.trajectories import CreditedMemory, GateStanding
from memory_agent.storage.snapshot import Snapshot
from sona import Evidence, Fact, Gain, Gate

MOST_STANDINGS = 100
MOST_MEMORIES = 20
_MOST_CHANGES = 50  # changes of the gate's state; each change takes 100 lessons
_MOST_RUNS = 3


class _Standing(NamedTuple):
    lesson: int
    evidence: Evidence
    gain: Gain | None


def standings(snapshot: Snapshot, facts: Mapping[int, Fact]) -> tuple[GateStanding, ...]:
    """Return the gate after up to `MOST_STANDINGS` lessons: those that changed its state, and others, evenly spaced."""
    found = []
    for lesson, evidence, gain in _chosen(_replayed(facts)):
        run = run_of_number(snapshot, run_number(lesson))
        if run is None or run.ended_us is None:
            continue
        standing = GateStanding(
            at=time_of(run.ended_us),
            run_id=run.id,
            state=evidence.state,
            won=evidence.won,
            lost=evidence.lost,
            evidence=evidence.evidence,
            threshold=evidence.threshold,
            gain=None if gain is None else gain.share,
            gain_low=None if gain is None else gain.low,
            gain_high=None if gain is None else gain.high,
        )
        found.append(standing)
    return tuple(found)


def most_credited(snapshot: Snapshot, facts: Mapping[int, Fact]) -> tuple[CreditedMemory, ...]:
    """Return up to `MOST_MEMORIES` memories, those with the largest sums of credit times quality."""
    rewards: defaultdict[int, float] = defaultdict(float)
    for fact in facts.values():
        for row, credit in zip(fact.used, fact.credits, strict=True):
            rewards[row] += credit * fact.quality
    best = sorted(rewards, key=lambda row: (-rewards[row], -row))[:MOST_MEMORIES]
    users: dict[int, dict[int, tuple[float, float]]] = {row: {} for row in best}  # (credit, quality) by run
    for lesson in sorted(facts):
        fact = facts[lesson]
        for row, credit in zip(fact.used, fact.credits, strict=True):
            if row in users:
                users[row][run_number(lesson)] = credit, fact.quality
    usual = _mean([fact.quality for fact in facts.values() if fact.used])
    found = [_credited(snapshot, row, runs, usual) for row, runs in users.items()]
    return tuple(one for one in found if one is not None)


def _credited(
    snapshot: Snapshot, row: int, runs: Mapping[int, tuple[float, float]], usual: float
) -> CreditedMemory | None:
    record = snapshot.record(row)
    if record is None:
        return None
    quality = _mean([quality for _, quality in runs.values()])
    latest = [run_of_number(snapshot, number) for number in list(runs)[: -_MOST_RUNS - 1 : -1]]
    return CreditedMemory(
        id=record.id,
        runs=len(runs),
        credit=sum(credit for credit, _ in runs.values()),
        quality=quality,
        lift=quality - usual,
        run_ids=tuple(run.id for run in latest if run is not None),
    )


def _replayed(facts: Mapping[int, Fact]) -> list[_Standing]:
    """Return the gate after each lesson that counts, which is a lesson with credit or with a decided contest."""
    gate, found, counted = Gate(), list[_Standing](), set[int]()
    for lesson in sorted(facts):
        fact, run = facts[lesson], run_number(lesson)
        is_counted = bool(fact.used) and run not in counted
        if is_counted:  # once for each run, as in `Learner.count`
            counted.add(run)
            gate.credit()
        gate.observe(fact.contest)
        if is_counted or fact.contest is not None:
            found.append(_Standing(lesson, gate.evidence(), gate.gain()))
    return found


def _chosen(found: list[_Standing]) -> list[_Standing]:
    if len(found) <= MOST_STANDINGS:
        return found
    states = [one.evidence.state for one in found]
    changes = [place for place in range(1, len(found)) if states[place] != states[place - 1]][-_MOST_CHANGES:]
    even = np.linspace(0, len(found) - 1, MOST_STANDINGS - len(changes)).astype(int).tolist()
    return [found[place] for place in sorted({*changes, *even})]


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
