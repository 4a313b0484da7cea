"""`trajectory …` and `feedback`: record and show runs, and report which memories helped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from memory_agent.cli.access import note_unknown_user, open_memory
from memory_agent.cli.command import Group, SectionedCommand
from memory_agent.cli.fields import field_options
from memory_agent.cli.options import Target, daemon_options, read_text
from memory_agent.cli.render import (
    counted,
    one_line,
    plain,
    print_document,
    print_done,
    print_figures,
    print_table,
    printed_json,
    shortened,
)
from memory_agent.errors import InvalidInputError
from memory_agent.recall.context import run_text
from memory_agent.records.trajectories import FeedbackReport, RunState, Trajectory
from memory_agent.verbs import params

if TYPE_CHECKING:
    from memory_agent.client import MemoryClient
    from memory_agent.memory import Memory

Rows = Sequence[tuple[object, ...]]

_HEAD_CHARS = 60
_PAGE = 200  # memories per request
_run = click.argument("run_id", metavar="RUN")


@click.group(cls=Group)
def trajectory() -> None:
    """Runs: their objectives, the memories they used, and how they ended. The ranking is learned from runs.

    Conductors publish events about their runs; these commands are for programs that publish no such events.

    \b
    Examples:
      memory-agent trajectory begin "Fix the auth race" --run run-7
      memory-agent trajectory step run-7 "Put a mutex around the refresh"
      memory-agent trajectory end run-7 --quality 1 --used 01KB3V8Z5M3R0YQH6D7W2X9F4A
      memory-agent trajectory list
      memory-agent trajectory similar "Fix the flaky login"
    """


@trajectory.command(short_help="Begin a run.")
@click.argument("objective")
@field_options(params.RunBeginParams, event_id="--event-id")
@daemon_options
def begin(target: Target, objective: str, **fields: Any) -> None:
    """Begin a run for OBJECTIVE; it is durable on return. OBJECTIVE may be - for standard input.

    \b
    Examples:
      memory-agent trajectory begin "Fix the auth race" --run run-7 --session s-17
      memory-agent trajectory begin "Fix the auth race" --recall 01KB3V8Z5M3R0YQH6D7W2X9F4A --json
      memory-agent trajectory begin - < task.txt
    """
    text = read_text(objective)
    with open_memory(target, "run_begin") as memory:
        run = memory.runs.begin(text, **fields)
    print_done(target.as_json, run, f"began {run.id}")


@trajectory.command(short_help="Record a step of a run.")
@_run
@click.argument("text")
@field_options(params.RunStepParams, memory_ids="--used", event_id="--event-id")
@daemon_options
def step(target: Target, run_id: str, text: str, **fields: Any) -> None:
    """Record a step of RUN and the memories it used. TEXT may be - for standard input. Steps cannot be added to a run
    that has ended.

    \b
    Examples:
      memory-agent trajectory step run-7 "Put a mutex around the refresh"
      memory-agent trajectory step run-7 - --used 01KB3V8Z5M3R0YQH6D7W2X9F4A < report.txt
    """
    said = read_text(text)
    with open_memory(target, "run_step") as memory:
        run = memory.runs.step(run_id, said, **fields)
    print_done(target.as_json, run, f"{run.id} has {counted(len(run.steps), 'step')}")


@trajectory.command(cls=SectionedCommand, short_help="Record how a run ended.")
@_run
@field_options(params.RunEndParams, memory_ids="--used", event_id="--event-id")
@daemon_options
def end(target: Target, run_id: str, **fields: Any) -> None:
    """Record how RUN ended, and which memories it used. A recorded end cannot be changed, but `feedback RUN` revises
    its quality.

    Without --quality, a completed run has quality 0.8, and a failed run has quality 0, until feedback or later runs
    revise the quality. A cancelled run has no quality.

    \b
    Examples:
      memory-agent trajectory end run-7 --summary "Made the token rotation atomic" --quality 1
      memory-agent trajectory end run-8 --outcome failed --summary "The migration timed out"
      memory-agent trajectory end run-9 --used 01KB3V8Z5M3R0YQH6D7W2X9F4A
    """
    with open_memory(target, "run_end") as memory:
        run = memory.runs.end(run_id, **fields)
    used = counted(len(run.used), "memory", "memories")
    print_done(target.as_json, run, f"ended {run.id}: {quality_of(run)}, {used} used")


@trajectory.command("list", short_help="List runs, newest first.")
@field_options(params.RunListParams)
@daemon_options
def list_runs(target: Target, state: RunState | None, limit: int) -> None:
    """List runs, newest first: state, quality with its reason, number of used memories, objective.

    \b
    Examples:
      memory-agent trajectory list
      memory-agent trajectory list --state open --limit 5
    """
    with open_memory(target, "run_list") as memory:
        runs = memory.runs.list(state, limit)
    if target.as_json:
        print_document(runs)
    elif not runs:
        click.echo("no runs are known" if state is None else f"there are no runs in the state {state}")
        note_unknown_user(target)
    else:
        print_runs(runs)


@trajectory.command("similar", short_help="Find finished runs whose request resembles a text.")
@click.argument("query", metavar="TEXT")
@field_options(params.RunSimilarParams)
@daemon_options
def similar_runs(target: Target, query: str, top_k: int, min_relevance: float | None) -> None:
    """Find finished runs whose requests resemble TEXT, best first. Shows the steps of each run, how it ended, and why.

    TEXT may be - for standard input.

    \b
    Examples:
      memory-agent trajectory similar "set up a service with tests"
      memory-agent trajectory similar - --top-k 3 --json < task.txt
    """
    with open_memory(target, "run_similar") as memory:
        runs = memory.runs.similar(read_text(query), top_k, min_relevance)
    if target.as_json:
        print_document(runs)
    elif not runs:
        click.echo("no finished run resembles this")
        note_unknown_user(target)
    else:
        now = datetime.now(UTC)
        click.echo("\n\n".join(plain(f"{run.id}: {run_text(run, now)}") for run in runs))


@trajectory.command(short_help="Show one run in full.")
@_run
@daemon_options
def show(target: Target, run_id: str) -> None:
    """Show RUN in full: steps, end, feedback, memories used, and quality revisions.

    \b
    Examples:
      memory-agent trajectory show run-7
    """
    with open_memory(target, "run_get") as memory:
        run = memory.runs.get(run_id)
        words = {} if run is None or target.as_json else _words_of(memory, run)
    if run is None:
        raise InvalidInputError("run", f"{run_id} is not known")
    if not printed_json(target.as_json, run):
        print_run(run, words)


def _words_of(memory: MemoryClient | Memory, run: Trajectory) -> dict[str, str]:
    named = [one.record_id for one in (*run.steps, *run.conclusions)] + [one.record_id for one in run.used]
    ids = list(dict.fromkeys(name for name in named if name is not None))
    pages = (ids[start : start + _PAGE] for start in range(0, len(ids), _PAGE))
    return {record.id: record.text for page in pages for record in memory.get(page)}


def print_runs(runs: list[Trajectory]) -> None:
    columns = ("run", "began", "state", "quality", "used", "objective")
    rows = [
        (run.id, run.began_at, run.state, quality_of(run), len(run.used), shortened(_about(run), _HEAD_CHARS))
        for run in runs
    ]
    print_table("runs", columns, rows, whole="run")


def _about(run: Trajectory) -> str:
    """Return a run's objective. A recall with feedback but without a run has no objective."""
    return run.objective or ("(a recall with feedback, without a run)" if run.recall_ids == (run.id,) else "-")


def print_run(run: Trajectory, words: Mapping[str, str] = MappingProxyType({})) -> None:
    figures = {
        "state": run.state,
        "objective": one_line(_about(run)),
        "session": run.session_id,
        "began": run.began_at,
        "ended": run.ended_at,
        "outcome": "cancelled" if run.is_cancelled else run.outcome,
        "quality": quality_of(run),
        "recalls": run.recall_ids,
    }
    print_figures(f"run {plain(run.id)}", figures)
    for title, columns, rows, whole in _tables(run, words):
        if rows:
            click.echo()
            print_table(title, columns, rows, whole=whole)


def _tables(run: Trajectory, words: Mapping[str, str]) -> Iterable[tuple[str, tuple[str, ...], Rows, str | None]]:
    """Yield a run's tables: title, columns, rows, and the column that is never wrapped."""
    steps: Rows = [
        (
            step.timestamp,
            step.event_type,
            step.record_id or step.event_id,
            shortened(words.get(step.record_id or "") or "-", _HEAD_CHARS),
        )
        for step in run.steps
    ]
    yield "steps", ("when", "what", "memory or event", "text"), steps, "memory or event"
    conclusions: Rows = [
        (one.timestamp, one.event_type, words.get(one.record_id or "", one.record_id or "-")) for one in run.conclusions
    ]
    yield "how it ended, with feedback", ("when", "what", "text"), conclusions, None
    used: Rows = [
        (one.record_id, one.credit, one.how, one.recall_id, shortened(words.get(one.record_id) or "-", _HEAD_CHARS))
        for one in run.used
    ]
    yield "memories used", ("memory", "credit", "known from", "recall", "text"), used, "memory"
    revisions: Rows = [(one.at, one.quality, _because(one.reason), one.cause) for one in run.revisions]
    yield "quality, as it changed", ("when", "quality", "reason", "cause"), revisions, None


def quality_of(run: Trajectory) -> str:
    """Return a run's quality with the reason for its last revision, or "-"."""
    if run.quality is None:
        return "cancelled" if run.is_cancelled else "-"
    reason = f" ({_because(run.revisions[-1].reason)})" if run.revisions else ""
    return f"{run.quality:g}{reason}"


def _because(reason: str) -> str:
    return reason.replace("_", " ")


@click.command()
@click.argument("recall_id")
@field_options(params.FeedbackParams, event_id="--event-id")
@daemon_options
def feedback(target: Target, recall_id: str, **fields: Any) -> None:
    """Report which memories of a recall were used, and the outcome. The ranking is learned from such reports.

    RECALL_ID is the recall_id of `recall --json`, or the id of a run. For a run, --quality revises the run's quality.
    Name only memories that were used. Naming all results of a recall carries no information if there were four or more,
    and counts only half if there were two or three. Memories that cannot be credited are listed with the reason; this
    is not an error.

    \b
    Examples:
      memory-agent feedback 01KB3V8Z5M3R0YQH6D7W2X9F4A --used 01KB3V6T1N8C5EJG2S4P7K0ABD --quality 1
      memory-agent feedback 01KB3V8Z5M3R0YQH6D7W2X9F4A --quality 0 --comment "The fix did not hold"
      memory-agent feedback run-7 --quality 0.2 --comment "It broke again on Monday"
    """
    quality = fields["quality"]
    if not fields["used"] and quality is None and fields["comment"] is None:
        raise click.UsageError("specify --used, --quality or --comment")
    with open_memory(target, "feedback") as memory:
        report = memory.feedback(recall_id, **fields)
    if not printed_json(target.as_json, report):
        print_report(report, waits=quality is not None and report.quality is None)


def print_report(report: FeedbackReport, *, waits: bool = False) -> None:
    """Print a feedback report. `waits`: the quality takes effect when the run ends."""
    judged = "" if report.quality is None else f", quality {report.quality:g}"
    credited = f"credited {counted(len(report.credited), 'memory', 'memories')}"
    click.echo(plain(f"run {report.trajectory_id}{judged}: {credited}"))
    if waits:
        click.echo("the run has not ended; the quality takes effect when it does")
    for record_id, reason in report.not_credited.items():
        click.echo(plain(f"not credited: {record_id}: {reason}"))
