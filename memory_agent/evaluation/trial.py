"""Asks a memory the questions of a history, and judges what comes back, for items and for their sessions.

A memory that stands for several items that say the same answers for each of them, at its one place. An item that was
folded wrongly could so only raise the recall of items; hence every figure is taken twice, the second time for the shown
items alone, and the truth lies between the two. Rejected: the second alone, which calls an answer that says it once and
names the others worse than one that repeats itself. Sessions are ranked
by their best item: the order of the answer, each session at its first place. So the first k sessions are k distinct
ones, and a session none of whose items is in the answer has no place. A question's evidence sessions are those of its
relevant items, each with the best grade among them.

What this does not do: bring the items in (`runs`), average (`report`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from memory_agent.evaluation.dataset import History, Question
from memory_agent.evaluation.metrics import Place, distinct, ndcg_at_k, recall_at_k, reciprocal_rank
from memory_agent.records import MemoryRecord, Mode, RecallResult

CUTOFFS = (1, 5, 10, 50)
SHOWN = "shown_"
"""Before the name of a metric: of the shown items alone."""

Ranked = tuple[tuple[str, str | None], ...]
"""Ids of items and their sessions, best first."""

Recall = Callable[..., RecallResult]
LookUp = Callable[[Sequence[str]], Iterable[MemoryRecord | None]]
"""Returns the records with these ids."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one question. `ranked` has an item for each memory, `same` the others that a memory stands for.

    `metrics` are `recall@10`, `ndcg@10`, `mrr` and so on, with `session_` before them those of sessions, where the
    evidence has any, and with `shown_` before all that those of `ranked` without `same`. `took_ms` is the
    caller's waiting time.
    """

    user: str
    question: Question
    ranked: Ranked
    metrics: dict[str, float]
    took_ms: float
    degraded: tuple[str, ...]
    same: dict[str, Ranked] = {}


class Examiner:
    """Asks one user's memory. `look_up` finds the records that an answer names by id alone."""

    def __init__(
        self,
        history: History,
        user_id: str,
        recall: Recall,
        look_up: LookUp,
        mode: Mode,
        top_k: int,
    ) -> None:
        self._history = history
        self._prefix = f"{user_id}:"
        self._recall = recall
        self._look_up = look_up
        self._mode = mode
        self._top_k = top_k
        self._sessions = {item.id: item.session for item in history.items}

    def ask_all(self, asked: Callable[[], None]) -> list[Answer]:
        """Ask the questions that have an answer; `asked` is called after each."""
        answers = []
        for question in self._history.answerable:
            answers.append(self._ask(question))
            asked()
        return answers

    def _ask(self, question: Question) -> Answer:
        started_s = time.perf_counter()
        result = self._recall(question.text, self._top_k, mode=self._mode, reference_time=question.asked_at)
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
        """Return the items that memories were made of; a memory that is none of ours keeps its own id."""
        ids = ((record.event_id or record.id).removeprefix(self._prefix) for record in records)
        return tuple((id_, self._sessions.get(id_)) for id_ in ids)

    def _same(self, result: RecallResult, ranked: Ranked) -> dict[str, Ranked]:
        """Return, by a memory's item, the others that it stands for."""
        others: dict[str, Ranked] = {}
        for memory, (id_, _) in zip(result.memories, ranked, strict=True):
            if memory.origins:
                found = self._look_up([origin.id for origin in memory.origins])
                others[id_] = self._ranked(record for record in found if record is not None)
        return others


def judge(
    ranked: Ranked,
    same: Mapping[str, Ranked],
    grades: Mapping[str, int],
    sessions: Mapping[str, str | None],
    ks: Sequence[int],
) -> dict[str, float]:
    """Return every figure of one answer, at each of `ks`. `sessions` maps items to their sessions."""
    of_shown = _judge(ranked, {}, grades, sessions, ks)
    return _judge(ranked, same, grades, sessions, ks) | {f"{SHOWN}{name}": value for name, value in of_shown.items()}


def _judge(
    ranked: Ranked,
    same: Mapping[str, Ranked],
    grades: Mapping[str, int],
    sessions: Mapping[str, str | None],
    ks: Sequence[int],
) -> dict[str, float]:
    places = [((id_, session), *same.get(id_, ())) for id_, session in ranked]
    metrics = _figures("", [tuple(id_ for id_, _ in place) for place in places], grades, ks)
    of_sessions: dict[str, int] = {}
    for id_, grade in grades.items():
        if (session := sessions.get(id_)) is not None:
            of_sessions[session] = max(grade, of_sessions.get(session, 0))
    if of_sessions:
        by_best = distinct(session for place in places for _, session in place)
        metrics |= _figures("session_", [(session,) for session in by_best], of_sessions, ks)
    return metrics


def cutoffs(top_k: int) -> list[int]:
    """Return the cutoffs that `top_k` memories can tell about."""
    return [k for k in CUTOFFS if k <= top_k]


def _figures(prefix: str, ranked: Sequence[Place], grades: Mapping[str, int], ks: Sequence[int]) -> dict[str, float]:
    return (
        {f"{prefix}recall@{k}": recall_at_k(ranked, grades, k) for k in ks}
        | {f"{prefix}ndcg@{k}": ndcg_at_k(ranked, grades, k) for k in ks}
        | {f"{prefix}mrr": reciprocal_rank(ranked, grades)}
    )
