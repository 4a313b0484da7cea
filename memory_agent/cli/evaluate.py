"""`eval …`: measure recall quality and speed on a data set, and compare two measurements.

The measuring commands differ only in the format that they read; `_Trial` runs them all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import Any

import click
import msgspec

from memory_agent import evaluation
from memory_agent.cli.access import note_settings
from memory_agent.cli.command import Group, SectionedCommand, Verb, as_struct, with_options
from memory_agent.cli.fields import field_options
from memory_agent.cli.options import Target, common_options, given
from memory_agent.cli.progress import progress_bars
from memory_agent.cli.render import print_document, print_figures, print_table, printed_json
from memory_agent.errors import InvalidInputError, UnavailableError
from memory_agent.records.memories import Mode
from memory_agent.verbs.params import RecallParams

_MOVED = {"sona": "python -m ops.lab sona (from a checkout of the repository)"}
"""Former commands of `eval`, and their replacements."""


class Numbers(click.ParamType[tuple[int, ...]]):
    """A list of numbers and ranges, such as 3,4 or 0-2."""

    name = "NUMBERS"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(number for part in value.split(",") for number in _range(part))
        except ValueError:
            self.fail(f"{value!r} is not a list of numbers and ranges such as 3,4 or 0-2", param, ctx)


class EvaluationGroup(Group):
    """The `eval` commands. If a command has moved, the error names its replacement."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] in _MOVED:
            raise click.UsageError(f"'eval {args[0]}' is no longer part of the product; run: {_MOVED[args[0]]}", ctx)
        return super().resolve_command(ctx, args)


@click.group("eval", cls=EvaluationGroup)
def evaluate() -> None:
    """Measure recall on real inputs, and compare two measurements.

    \b
    Examples:
      memory-agent eval locomo locomo10.json
      memory-agent eval locomo locomo10.json --embedded --mode vector --results vector.jsonl
      memory-agent eval compare hybrid.jsonl vector.jsonl
    """


@dataclass(frozen=True)
class _Trial:
    """The options common to the measuring commands."""

    mode: Mode | None
    top_k: int
    min_relevance: float
    embedded: bool
    timeout_s: float
    results: Path | None
    compared: tuple[Path, Path] | None

    def run(
        self, target: Target, dataset: str, source: Path | None, read: Callable[[Path], evaluation.Dataset]
    ) -> None:
        if self.compared:
            self._compare(dataset, source, self.compared, target.as_json)
        elif source is None:
            metavar = "FOLDER" if dataset == "beam" else "FILE"
            raise click.UsageError(f"Missing argument '{metavar}' (or compare two result files with --compare A B).")
        else:
            data = read(source)
            if not any(history.answerable for history in data.histories):
                raise InvalidInputError(str(source), "has no question with evidence; there is nothing to measure")
            self._measure(target, data)

    def _measure(self, target: Target, dataset: evaluation.Dataset) -> None:
        plan = evaluation.Plan(
            dataset=dataset,
            settings=target.settings,
            mode=self.mode or target.settings.recall.mode,
            top_k=self.top_k,
            min_relevance=self.min_relevance,
            data_dir=self._folder(target),
            prefix=target.only_user or "",
            timeout_s=self.timeout_s,
        )
        from memory_agent.evaluation.runs import run_embedded, run_through_daemon  # engines

        with evaluation.results_file(self.results) if self.results else nullcontext() as place:
            with progress_bars() as progress:
                run = run_embedded(plan, progress) if self.embedded else run_through_daemon(plan, progress)
            if place is not None:
                evaluation.write_results(run, place)
        report = evaluation.summarise(run)
        print_document(report) if target.as_json else _print_report(report, self.results)

    def _folder(self, target: Target) -> Path | None:
        """Return the data folder given on the command line, or None for a temporary folder."""
        if not given("data_dir"):
            return None
        if not self.embedded and not target.layout.daemon_runs():
            raise UnavailableError(
                f"no daemon serves {target.data_dir}; omit --data-dir to start one for the measurement"
            )
        if not self.embedded:
            note_settings(target)
        return target.data_dir

    def _compare(self, dataset: str, source: Path | None, compared: tuple[Path, Path], as_json: bool) -> None:
        if source is not None or self.results is not None:
            raise click.UsageError("--compare cannot be combined with a data set or with --results")
        a, b = (_results_of(dataset, file) for file in compared)
        _show_comparison(evaluation.compare(a, b), as_json)


_OPTIONS = (
    field_options(RecallParams, "mode"),
    click.option("--top-k", type=click.IntRange(1, 1000), default=50, show_default=True, help="Memories per question."),
    click.option(
        "--min-relevance",
        type=click.FloatRange(0, 1),
        default=0,
        show_default=True,
        help="Minimum relevance of returned memories. 0 measures only the ranking.",
    ),
    click.option("--embedded", is_flag=True, help="Run in this process, without a relay or daemon."),
    click.option(
        "--timeout",
        "timeout_s",
        type=click.FloatRange(min=1),
        default=1800,
        show_default=True,
        metavar="S",
        help="Give up if events are still not recallable after S seconds.",
    ),
    click.option(
        "--results",
        type=click.Path(path_type=Path),
        metavar="OUT",
        help="Write the result of each question to this file as JSON lines: ids and numbers, no text.",
    ),
    click.option(
        "--compare",
        "compared",
        nargs=2,
        type=click.Path(path_type=Path),
        metavar="A B",
        help="Compare two --results files, like `eval compare`, instead of measuring.",
    ),
)


def _trial_options(command: Verb) -> Verb:
    return with_options(common_options(as_struct("trial", _Trial)(command)), _OPTIONS)


@evaluate.command(cls=SectionedCommand, short_help="Measure recall in long conversations.")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--conversations", type=Numbers(), metavar="NUMBERS",
              help="Only these conversations, by position in the file (from 0), such as 3,4 or 0-2.")  # fmt: skip
@_trial_options
def locomo(target: Target, trial: _Trial, file: Path | None, conversations: tuple[int, ...] | None) -> None:
    """Publish the turns of LoCoMo conversations, ask the questions, and count the evidence found.

    Each conversation becomes one user (locomo-0, locomo-1, …; --user sets a different prefix). A separate process
    publishes every turn through the relay; the questions are asked over RPC. A daemon is started on a temporary folder,
    unless --data-dir names the folder of a running daemon. Events per second are measured from the first publish until
    the last event is recallable.

    Metrics for k = 1, 5, 10 and 50, averaged over questions:

    \b
      turns at k     share of a question's evidence turns among the first k memories
      sessions at k  share of a question's evidence sessions among the first k distinct
                     sessions of the answer, ranked by their best memory. This is a lower
                     bound if answers have fewer than k sessions (see --top-k); the report
                     shows the number of such answers
      NDCG@10        gain 2^grade - 1, discount log2(rank + 1), over the ideal order
      MRR            1 / rank of the first relevant memory or session, 0 without one

    A memory that represents several duplicate turns counts as all of them, at its single rank. The main result is in
    the rows "all" (in JSON, recall_at and so on). Wrongly merged turns can only raise this result. The row "all, shown
    records only" (recall_at_shown) counts only the turn that is shown, and is a lower bound.

    Questions without evidence in the conversation are not asked. The last two session rows follow a common convention
    that counts these questions as answered: one row covers all questions, and the other row covers only categories 1 to
    4.

    With --results, the result of each question is written to a file for --compare, as ids and numbers without text.

    \b
    Examples:
      memory-agent eval locomo locomo10.json
      memory-agent eval locomo locomo10.json --conversations 3,4 --embedded --json > report.json
      memory-agent eval locomo locomo10.json --mode lexical --results lexical.jsonl
      memory-agent eval locomo --compare hybrid.jsonl lexical.jsonl
    """
    read = (
        evaluation.read_locomo
        if conversations is None
        else lambda file: evaluation.choose_conversations(evaluation.read_locomo(file), conversations)
    )
    trial.run(target, "locomo", file, read)


@evaluate.command(cls=SectionedCommand, short_help="Measure recall in very long chats.")
@click.argument("folder", type=click.Path(path_type=Path), required=False)
@_trial_options
def beam(target: Target, trial: _Trial, folder: Path | None) -> None:
    """Measure as `eval locomo` does, on the chats of BEAM ("Beyond a Million Tokens").

    FOLDER is one chat's folder, with chat.json and probing_questions/probing_questions.json, or a folder that contains
    chat folders at any depth (chats/100K, or chats). Each chat becomes one user, named after its path below FOLDER;
    each message becomes a memory with its role, and each batch becomes a session. A question's evidence is the messages
    in `source_chat_ids`; abstention questions have no evidence and are left out. A chat without messages or without
    questions is rejected. The metrics are the same as for `eval locomo`. No language model judges the answers, so the
    scores are not comparable with those published by BEAM.

    \b
    Examples:
      memory-agent eval beam chats/100K --embedded
      memory-agent eval beam chats/1M/3 --results chat3.jsonl
      memory-agent eval beam --compare before.jsonl after.jsonl
    """
    trial.run(target, "beam", folder, evaluation.read_beam)


@evaluate.command(cls=SectionedCommand, short_help="Measure recall in the runs of an agent.")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@_trial_options
def swe(target: Target, trial: _Trial, file: Path | None) -> None:
    """Measure as `eval locomo` does, on the long reports and outputs of a software-engineering agent (SWE-bench).

    FILE is a JSON list of runs, {"instance_id", "task", "steps": [{"thought", "command", "output"}]}; an issue
    (instance_id) may have several runs. All runs belong to one user (swe-runs), and each run is a session. In every
    fourth run, each thought and each command with its output is a memory; in the other runs, a memory is a report of 3
    to 12 steps.

    No memory contains the words of a question. Rules generate three kinds of questions, each with its evidence:

    \b
      lookup   question: what a thought looks for; evidence: the command that followed, with
               its output
      issue    question: the title of an issue; evidence: the issue's text, and what its runs
               reported at their end
      cause    question: the cause that a run found; evidence: where other runs of the issue
               state this cause (memories of the question's own run are excluded)

    The metrics are the same as for `eval locomo`, with memories instead of turns and runs instead of sessions. `eval
    compare --by conversation` resamples whole issues.

    \b
    Examples:
      memory-agent eval swe runs.json --embedded
      memory-agent eval swe runs.json --mode lexical --results lexical.jsonl
      memory-agent eval swe --compare before.jsonl after.jsonl
    """
    trial.run(target, "swe", file, evaluation.read_swe)


@evaluate.command(cls=SectionedCommand, short_help="Measure recall on your own data.")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@_trial_options
def jsonl(target: Target, trial: _Trial, file: Path | None) -> None:
    """Measure as `eval locomo` does, on your own data: a JSON Lines file of records and queries.

    \b
      {"type": "record", "id": "r1", "text": "The deploy needs the VPN"}
      {"type": "record", "id": "r2", "text": "VPN: ask Ann", "session_id": "s-17",
       "timestamp": "2026-02-16T10:00:00Z", "kind": "finding", "user": "alice"}
      {"type": "query", "id": "q1", "text": "why does the deploy hang?", "relevant": ["r1"]}
      {"type": "query", "id": "q2", "text": "who knows the VPN?", "relevant": {"r2": 2},
       "timestamp": "2026-03-01", "category": "people", "user": "alice"}

    Each object is on one line. `relevant` lists ids, or maps ids to grades (1 or more; 0 means not relevant). A query
    searches only its own user's records; a query without relevant ids is skipped. `timestamp` is the time of the record
    or query. Each `category` has a row in the report; queries without a category are in the row `none`. Records become
    events of a type that preserves their kind; for `pattern`, the text is prefixed with "Feedback:". An episode becomes
    a user message, or an assistant message with `"role": "assistant"`. The error for an invalid line names the line
    number and the field. The metrics are the same as for `eval locomo`, with records instead of turns; session metrics
    are included only if records name sessions.

    \b
    Examples:
      memory-agent eval jsonl mine.jsonl --embedded
      memory-agent eval jsonl mine.jsonl --results mine-hybrid.jsonl
      memory-agent eval jsonl --compare mine-hybrid.jsonl mine-vector.jsonl
    """
    trial.run(target, "jsonl", file, evaluation.read_jsonl)


def _range(part: str) -> range:
    first, dash, last = part.partition("-")
    numbers = range(int(first), int(last if dash else first) + 1)
    if not numbers or numbers[0] < 0:
        raise ValueError(part)
    return numbers


def _results_of(dataset: str, file: Path) -> evaluation.Results:
    results = evaluation.read_results(file)
    if results.header.dataset != dataset:
        raise InvalidInputError(str(file), f"contains results of {results.header.dataset}, not of {dataset}")
    return results


_ITEMS = {"locomo": "evidence turns", "beam": "evidence messages", "jsonl": "relevant records"}
_RANKED_AT = "10"
_SHOWN_ALONE = "all, shown records only"

Row = tuple[object, ...]


def _print_report(report: evaluation.Report, results: Path | None) -> None:
    how = f"{report.mode}, {'embedded' if report.embedded else 'through the daemon'}"
    items = _ITEMS.get(report.dataset, "relevant items")
    print_table(f"{items} found, {how}: share among the first k, %", _report_columns(report), _item_rows(report))
    click.echo()
    if report.session_mrr is not None:
        title = f"sessions found, {how}: share among the first k distinct sessions, %"
        print_table(title, _report_columns(report), _session_rows(report))
        click.echo()
    print_figures("figures", _report_figures(report, results))


def _report_columns(report: evaluation.Report) -> Sequence[str]:
    return ("questions", "number", *(f"at {k}" for k in report.recall_at), f"NDCG@{_RANKED_AT}", "MRR")


def _item_rows(report: evaluation.Report) -> list[Row]:
    rows = [_score_row(name, part, part.recall_at, part.ndcg_at, part.mrr) for name, part in _parts(report)]
    shown = _score_row(_SHOWN_ALONE, report, report.recall_at_shown, report.ndcg_at_shown, report.mrr_shown)
    return [*rows, shown]


def _session_rows(report: evaluation.Report) -> list[Row]:
    rows = [
        _score_row(name, part, part.session_recall_at, part.session_ndcg_at, part.session_mrr)
        for name, part in _parts(report)
    ]
    ranking = report.session_ndcg_at_shown, report.session_mrr_shown
    rows.append(_score_row(_SHOWN_ALONE, report, report.session_recall_at_shown, *ranking))
    for name, part in _parts(report)[-1 - len(report.main_categories) :]:
        if part.session_recall_at_all is not None:
            asked = part.questions + part.questions_without_evidence
            rows.append(
                (f"{name}, no evidence counts 1", asked, *map(_percent, part.session_recall_at_all.values()), "-", "-")
            )
    return rows


def _score_row(
    name: str, part: evaluation.Figures, recall_at: evaluation.Averages, ndcg_at: evaluation.Averages, mrr: float | None
) -> Row:
    ranking = _percent(ndcg_at.get(_RANKED_AT)), "-" if mrr is None else f"{mrr:.3f}"
    return (name, part.questions, *map(_percent, recall_at.values()), *ranking)


def _parts(report: evaluation.Report) -> list[tuple[str, evaluation.Figures]]:
    return [
        *((f"category {name}", part) for name, part in report.by_category.items() if part.questions),
        *((f"categories {name}", part) for name, part in report.main_categories.items()),
        ("all", report),
    ]


def _report_figures(report: evaluation.Report, results: Path | None) -> dict[str, object]:
    return {
        "conversations": report.conversations,
        "events": f"{report.events}, memories: {report.memories}",
        "events/s": f"{report.events_per_s:g} (all recallable after {report.took_s:g} s)",
        "recall p50 / p99": f"{report.recall_ms['p50']} / {report.recall_ms['p99']} ms",
        "questions left out": f"{report.questions_without_evidence} (no evidence in the conversation)",
        "evidence ids ignored": f"{report.evidence_unmatched} (no such item)",
        "degraded answers": report.degraded_answers,
        "answers short of sessions": f"{report.answers_short_of_sessions} (fewer than 10 of them; see --top-k)",
        "per-question results": results or "not stored (use --results OUT)",
    }


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"


_DIFFERENCES = ("metric", "questions", "A", "B", "B - A", "95 % from", "to", "above 0", "B better", "worse")


@evaluate.command(short_help="Compare two result files: which run is better?")
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option("--by", "unit", type=click.Choice(evaluation.UNITS), default="question", show_default=True,
              help="Unit to resample.")  # fmt: skip
@click.option("--resamples", type=click.IntRange(100, 1_000_000), default=evaluation.RESAMPLES, show_default=True,
              help="Number of resamples.")  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=evaluation.SEED, show_default=True,
              help="The same seed gives the same results.")  # fmt: skip
@common_options
def compare(target: Target, a: Path, b: Path, unit: evaluation.Unit, resamples: int, seed: int) -> None:
    """Compare two runs, question by question, from files written by --results.

    Uses a paired bootstrap over the questions that both runs contain: the differences B - A are resampled with
    replacement. For each metric, it prints both means, their difference, the interval that contains 95 % of the
    resampled differences, the share of resamples in which B is better, and the number of questions on which B is better
    or worse. An interval that excludes 0 means that the difference on these questions is unlikely to be due to chance.

    Questions about the same conversation are not independent. With --by question, the interval applies to other
    questions about the same conversations. For a claim about other conversations, resample whole conversations with
    --by conversation. With few conversations, the interval is coarse; with fewer than 3, there is no interval ("-", or
    null in JSON). In `eval swe`, an issue and its runs count as one conversation.

    Metrics named shown_… count only the shown records, without their duplicates (see eval locomo). The table omits such
    a metric if it equals the corresponding metric of all records.

    Runs over different questions (a different data set, file or evidence) are rejected. Settings that differ are
    printed. The column "above 0" and the counts do not measure the size of a gain.

    \b
    Examples:
      memory-agent eval compare before.jsonl after.jsonl
      memory-agent eval compare before.jsonl after.jsonl --by conversation --json
    """
    comparison = evaluation.compare(evaluation.read_results(a), evaluation.read_results(b), unit, resamples, seed)
    _show_comparison(comparison, target.as_json)


def _show_comparison(comparison: evaluation.Comparison, as_json: bool) -> None:
    if printed_json(as_json, comparison):
        return
    shared = f"{comparison.questions} (only in A: {comparison.only_a}, only in B: {comparison.only_b})"
    changed: dict[str, object] = {name: f"{own} -> {other}" for name, (own, other) in comparison.changed.items()}
    figures: dict[str, object] = {"A": comparison.a, "B": comparison.b, "questions of both": shared}
    print_figures("runs", figures | (changed or {"changed": "nothing"}))
    click.echo()
    title = (
        f"{comparison.dataset}: differences in %, {comparison.resamples:,} resamples by {comparison.unit}, "
        f"seed {comparison.seed}"
    )
    print_table(title, _DIFFERENCES, map(_difference_row, _without_equal(comparison.metrics)))
    click.echo()
    if comparison.unit == "question":
        click.echo("by question: valid for these conversations; for others, use eval compare --by conversation")
    else:
        few = (
            "too few for an interval" if comparison.units < evaluation.FEWEST else "few units make the interval coarse"
        )
        click.echo(f"by conversation: resampled from {comparison.units}; {few}")


def _without_equal(metrics: Sequence[evaluation.MetricDifference]) -> list[evaluation.MetricDifference]:
    """Return the metrics, omitting each metric of shown records that equals the corresponding metric of all records."""
    facts = {metric.metric: repr(msgspec.structs.astuple(metric)[1:]) for metric in metrics}  # NaN != NaN
    return [
        metric
        for metric in metrics
        if not metric.metric.startswith(evaluation.SHOWN)
        or facts[metric.metric] != facts.get(metric.metric.removeprefix(evaluation.SHOWN))
    ]


def _difference_row(metric: evaluation.MetricDifference) -> tuple[object, ...]:
    return (
        metric.metric,
        metric.questions,
        *(f"{100 * share:.1f}" for share in (metric.mean_a, metric.mean_b)),
        *("-" if isnan(share) else f"{100 * share:+.1f}" for share in (metric.difference, metric.low, metric.high)),
        "-" if isnan(metric.share_above_0) else f"{100 * metric.share_above_0:.1f}",
        metric.better,
        metric.worse,
    )
