"""The steps that similar runs have in common, in order, and the steps that only failed runs took. Pure.

Two steps are the same if the mean of the cosine of their vectors and the cosine of their words (Porter stems, each as a
dimension) is at least .6, so paraphrases match. Without vectors only the words are compared. The order is that of the
run most similar to the others: its steps on a longest common subsequence with another run are shared with that run.
So a step that two runs took in opposite order is not shared. Steps are quoted and counted; nothing is generated.

Rejected: clusters of steps, which need a second threshold; the longest common subsequence of all runs, which loses
each step that one run skips.

Shapes: d = dimensions of an embedding, n steps of one run, m of another, s of all, w different words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from memory_agent.records.embedded import Embedding
from memory_agent.storage.terms import query_words, stems

SAME_STEP = 0.6
"""Minimum similarity of two equal steps (`ops/bench/patterns.md`)."""
LEAST_RUNS = 2
MOST_RUNS = 16
"""Maximum runs to compare; further ones are ignored."""
_BACKBONES = 8
_LEAST_SHARE = 0.5  # minimum share of the runs that took a step

Likeness = npt.NDArray[np.float32]


class Told(NamedTuple):
    """A run: its id, its steps in order, and their vectors (n, d), each of unit length or zero; None without any."""

    id: str
    steps: tuple[str, ...]
    vectors: Embedding | None = None


class SharedStep(NamedTuple):
    """A step in the words of one run, and the ids of the runs that took it, in input order."""

    text: str
    runs: tuple[str, ...]


def shared_steps(runs: Sequence[Told], least: float = SAME_STEP) -> list[SharedStep]:
    """Return the steps that at least two of `runs`, and half of them, took in the same order."""
    runs = [run for run in runs if run.steps][:MOST_RUNS]
    if len(runs) < LEAST_RUNS:
        return []
    alike = _Alike(runs, least)
    candidates = range(min(len(runs), _BACKBONES))
    weights = [sum(_weight(alike.of(one, other)) for other in range(len(runs)) if other != one) for one in candidates]
    backbone = int(np.argmax(weights))
    holds: list[list[str]] = [[] for _ in runs[backbone].steps]
    for other, run in enumerate(runs):
        aligned = range(len(holds)) if other == backbone else _aligned(alike.of(backbone, other))
        for place in aligned:
            holds[place].append(run.id)
    wanted = max(LEAST_RUNS, _LEAST_SHARE * len(runs))
    steps = zip(runs[backbone].steps, holds, strict=True)
    return [SharedStep(step, tuple(ids)) for step, ids in steps if len(ids) >= wanted]


def steps_of_failed_alone(failed: Sequence[Told], others: Sequence[Told], least: float = SAME_STEP) -> list[SharedStep]:
    """Return the steps that at least two of the failed runs, and half of them, took, and none of `others` took.

    The most frequent steps come first. Empty without `others`, because there is nothing to compare with.
    """
    failed = [run for run in failed if run.steps][:MOST_RUNS]
    others = [run for run in others if run.steps][:MOST_RUNS]
    if len(failed) < LEAST_RUNS or not others:
        return []
    alike = _Alike([*failed, *others], least)
    wanted = max(LEAST_RUNS, _LEAST_SHARE * len(failed))
    taken = alike.taken
    found: list[tuple[int, SharedStep]] = []
    for row, step in enumerate(step for run in failed for step in run.steps):
        ids = tuple(run.id for run, has in zip(failed, taken[row], strict=False) if has)
        is_listed = any(alike.same(row, listed) for listed, _ in found)
        if len(ids) >= wanted and not taken[row, len(failed) :].any() and not is_listed:
            found.append((row, SharedStep(step, ids)))
    return sorted((step for _, step in found), key=lambda step: -len(step.runs))


class _Alike:
    """The similarities of the steps of runs: one matrix (s, s), 0 for different steps."""

    def __init__(self, runs: Sequence[Told], least: float) -> None:
        self._starts = np.cumsum([0, *(len(run.steps) for run in runs)]).tolist()
        likeness = _likeness([step for run in runs for step in run.steps], _vectors(runs))
        self._likeness = np.where(likeness >= least, likeness, np.float32(0.0))

    def of(self, one: int, other: int) -> Likeness:
        """Return the similarities (n, m) of two runs."""
        rows, columns = slice(*self._starts[one : one + 2]), slice(*self._starts[other : other + 2])
        return self._likeness[rows, columns]

    @property
    def taken(self) -> npt.NDArray[np.bool_]:
        """Whether each step was taken by each run: (s, runs)."""
        taken: npt.NDArray[np.bool_] = np.maximum.reduceat(self._likeness, self._starts[:-1], axis=1) > 0
        return taken

    def same(self, row: int, other: int) -> bool:
        """Return whether two steps are the same."""
        return bool(self._likeness[row, other])


def _vectors(runs: Sequence[Told]) -> Embedding | None:
    ndim = next((run.vectors.shape[1] for run in runs if run.vectors is not None), 0)
    if not ndim:
        return None
    nothing = [np.zeros((len(run.steps), ndim), dtype=np.float32) for run in runs]
    return np.concatenate(
        [none if run.vectors is None else run.vectors for run, none in zip(runs, nothing, strict=True)]
    )


def _likeness(steps: Sequence[str], vectors: Embedding | None) -> Likeness:
    """Return the similarities (s, s) of all steps."""
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
    """Return the weights (n + 1, m + 1) of the longest common subsequences of the first steps of two runs."""
    table = np.zeros((likeness.shape[0] + 1, likeness.shape[1] + 1), dtype=np.float32)
    for row, weights in enumerate(likeness):
        np.maximum.accumulate(np.maximum(table[row, 1:], table[row, :-1] + weights), out=table[row + 1, 1:])
    return table


def _weight(likeness: Likeness) -> float:
    return float(_table(likeness)[-1, -1])


def _aligned(likeness: Likeness) -> list[int]:
    """Return the positions of the n steps on the longest common subsequence, ascending."""
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
