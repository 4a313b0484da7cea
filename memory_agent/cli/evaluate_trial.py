"""What the trials of `eval` share: their options, running one, storing its results and printing its report."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from memory_agent.cli.access import note_settings
from memory_agent.cli.evaluate_compare import show_comparison
from memory_agent.cli.options import Target, Verb, common_options, given, with_options
from memory_agent.cli.progress import progress_bars
from memory_agent.cli.render import print_document, print_figures, print_table
from memory_agent.errors import InvalidInputError, UnavailableError
from memory_agent.evaluation import (
    Averages,
    Dataset,
    Figures,
    Plan,
    Report,
    Results,
    Run,
    compare,
    read_results,
    results_file,
    summarise,
    write_results,
)
from memory_agent.records.memories import MODES, Mode


@dataclass(frozen=True)
class Trial:
    """The options of a trial."""

    target: Target
    mode: Mode | None
    top_k: int
    min_relevance: float
    embedded: bool
    timeout_s: float
    results: Path | None
    compared: tuple[Path, Path] | None

    def run(self, dataset: str, metavar: str, source: Path | None, read: Callable[[Path], Dataset]) -> None:
        """Measure on the dataset that `read` reads from `source`, or compare two result files; print either."""
        if self.compared is not None:
            self._compare(dataset, source)
        elif source is None:
            raise click.UsageError(f"Missing argument '{metavar}' (or compare two files of results: --compare A B).")
        else:
            self._measure(_with_questions(read(source), source))

    def _measure(self, dataset: Dataset) -> None:
        plan = Plan(
            dataset=dataset,
            settings=self.target.settings,
            mode=self.mode or self.target.settings.recall.mode,
            top_k=self.top_k,
            min_relevance=self.min_relevance,
            data_dir=self._folder(),
            prefix=self.target.user_id if self.target.user_named else "",
            timeout_s=self.timeout_s,
        )
        with results_file(self.results) if self.results else nullcontext() as place:
            run = self._run(plan)
            if place is not None:
                write_results(run, place)
        report = summarise(run)
        print_document(report) if self.target.as_json else print_report(report, self.results)

    def _run(self, plan: Plan) -> Run:
        from memory_agent.evaluation.runs import run_embedded, run_through_daemon  # engines

        with progress_bars() as progress:
            return run_embedded(plan, progress) if self.embedded else run_through_daemon(plan, progress)

    def _folder(self) -> Path | None:
        """Return the folder given on the command line, None for a temporary one."""
        target = self.target
        if not given("data_dir"):
            return None
        if not self.embedded and not target.layout.daemon_runs():
            raise UnavailableError(
                f"no daemon serves {target.data_dir}; leave --data-dir away to have one started for the measurement"
            )
        if not self.embedded:
            note_settings(target)
        return target.data_dir

    def _compare(self, dataset: str, source: Path | None) -> None:
        if source is not None or self.results is not None:
            raise click.UsageError("--compare takes two files of results, and measures nothing itself")
        assert self.compared is not None
        a, b = (_results_of(dataset, file) for file in self.compared)
        show_comparison(compare(a, b), self.target.as_json)


_OPTIONS = (
    click.option("--mode", type=click.Choice(MODES), help="How to search. Default: the setting recall.mode."),
    click.option("--top-k", type=click.IntRange(1, 1000), default=50, show_default=True, help="Memories per question."),
    click.option(
        "--min-relevance",
        type=click.FloatRange(0, 1),
        default=0,
        show_default=True,
        help="Only memories of at least this relevance. 0 measures the ranking alone.",
    ),
    click.option("--embedded", is_flag=True, help="In this process: no relay, no daemon."),
    click.option(
        "--timeout",
        "timeout_s",
        type=click.FloatRange(min=1),
        default=1800,
        show_default=True,
        metavar="S",
        help="Give up when not all events are recallable by then.",
    ),
    click.option(
        "--results",
        type=click.Path(path_type=Path),
        metavar="OUT",
        help="Write the answer to each question to this file, as JSON lines; ids and figures, no text.",
    ),
    click.option(
        "--compare",
        "compared",
        nargs=2,
        type=click.Path(path_type=Path),
        metavar="A B",
        help="Measure nothing; compare two files of --results, as `eval compare` does.",
    ),
)


def trial_options(verb: Verb) -> Verb:
    """Give a command the options of a trial, as a `Trial`, and the common options."""

    @functools.wraps(verb)
    def with_trial(
        target: Target,
        mode: Mode | None,
        top_k: int,
        min_relevance: float,
        embedded: bool,
        timeout_s: float,
        results: Path | None,
        compared: tuple[Path, Path] | None,
        **own: Any,
    ) -> Any:
        return verb(Trial(target, mode, top_k, min_relevance, embedded, timeout_s, results, compared or None), **own)

    return with_options(common_options(with_trial), _OPTIONS)


def _with_questions(dataset: Dataset, source: Path) -> Dataset:
    if not any(history.answerable for history in dataset.histories):
        raise InvalidInputError(str(source), "has no question with evidence; there is nothing to measure")
    return dataset


def _results_of(dataset: str, file: Path) -> Results:
    results = read_results(file)
    if results.header.dataset != dataset:
        raise InvalidInputError(str(file), f"holds results of {results.header.dataset}, not of {dataset}")
    return results


_ITEMS = {"locomo": "evidence turns", "beam": "evidence messages", "jsonl": "relevant records"}
_RANKED_AT = "10"
_SHOWN_ALONE = "all, shown records alone"

Row = tuple[object, ...]


def print_report(report: Report, results: Path | None) -> None:
    """Print the averages of a run. `results` is the file of its per-question results, if any."""
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
    """Return the figures of each category asked, of the main ones together, and of all."""
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
