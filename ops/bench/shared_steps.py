"""Measures whether successful runs share more steps with each other than with failed runs, compared with chance.

Two runs share the steps in their longest common subsequence (`learning/patterns`); the number of these steps is divided
by the runs' mean number of steps. Within each group, pairs of successful runs are compared with pairs of a successful
and a failed run. A group is a pattern of an airline agent's requests, or all issues in one repository (few issues have
runs with both outcomes). Chance is the same difference after shuffling the outcomes within each group; the interval is
from a bootstrap over each group's runs.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from memory_agent.embedders import Embedder
from memory_agent.learning import RunSteps, shared_steps, steps_of_failed_alone
from memory_agent.learning.patterns import PastRun, find_patterns
from memory_agent.learning.run_views import MOST_STEPS
from memory_agent.records.embedded import Embedding

_SHUFFLES = 1_999
_SHUFFLES_OF_WARNINGS = 39
_RESAMPLES = 2_000
_STEP_CHARS = 300

Shares = npt.NDArray[np.float64]


class Group(NamedTuple):
    """Comparable runs, and whether each succeeded."""

    runs: Sequence[RunSteps]
    worked: npt.NDArray[np.bool_]


def page_rows(name: str, groups: Sequence[Group], thresholds: Sequence[float]) -> list[str]:
    """Return a table row for each similarity threshold."""
    groups = [group for group in groups if group.worked.sum() > 1 and not group.worked.all()]
    return [_row(name, groups, least, np.random.default_rng(7)) for least in thresholds]


def _row(name: str, groups: Sequence[Group], least: float, rng: np.random.Generator) -> str:
    shares = [_shares(group.runs, least) for group in groups]
    found = _difference(shares, [group.worked for group in groups])
    shuffled = [_difference(shares, [rng.permutation(group.worked) for group in groups]) for _ in range(_SHUFFLES)]
    resampled = [_resampled(groups, shares, rng) for _ in range(_RESAMPLES)]
    low, high = np.nanquantile(resampled, (0.025, 0.975))
    chance_low, chance_high = np.quantile(shuffled, (0.025, 0.975))
    p = (1 + sum(one >= found for one in shuffled)) / (1 + _SHUFFLES)
    alone = _warnings(groups, least)
    by_chance = [
        _warnings([Group(group.runs, rng.permutation(group.worked)) for group in groups], least)
        for _ in range(_SHUFFLES_OF_WARNINGS)
    ]
    cells = [
        name,
        f"{least:g}",
        f"{len(groups)}, {sum(len(group.runs) for group in groups)}",
        f"{_mean_share(shares):.2f}",
        f"{found:+.3f} ({low:+.3f} to {high:+.3f})",
        f"{chance_low:+.3f} to {chance_high:+.3f}, p {p:.3f}",
        f"{alone} ({fmean(by_chance):.1f}, {min(by_chance)} to {max(by_chance)})",
    ]
    return f"| {' | '.join(cells)} |"


def _shares(runs: Sequence[RunSteps], least: float) -> Shares:
    """Return the (n, n) matrix of the fraction of steps that each pair of runs shares, with NaN on the diagonal."""
    found = np.full((len(runs), len(runs)), np.nan)
    for one, run in enumerate(runs):
        for other in range(one):
            shared = len(shared_steps([run, runs[other]], least))
            found[one, other] = found[other, one] = 2 * shared / max(len(run.steps) + len(runs[other].steps), 1)
    return found


def _mean_share(shares: Sequence[Shares]) -> float:
    return float(np.nanmean(np.concatenate([one.ravel() for one in shares])))


def _difference(shares: Sequence[Shares], worked: Sequence[npt.NDArray[np.bool_]]) -> float:
    """Return the mean difference over groups: the share for two successful runs minus the share for a successful and a
    failed run.
    """
    pairs = zip(shares, worked, strict=True)
    found = [
        (np.nanmean(share[np.ix_(good, good)]) - np.nanmean(share[np.ix_(good, ~good)]), good.size)
        for share, good in pairs
    ]
    return float(np.average([one for one, _ in found], weights=[size for _, size in found]))


def _resampled(groups: Sequence[Group], shares: Sequence[Shares], rng: np.random.Generator) -> float:
    """Return the difference after resampling the runs of each group, or NaN if a group has no pairs left."""
    drawn, worked = [], []
    for group, share in zip(groups, shares, strict=True):
        good, bad = np.flatnonzero(group.worked), np.flatnonzero(~group.worked)
        places = np.concatenate([rng.choice(good, good.size), rng.choice(bad, bad.size)])
        if len(set(places[: good.size].tolist())) == 1:
            return float("nan")
        drawn.append(share[np.ix_(places, places)])
        worked.append(group.worked[places])
    return _difference(drawn, worked)


def _warnings(groups: Sequence[Group], least: float) -> int:
    found = 0
    for group in groups:
        failed = [run for run, worked in zip(group.runs, group.worked, strict=True) if not worked]
        others = [run for run, worked in zip(group.runs, group.worked, strict=True) if worked]
        found += len(steps_of_failed_alone(failed, others, least))
    return found


def groups_of_patterns(runs: Sequence[PastRun], embedder: Embedder) -> list[Group]:
    """Return the patterns among `runs` as groups."""
    vectors = _vectors_of((step for run in runs for step in run.steps), embedder)
    return [
        Group(
            [_told(run.id, run.steps, vectors) for run in found.runs], np.array([run.quality > 0 for run in found.runs])
        )
        for found in find_patterns(runs)
    ]


def groups_of_repositories(file: Path, embedder: Embedder) -> list[Group]:
    """Return one group of runs per repository; a step is one of the agent's thoughts."""
    runs: list[Mapping[str, Any]] = json.loads(file.read_bytes())
    told = [[step["thought"].strip()[:_STEP_CHARS] for step in run["steps"] if step["thought"].strip()] for run in runs]
    kept = [tuple(one if len(one) <= MOST_STEPS else [*one[: MOST_STEPS - 1], one[-1]]) for one in told]
    vectors = _vectors_of((step for steps in kept for step in steps), embedder)
    by_repository: dict[str, list[tuple[RunSteps, bool]]] = defaultdict(list)
    for number, (run, steps) in enumerate(zip(runs, kept, strict=True)):
        repository = run["instance_id"].rpartition("-")[0]
        by_repository[repository].append((_told(f"run-{number}", steps, vectors), bool(run["resolved"])))
    return [Group([run for run, _ in one], np.array([worked for _, worked in one])) for one in by_repository.values()]


def _vectors_of(steps: Iterator[str], embedder: Embedder) -> dict[str, Embedding]:
    different = sorted(set(steps))
    return dict(zip(different, embedder.embed_texts(different), strict=True))


def _told(run_id: str, steps: tuple[str, ...], vectors: Mapping[str, Embedding]) -> RunSteps:
    return RunSteps(run_id, steps, np.stack([vectors[step] for step in steps]) if steps else None)
