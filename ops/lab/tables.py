"""Formats the protocol's report as tables: targets first, then the underlying results."""

from __future__ import annotations

from collections.abc import Sequence

import click

from memory_agent.cli.render import print_figures, print_table
from ops.lab.arms import OFF
from ops.lab.first_week import FirstWeek
from ops.lab.forgetting import Forgetting
from ops.lab.gains import HEADLINE, Difference, Standing
from ops.lab.gate_streams import GateSummary
from ops.lab.instant import InstantReport
from ops.lab.planning import SIMILARITY, Planning
from ops.lab.recurring_users import RecurringSummary
from ops.lab.report import LearningReport, Target, Taught

Row = tuple[object, ...]
Table = tuple[str, Sequence[str], list[Row]]
"""Title, column names, rows of cells."""

_LEARNT = {
    "random": "random split, evidence may repeat: evidence found, %",
    "disjoint": "disjoint split, no evidence repeats: evidence found, %",
}
_CURVE = "learning curve: recall at 5 of repeated questions, minus recall with learning off, %"
_PROJECTS = "two projects in one memory, A taught before B: gain in recall at 5, %"

_TARGETS = ("target", "measured", "bound", "reached")
_STANDINGS = ("arm", "questions", "answers", "at 1", "at 5", "at 10", "MRR", "at 5, minus off", "minus control", "gain")
_TAUGHT = ("arm", "split", "courses", "feedbacks", "named", "credited", "gate at the end", "recalls served")
_KEPT = ("signal", "project", "alone", "with the other", "kept", "with, minus .8 of alone")
_GATE_STREAMS = ("signal", "streams", "recalls", "credited in each", "won", "lost", "tied", "opened", "open at the end",
           "opened after")  # fmt: skip
_RECURRING = ("signal", "users", "credited in each", "open by run 20", "by run 50", "median run", "again, at 1",
              "again, at 5", "new, at 1", "new, at 5")  # fmt: skip
_PLANNING = ("held out", "requests", "arm", "number", "same task at 1", "at 3", "succeeded at 1", "at 3", "both at 1",
             "succeeded at 1, minus similarity alone")  # fmt: skip
_FIRST_WEEK = ("uses", "source", "users", "runs", "credited in each", "open: a quarter", "half", "three quarters",
               "nine tenths", "opened", "needed at 5", "learned")  # fmt: skip
_INSTANT = ("bank", "signal", "learner", "evidence", "answers", "changed", "at 1", "at 5", "at 10")
_REACHED = {True: "yes", False: "NO", None: "cannot tell"}


def print_learning(report: LearningReport) -> None:
    """Print a report as tables."""
    for title, columns, rows in tables(report):
        print_table(title, columns, rows)
        click.echo()
    print_figures("figures", figures(report))


def tables(report: LearningReport) -> list[Table]:
    """Return the report's non-empty tables. Shares are in %."""
    stages = dict.fromkeys(point.taught for point in report.curve)
    found: list[Table] = [
        ("targets", _TARGETS, [*map(_target, report.targets)]),
        (_LEARNT["random"], _STANDINGS, [_standing(part) for part in report.standings if part.split == "random"]),
        (_LEARNT["disjoint"], _STANDINGS, [_standing(part) for part in report.standings if part.split == "disjoint"]),
        (_CURVE, ("arm", *(f"after {stage} %" for stage in stages)), _curve(report)),
        ("feedback: memories named and credited", _TAUGHT, [*map(_taught, report.taught)]),
        (_PROJECTS, _KEPT, [row for part in report.forgetting for row in _kept(part)]),
        ("the gate on long streams", _GATE_STREAMS, [*map(_gate_row, report.vigils)]),
        (
            "users with recurring work: the gate in their first 50 runs",
            _RECURRING,
            [*map(_recurring_row, report.recurring)],
        ),
        ("airline: past runs for a request, %", _PLANNING, [*map(_planning, report.planning)]),
    ]
    return [table for table in found if table[2]]


def print_instant(report: InstantReport) -> None:
    """Print a measurement of the instant layer as a table."""
    print_table(*instant_table(report))
    click.echo()
    print_figures(
        "figures", {"conversations": report.conversations, "seeds": report.seeds, "took": f"{report.took_s:.0f} s"}
    )


def instant_table(report: InstantReport) -> Table:
    """Return the instant layer's effect on the evidence found, in percentage points."""
    rows: list[Row] = []
    for gain in report.gains:
        metrics = (spread(gain.differences[name]) for name in ("recall_at_1", HEADLINE, "recall_at_10"))
        rows.append((gain.state, gain.signal, gain.parts, gain.group, gain.answers, gain.changed, *metrics))
    return "the instant layer: evidence found with it minus evidence found without it, %", _INSTANT, rows


def figures(report: LearningReport) -> dict[str, object]:
    """Return the report's inputs and parameters, by display name."""
    inputs: dict[str, object] = {}
    if report.users:
        inputs["conversations"] = f"{report.users}, {report.questions} questions of categories 1 to 4"
    if report.runs:
        inputs["airline runs"] = report.runs
    return inputs | {
        "seeds": report.seeds,
        "signals": ", ".join(report.signals),
        "shown while learning": report.shown,
        "requested per test question": report.asked,
        "model": report.model,
        "took": f"{report.took_s:.0f} s",
    }


def spread(difference: Difference | None) -> str:
    """Format the difference between two shares in %, with its interval if known."""
    if difference is None:
        return "-"
    if difference.low is None or difference.high is None:
        return f"{100 * difference.mean:+.1f}"
    return f"{100 * difference.mean:+.1f} ({100 * difference.low:+.1f} to {100 * difference.high:+.1f})"


def _target(target: Target) -> Row:
    measured = "-" if target.measured is None else f"{target.measured:+.3f}"
    return target.name, measured, target.bound, _REACHED[target.reached]


def _standing(part: Standing) -> Row:
    shares = (f"{100 * part.means[name]:.1f}" for name in ("recall_at_1", HEADLINE, "recall_at_10"))
    over_off = "-" if part.arm == OFF else spread(part.over_off[HEADLINE])
    gain = "-" if part.gain is None else f"{100 * part.gain:+.1f}"
    mrr = f"{part.means['mrr']:.3f}"
    return part.arm, part.group, part.answers, *shares, mrr, over_off, spread(part.over_control), gain


def _curve(report: LearningReport) -> list[Row]:
    arms = dict.fromkeys(point.arm for point in report.curve if point.arm != OFF)
    return [(arm, *(spread(point.over_off) for point in report.curve if point.arm == arm)) for arm in arms]


def _taught(part: Taught) -> Row:
    heard = part.heard
    return part.arm, part.split, part.courses, heard.feedbacks, heard.named, heard.credited, part.gates, part.served


def _kept(part: Forgetting) -> list[Row]:
    rows: list[Row] = []
    for kept in part.kept:
        share = "-" if kept.share is None else f"{100 * kept.share:.0f} %"
        rows.append((part.arm, kept.project, spread(kept.alone), spread(kept.beside), share, spread(kept.margin)))
    rows.append((part.arm, "B, not taught", "-", spread(part.harm), "-", "-"))
    return rows


def _gate_row(gate: GateSummary) -> Row:
    after = ", ".join(map(str, gate.opened_at)) or "-"
    return (
        gate.signal,
        gate.streams,
        gate.recalls,
        round(gate.credited),
        gate.won,
        gate.lost,
        gate.tied,
        gate.opened,
        gate.open_at_end,
        after,
    )


def _recurring_row(part: RecurringSummary) -> Row:
    shares = (f"{100 * opened / part.users:.0f} %" for opened in (part.opened_early, part.opened))
    median = part.opened_at[len(part.opened_at) // 2] if part.opened_at else "-"
    gains = (spread(group[name]) for group in (part.again, part.new) for name in ("recall_at_1", "recall_at_5"))
    return part.signal, part.users, round(part.credited), *shares, median, *gains


def print_first_week(report: Sequence[FirstWeek]) -> None:
    """Print after how many runs the gate opens for new users."""
    print_table("the gate of new users", _FIRST_WEEK, [_first_week_row(part) for part in report])


def _first_week_row(part: FirstWeek) -> Row:
    runs = (part.quarter, part.median, part.three_quarters, part.ninth)
    quantiles = ("-" if run is None else run for run in runs)
    opened = f"{100 * part.opened:.1f} % ({100 * part.low:.1f} to {100 * part.high:.1f})"
    found = (f"{100 * share:.1f}" for share in (part.base, part.learned))
    return part.uses, part.source, part.users, part.runs, round(part.credited), *quantiles, opened, *found


def _planning(part: Planning) -> Row:
    names = ("same_task_1", "same_task_3", "succeeded_1", "succeeded_3", "worked_1")
    shares = (f"{100 * part.means[name]:.1f}" for name in names)
    over = "-" if part.arm == SIMILARITY else spread(part.over_similarity["succeeded_1"])
    group = "all" if part.group == "all" else "past runs with both outcomes"
    return part.held, group, part.arm, part.requests, *shares, over
