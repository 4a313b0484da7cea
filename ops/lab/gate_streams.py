"""Tests whether the gate opens when it should, and only then, on long streams of recalls and feedback.

All conversations are in one memory, and all questions are asked once in random order; the gate decides on the basis of
its own contests. The gate may open for citations. It must not open for lists, which credit nothing, or for shuffled
citations. The false-alarm rate is the share of streams with shuffled citations in which the gate opens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from memory_agent.evaluation import History
from memory_agent.memory import Memory
from memory_agent.records.trajectories import GateState
from ops.lab.arms import FEW, Arm, Signal
from ops.lab.course import Setup, course

SIGNALS: tuple[Signal, ...] = ("cite", "list", "shuffled cite")


@dataclass(frozen=True)
class StreamJob:
    """One stream: all of a history's questions, with one seed and signal."""

    seed: int
    history: History
    signal: Signal


class Stream(msgspec.Struct, frozen=True, kw_only=True):
    """What the gate did in one stream.

    `tried_at` and `opened_at` are the numbers of recalls after which the learner was first put on trial and first
    turned on, or None if this never happened. The other fields are values at the end of the stream.
    """

    signal: Signal
    seed: int
    recalls: int
    credited: int
    tried_at: int | None
    opened_at: int | None
    state: GateState
    won: int
    lost: int
    tied: int
    evidence: float
    harm: float
    served: dict[str, int]


class GateSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The totals for one signal's streams; `opened` counts the streams in which the gate opened at any time, and
    `open_at_end` the streams in which it was open at the end.
    """

    signal: Signal
    streams: int
    opened: int
    open_at_end: int
    recalls: int
    credited: float
    won: int
    lost: int
    tied: int
    opened_at: tuple[int, ...]


def jobs(history: History, signals: Sequence[Signal], seeds: Sequence[int]) -> list[StreamJob]:
    """Return the streams to run; lists get few seeds, since they never credit anything."""
    return [
        StreamJob(seed, history, signal)
        for signal in SIGNALS
        if signal in signals
        for seed in (seeds[:FEW] if signal == "list" else seeds)
    ]


def run_job(setup: Setup, job: StreamJob) -> Stream:
    """Run one stream."""
    random = np.random.default_rng((job.seed, 4))
    questions = [job.history.questions[place] for place in random.permutation(len(job.history.questions))]
    first: dict[GateState, int] = {}

    def watch(taught: int, memory: Memory) -> None:
        first.setdefault(memory.sona.status().gate.state, taught)

    arm = Arm(job.signal, job.signal, "auto", ())
    with course(setup, arm, job.history, random) as watched:
        status = watched.teach(questions, watch)
    gate = status.gate
    return Stream(
        signal=job.signal,
        seed=job.seed,
        recalls=len(questions),
        credited=status.credited,
        tried_at=first.get("trial"),
        opened_at=first.get("on"),
        state=gate.state,
        won=gate.won,
        lost=gate.lost,
        tied=gate.tied,
        evidence=gate.evidence,
        harm=gate.harm,
        served=status.served,
    )


def summarise(streams: Sequence[Stream]) -> list[GateSummary]:
    """Summarise the streams by signal."""
    by_signal: dict[Signal, list[Stream]] = {}
    for stream in streams:
        by_signal.setdefault(stream.signal, []).append(stream)
    return [_sum(signal, of_signal) for signal, of_signal in by_signal.items()]


def _sum(signal: Signal, streams: Sequence[Stream]) -> GateSummary:
    return GateSummary(
        signal=signal,
        streams=len(streams),
        opened=sum(stream.opened_at is not None for stream in streams),
        open_at_end=sum(stream.state == "on" for stream in streams),
        recalls=sum(stream.recalls for stream in streams),
        credited=sum(stream.credited for stream in streams) / len(streams),
        won=sum(stream.won for stream in streams),
        lost=sum(stream.lost for stream in streams),
        tied=sum(stream.tied for stream in streams),
        opened_at=tuple(stream.opened_at for stream in streams if stream.opened_at is not None),
    )
