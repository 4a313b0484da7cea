"""Asks a memory the questions of a history, and judges what comes back, for items and for their sessions.

Sessions are ranked by their best item: the order of the answer, each session at its first place. So the first k
sessions are k distinct ones, and a session none of whose items is in the answer has no place. A question's evidence
sessions are those of its relevant items, each with the best grade among them.

What this does not do: bring the items in (`runs`), average (`report`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from memory_agent.api import MemoryProvider
from memory_agent.evaluation.dataset import History, Question
from memory_agent.evaluation.metrics import distinct, ndcg_at_k, recall_at_k, reciprocal_rank
from memory_agent.records import Mode, RecallResult, RetrievedMemory

CUTOFFS = (1, 5, 10, 50)

Ranked = tuple[tuple[str, str | None], ...]
"""Ids of items and their sessions, best first."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one question. `took_ms` is the caller's waiting time; `metrics` are `recall@10`, `ndcg@10`, `mrr`
    and so on, and with `session_` before them those of sessions, where the evidence has any."""

    user: str
    question: Question
    ranked: Ranked
    metrics: dict[str, float]
    took_ms: float
    degraded: tuple[str, ...]


def ask_questions(
    history: History,
    user_id: str,
    memory: MemoryProvider,
    mode: Mode,
    top_k: int,
    asked: Callable[[], None],
) -> list[Answer]:
    """Ask one user's questions that have an answer; `asked` is called after each."""
    sessions = {item.id: item.session for item in history.items}
    answers = []
    for question in history.answerable:
        started_s = time.perf_counter()
        result = memory.recall(question.text, top_k, mode=mode)
        took_ms = (time.perf_counter() - started_s) * 1000
        ranked = _ranked(result, user_id, sessions)
        answers.append(
            Answer(
                user=history.user,
                question=question,
                ranked=ranked,
                metrics=judge(ranked, question.relevant, sessions, cutoffs(top_k)),
                took_ms=took_ms,
                degraded=result.degraded,
            )
        )
        asked()
    return answers


def judge(
    ranked: Ranked, grades: Mapping[str, int], sessions: Mapping[str, str | None], ks: Sequence[int]
) -> dict[str, float]:
    """Return every figure of one answer, at each of `ks`. `sessions` maps items to their sessions."""
    metrics = _figures("", [id_ for id_, _ in ranked], grades, ks)
    of_sessions: dict[str, int] = {}
    for id_, grade in grades.items():
        if (session := sessions.get(id_)) is not None:
            of_sessions[session] = max(grade, of_sessions.get(session, 0))
    if of_sessions:
        metrics |= _figures("session_", distinct(session for _, session in ranked), of_sessions, ks)
    return metrics


def cutoffs(top_k: int) -> list[int]:
    """Return the cutoffs that `top_k` memories can tell about."""
    return [k for k in CUTOFFS if k <= top_k]


def _figures(prefix: str, ranked: Sequence[str], grades: Mapping[str, int], ks: Sequence[int]) -> dict[str, float]:
    return (
        {f"{prefix}recall@{k}": recall_at_k(ranked, grades, k) for k in ks}
        | {f"{prefix}ndcg@{k}": ndcg_at_k(ranked, grades, k) for k in ks}
        | {f"{prefix}mrr": reciprocal_rank(ranked, grades)}
    )


def _ranked(result: RecallResult, user_id: str, sessions: Mapping[str, str | None]) -> Ranked:
    ids = (_item_id(memory, user_id) for memory in result.memories)
    return tuple((id_, sessions.get(id_)) for id_ in ids)


def _item_id(memory: RetrievedMemory, user_id: str) -> str:
    """Return the id of the item that a memory was made of; of a memory that is none of ours, its own."""
    return (memory.record.event_id or memory.record.id).removeprefix(f"{user_id}:")
