"""Measures whether a planner's recall returns past runs of the same task, and runs that succeeded.

Half of each task's trials are past runs. They are replayed one after another: each begins with a recall, then its
events are ingested, and its reward is reported as feedback. For the other half, there is only a recall, with the user's
first message. An answer is interpreted as a list of runs, each ranked by its best memory. There are two splits. With
`trial`, feedback is given for all tasks. With `task`, every past run is in the memory, but feedback is given for only
half of the tasks, and the tasks in the other half are tested.

The recorded runs used no memory, so the reward is the only feedback. Some arms also get a simulated citation: the first
shown memory that comes from a run of the same task or, with a probability of 20 %, a different memory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import msgspec
import numpy as np

from memory_agent.evaluation import distinct
from memory_agent.evaluation.runs import opener
from memory_agent.layout import Layout
from memory_agent.memory import Memory
from memory_agent.records.memories import RecallResult
from ops.lab.airline import RecordedRun, events_of
from ops.lab.arms import Arm, claim_for
from ops.lab.course import Setup
from ops.lab.gains import Difference, difference

Held = Literal["trial", "task"]
HELD: tuple[Held, ...] = get_args(Held)
SIMILARITY, OUTCOMES = "similarity alone", "outcomes, learning off"
ON, CITED, GATED = "learning on", "learning on, cited", "cited, gate decides"
ARMS = (
    Arm(SIMILARITY, None, "off", (), recall={"outcome": 0.0}),
    Arm(OUTCOMES, None, "off", ()),
    Arm(ON, None, "on", ()),
    Arm(CITED, "cite", "on", ()),
    Arm(GATED, "cite", "auto", ()),
)

_USER = "airline"
_START = datetime(2025, 1, 6, tzinfo=UTC)
_APART = timedelta(hours=1)
_MEMORIES = 50
_BATCH = 64


@dataclass(frozen=True)
class PlannerJob:
    """One planner: its split, seed, runs and arm."""

    held: Held
    seed: int
    runs: tuple[RecordedRun, ...]
    arm: Arm


class RunFigures(NamedTuple):
    """For first place and for the top three: the share of runs of the same task, and the share of successful runs.

    `worked_1` is 1 if the first run belongs to the same task and succeeded, and 0 otherwise.
    """

    same_task_1: float
    same_task_3: float
    succeeded_1: float
    succeeded_3: float
    worked_1: float


class Requested(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one request. `is_mixed`: whether its task's past runs include both successes and failures, so
    order matters.
    """

    arm: str
    held: Held
    seed: int
    task: int
    trial: int
    is_mixed: bool
    figures: RunFigures


class Planning(msgspec.Struct, frozen=True, kw_only=True):
    """One arm's averages over all requests or over mixed requests, and its differences from ranking only by
    similarity."""

    arm: str
    held: Held
    group: Literal["all", "mixed"]
    requests: int
    tasks: int
    means: dict[str, float]
    over_similarity: dict[str, Difference]


def jobs(runs: Sequence[RecordedRun], seeds: Sequence[int]) -> list[PlannerJob]:
    """Return the experiment's jobs: every arm with each split and seed."""
    return [PlannerJob(held, seed, tuple(runs), arm) for seed in seeds for held in HELD for arm in ARMS]


def run_job(setup: Setup, job: PlannerJob) -> list[Requested]:
    """Replay the past runs, then recall for each tested request."""
    random = np.random.default_rng((job.seed, HELD.index(job.held), 5))
    past, asking = _by_trial(job.runs, random)
    taught_tasks = set(_tasks(job.runs, random)) if job.held == "task" else {run.task for run in job.runs}
    asked = [run for run in asking if job.held == "trial" or run.task not in taught_tasks]
    with tempfile.TemporaryDirectory(prefix="memory-eval-") as folder:
        Layout(Path(folder)).create()
        with opener(job.arm.settings(setup.stores.settings), Path(folder), setup.embedder)(_USER) as memory:
            now = _START
            citing = np.random.default_rng((job.seed, HELD.index(job.held), 6)) if job.arm.signal else None
            for now, run in zip(_hours(), past, strict=False):
                _live(memory, run, now, setup.shown if run.task in taught_tasks else 0, citing)
            return [_requested(job, run, past, _recalled(memory, run, past, now + _APART)) for run in asked]


def summarise(requested: Sequence[Requested]) -> list[Planning]:
    """Return each arm's averages, by split and group."""
    found = []
    for held in HELD:
        for group in ("all", "mixed"):
            chosen = [part for part in requested if part.held == held and (group == "all" or part.is_mixed)]
            by_arm = {arm.name: [part for part in chosen if part.arm == arm.name] for arm in ARMS}
            found += [_planning(of_arm, by_arm[SIMILARITY], group) for of_arm in by_arm.values() if of_arm]
    return found


def figures_of(runs: Sequence[RecordedRun], task: int) -> RunFigures:
    """Return the shares for recalled `runs`, best first, given the request's `task`; all are 0 if there are no runs."""
    same = [run.task == task for run in runs[:3]] or [False]
    succeeded = [run.succeeded for run in runs[:3]] or [False]
    return RunFigures(
        same_task_1=float(same[0]),
        same_task_3=sum(same) / len(same),
        succeeded_1=float(succeeded[0]),
        succeeded_3=sum(succeeded) / len(succeeded),
        worked_1=float(same[0] and succeeded[0]),
    )


def _by_trial(runs: Sequence[RecordedRun], random: np.random.Generator) -> tuple[list[RecordedRun], list[RecordedRun]]:
    """Return half of each task's trials as past runs, in random order, and the other half."""
    trials = sorted({run.trial for run in runs})
    past_trials = {trials[place] for place in random.permutation(len(trials))[: len(trials) // 2]}
    past = [run for run in runs if run.trial in past_trials]
    return [past[place] for place in random.permutation(len(past))], [r for r in runs if r.trial not in past_trials]


def _tasks(runs: Sequence[RecordedRun], random: np.random.Generator) -> list[int]:
    """Return a random half of the tasks."""
    tasks = sorted({run.task for run in runs})
    return [tasks[place] for place in random.permutation(len(tasks))[: len(tasks) // 2]]


def _live(memory: Memory, run: RecordedRun, now: datetime, shown: int, citing: np.random.Generator | None) -> None:
    """Replay a run: recall, ingest its events, and report its reward. If `shown` is 0, only ingest."""
    result = memory.recall(run.request, shown, now=now, min_relevance=0.0) if shown else None
    events = events_of(run, _USER, now, () if result is None else (result.recall_id,))
    for start in range(0, len(events), _BATCH):
        memory.ingest(events[start : start + _BATCH], now=now + _APART / 2)
    if result is not None:
        used = () if citing is None else _cited(result, run, citing)
        memory.feedback(result.recall_id, used, float(run.succeeded), now=now + _APART / 2)


def _cited(result: RecallResult, run: RecordedRun, random: np.random.Generator) -> tuple[str, ...]:
    """Return the id of a memory that the planner might have cited, or nothing if no memory of its task was shown."""
    records = [found.record for found in result.memories]
    same_task = [record.id for record in records if (record.run_id or "").startswith(f"task-{run.task}-")]
    return claim_for("cite", same_task[:1], (), [(record.id,) for record in records], random).used


def _recalled(memory: Memory, run: RecordedRun, past: Sequence[RecordedRun], now: datetime) -> list[RecordedRun]:
    """Return the past runs recalled for `run`'s request, best first."""
    by_id = {other.run_id: other for other in past}
    result = memory.recall(run.request, _MEMORIES, now=now, min_relevance=0.0)
    return [by_id[run_id] for run_id in distinct(found.record.run_id for found in result.memories) if run_id in by_id]


def _requested(
    job: PlannerJob, run: RecordedRun, past: Sequence[RecordedRun], recalled: Sequence[RecordedRun]
) -> Requested:
    return Requested(
        arm=job.arm.name,
        held=job.held,
        seed=job.seed,
        task=run.task,
        trial=run.trial,
        is_mixed=len({other.succeeded for other in past if other.task == run.task}) == 2,
        figures=figures_of(recalled, run.task),
    )


def _planning(own: Sequence[Requested], similarity: Sequence[Requested], group: Literal["all", "mixed"]) -> Planning:
    figures, of_similarity = (
        np.array([part.figures for part in parts], dtype=np.float64) for parts in (own, similarity)
    )
    names = RunFigures._fields
    tasks = [str(part.task) for part in own]
    return Planning(
        arm=own[0].arm,
        held=own[0].held,
        group=group,
        requests=len(own),
        tasks=len(set(tasks)),
        means=dict(zip(names, map(float, figures.mean(axis=0)), strict=True)),
        over_similarity=dict(zip(names, difference(figures - of_similarity, tasks), strict=True)),
    )


def _hours() -> Iterator[datetime]:
    """Yield times one hour apart, endlessly."""
    now = _START
    while True:
        yield now
        now += _APART
