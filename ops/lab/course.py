"""Trains one arm on a copy of one user's store, question by question, and measures it between lessons.

Training is on-policy: a recall is answered, the run reports which of the shown memories it used and how it ended, and
the next recall uses what was learned. Measuring uses a separate copy, so it does not affect learning. Time is simulated
at one hour per question, so a course can be reproduced from its seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple, Unpack

import msgspec
import numpy as np

from memory_agent.embedders import Embedder
from memory_agent.evaluation import Examiner, History, Place, Question, event_id
from memory_agent.evaluation.runs import opener
from memory_agent.memory import Memory
from memory_agent.records.arguments import RecallOptions
from memory_agent.records.memories import MemoryFilter, MemoryRecord, Mode, RecallResult
from memory_agent.records.trajectories import FeedbackReport, SonaStatus
from ops.lab.arms import Arm, claim_for
from ops.lab.rocchio import Rocchio
from ops.lab.stores import Stores, copied

ASKED = 10
"""The number of memories requested for a test question."""

_START = datetime(2025, 1, 6, tzinfo=UTC)
_APART = timedelta(hours=1)
_METRICS = ("recall@1", "recall@5", "recall@10", "mrr")

Watch = Callable[[int, Memory], None]
"""Called after each lesson with the number of questions taught and the memory."""


class Figures(NamedTuple):
    """The retrieval metrics of one question."""

    recall_at_1: float
    recall_at_5: float
    recall_at_10: float
    mrr: float


class FeedbackCounts(msgspec.Struct, kw_only=True):
    """Counts of feedback, memories named, memories credited, and reasons why others were not credited. Mutable."""

    feedbacks: int = 0
    named: int = 0
    credited: int = 0
    not_credited: dict[str, int] = {}

    def note(self, named: int, report: FeedbackReport) -> None:
        """Count one feedback report, which named `named` memories."""
        self.feedbacks += 1
        self.named += named
        self.credited += len(report.credited)
        for reason in report.not_credited.values():
            self.not_credited[reason] = self.not_credited.get(reason, 0) + 1


@dataclass(frozen=True)
class Setup:
    """The inputs of a course. `shown` is the number of memories requested for a teaching question."""

    stores: Stores
    embedder: Embedder
    shown: int = 10


@contextmanager
def course(setup: Setup, arm: Arm, history: History, random: np.random.Generator) -> Iterator[Course]:
    """Yield a course on a copy of `history.user`'s store; remove the copy afterwards."""
    with copied(setup.stores.folder, history.user) as folder:
        yield Course(setup, arm, history, random, folder)


class Course:
    """An arm, and the copy of a store on which it learns. `history` contains the items that questions refer to."""

    def __init__(self, setup: Setup, arm: Arm, history: History, random: np.random.Generator, folder: Path) -> None:
        self.heard = FeedbackCounts()
        self._setup = setup
        self._arm = arm
        self._history = history
        self._random = random
        self._folder = folder
        self._settings = arm.settings(setup.stores.settings)
        self._mode: Mode = arm.mode or self._settings.recall.mode
        self._rocchio = Rocchio()
        self._now = _START

    def teach(self, questions: Sequence[Question], watch: Watch = lambda _taught, _memory: None) -> SonaStatus:
        """Ask the questions in order, with feedback after each; return the learner's final status."""
        with self._open(self._folder, self._setup.embedder) as memory:
            for taught, (question, other) in enumerate(_with_others(questions), 1):
                self._teach(memory, question, other)
                watch(taught, memory)
            return memory.sona.status()

    def ask(self, questions: Sequence[Question]) -> dict[str, Figures]:
        """Return each question's metrics, by question id, without changing the course."""
        history = msgspec.structs.replace(self._history, questions=tuple(questions))
        embedder = self._setup.embedder
        if self._arm.moves:
            embedder = self._rocchio.moving(embedder)
        with copied(self._folder, history.user) as folder, self._open(folder, embedder) as memory:
            asked = _AtTime(memory, self._now)
            examiner = Examiner(history, history.user, asked.recall, memory.get, self._mode, ASKED)
            answers = examiner.ask_all(lambda: None)
        return {answer.question.id: Figures(*(answer.metrics[name] for name in _METRICS)) for answer in answers}

    def _teach(self, memory: Memory, question: Question, other: Question) -> None:
        self._now += _APART
        result = memory.recall(
            question.text,
            self._setup.shown,
            mode=self._mode,
            now=self._now,
            reference_time=question.asked_at,
            min_relevance=0.0,
        )
        if self._arm.signal is None:
            return
        shown = self._places(result, memory)
        account = claim_for(self._arm.signal, question.relevant, other.relevant, shown, self._random)
        used = [self._record(item) for item in account.used]
        report = memory.feedback(result.recall_id, used=used, quality=account.quality, now=self._now)
        self.heard.note(len(used), report)
        if self._arm.moves:
            self._note_for_rocchio(memory, question, report, account.quality)

    def _note_for_rocchio(self, memory: Memory, question: Question, report: FeedbackReport, quality: float) -> None:
        records = memory.get(report.credited, with_embedding=True)
        used = [np.array(record.embedding, dtype=np.float32) for record in records if record.embedding]
        self._rocchio.learn(self._setup.embedder.embed_query(question.text), used, quality)

    def _places(self, result: RecallResult, memory: Memory) -> list[Place]:
        """Return the items of each recalled memory: its own items, then those of its duplicates."""
        places = []
        for found in result.memories:
            others = memory.get([origin.id for origin in found.origins])
            places.append(tuple(self._item(record) for record in (found.record, *others)))
        return places

    def _item(self, record: MemoryRecord) -> str:
        return (record.event_id or record.id).removeprefix(event_id(self._history.user, ""))

    def _record(self, item: str) -> str:
        return self._setup.stores.records[self._history.user][event_id(self._history.user, item)]

    def _open(self, folder: Path, embedder: Embedder) -> Memory:
        return opener(self._settings, folder, embedder)(self._history.user)


class _AtTime:
    """Recalls from a memory, with the clock set to a fixed time."""

    def __init__(self, memory: Memory, now: datetime) -> None:
        self._memory = memory
        self._now = now

    def recall(
        self,
        query: str,
        top_k: int | None = None,
        filter: MemoryFilter | None = None,
        mode: Mode | None = None,
        deadline_ms: float | None = None,
        **options: Unpack[RecallOptions],
    ) -> RecallResult:
        return self._memory.recall(query, top_k, filter, mode, deadline_ms, now=self._now, **options)


def _with_others(questions: Sequence[Question]) -> Iterator[tuple[Question, Question]]:
    """Pair each question with the next question, and the last question with the first."""
    return zip(questions, (*questions[1:], *questions[:1]), strict=True)
