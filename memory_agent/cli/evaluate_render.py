"""What a trial prints for a person: items, their sessions, and the figures beside them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from memory_agent.cli.render import print_figures, print_table
from memory_agent.evaluation.report import Averages, Figures, Report

_ITEMS = {"locomo": "evidence turns", "beam": "evidence messages", "jsonl": "relevant records"}
_RANKED_AT = "10"
_SHOWN_ALONE = "all, shown records alone"

Row = tuple[object, ...]


def print_report(report: Report, results: Path | None) -> None:
    """Print the averages of a run. `results` is where its per-question results lie, if anywhere."""
    how = f"{report.mode}, {'embedded' if report.embedded else 'through the daemon'}"
    items = _ITEMS.get(report.dataset, "relevant items")
    print_table(f"{items} found, {how}: share among the first k, %", _columns(report), _item_rows(report))
    click.echo()
    if report.session_mrr is not None:
        title = f"their sessions found, {how}: share among the first k distinct sessions, %"
        print_table(title, _columns(report), _session_rows(report))
        click.echo()
    print_figures("figures", _figures(report, results))


def _columns(report: Report) -> Sequence[str]:
    return ("questions", "number", *(f"at {k}" for k in report.recall_at), f"NDCG@{_RANKED_AT}", "MRR")


def _item_rows(report: Report) -> list[Row]:
    rows = [_row(name, part, part.recall_at, part.ndcg_at, part.mrr) for name, part in _parts(report)]
    shown = _row(_SHOWN_ALONE, report, report.recall_at_shown, report.ndcg_at_shown, report.mrr_shown)
    return [*rows, shown]


def _session_rows(report: Report) -> list[Row]:
    rows = [
        _row(name, part, part.session_recall_at, part.session_ndcg_at, part.session_mrr)
        for name, part in _parts(report)
    ]
    ranking = report.session_ndcg_at_shown, report.session_mrr_shown
    rows.append(_row(_SHOWN_ALONE, report, report.session_recall_at_shown, *ranking))
    for name, part in _parts(report)[-1 - len(report.main_categories) :]:
        if part.session_recall_at_all is not None:
            asked = part.questions + part.questions_without_evidence
            rows.append((f"{name}, no evidence counts 1", asked, *_percents(part.session_recall_at_all), "-", "-"))
    return rows


def _row(name: str, part: Figures, recall_at: Averages, ndcg_at: Averages, mrr: float | None) -> Row:
    ranking = _percent(ndcg_at.get(_RANKED_AT)), "-" if mrr is None else f"{mrr:.3f}"
    return (name, part.questions, *_percents(recall_at), *ranking)


def _parts(report: Report) -> list[tuple[str, Figures]]:
    """Return the categories that were asked, the main ones together, and all."""
    return [
        *((f"category {name}", part) for name, part in report.by_category.items() if part.questions),
        *((f"categories {name}", part) for name, part in report.main_categories.items()),
        ("all", report),
    ]


def _figures(report: Report, results: Path | None) -> dict[str, object]:
    return {
        "conversations": report.conversations,
        "events": f"{report.events}, memories: {report.memories}",
        "events/s": f"{report.events_per_s:g} (all recallable after {report.took_s:g} s)",
        "recall p50 / p99": f"{report.recall_ms['p50']} / {report.recall_ms['p99']} ms",
        "questions left out": f"{report.questions_without_evidence} (no evidence in the conversation)",
        "evidence ids ignored": f"{report.evidence_unmatched} (no such item)",
        "degraded answers": report.degraded_answers,
        "answers short of sessions": f"{report.answers_short_of_sessions} (fewer than 10 of them; see --top-k)",
        "per-question results": results or "not kept (--results OUT writes them)",
    }


def _percents(averages: Averages) -> list[str]:
    return [_percent(share) for share in averages.values()]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"
