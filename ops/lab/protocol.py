"""Runs every experiment over one set of stores, in worker processes.

The main trial, the gate's streams, the users with recurring work and the airline runs use all seeds. Lists and the
two-project experiment use only the first two. Jobs are independent, and each has its own seed. Results are returned in
job order, so they do not depend on the number of processes. Each process opens its own model (150 MB). Threads would
block each other, because most of a recall is Python code.
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
from memory_agent.evaluation import Dataset, History
from memory_agent.evaluation.runs import Progress
from memory_agent.settings import Settings
from ops.lab import forgetting, gate_streams, instant, planning, recurring_users, trials
from ops.lab.airline import AirlineRuns
from ops.lab.arms import FEW, Signal, chosen
from ops.lab.course import Setup
from ops.lab.histories import merged, only_main
from ops.lab.stores import CachingEmbedder, Events, Stores, ingest_all

_EVERYTHING = "all"


@dataclass(frozen=True)
class Protocol:
    """The inputs and parameters of a measurement: `conversations`, airline `runs`, or both."""

    settings: Settings
    conversations: Dataset | None
    runs: AirlineRuns | None
    seeds: int
    signals: tuple[Signal, ...]
    shown: int
    processes: int

    @property
    def histories(self) -> list[History]:
        """The conversations, each assigned to its own user, with only the measured questions."""
        dataset = self.conversations
        if dataset is None:
            return []
        parts = (only_main(part, dataset.main_categories, f"{dataset.name}-{part.user}") for part in dataset.histories)
        return [part for part in parts if len(part.questions) > 1]


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """The results of all experiments for each question, without text. `model` names the embedding model."""

    model: str
    took_s: float
    reports: tuple[trials.Report, ...] = ()
    moments: tuple[forgetting.Moments, ...] = ()
    streams: tuple[gate_streams.Stream, ...] = ()
    requested: tuple[planning.Requested, ...] = ()
    recurring: tuple[recurring_users.Lived, ...] = ()


def run_protocol(protocol: Protocol, progress: Progress) -> Evidence:
    """Run all experiments. Raises `ModelError` if the model is missing."""
    started_s = time.monotonic()
    with (
        _setup(protocol, _events(protocol.histories), progress) as setup,
        workers(setup, protocol.processes, progress) as staff,
    ):
        evidence = Evidence(
            model=setup.embedder.info.stamp,
            took_s=0.0,
            reports=_learn(protocol, staff),
            moments=_forget(protocol, staff),
            streams=_watch(protocol, staff),
            requested=_plan(protocol, staff),
            recurring=_recur(protocol, staff),
        )
    return msgspec.structs.replace(evidence, took_s=time.monotonic() - started_s)


def measure_instant_layer(protocol: Protocol, progress: Progress) -> instant.InstantReport:
    """Measure only the instant layer, on the conversations. Raises `ModelError` if the model is missing."""
    started_s = time.monotonic()
    histories = protocol.histories
    everything = merged(histories, _EVERYTHING)
    events = {history.user: history.events(history.user) for history in (*histories, everything)}
    jobs = instant.jobs(histories, everything, range(protocol.seeds))
    with _setup(protocol, events, progress) as setup, workers(setup, protocol.processes, progress) as staff:
        compared = [one for of_job in staff.run("instant layer", instant.run_job, jobs) for one in of_job]
    return instant.InstantReport(
        conversations=len(histories),
        seeds=protocol.seeds,
        took_s=round(time.monotonic() - started_s, 1),
        gains=tuple(instant.summarise(compared)),
    )


def _learn(protocol: Protocol, staff: Workers) -> tuple[trials.Report, ...]:
    jobs = trials.jobs(protocol.histories, chosen(protocol.signals), range(protocol.seeds))
    return tuple(staff.run("learn and ask", trials.run_job, jobs))


def _forget(protocol: Protocol, staff: Workers) -> tuple[forgetting.Moments, ...]:
    seeds = range(min(protocol.seeds, FEW))
    return tuple(
        staff.run(
            "two projects", forgetting.run_job, forgetting.jobs(protocol.histories, chosen(protocol.signals), seeds)
        )
    )


def _watch(protocol: Protocol, staff: Workers) -> tuple[gate_streams.Stream, ...]:
    histories = protocol.histories
    seeds = protocol.seeds if histories else 0
    jobs = gate_streams.jobs(merged(histories, _EVERYTHING), protocol.signals, range(seeds))
    return tuple(staff.run("watch the gate", gate_streams.run_job, jobs))


def _recur(protocol: Protocol, staff: Workers) -> tuple[recurring_users.Lived, ...]:
    jobs = recurring_users.jobs(protocol.histories, protocol.signals, range(protocol.seeds))
    return tuple(staff.run("users whose work recurs", recurring_users.run_job, jobs))


def _plan(protocol: Protocol, staff: Workers) -> tuple[planning.Requested, ...]:
    jobs = planning.jobs(protocol.runs.runs, range(protocol.seeds)) if protocol.runs else []
    return tuple(part for of_job in staff.run("airline runs", planning.run_job, jobs) for part in of_job)


@contextmanager
def _setup(protocol: Protocol, events: Mapping[str, Events], progress: Progress) -> Iterator[Setup]:
    """Ingest each user's events and yield the stores; remove them afterwards."""
    with tempfile.TemporaryDirectory(prefix="memory-eval-") as folder:
        own = open_embedder(protocol.settings.embedder)
        try:
            embedder = CachingEmbedder(own)
            stores = ingest_all(events, protocol.settings, Path(folder), embedder, progress)
            yield Setup(stores, embedder, protocol.shown)
        finally:
            own.close()


def _events(histories: list[History]) -> Mapping[str, Events]:
    """Return the events of each user: one user for each conversation, one for each pair, and one for all together."""
    users = [*histories, *(merged(pair, forgetting.pair_user(*pair)) for pair in forgetting.pairs(histories))]
    if histories:
        users.append(merged(histories, _EVERYTHING))
    return {history.user: history.events(history.user) for history in users}


Job = TypeVar("Job")
Result = TypeVar("Result")

_THREADS = "OPENBLAS_NUM_THREADS"

_setups: list[Setup] = []
"""The setup shared by all jobs in a worker process; at most one item."""


@dataclass(frozen=True)
class Workers:
    """Runs jobs in a pool of processes, or in this process."""

    setup: Setup
    progress: Progress
    pool: ProcessPoolExecutor | None = None

    def run(self, what: str, work: Callable[[Setup, Job], Result], jobs: Sequence[Job]) -> list[Result]:
        """Run `work`, a module-level function, on each job; return the results in job order."""
        results = []
        for result in self._results(work, jobs):
            results.append(result)
            self.progress(what, len(results), len(jobs))
        return results

    def _results(self, work: Callable[[Setup, Job], Result], jobs: Sequence[Job]) -> Iterable[Result]:
        if self.pool is None:
            return map(partial(work, self.setup), jobs)
        return self.pool.map(partial(_run_here, work), jobs)


@contextmanager
def workers(setup: Setup, processes: int, progress: Progress) -> Iterator[Workers]:
    """Yield `processes` workers that use `setup`'s stores; cancel pending jobs at the end."""
    if processes == 1:
        yield Workers(setup, progress)
        return
    spawn = multiprocessing.get_context("spawn")  # a fork would copy locks held by the engines' threads
    with _one_thread_each():
        pool = ProcessPoolExecutor(processes, spawn, _begin, (setup.stores, setup.shown))
        try:
            yield Workers(setup, progress, pool)
        finally:
            pool.shutdown(cancel_futures=True)


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Limit numpy to one thread in processes started inside the block.

    The matrices are small: a recall took 46 ms of processor time with two threads on two busy cores, but 17 ms with
    one.
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
    embedder = CachingEmbedder(open_embedder(stores.settings.embedder))
    _setups.append(Setup(stores, embedder, shown))


def _end_with_parent() -> None:
    """Exit when the parent process exits; otherwise, the workers of a killed pool would block forever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _run_here(work: Callable[[Setup, Job], Result], job: Job) -> Result:
    return work(_setups[0], job)
