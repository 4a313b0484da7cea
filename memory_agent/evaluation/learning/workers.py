"""Spreads the courses of an experiment over processes: each is independent of the others, and has a seed of its own.

The results come back in the order of the jobs, so that they are the same from one process and from several. Each
process opens a model of its own (150 MB); threads would wait for each other, since most of a recall is Python.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import wait
from typing import TypeVar

from memory_agent.embedders import open_embedder
from memory_agent.evaluation.learning.course import Bench
from memory_agent.evaluation.learning.kept_vectors import KeptVectors
from memory_agent.evaluation.learning.stores import Stores
from memory_agent.evaluation.runs import Progress

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
