"""Measures the cost of learning: the times of an update and of relearning, the file size, and the time added to
recalls.

Updates are measured on a separate learner with the model's dimensions and as many runs as the design assumes. Recalls
query a filled store after 512 runs have used it: with learning off, with learning on, and in a trial, which compares
both rankings. Blocks alternate, and times are compared per question.

To run only this benchmark: `python -m ops.bench --only learning [--quick] [--json]`.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from memory_agent import Memory
from memory_agent.embedders import Embedder, open_embedder
from memory_agent.settings import EmbedderSettings, LearningSettings
from ops.bench.spread import percentile, spread
from ops.bench.texts import queries
from ops.bench.timing import milliseconds
from sona import CAPACITY, Learner, Lesson, Vector
from sona.checkpoint import to_bytes

TARGET_UPDATE_MS = 1.0
TARGET_SLOWER_MS = 0.3
TARGET_STATE_MB = 5.0

_NDIM = 384
_SIZES = (100, 500)
_UPDATES = 60
_TURNS = 8
_QUESTIONS = 60
_TOP_K = 5
_MODES = ("off", "on", "auto")


def measure(store: Path) -> dict[str, Any]:
    """Return the cost of learning, on its own and within recalls from the filled `store`, which is not changed."""
    return {
        "updates": {str(size): _updates(size) for size in _SIZES},
        "state": _state(),
        "recall": _recalls(store),
        "target_update_ms": TARGET_UPDATE_MS,
        "target_slower_ms": TARGET_SLOWER_MS,
        "target_state_mb": TARGET_STATE_MB,
    }


def _updates(size: int) -> dict[str, Any]:
    """Measure the times to add, revise and forget a run in a learner of `size` runs."""
    lessons = list(_lessons(size + _UPDATES))
    learner = Learner.from_lessons(_NDIM, lessons[:size])
    random = np.random.default_rng(1)
    learned = [milliseconds(learner.learn, one) for one in lessons[size:]]
    revised = [milliseconds(learner.learn, replace(one, quality=0.9)) for one in lessons[:_UPDATES]]
    forgotten = [milliseconds(learner.forget, [one.number]) for one in lessons[:_UPDATES]]
    asked = [milliseconds(learner.adapt, _unit(random.normal(size=_NDIM))) for _ in range(_UPDATES)]
    figures = {"learned_ms": learned, "revised_ms": revised, "forgotten_ms": forgotten, "asked_ms": asked}
    return {name: spread(taken, 3) | {"p99": round(percentile(taken, 99), 3)} for name, taken in figures.items()}


def _state() -> dict[str, Any]:
    """Return a full learner's file size, and the time to relearn everything."""
    lessons = list(_lessons(CAPACITY))
    taken = [milliseconds(Learner.from_lessons, _NDIM, lessons) for _ in range(3)]
    more = list(_lessons(2 * CAPACITY))
    condensed = milliseconds(Learner.from_lessons, _NDIM, more)
    megabytes = max(len(to_bytes(Learner.from_lessons(_NDIM, some))) for some in (lessons, more)) / 1e6
    return {
        "lessons": CAPACITY,
        "anew_ms": spread(taken, 1),
        "condensed_ms": round(condensed, 1),
        "state_mb": round(megabytes, 2),
    }


def _recalls(store: Path) -> dict[str, Any]:
    """Time the same questions in each learning mode, alternating between modes."""
    with ExitStack() as stack:
        embedder = open_embedder(EmbedderSettings(allow_download=False))
        stack.callback(embedder.close)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-learning-")))
        taught = Path(shutil.copytree(store, folder / "taught"))
        _teach(taught, embedder)
        ways = {
            mode: stack.enter_context(_opened(Path(shutil.copytree(taught, folder / mode)), embedder, mode))
            for mode in _MODES
        }
        slower: dict[str, list[float]] = {mode: [] for mode in _MODES}
        medians: dict[str, list[float]] = {mode: [] for mode in _MODES}
        for turn in range(-1, _TURNS):
            asked = queries(_QUESTIONS, seed=5_000 + turn)
            for question in asked:
                embedder.embed_query(question)  # cached, so that embedding is not compared
            order = (*_MODES[turn % 3 :], *_MODES[: turn % 3])
            taken = {mode: [milliseconds(_ask, ways[mode], question) for question in asked] for mode in order}
            for mode in order if turn >= 0 else ():
                slower[mode].append(statistics.median(np.subtract(taken[mode], taken["off"]).tolist()))
                medians[mode].append(statistics.median(taken[mode]))
        status, trial = ways["on"].sona.status(), ways["auto"].sona.status()
        assert trial.gate.state == "trial", trial.gate
    return {
        "credited": status.credited,
        "off_ms": spread(medians["off"], 2),
        "on_ms": spread(medians["on"], 2),
        "slower_ms": spread(slower["on"], 3),
        "trial_slower_ms": spread(slower["auto"], 3),
    }


def _teach(folder: Path, embedder: Embedder) -> None:
    """Replay as many runs as a learner can hold, each using the first memory it was shown.

    With learning off, no rankings are compared, so the gate starts its trial with the second run and gathers no
    evidence.
    """
    with _opened(folder, embedder, "off") as memory:
        for question in queries(CAPACITY, seed=4_000):
            result = memory.recall(question, _TOP_K, deadline_ms=60_000, min_relevance=0.0)
            memory.feedback(result.recall_id, [result.memories[0].record.id], 1.0)


@contextmanager
def _opened(folder: Path, embedder: Embedder, mode: Any) -> Iterator[Memory]:
    with Memory.open(folder, embedder=embedder, learning_settings=LearningSettings(mode=mode)) as memory:
        yield memory


def _ask(memory: Memory, question: str) -> None:
    result = memory.recall(question, _TOP_K, deadline_ms=60_000, min_relevance=0.0)
    assert len(result.memories) == _TOP_K
    assert not result.degraded, result.degraded


def _lessons(count: int) -> Iterator[Lesson]:
    """Yield lessons with requests on a few dozen topics, each using one to three of 3,000 memories."""
    random = np.random.default_rng(0)
    topics = [_unit(random.normal(size=_NDIM)) for _ in range(40)]
    for number in range(1, count + 1):
        query = _unit(topics[number % len(topics)] + 0.7 * _unit(random.normal(size=_NDIM)))
        used = random.choice(3_000, size=int(random.integers(1, 4)), replace=False)
        vectors = np.array([_unit(random.normal(size=_NDIM)) for _ in used])
        yield Lesson(number, query, tuple(used.tolist()), vectors, (1.0,) * len(used), float(random.choice([1.0, 0.8])))


def _unit(vector: Any) -> Vector:
    return np.asarray(vector / np.linalg.norm(vector), dtype=np.float32)
