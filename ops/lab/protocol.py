"""The whole of `eval sona`, one experiment after the other, over one set of stores.

Seeds: the main trial, the gate's streams and the airline runs take all of them, lists and two projects in one memory
the first two. What this does not do: average (`report`).
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import TypeVar

import msgspec

from memory_agent.embedders import open_embedder
from memory_agent.evaluation.dataset import Dataset, History
from memory_agent.evaluation.runs import Progress
from memory_agent.settings import Settings
from ops.lab import forgetting, gate_streams, planning, trials
from ops.lab.airline import AirlineRuns
from ops.lab.arms import FEW, Signal, chosen
from ops.lab.course import Bench
from ops.lab.histories import merged, only_main
from ops.lab.stores import Events, KeptVectors, Stores, bring_in

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
    streams: tuple[gate_streams.Stream, ...] = ()
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


def _watch(protocol: Protocol, staff: Workers) -> tuple[gate_streams.Stream, ...]:
    histories = protocol.histories
    seeds = protocol.seeds if histories else 0
    jobs = gate_streams.jobs(merged(histories, _EVERYTHING), protocol.signals, range(seeds))
    return tuple(staff.run("watch the gate", gate_streams.hold, jobs))


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


Job = TypeVar("Job")
Result = TypeVar("Result")

_THREADS = "OPENBLAS_NUM_THREADS"

_benches: list[Bench] = []
"""In a worker process: the one bench that its jobs work at."""


@dataclass(frozen=True)
class Workers:
    """Processes that do jobs; without a pool, this one."""

    bench: Bench
    progress: Progress
    pool: ProcessPoolExecutor | None = None

    def run(self, what: str, work: Callable[[Bench, Job], Result], jobs: Sequence[Job]) -> list[Result]:
        """Return what `work`, a function of a module, makes of each job, in their order."""
        results = []
        for result in self._results(work, jobs):
            results.append(result)
            self.progress(what, len(results), len(jobs))
        return results

    def _results(self, work: Callable[[Bench, Job], Result], jobs: Sequence[Job]) -> Iterable[Result]:
        if self.pool is None:
            return map(partial(work, self.bench), jobs)
        return self.pool.map(partial(_at_bench, work), jobs)


@contextmanager
def workers(bench: Bench, processes: int, progress: Progress) -> Iterator[Workers]:
    """Give so many processes that work with the stores of `bench`; gone afterwards, with what they had not begun."""
    if processes == 1:
        yield Workers(bench, progress)
        return
    spawn = multiprocessing.get_context("spawn")  # a fork would copy the threads' locks of the engines
    with _one_thread_each():
        pool = ProcessPoolExecutor(processes, spawn, _begin, (bench.stores, bench.shown))
        try:
            yield Workers(bench, progress, pool)
        finally:
            pool.shutdown(cancel_futures=True)


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Let numpy multiply with one thread in processes that begin now.

    Matrices are small here, and threads of several processes only wait for each other: a recall took 46 ms of processor
    time with two each on two busy cores, 17 ms with one.
    """
    before = os.environ.get(_THREADS)
    os.environ[_THREADS] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_THREADS]
        else:
            os.environ[_THREADS] = before


def _begin(stores: Stores, shown: int) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    embedder = KeptVectors(open_embedder(stores.settings.embedder))
    _benches.append(Bench(stores, embedder, shown))


def _end_with_parent() -> None:
    """End this process when the one that began it is gone: a pool that was killed leaves its workers waiting."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _at_bench(work: Callable[[Bench, Job], Result], job: Job) -> Result:
    return work(_benches[0], job)
