"""Summarises a run: averages over all questions and by category, and recall latency. Pure.

Every question has the same weight, however much evidence it has. Averages are rounded to four decimal places.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import msgspec

from memory_agent.evaluation.metrics import distinct, mean, quantiles_ms
from memory_agent.evaluation.trial import SHOWN, Answer, Run, cutoffs
from memory_agent.records.memories import Mode

_SESSIONS = 10

Averages = dict[str, float | None]  # by cutoff: "1", "5", …


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Averages over the `questions` with evidence. Fields ending in `_shown` ignore the duplicates of shown items."""

    questions: int
    questions_without_evidence: int
    recall_at: Averages
    ndcg_at: Averages
    mrr: float | None
    session_recall_at: Averages
    session_ndcg_at: Averages
    session_mrr: float | None
    session_recall_at_all: Averages | None  # counts questions without evidence as answered; None without this rule
    recall_at_shown: Averages
    ndcg_at_shown: Averages
    mrr_shown: float | None
    session_recall_at_shown: Averages
    session_ndcg_at_shown: Averages
    session_mrr_shown: float | None


class Report(Figures, frozen=True, kw_only=True):
    """The averages over all questions, with sizes and timings."""

    dataset: str
    mode: Mode
    top_k: int
    embedded: bool
    conversations: int
    events: int
    memories: int
    took_s: float  # from the first publish until all events are recallable
    events_per_s: float
    evidence_unmatched: int
    degraded_answers: int
    answers_short_of_sessions: int  # with fewer than 10 sessions, although the history has more than the answer
    main_categories: dict[str, Figures]
    by_category: dict[str, Figures]
    recall_ms: dict[str, float | None]  # the latency that callers see


def summarise(run: Run) -> Report:
    plan, dataset = run.plan, run.plan.dataset
    categories = sorted({question.category for part in dataset.histories for question in part.questions})
    main = dataset.main_categories
    return Report(
        **msgspec.structs.asdict(_figures(run, categories)),
        dataset=dataset.name,
        mode=plan.mode,
        top_k=plan.top_k,
        embedded=run.embedded,
        conversations=len(dataset.histories),
        events=plan.events,
        memories=run.memories,
        took_s=round(run.took_s, 2),
        events_per_s=round(plan.events / run.took_s, 1) if run.took_s else 0.0,
        evidence_unmatched=sum(history.unmatched for history in dataset.histories),
        degraded_answers=sum(bool(answer.degraded) for answer in run.answers),
        answers_short_of_sessions=_short_of_sessions(run),
        main_categories={f"{main[0]}-{main[-1]}": _figures(run, main)} if main else {},
        by_category={name: _figures(run, [name]) for name in categories},
        recall_ms=quantiles_ms([answer.took_ms for answer in run.answers]),
    )


def _figures(run: Run, categories: Collection[str]) -> Figures:
    dataset, ks = run.plan.dataset, cutoffs(run.plan.top_k)
    questions = [question for part in dataset.histories for question in part.questions]
    unanswerable = sum(not question.relevant for question in questions if question.category in categories)
    answers = [answer for answer in run.answers if answer.question.category in categories]
    average = _averager(answers)

    def at_each(metric: str) -> Averages:
        return {str(k): average(f"{metric}@{k}") for k in ks}

    counted_as_found = _averager(answers, unanswerable)
    return Figures(
        questions=len(answers),
        questions_without_evidence=unanswerable,
        recall_at=at_each("recall"),
        ndcg_at=at_each("ndcg"),
        mrr=average("mrr"),
        session_recall_at=at_each("session_recall"),
        session_ndcg_at=at_each("session_ndcg"),
        session_mrr=average("session_mrr"),
        session_recall_at_all=(
            {str(k): counted_as_found(f"session_recall@{k}") for k in ks} if dataset.main_categories else None
        ),
        recall_at_shown=at_each(f"{SHOWN}recall"),
        ndcg_at_shown=at_each(f"{SHOWN}ndcg"),
        mrr_shown=average(f"{SHOWN}mrr"),
        session_recall_at_shown=at_each(f"{SHOWN}session_recall"),
        session_ndcg_at_shown=at_each(f"{SHOWN}session_ndcg"),
        session_mrr_shown=average(f"{SHOWN}session_mrr"),
    )


def _short_of_sessions(run: Run) -> int:
    there = {part.user: len(distinct(item.session for item in part.items)) for part in run.plan.dataset.histories}
    found = ((answer.user, len(distinct(session for _, session in answer.ranked))) for answer in run.answers)
    return sum(count < min(_SESSIONS, there[user]) for user, count in found)


def _averager(answers: Collection[Answer], found: int = 0) -> Callable[[str], float | None]:
    """Return a function that averages a metric over the answers that have it, plus `found` additional values of 1."""

    def average(metric: str) -> float | None:
        measured = [answer.metrics[metric] for answer in answers if metric in answer.metrics]
        value = mean(measured + [1.0] * found)
        return None if value is None else round(value, 4)

    return average
