"""The whole of `eval sona`, one experiment after the other, over one set of stores.

Seeds: the main trial, the gate's streams and the airline runs take all of them, lists and two projects in one memory
the first two. What this does not do: average (`report`).
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from memory_agent.embedders import open_embedder
from memory_agent.evaluation.dataset import Dataset, History
from memory_agent.evaluation.learning import forgetting, planning, trials, vigil
from memory_agent.evaluation.learning.airline import AirlineRuns
from memory_agent.evaluation.learning.arms import FEW, chosen
from memory_agent.evaluation.learning.course import Bench
from memory_agent.evaluation.learning.kept_vectors import KeptVectors
from memory_agent.evaluation.learning.projects import merged, only_main
from memory_agent.evaluation.learning.signals import Signal
from memory_agent.evaluation.learning.stores import Events, bring_in
from memory_agent.evaluation.learning.workers import Workers, workers
from memory_agent.evaluation.runs import Progress
from memory_agent.settings import Settings

_EVERYTHING = "all"


@dataclass(frozen=True)
class Protocol:
    """What to measure, and how: `conversations`, airline `runs`, or both."""

    settings: Settings
    conversations: Dataset | None
    runs: AirlineRuns | None
    seeds: int
    signals: tuple[Signal, ...]
    shown: int
    processes: int

    @property
    def histories(self) -> list[History]:
        """The conversations, each as a user of its own, with the questions that count."""
        dataset = self.conversations
        if dataset is None:
            return []
        parts = (only_main(part, dataset.main_categories, f"{dataset.name}-{part.user}") for part in dataset.histories)
        return [part for part in parts if len(part.questions) > 1]


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What came of the experiments, question by question; no text. `model` is what the vectors come from."""

    model: str
    took_s: float
    reports: tuple[trials.Report, ...] = ()
    moments: tuple[forgetting.Moments, ...] = ()
    streams: tuple[vigil.Stream, ...] = ()
    requested: tuple[planning.Requested, ...] = ()


def carry_out(protocol: Protocol, progress: Progress) -> Evidence:
    """Return what comes of it. Raises `ModelError` without a model."""
    started_s = time.monotonic()
    with _bench(protocol, progress) as bench, workers(bench, protocol.processes, progress) as staff:
        evidence = Evidence(
            model=bench.embedder.info.stamp,
            took_s=0.0,
            reports=_learn(protocol, staff),
            moments=_forget(protocol, staff),
            streams=_watch(protocol, staff),
            requested=_plan(protocol, staff),
        )
    return msgspec.structs.replace(evidence, took_s=time.monotonic() - started_s)


def _learn(protocol: Protocol, staff: Workers) -> tuple[trials.Report, ...]:
    jobs = trials.jobs(protocol.histories, chosen(protocol.signals), range(protocol.seeds))
    return tuple(staff.run("learn and ask", trials.hold, jobs))


def _forget(protocol: Protocol, staff: Workers) -> tuple[forgetting.Moments, ...]:
    seeds = range(min(protocol.seeds, FEW))
    return tuple(
        staff.run("two projects", forgetting.hold, forgetting.jobs(protocol.histories, chosen(protocol.signals), seeds))
    )


def _watch(protocol: Protocol, staff: Workers) -> tuple[vigil.Stream, ...]:
    histories = protocol.histories
    seeds = protocol.seeds if histories else 0
    jobs = vigil.jobs(merged(histories, _EVERYTHING), protocol.signals, range(seeds))
    return tuple(staff.run("watch the gate", vigil.hold, jobs))


def _plan(protocol: Protocol, staff: Workers) -> tuple[planning.Requested, ...]:
    jobs = planning.jobs(protocol.runs.runs, range(protocol.seeds)) if protocol.runs else []
    return tuple(part for of_job in staff.run("airline runs", planning.hold, jobs) for part in of_job)


@contextmanager
def _bench(protocol: Protocol, progress: Progress) -> Iterator[Bench]:
    """Give the stores of all experiments; gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="memory-eval-") as folder:
        own = open_embedder(protocol.settings.embedder)
        try:
            embedder = KeptVectors(own)
            events = _events(protocol.histories)
            stores = bring_in(events, protocol.settings, Path(folder), embedder, progress)
            yield Bench(stores, embedder, protocol.shown)
        finally:
            own.close()


def _events(histories: list[History]) -> Mapping[str, Events]:
    """Return the events of each user that an experiment needs: each conversation, the pairs, and all of them in one."""
    users = [*histories, *(merged(pair, forgetting.pair_user(*pair)) for pair in forgetting.pairs(histories))]
    if histories:
        users.append(merged(histories, _EVERYTHING))
    return {history.user: history.events(history.user) for history in users}
