"""What the verbs of `eval` that hold a trial share: their options, holding it, and keeping its results."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from memory_agent.cli.access import note_settings
from memory_agent.cli.evaluate_compare import show_comparison
from memory_agent.cli.evaluate_render import print_report
from memory_agent.cli.options import Target, Verb, common_options, given
from memory_agent.cli.progress import progress_bars
from memory_agent.cli.render import print_document
from memory_agent.errors import InvalidInputError, UnavailableError
from memory_agent.evaluation.compare import compare
from memory_agent.evaluation.dataset import Dataset
from memory_agent.evaluation.plan import Plan, Run
from memory_agent.evaluation.report import summarise
from memory_agent.evaluation.results import Results, read_results, results_file, write_results
from memory_agent.records import MODES, Mode


@dataclass(frozen=True)
class Trial:
    """What the options of the running verb say."""

    target: Target
    mode: Mode | None
    top_k: int
    embedded: bool
    timeout_s: float
    results: Path | None
    compared: tuple[Path, Path] | None

    def hold(self, dataset: str, metavar: str, source: Path | None, read: Callable[[Path], Dataset]) -> None:
        """Measure on what `read` makes of `source` and print it, or compare two files of results of this dataset."""
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
        """Return the folder that was named on the command line; a temporary one is used without."""
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
    click.option("--mode", type=click.Choice(MODES), help="How to look. Default: the setting recall.mode."),
    click.option("--top-k", type=click.IntRange(1, 1000), default=50, show_default=True, help="Memories per question."),
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
        help="Write what came back for each question to this file, as JSON lines; ids and figures, no text.",
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
    """Give a verb the options of a trial, as a `Trial`, and those of every verb."""

    @functools.wraps(verb)
    def with_trial(
        target: Target,
        mode: Mode | None,
        top_k: int,
        embedded: bool,
        timeout_s: float,
        results: Path | None,
        compared: tuple[Path, Path] | None,
        **own: Any,
    ) -> Any:
        return verb(Trial(target, mode, top_k, embedded, timeout_s, results, compared or None), **own)

    decorated = common_options(with_trial)
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated


def _with_questions(dataset: Dataset, source: Path) -> Dataset:
    if not any(history.answerable for history in dataset.histories):
        raise InvalidInputError(str(source), "has no question with evidence; there is nothing to measure")
    return dataset


def _results_of(dataset: str, file: Path) -> Results:
    results = read_results(file)
    if results.header.dataset != dataset:
        raise InvalidInputError(str(file), f"holds results of {results.header.dataset}, not of {dataset}")
    return results
