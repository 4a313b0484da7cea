"""Recurring requests among a user's runs, as memories: what was asked, how often, how it ended, what worked.

Three or more runs from two sessions or days whose requests lie together (centred, average linkage) form a pattern.
Everything is counted or quoted; nothing is generated. Patterns are a pure function of the runs: with fewer runs,
because some were forgotten, they change or vanish, so each computation replaces the previous one. A pattern is
identified by its first run, so its id stays while it grows. `pattern_store` stores them.

Which steps successful runs share, and which only failed ones took, `shared_steps` says: whole steps, also in other
words. Rejected: words that failed runs have in common, since two short runs share a list by chance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import fmean
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash
from ulid import ULID

from memory_agent.learning.shared_steps import MOST_RUNS as MOST_COMPARED
from memory_agent.learning.shared_steps import SharedStep, Told, shared_steps, steps_of_failed_alone
from memory_agent.records.embedded import Embedding
from memory_agent.records.memories import MemoryRecord
from memory_agent.records.trajectories import Outcome
from memory_agent.storage.terms import fingerprint
from sona.centering import WARM_UP, QueryCentering
from sona.clusters import average_linkage

THRESHOLD = 0.45
"""Least mean cosine of the centred requests of a pattern; fitted on half of the airline tasks (decision 0019)."""
COLD_THRESHOLD = 0.8
"""The same for fewer than 20 runs, which are too few for centring."""
WORKED = 0.5
"""Quality from which a run counts as a success."""
MOST_RUNS = 1_000  # the newest; clustering takes n^2 memory and n^3 time
LEAST_RUNS = 3

CUT = "…"
"""The end of a text that was cut."""

_WORKED, _FAILED = "What successful runs did, in this order", "What failed runs did and no other"
_LEAST_OCCASIONS = 2
_APPROVED = 1.0
_MOST_IDS = 50
_MOST_STEPS = 8
_MOST_SHARED = 3
_STEP_CHARS = 160
_REQUEST_CHARS = 400
_TITLE_CHARS = 80


@dataclass(frozen=True, eq=False)
class PastRun:
    """An ended run. `vector`, (d,), embeds its request `objective`; `quality` is its latest.

    `steps` are titles or texts of its steps in order, `result` of its end; `used` are ids of memories.
    """

    id: str
    objective: str
    vector: npt.NDArray[np.float32]
    session_id: str | None
    ended_at: datetime
    outcome: Outcome
    quality: float
    steps: tuple[str, ...] = ()
    used: tuple[str, ...] = ()
    result: str = ""


StepVectors = Callable[[PastRun], Embedding | None]
"""Returns the vectors (n, d) of a run's steps, zero where there is none; None without any."""


def no_vectors(run: PastRun) -> None:
    """Steps are compared by their words."""


class Pattern(NamedTuple):
    """A pattern as a memory, with all its runs in order of time."""

    record: MemoryRecord
    runs: tuple[PastRun, ...]


def patterns(runs: Sequence[PastRun]) -> list[MemoryRecord]:
    """Return a memory for each pattern among the newest 1,000 of `runs`, which may be in any order.

    Runs without a request are ignored. `metadata` has `run_ids` (the newest 50), the counts `runs`, `succeeded` and
    `failed` (the rest completed and were retried or rated low), and `used`: memories that at least two successful runs
    used. `steps` and `failed_steps`, each a `text` with its `run_ids`, are those that successful runs share, in order,
    and those that failed runs took and no other. Raises `sona.errors.ShapeError` when vectors differ in length.
    """
    return [found.record for found in find_patterns(runs)]


def find_patterns(runs: Sequence[PastRun], step_vectors: StepVectors = no_vectors) -> list[Pattern]:
    """Return the patterns among `runs` with their runs. Like `patterns`."""
    told = sorted((run for run in runs if run.objective.strip()), key=lambda run: (run.ended_at, run.id))[-MOST_RUNS:]
    if len(told) < LEAST_RUNS:
        return []
    found = ((cluster, typical) for cluster, typical in _clusters(told) if _recurs(cluster))
    return [Pattern(_record(cluster, typical, step_vectors), tuple(cluster)) for cluster, typical in found]


def _clusters(runs: Sequence[PastRun]) -> Iterator[tuple[list[PastRun], PastRun]]:
    """Yield each cluster of requests as its runs in order of time and its medoid."""
    vectors = np.stack([run.vector for run in runs])
    centering = QueryCentering(vectors.shape[1])
    for vector in vectors:
        centering.observe(vector)
    centred = np.stack([centering.centre(vector) for vector in vectors])
    clusters = average_linkage(centred, COLD_THRESHOLD if len(runs) < WARM_UP else THRESHOLD)
    for label, medoid in enumerate(clusters.medoids):
        yield [runs[row] for row in clusters.members(label)], runs[medoid]


def _recurs(runs: Sequence[PastRun]) -> bool:
    sessions = {run.session_id for run in runs if run.session_id is not None}
    days = {run.ended_at.date() for run in runs}
    return len(runs) >= LEAST_RUNS and max(len(sessions), len(days)) >= _LEAST_OCCASIONS


def _record(runs: Sequence[PastRun], typical: PastRun, step_vectors: StepVectors) -> MemoryRecord:
    succeeded = [run for run in runs if run.quality >= WORKED]
    failed = [run for run in runs if run.quality < WORKED and run.outcome == "failed"]
    others = [run for run in runs if run not in failed]
    steps = shared_steps(_told(succeeded, step_vectors))
    failed_steps = steps_of_failed_alone(_told(failed, step_vectors), _told(others, step_vectors))
    lines = [
        _asked(runs, typical),
        _ended(runs, succeeded, failed),
        _listed(_WORKED, steps[:_MOST_STEPS], len(succeeded)),
        _best(succeeded),
        _listed(_FAILED, failed_steps[:_MOST_SHARED], len(failed)),
    ]
    return MemoryRecord(
        id=_id_of(runs[0]),
        text="\n".join(line for line in lines if line),
        source="trajectory_outcome",
        kind="pattern",
        timestamp=runs[-1].ended_at,
        quality_score=fmean(run.quality for run in runs),
        title=on_one_line(typical.objective, _TITLE_CHARS),
        metadata={
            "run_ids": [run.id for run in runs[-_MOST_IDS:]],
            "runs": len(runs),
            "succeeded": len(succeeded),
            "failed": len(failed),
            "used": _used_again(succeeded),
            "steps": _evidence(steps),
            "failed_steps": _evidence(failed_steps[:_MOST_SHARED]),
        },
    )


def _id_of(first: PastRun) -> str:
    """Return a ULID made of the end time of a pattern's first run and a hash of its id."""
    milliseconds = int(first.ended_at.timestamp() * 1000)
    digest = xxhash.xxh3_128_digest(f"pattern\0{first.id}".encode("utf-8", "surrogatepass"))
    return str(ULID.from_bytes(max(milliseconds, 0).to_bytes(6, "big") + digest[:10]))


def _asked(runs: Sequence[PastRun], typical: PastRun) -> str:
    first, last = (run.ended_at.date().isoformat() for run in (runs[0], runs[-1]))
    when = f"on {first}" if first == last else f"from {first} to {last}"
    return f"Asked {len(runs)} times {when}, most typically: {on_one_line(typical.objective, _REQUEST_CHARS)}"


def _ended(runs: Sequence[PastRun], succeeded: Sequence[PastRun], failed: Sequence[PastRun]) -> str:
    approved = sum(run.quality >= _APPROVED for run in succeeded)
    counts = {
        "approved": approved,
        "completed": len(succeeded) - approved,
        "completed but retried or rated low": len(runs) - len(succeeded) - len(failed),
        "failed": len(failed),
    }
    told = ", ".join(f"{count} {how}" for how, count in counts.items() if count)
    return f"How it ended: {told}; mean quality {fmean(run.quality for run in runs):.2f}."


def _best(succeeded: Sequence[PastRun]) -> str:
    """Return what the best run did, the newest of equals, or "" when no successful run has steps."""
    told = [run for run in succeeded if _steps(run)]
    if not told:
        return ""
    best = max(told, key=lambda run: (run.quality, run.ended_at, run.id))
    steps = _steps(best)
    left_out = len(steps) - _MOST_STEPS
    if left_out > 0:
        steps = [*steps[: _MOST_STEPS - 1], f"({left_out} more)", steps[-1]]
    listed = "; ".join(on_one_line(step, _STEP_CHARS) for step in steps)
    return f"What the best run did ({best.ended_at.date().isoformat()}, quality {best.quality:.2f}): {listed}"


def _told(runs: Sequence[PastRun], step_vectors: StepVectors) -> list[Told]:
    """Return the newest runs that are compared, newest first."""
    newest = [run for run in reversed(runs) if run.steps][:MOST_COMPARED]
    return [Told(run.id, run.steps, step_vectors(run)) for run in newest]


def _listed(what: str, steps: Sequence[SharedStep], runs: int) -> str:
    """Return steps with how many of the runs compared took each, or "" without any."""
    compared = min(runs, MOST_COMPARED)
    listed = "; ".join(f"{on_one_line(step.text, _STEP_CHARS)} ({len(step.runs)} of {compared})" for step in steps)
    return f"{what}: {listed}" if listed else ""


def _evidence(steps: Sequence[SharedStep]) -> list[dict[str, object]]:
    return [{"text": on_one_line(step.text, _STEP_CHARS), "run_ids": list(step.runs)} for step in steps]


class _Step(msgspec.Struct):
    text: str


class _Learned(msgspec.Struct):
    """The metadata of a pattern that was made of runs, as far as it is words."""

    run_ids: list[str]
    steps: list[_Step]
    failed_steps: list[_Step]


def words_without_figures(record: MemoryRecord) -> str:
    """Return what a pattern says but how often, when and how well: "" where its runs share no steps.

    The text of a memory that was not made of runs stays.
    """
    try:
        learned = msgspec.convert(record.metadata, _Learned)
    except msgspec.ValidationError:
        return record.text
    told = {_WORKED: learned.steps[:_MOST_STEPS], _FAILED: learned.failed_steps}
    return "\n".join(f"{what}: {'; '.join(step.text for step in steps)}" for what, steps in told.items() if steps)


def _steps(run: PastRun) -> list[str]:
    """Return the non-empty steps without repeats, and the result."""
    told: dict[int, str] = {}
    for step in (*run.steps, run.result):
        if step.strip():
            told.setdefault(fingerprint(step), step)
    return list(told.values())


def _used_again(succeeded: Sequence[PastRun]) -> list[str]:
    """Return the ids of memories that at least two runs used, most used first."""
    counts = Counter(id_ for run in succeeded for id_ in set(run.used))
    return [id_ for id_ in sorted(counts, key=lambda id_: (-counts[id_], id_)) if counts[id_] > 1][:_MOST_IDS]


def on_one_line(text: str, most_chars: int) -> str:
    """Return `text` on one line, cut between words to at most `most_chars`, with `CUT` at the end."""
    line = " ".join(text.split())
    if len(line) <= most_chars:
        return line
    head, _, _ = line[:most_chars].rpartition(" ")
    return f"{head or line[: most_chars - 1]}{CUT}"
