"""Asks a memory the questions from a history, and scores the items and sessions in the answers.

A memory that merges duplicate items is credited with each of those items, at one rank. So an incorrect merge could only
raise the measured recall. Therefore, every metric is also computed for the shown items only; the true value lies
between the two.

Sessions are ranked by their best item. A question's evidence sessions are the sessions of its relevant items, each with
the best grade of its items.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from memory_agent.evaluation.dataset import Dataset, History, Question
from memory_agent.evaluation.metrics import Place, distinct, ndcg_at_k, recall_at_k, reciprocal_rank
from memory_agent.records.memories import Exclusion, MemoryFilter, MemoryRecord, Mode, RecallResult
from memory_agent.settings import Settings

CUTOFFS = (1, 5, 10, 50)
SHOWN = "shown_"  # prefix of metrics for the shown items only

Ranked = tuple[tuple[str, str | None], ...]  # ids of items with their sessions, best first

Recall = Callable[..., RecallResult]
LookUp = Callable[[Sequence[str]], Iterable[MemoryRecord | None]]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The scored answer to one question. `ranked` lists one item per memory; `same` lists the duplicates merged into
    that item.

    `metrics` contains `recall@10`, `ndcg@10`, `mrr` and so on. The prefix `session_` marks metrics computed over
    sessions, which exist if the evidence has sessions. The prefix `shown_` marks metrics that ignore `same`. `took_ms`
    is the latency that the caller sees.
    """

    user: str
    question: Question
    ranked: Ranked
    metrics: dict[str, float]
    took_ms: float
    degraded: tuple[str, ...]
    same: dict[str, Ranked] = {}


class Examiner:
    """Asks questions of one user's memory. `look_up` reads records by id."""

    def __init__(
        self,
        history: History,
        user_id: str,
        recall: Recall,
        look_up: LookUp,
        mode: Mode,
        top_k: int,
        min_relevance: float = 0.0,
    ) -> None:
        self._history = history
        self._prefix = f"{user_id}:"
        self._recall = recall
        self._look_up = look_up
        self._mode = mode
        self._top_k = top_k
        self._min_relevance = min_relevance
        self._sessions = {item.id: item.session for item in history.items}

    def ask_all(self, asked: Callable[[], None]) -> list[Answer]:
        """Ask the answerable questions, calling `asked` after each."""
        answers = []
        for question in self._history.answerable:
            answers.append(self._ask(question))
            asked()
        return answers

    def _ask(self, question: Question) -> Answer:
        started_s = time.perf_counter()
        result = self._recall(
            question.text,
            self._top_k,
            filter_of(question),
            mode=self._mode,
            reference_time=question.asked_at,
            min_relevance=self._min_relevance,
        )
        took_ms = (time.perf_counter() - started_s) * 1000
        ranked = self._ranked([memory.record for memory in result.memories])
        same = self._same(result, ranked)
        return Answer(
            user=self._history.user,
            question=question,
            ranked=ranked,
            metrics=judge(ranked, same, question.relevant, self._sessions, cutoffs(self._top_k)),
            took_ms=took_ms,
            degraded=result.degraded,
            same=same,
        )

    def _ranked(self, records: Iterable[MemoryRecord]) -> Ranked:
        """Return the items of the memories. A memory without an item is listed under its own id."""
        ids = ((record.event_id or record.id).removeprefix(self._prefix) for record in records)
        return tuple((id_, self._sessions.get(id_)) for id_ in ids)

    def _same(self, result: RecallResult, ranked: Ranked) -> dict[str, Ranked]:
        others: dict[str, Ranked] = {}
        for memory, (id_, _) in zip(result.memories, ranked, strict=True):
            if memory.origins:
                found = self._look_up([origin.id for origin in memory.origins])
                others[id_] = self._ranked(record for record in found if record is not None)
        return others


def filter_of(question: Question) -> MemoryFilter | None:
    """Return a filter that excludes the session from which a question comes, or None if the question has no session."""
    left_out = question.outside_session
    return None if left_out is None else MemoryFilter(exclude=Exclusion(sessions=(left_out,)))


def judge(
    ranked: Ranked,
    same: Mapping[str, Ranked],
    grades: Mapping[str, int],
    sessions: Mapping[str, str | None],
    ks: Sequence[int],
) -> dict[str, float]:
    """Return an answer's metrics at each cutoff in `ks`. `sessions` maps items to sessions."""
    of_sessions: dict[str, int] = {}
    for id_, grade in grades.items():
        if (session := sessions.get(id_)) is not None:
            of_sessions[session] = max(grade, of_sessions.get(session, 0))
    metrics: dict[str, float] = {}
    for prefix, merged in (("", same), (SHOWN, dict[str, Ranked]())):
        places = [((id_, session), *merged.get(id_, ())) for id_, session in ranked]
        metrics |= _figures(prefix, [tuple(id_ for id_, _ in place) for place in places], grades, ks)
        if of_sessions:
            by_best = distinct(session for place in places for _, session in place)
            metrics |= _figures(f"{prefix}session_", [(session,) for session in by_best], of_sessions, ks)
    return metrics


def cutoffs(top_k: int) -> list[int]:
    return [k for k in CUTOFFS if k <= top_k]


def _figures(prefix: str, ranked: Sequence[Place], grades: Mapping[str, int], ks: Sequence[int]) -> dict[str, float]:
    return (
        {f"{prefix}recall@{k}": recall_at_k(ranked, grades, k) for k in ks}
        | {f"{prefix}ndcg@{k}": ndcg_at_k(ranked, grades, k) for k in ks}
        | {f"{prefix}mrr": reciprocal_rank(ranked, grades)}
    )


@dataclass(frozen=True)
class Plan:
    """What to measure, and how. By default, memories of any relevance are admitted, so only the ranking is measured."""

    dataset: Dataset
    settings: Settings
    mode: Mode
    top_k: int
    data_dir: Path | None = None  # None: a temporary folder
    prefix: str = ""  # prefix of the user names; default: the dataset's name
    min_relevance: float = 0.0
    timeout_s: float = 1800.0

    def users(self) -> Iterator[tuple[str, History]]:
        return ((f"{self.prefix or self.dataset.name}-{part.user}", part) for part in self.dataset.histories)

    @property
    def events(self) -> int:
        return sum(len(history.items) for history in self.dataset.histories)


@dataclass(frozen=True)
class Run:
    """The results of carrying out a plan."""

    plan: Plan
    answers: tuple[Answer, ...]
    took_s: float  # from the first event until all are recallable
    memories: int
    model: str | None
    embedded: bool
    settings_known: bool = True  # False for a daemon that was already running
