"""Measures the effect of outcomes on recall: whether the first run shown was successful, and whether it belongs to the
same task.

    python -m ops.bench.outcomes FOLDER     ten minutes; writes ops/bench/outcomes.md

FOLDER contains `airline_runs_dev.json` and `swe_runs_dev.json`. All runs of a file are ingested as events into one
user's memory, an hour apart, without feedback or learning. Each run's request is then recalled on behalf of that run
(`by_run`), which excludes its own memories. The answer is read as a list of runs, each ranked by its best memory.

The arms are outcome weights (`recall.outcome`; 0 is the baseline) and a control: the shipped weight, with the outcomes
of all runs shuffled. A gain in the control is not due to outcomes.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from memory_agent.embedders import open_embedder
from memory_agent.evaluation import distinct
from memory_agent.memory import Memory
from memory_agent.settings import EmbedderSettings, LearningSettings, RecallSettings
from ops.bench.machine import describe_machine
from ops.lab.airline import RecordedRun, events_of, read_airline
from ops.lab.gains import Difference, difference
from ops.lab.planning import RunFigures, figures_of
from ops.lab.stores import CachingEmbedder
from ops.lab.swe_runs import read_swe_runs

PAGE = Path(__file__).with_name("outcomes.md")

_WEIGHTS = (0.0, 0.2, 0.3, 0.4, 0.5, 0.6)
_SHIPPED = RecallSettings().outcome
_SHUFFLES = 5
_MEMORIES = 50
_BATCH = 64
_START = datetime(2025, 1, 6, tzinfo=UTC)
_APART = timedelta(hours=1)
Chosen = TypeVar("Chosen")
Figures = npt.NDArray[np.float64]

_FIGURES = {"succeeded_1": "succeeded first", "succeeded_3": "among three", "same_task_1": "same task first",
            "same_task_3": "among three", "worked_1": "both first"}  # fmt: skip

_HEAD = """\
# Effect of outcomes on the ranking

Written by `python -m ops.bench.outcomes` on {date:%Y-%m-%d} (decision 0021). Recalls use the real `Memory` with
learning off. All runs of a file are in one user's memory. Each run's request is recalled without the run's own
memories. The row for weight 0 shows the percentage of answers whose first run succeeded or belongs to the same task.
The other rows show differences from this row in percentage points, with 95 % intervals from {resamples:,} resamples of
whole tasks.

{machine}.
"""
_TAIL = """
In the control, the outcomes of all runs are shuffled {shuffles} times; the values still come from the real outcomes.
`both first` means that the first run belongs to the same task and succeeded. In the SWE runs, 11 of the 64 issues have
three runs; the other issues have only one run, and therefore no past run. The recorded runs used no memory, so the
benefit to a planner of seeing successful runs was not measured.
"""


def main() -> None:
    """Measure both data sets and write outcomes.md."""
    folder = Path(sys.argv[1])
    sets = {
        "Airline": read_airline(folder / "airline_runs_dev.json").runs,
        "SWE": read_swe_runs(folder / "swe_runs_dev.json"),
    }
    machine = "; ".join(f"{name}: {value}" for name, value in describe_machine().items())
    lines = [_HEAD.format(date=datetime.now(UTC), machine=machine, resamples=10_000)]
    for name, runs in sets.items():
        lines += _section(name, runs)
    PAGE.write_text("\n".join([*lines, _TAIL.format(shuffles=_SHUFFLES)]), encoding="utf-8")


def _section(name: str, runs: Sequence[RecordedRun]) -> Iterator[str]:
    """Yield the lines of a data set's section."""
    embedder = open_embedder(EmbedderSettings(allow_download=False))
    try:
        found = measure(runs, CachingEmbedder(embedder))
    finally:
        embedder.close()
    succeeded = sum(run.succeeded for run in runs)
    tasks = [str(run.task) for run in runs]
    yield f"## {name}: {len(runs)} runs of {len(set(tasks))} tasks, {succeeded} succeeded\n"
    yield f"| outcomes | {' | '.join(_FIGURES.values())} |"
    yield "|---" * (len(_FIGURES) + 1) + "|"
    off = found.pop(f"weight {_WEIGHTS[0]}")
    yield f"| weight 0 | {' | '.join(f'{100 * mean:.1f}' for mean in _chosen(off.mean(axis=0).tolist()))} |"
    for arm, figures in found.items():
        repeated = len(figures) // len(off)
        gains = _chosen(difference(figures - np.tile(off, (repeated, 1)), tasks * repeated))
        yield f"| {arm} | {' | '.join(map(_points, gains))} |"
    yield ""


def measure(
    runs: Sequence[RecordedRun],
    embedder: CachingEmbedder,
    weights: Sequence[float] = _WEIGHTS,
    shuffles: int = _SHUFFLES,
) -> dict[str, Figures]:
    """Return each arm's values, (requests, figures); the control's values cover all shuffles."""
    found: dict[str, Figures] = {}
    with tempfile.TemporaryDirectory(prefix="memory-bench-") as folder:
        _ingest(runs, Path(folder), embedder)
        for weight in weights:
            arm = f"weight {weight}" + (", shipped" if weight == _SHIPPED else "")
            found[arm] = _asked(runs, Path(folder), embedder, weight)
    controls = []
    for shuffle in range(shuffles):
        endings = np.random.default_rng(shuffle).permutation([run.succeeded for run in runs]).tolist()
        told = [msgspec.structs.replace(run, succeeded=ending) for run, ending in zip(runs, endings, strict=True)]
        with tempfile.TemporaryDirectory(prefix="memory-bench-") as folder:
            _ingest(told, Path(folder), embedder)
            controls.append(_asked(runs, Path(folder), embedder, _SHIPPED))
    return found | ({f"weight {_SHIPPED}, shuffled": np.concatenate(controls)} if controls else {})


def _ingest(runs: Sequence[RecordedRun], folder: Path, embedder: CachingEmbedder) -> None:
    """Ingest the runs in random order, an hour apart."""
    with _open(folder, embedder, 0.0) as memory:
        for place, number in enumerate(np.random.default_rng(7).permutation(len(runs)).tolist()):
            at = _START + place * _APART
            events = events_of(runs[number], "user", at)
            for start in range(0, len(events), _BATCH):
                memory.ingest(events[start : start + _BATCH], now=at + _APART / 2)


def _asked(runs: Sequence[RecordedRun], folder: Path, embedder: CachingEmbedder, weight: float) -> Figures:
    """Recall each run's request; return the values, (requests, figures)."""
    by_id = {run.run_id: run for run in runs}
    now = _START + (len(runs) + 1) * _APART
    figures: list[RunFigures] = []
    with _open(folder, embedder, weight) as memory:
        for run in runs:
            result = memory.recall(
                run.request, _MEMORIES, by_run=run.run_id, now=now, min_relevance=0.0, deadline_ms=60_000
            )
            recalled = distinct(found.record.run_id for found in result.memories)
            figures.append(figures_of([by_id[run_id] for run_id in recalled], run.task))
    return np.array(figures, dtype=np.float64)


def _open(folder: Path, embedder: CachingEmbedder, weight: float) -> Memory:
    return Memory.open(
        folder / "user",
        embedder=embedder,
        recall_settings=RecallSettings(outcome=weight, echo_minutes=0.0),
        learning_settings=LearningSettings(mode="off"),
    )


def _chosen(values: Sequence[Chosen]) -> list[Chosen]:
    """Select the page's columns from the values of all fields of `RunFigures`."""
    return [values[RunFigures._fields.index(name)] for name in _FIGURES]


def _points(gain: Difference) -> str:
    interval = "" if gain.low is None or gain.high is None else f" ({100 * gain.low:+.1f} to {100 * gain.high:+.1f})"
    return f"{100 * gain.mean:+.1f}{interval}"


if __name__ == "__main__":
    main()
