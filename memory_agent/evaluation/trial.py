"""Asks a memory the questions of conversations and counts which turns of the evidence come back.

The recall of evidence is the share of a question's evidence turns among the first k memories, averaged over questions;
questions without evidence in the conversation are not asked, and their number is told. What this does not do: bring the
turns in (`runs`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from memory_agent.api import MemoryProvider
from memory_agent.evaluation.locomo import Conversation, Question, event_id
from memory_agent.evaluation.metrics import mean, quantiles_ms, recall_at_k
from memory_agent.records import Mode, RecallResult

CUTOFFS = (1, 5, 10, 50)


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one question: recall of its evidence at each cutoff, and the caller's waiting time."""

    category: int
    recall_at: dict[str, float]
    took_ms: float
    degraded: bool


class CategoryReport(msgspec.Struct, frozen=True, kw_only=True):
    """The questions of one category."""

    questions: int
    recall_at: dict[str, float | None]


class LocomoReport(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome. `took_s`: from the first publish to the last event recallable; `recall_ms`: what callers wait."""

    mode: Mode
    top_k: int
    embedded: bool
    conversations: int
    events: int
    took_s: float
    events_per_s: float
    questions: int
    questions_without_evidence: int
    evidence_unmatched: int
    degraded_answers: int
    recall_at: dict[str, float | None]
    by_category: dict[str, CategoryReport]
    recall_ms: dict[str, float | None]


def ask_questions(
    conversation: Conversation,
    user_id: str,
    memory: MemoryProvider,
    mode: Mode,
    top_k: int,
    asked: Callable[[], None],
) -> list[Answer]:
    """Ask one conversation's questions that have evidence; `asked` is called after each."""
    answers = []
    for question in with_evidence(conversation):
        started_s = time.perf_counter()
        result = memory.recall(question.text, top_k, mode=mode)
        took_ms = (time.perf_counter() - started_s) * 1000
        answers.append(_judge(question, user_id, result, top_k, took_ms))
        asked()
    return answers


def with_evidence(conversation: Conversation) -> list[Question]:
    """Return the questions whose answer stands in the conversation."""
    return [question for question in conversation.questions if question.evidence]


def report(
    conversations: Sequence[Conversation],
    answers: Sequence[Answer],
    mode: Mode,
    top_k: int,
    took_s: float,
    *,
    embedded: bool,
) -> LocomoReport:
    """Sum up the answers of all conversations."""
    events = sum(len(conversation.turns) for conversation in conversations)
    categories = sorted({answer.category for answer in answers})
    return LocomoReport(
        mode=mode,
        top_k=top_k,
        embedded=embedded,
        conversations=len(conversations),
        events=events,
        took_s=round(took_s, 2),
        events_per_s=round(events / took_s, 1),
        questions=len(answers),
        questions_without_evidence=sum(len(item.questions) for item in conversations) - len(answers),
        evidence_unmatched=sum(conversation.unmatched for conversation in conversations),
        degraded_answers=sum(answer.degraded for answer in answers),
        recall_at=_average(answers, top_k),
        by_category={str(number): _category(answers, number, top_k) for number in categories},
        recall_ms=quantiles_ms([answer.took_ms for answer in answers]),
    )


def _judge(question: Question, user_id: str, result: RecallResult, top_k: int, took_ms: float) -> Answer:
    ranked = [memory.record.event_id or memory.record.id for memory in result.memories]
    relevant = {event_id(user_id, turn_id) for turn_id in question.evidence}
    return Answer(
        category=question.category,
        recall_at={str(k): recall_at_k(ranked, relevant, k) for k in _cutoffs(top_k)},
        took_ms=took_ms,
        degraded=bool(result.degraded),
    )


def _cutoffs(top_k: int) -> list[int]:
    """Return the cutoffs that `top_k` memories can tell about."""
    return [k for k in CUTOFFS if k <= top_k]


def _category(answers: Sequence[Answer], number: int, top_k: int) -> CategoryReport:
    own = [answer for answer in answers if answer.category == number]
    return CategoryReport(questions=len(own), recall_at=_average(own, top_k))


def _average(answers: Sequence[Answer], top_k: int) -> dict[str, float | None]:
    averages = {str(k): mean([answer.recall_at[str(k)] for answer in answers]) for k in _cutoffs(top_k)}
    return {k: None if value is None else round(value, 4) for k, value in averages.items()}
