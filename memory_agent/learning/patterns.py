"""Finds recurring requests among a user's runs. A pattern is a memory of a request, its outcomes, and what worked.

Three or more runs with similar requests (centred, average linkage) from at least two sessions or days form a pattern.
All content is counted or quoted; nothing is generated. Patterns are a pure function of the runs. A pattern is
identified by its first run, so its id stays the same as it grows. It lists the steps that successful runs share, even
if they are worded differently, and the steps that only failed runs took.
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

from memory_agent.records.embedded import Embedding
from memory_agent.records.memories import MemoryRecord
from memory_agent.records.trajectories import Outcome
from memory_agent.storage.terms import fingerprint, query_words, stems
from relay import described
from sona import WARM_UP, QueryCentering, average_linkage

THRESHOLD = 0.45  # the minimum mean cosine of centred requests (decision 0019)
COLD_THRESHOLD = 0.8  # used with fewer than 20 runs, which are too few for centring
WORKED = 0.5  # the minimum quality of a successful run
MOST_RUNS = 1_000  # only the newest runs are compared: clustering takes n^2 memory and n^3 time
LEAST_RUNS = 3

CUT = "…"  # ends a truncated text

_WORKED, _FAILED = "What successful runs did, in this order", "What only failed runs did"
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
    """A finished run."""

    id: str
    objective: str
    vector: npt.NDArray[np.float32]  # (d,), of `objective`
    session_id: str | None
    ended_at: datetime
    outcome: Outcome
    quality: float
    steps: tuple[str, ...] = ()  # titles or texts, in order
    used: tuple[str, ...] = ()  # ids of memories
    result: str = ""  # the text of the end event


StepVectors = Callable[[PastRun], Embedding | None]
"""Returns the vectors (n, d) of a run's steps, or None if no step has one. A step without a vector gets zeros."""


def no_vectors(run: PastRun) -> None:
    """Return no vectors, so that steps are compared by their words."""


class Pattern(NamedTuple):
    """A pattern as a memory, with all its runs in chronological order."""

    record: MemoryRecord
    runs: tuple[PastRun, ...]


def find_patterns(runs: Sequence[PastRun], step_vectors: StepVectors = no_vectors) -> list[Pattern]:
    """Return the patterns among the newest 1,000 of `runs`, which may be in any order.

    Runs without a request are ignored. The `metadata` of a pattern's memory contains `run_ids` (the newest 50); the
    counts `runs`, `succeeded` and `failed` (a run that completed but was retried or rated low counts as neither); and
    `used`, the memories that at least two successful runs used. `steps` lists, in order, the steps that successful runs
    share, and `failed_steps` lists the steps that only failed runs took. Each step is a `text` with its `run_ids`.
    Raises `sona.errors.ShapeError` if vectors differ in length.
    """
    told = sorted((run for run in runs if run.objective.strip()), key=lambda run: (run.ended_at, run.id))[-MOST_RUNS:]
    if len(told) < LEAST_RUNS:
        return []
    found = ((cluster, typical) for cluster, typical in _clusters(told) if _recurs(cluster))
    return [Pattern(_record(cluster, typical, step_vectors), tuple(cluster)) for cluster, typical in found]


def _clusters(runs: Sequence[PastRun]) -> Iterator[tuple[list[PastRun], PastRun]]:
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
    steps = shared_steps(_compared(succeeded, step_vectors))
    failed_steps = steps_of_failed_alone(_compared(failed, step_vectors), _compared(others, step_vectors))
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
    """Return a ULID derived from the end time of a pattern's first run and a hash of the run's id."""
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
    """Return the steps of the best run (in a tie, the newest), or "" if no successful run has steps."""
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


def _compared(runs: Sequence[PastRun], step_vectors: StepVectors) -> list[RunSteps]:
    newest = [run for run in reversed(runs) if run.steps][:MOST_COMPARED]
    return [RunSteps(run.id, run.steps, step_vectors(run)) for run in newest]


def _listed(what: str, steps: Sequence[SharedStep], runs: int) -> str:
    """Return the steps as text, each with the number of compared runs that took it."""
    compared = min(runs, MOST_COMPARED)
    listed = "; ".join(f"{on_one_line(step.text, _STEP_CHARS)} ({len(step.runs)} of {compared})" for step in steps)
    return f"{what}: {listed}" if listed else ""


def _evidence(steps: Sequence[SharedStep]) -> list[dict[str, object]]:
    return [{"text": on_one_line(step.text, _STEP_CHARS), "run_ids": list(step.runs)} for step in steps]


class _Step(msgspec.Struct):
    text: str


class _Learned(msgspec.Struct):
    run_ids: list[str]
    steps: list[_Step]
    failed_steps: list[_Step]


def words_without_figures(record: MemoryRecord) -> str:
    """Return a pattern's text without counts, times and qualities, or the whole text of any other memory."""
    try:
        learned = msgspec.convert(record.metadata, described(_Learned))
    except msgspec.ValidationError:
        return record.text
    told = {_WORKED: learned.steps[:_MOST_STEPS], _FAILED: learned.failed_steps}
    return "\n".join(f"{what}: {'; '.join(step.text for step in steps)}" for what, steps in told.items() if steps)


def _steps(run: PastRun) -> list[str]:
    told: dict[int, str] = {}
    for step in (*run.steps, run.result):
        if step.strip():
            told.setdefault(fingerprint(step), step)
    return list(told.values())


def _used_again(succeeded: Sequence[PastRun]) -> list[str]:
    """Return the ids of the memories that at least two runs used, most used first."""
    counts = Counter(id_ for run in succeeded for id_ in set(run.used))
    return [id_ for id_ in sorted(counts, key=lambda id_: (-counts[id_], id_)) if counts[id_] > 1][:_MOST_IDS]


def on_one_line(text: str, most_chars: int) -> str:
    """Return `text` on one line, truncated between words to at most `most_chars`; a truncated text ends with `CUT`."""
    line = " ".join(text.split())
    if len(line) <= most_chars:
        return line
    head, _, _ = line[:most_chars].rpartition(" ")
    return f"{head or line[: most_chars - 1]}{CUT}"


# Steps that similar runs have in common. Two steps are the same if the mean of two cosines is at least .6: the cosine
# of their vectors, and the cosine of their words (each Porter stem is a dimension). The run that is most similar to the
# others determines the order. The steps that it shares with another run are those in the longest common subsequence of
# the two runs. Shapes: d dimensions of an embedding, n steps of one run, m steps of another, s steps of all runs.

SAME_STEP = 0.6  # minimum similarity of steps that count as equal (`ops/bench/patterns.md`)
MOST_COMPARED = 16  # runs whose steps are compared; others are ignored
_LEAST_SHARING = 2
_BACKBONES = 8
_LEAST_SHARE = 0.5  # minimum share of runs that must take a shared step

Likeness = npt.NDArray[np.float32]


class RunSteps(NamedTuple):
    """A run: its id, its steps in order, and their vectors (n, d) or None. Each vector has unit length or is zero."""

    id: str
    steps: tuple[str, ...]
    vectors: Embedding | None = None


class SharedStep(NamedTuple):
    """A step in the words of one run, and the ids of the runs that took it, in input order."""

    text: str
    runs: tuple[str, ...]


def shared_steps(runs: Sequence[RunSteps], least: float = SAME_STEP) -> list[SharedStep]:
    """Return the steps that at least half of `runs`, and at least two of them, took in the same order."""
    runs = [run for run in runs if run.steps][:MOST_COMPARED]
    if len(runs) < _LEAST_SHARING:
        return []
    alike = _Alike(runs, least)
    candidates = range(min(len(runs), _BACKBONES))
    weights = [
        sum(float(_table(alike.of(one, other))[-1, -1]) for other in range(len(runs)) if other != one)
        for one in candidates
    ]
    backbone = int(np.argmax(weights))
    holds: list[list[str]] = [[] for _ in runs[backbone].steps]
    for other, run in enumerate(runs):
        aligned = range(len(holds)) if other == backbone else _aligned(alike.of(backbone, other))
        for place in aligned:
            holds[place].append(run.id)
    wanted = max(_LEAST_SHARING, _LEAST_SHARE * len(runs))
    steps = zip(runs[backbone].steps, holds, strict=True)
    return [SharedStep(step, tuple(ids)) for step, ids in steps if len(ids) >= wanted]


def steps_of_failed_alone(
    failed: Sequence[RunSteps], others: Sequence[RunSteps], least: float = SAME_STEP
) -> list[SharedStep]:
    """Return the steps that at least half (and two) of the `failed` runs, and no others, took, most frequent first."""
    failed = [run for run in failed if run.steps][:MOST_COMPARED]
    others = [run for run in others if run.steps][:MOST_COMPARED]
    if len(failed) < _LEAST_SHARING or not others:
        return []
    alike = _Alike([*failed, *others], least)
    wanted = max(_LEAST_SHARING, _LEAST_SHARE * len(failed))
    taken = alike.taken
    found: list[tuple[int, SharedStep]] = []
    for row, step in enumerate(step for run in failed for step in run.steps):
        ids = tuple(run.id for run, has in zip(failed, taken[row], strict=False) if has)
        is_listed = any(alike.same(row, listed) for listed, _ in found)
        if len(ids) >= wanted and not taken[row, len(failed) :].any() and not is_listed:
            found.append((row, SharedStep(step, ids)))
    return sorted((step for _, step in found), key=lambda step: -len(step.runs))


class _Alike:
    """The similarities between the steps of all runs, as a matrix (s, s), with 0 for steps that count as different."""

    def __init__(self, runs: Sequence[RunSteps], least: float) -> None:
        self._starts = np.cumsum([0, *(len(run.steps) for run in runs)]).tolist()
        likeness = _likeness([step for run in runs for step in run.steps], _vectors(runs))
        self._likeness = np.where(likeness >= least, likeness, np.float32(0.0))

    def of(self, one: int, other: int) -> Likeness:
        """Return the similarities (n, m) between the steps of two runs."""
        rows, columns = slice(*self._starts[one : one + 2]), slice(*self._starts[other : other + 2])
        return self._likeness[rows, columns]

    @property
    def taken(self) -> npt.NDArray[np.bool_]:
        """Whether each run took each step, (s, runs)."""
        taken: npt.NDArray[np.bool_] = np.maximum.reduceat(self._likeness, self._starts[:-1], axis=1) > 0
        return taken

    def same(self, row: int, other: int) -> bool:
        return bool(self._likeness[row, other])


def _vectors(runs: Sequence[RunSteps]) -> Embedding | None:
    ndim = next((run.vectors.shape[1] for run in runs if run.vectors is not None), 0)
    if not ndim:
        return None
    nothing = [np.zeros((len(run.steps), ndim), dtype=np.float32) for run in runs]
    return np.concatenate(
        [none if run.vectors is None else run.vectors for run, none in zip(runs, nothing, strict=True)]
    )


def _likeness(steps: Sequence[str], vectors: Embedding | None) -> Likeness:
    held = [set(stems(query_words(step))) for step in steps]
    places = {word: place for place, word in enumerate(dict.fromkeys(word for words in held for word in sorted(words)))}
    by_word = np.zeros((len(steps), max(len(places), 1)), dtype=np.float32)
    for row, words in enumerate(held):
        by_word[row, [places[word] for word in words]] = 1.0 / np.sqrt(max(len(words), 1))
    found = by_word @ by_word.T
    if vectors is not None:
        has = vectors.any(axis=1).reshape(-1, 1)
        found = np.where(has & has.T, (found + vectors @ vectors.T) / 2, found)
    return np.asarray(found, dtype=np.float32)


def _table(likeness: Likeness) -> Likeness:
    """Return the weight (n + 1, m + 1) of the longest common subsequence for each pair of prefixes of two runs."""
    table = np.zeros((likeness.shape[0] + 1, likeness.shape[1] + 1), dtype=np.float32)
    for row, weights in enumerate(likeness):
        np.maximum.accumulate(np.maximum(table[row, 1:], table[row, :-1] + weights), out=table[row + 1, 1:])
    return table


def _aligned(likeness: Likeness) -> list[int]:
    table = _table(likeness)
    row, column = likeness.shape
    places: list[int] = []
    while row and column:
        if table[row, column] == table[row - 1, column]:
            row -= 1
        elif table[row, column] == table[row, column - 1]:
            column -= 1
        else:
            row, column = row - 1, column - 1
            places.append(row)
    return places[::-1]
