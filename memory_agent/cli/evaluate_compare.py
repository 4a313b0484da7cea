"""`eval compare`: whether one run is better than another, and how certain that is."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from pathlib import Path

import click
import msgspec

from memory_agent.cli.options import Target, common_options
from memory_agent.cli.render import print_document, print_figures, print_table
from memory_agent.evaluation import (
    FEWEST,
    RESAMPLES,
    SEED,
    SHOWN,
    UNITS,
    Comparison,
    MetricDifference,
    Unit,
    read_results,
)
from memory_agent.evaluation import compare as compare_results

_COLUMNS = ("metric", "questions", "A", "B", "B - A", "95 % from", "to", "above 0", "B better", "worse")


@click.command(short_help="Two files of results: which run is better?")
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option("--by", "unit", type=click.Choice(UNITS), default="question", show_default=True,
              help="The unit that is resampled.")  # fmt: skip
@click.option("--resamples", type=click.IntRange(100, 1_000_000), default=RESAMPLES, show_default=True,
              help="The number of resamples.")  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=SEED, show_default=True,
              help="The same seed gives the same figures.")  # fmt: skip
@common_options
def compare(target: Target, a: Path, b: Path, unit: Unit, resamples: int, seed: int) -> None:
    """Compare two runs, question by question, by files that --results wrote.

    A paired bootstrap over the common questions: the differences B - A are resampled with replacement. Printed for each
    metric: both means, their difference, the interval that holds 95 % of the resampled differences, the share of
    resamples in which B is better, and the number of questions in which B is better or worse. An interval without 0
    means that the difference is more than chance over these questions.

    Questions of one conversation are not independent. By question, the interval holds for more questions about these
    conversations; for a claim about other conversations resample whole ones: --by conversation. With a handful of
    them that interval is coarse, and with fewer than 3 there is none: "-", in JSON null. Of `eval swe`, an issue with
    its runs counts as a conversation.

    Metrics named shown_… count the shown records alone, without their duplicates (see eval locomo); the table leaves
    them out where they make no difference.

    Runs over other questions (another dataset, file or evidence) are refused. Differing settings are printed too. The
    share above 0 and the counts say nothing about the size of a gain.

    \b
    Examples:
      memory-agent eval compare before.jsonl after.jsonl
      memory-agent eval compare before.jsonl after.jsonl --by conversation --json
    """
    comparison = compare_results(read_results(a), read_results(b), unit, resamples, seed)
    show_comparison(comparison, target.as_json)


def show_comparison(comparison: Comparison, as_json: bool) -> None:
    """Print a comparison as one JSON document or as a table."""
    print_document(comparison) if as_json else _print(comparison)


def _print(comparison: Comparison) -> None:
    print_figures("runs", _figures(comparison))
    click.echo()
    title = (
        f"{comparison.dataset}: differences in %, {comparison.resamples:,} resamples by {comparison.unit}, "
        f"seed {comparison.seed}"
    )
    print_table(title, _COLUMNS, map(_row, _telling(comparison.metrics)))
    click.echo()
    click.echo(_caution(comparison))


def _figures(comparison: Comparison) -> dict[str, object]:
    shared = f"{comparison.questions} (only in A: {comparison.only_a}, only in B: {comparison.only_b})"
    changed: dict[str, object] = {name: f"{own} -> {other}" for name, (own, other) in comparison.changed.items()}
    figures: dict[str, object] = {"A": comparison.a, "B": comparison.b, "questions of both": shared}
    return figures | (changed or {"changed": "nothing"})


def _telling(metrics: Sequence[MetricDifference]) -> list[MetricDifference]:
    """Return the metrics without those of shown records that equal their counterparts."""
    facts = {metric.metric: repr(msgspec.structs.astuple(metric)[1:]) for metric in metrics}  # NaN equals no NaN
    return [
        metric
        for metric in metrics
        if not metric.metric.startswith(SHOWN) or facts[metric.metric] != facts.get(metric.metric.removeprefix(SHOWN))
    ]


def _row(metric: MetricDifference) -> tuple[object, ...]:
    return (
        metric.metric,
        metric.questions,
        *(f"{100 * share:.1f}" for share in (metric.mean_a, metric.mean_b)),
        *("-" if isnan(share) else f"{100 * share:+.1f}" for share in (metric.difference, metric.low, metric.high)),
        "-" if isnan(metric.share_above_0) else f"{100 * metric.share_above_0:.1f}",
        metric.better,
        metric.worse,
    )


def _caution(comparison: Comparison) -> str:
    if comparison.unit == "question":
        return "by question: holds for these conversations; for others see eval compare --by conversation"
    few = "too few for an interval" if comparison.units < FEWEST else "few make a coarse interval"
    return f"by conversation: {comparison.units} were drawn from; {few}"
