"""`trajectory begin|step|end|list|show`: runs by hand, for who plans without events, and what is known of each run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from memory_agent.cli.access import note_unknown, open_for_reading, open_memory
from memory_agent.cli.options import Target, daemon_options
from memory_agent.cli.render import one_line, plain, print_document, print_figures, print_table
from memory_agent.cli.values import read_text
from memory_agent.errors import InvalidInputError
from memory_agent.trajectory import OUTCOMES, RUN_STATES, Outcome, RunState, Trajectory

if TYPE_CHECKING:
    from memory_agent.client import MemoryClient
    from memory_agent.memory import Memory

_OBJECTIVE_CHARS = 60
_run = click.argument("run_id", metavar="RUN")
_used = click.option("--used", multiple=True, metavar="ID", help="A memory that was used. May be repeated.")
_event_id = click.option(
    "--event-id", metavar="ID", help="An id of yours: the same command again, with the same id, is done once."
)


@click.group(short_help="Runs: begin, step, end, list, show.")
def trajectory() -> None:
    """Runs: what they were for, which memories they used, how they ended. That is what is learned from.

    Runs of conductors come from their events; these verbs are for those that publish none.

    \b
    Examples:
      memory-agent trajectory begin "Fix the auth race" --run run-7
      memory-agent trajectory step run-7 "Put a mutex around the refresh"
      memory-agent trajectory end run-7 --quality 1 --used 01KB3V8Z5M3R0YQH6D7W2X9F4A
      memory-agent trajectory list
    """


@trajectory.command(short_help="Begin a run.")
@click.argument("objective")
@click.option("--run", "run_id", metavar="ID", help="What to call it. Default: a new id, which is printed.")
@click.option("--session", "session_id", metavar="ID", help="The session that it belongs to.")
@click.option("--recall", "recall_ids", multiple=True, metavar="ID",
              help="A recall that it was planned with (recall_id in recall --json). May be repeated.")  # fmt: skip
@_event_id
@daemon_options
def begin(target: Target, objective: str, recall_ids: tuple[str, ...], **names: Any) -> None:
    """Begin a run for OBJECTIVE; it is on the disk when this returns. OBJECTIVE may be - for standard input.

    \b
    Examples:
      memory-agent trajectory begin "Fix the auth race" --run run-7 --session s-17
      memory-agent trajectory begin "Fix the auth race" --recall 01KB3V8Z5M3R0YQH6D7W2X9F4A --json
      memory-agent trajectory begin - < task.txt
    """
    text = read_text(objective)
    with open_memory(target, "run_begin") as memory:
        run = memory.runs.begin(text, recall_ids=recall_ids, **names)
    _tell(target, run, f"began {run.id}")


@trajectory.command(short_help="Say what a run did.")
@_run
@click.argument("text")
@_used
@_event_id
@daemon_options
def step(target: Target, run_id: str, text: str, used: tuple[str, ...], event_id: str | None) -> None:
    """Say what RUN did, and which memories it used for that. TEXT may be - for standard input.

    \b
    Examples:
      memory-agent trajectory step run-7 "Put a mutex around the refresh"
      memory-agent trajectory step run-7 - --used 01KB3V8Z5M3R0YQH6D7W2X9F4A < report.txt
    """
    said = read_text(text)
    with open_memory(target, "run_step") as memory:
        _require_known(memory, run_id)
        run = memory.runs.step(run_id, said, used, event_id=event_id)
    _tell(target, run, f"{run.id} has {_several(len(run.steps), 'step')}")


@trajectory.command(short_help="Say how a run ended.")
@_run
@click.option("--outcome", type=click.Choice(OUTCOMES), default="completed", show_default=True, help="How it ended.")
@click.option("--summary", metavar="TEXT", help="What came of it, or what went wrong.")
@click.option("--quality", type=click.FloatRange(0, 1), help="How good it was, where somebody judged it.")
@_used
@_event_id
@daemon_options
def end(
    target: Target,
    run_id: str,
    outcome: Outcome,
    summary: str | None,
    quality: float | None,
    used: tuple[str, ...],
    event_id: str | None,
) -> None:
    """Say how RUN ended, and which memories it used.

    Without --quality a run that completed counts .8 and one that failed 0, until feedback or later runs say otherwise.

    \b
    Examples:
      memory-agent trajectory end run-7 --summary "Made the token rotation atomic" --quality 1
      memory-agent trajectory end run-8 --outcome failed --summary "The migration timed out"
      memory-agent trajectory end run-9 --used 01KB3V8Z5M3R0YQH6D7W2X9F4A
    """
    with open_memory(target, "run_end") as memory:
        _require_known(memory, run_id)
        run = memory.runs.end(run_id, outcome, summary, quality, used, event_id=event_id)
    _tell(target, run, f"ended {run.id}: {quality_of(run)}, {_several(len(run.used), 'memory', 'memories')} used")


@trajectory.command("list", short_help="Runs, newest first, and how they ended.")
@click.option("--state", type=click.Choice(RUN_STATES), help="Only runs in this state.")
@click.option("--limit", type=click.IntRange(1, 1_000), default=50, show_default=True, help="At most so many.")
@daemon_options
def list_runs(target: Target, state: RunState | None, limit: int) -> None:
    """Runs, newest first: state, quality with the reason for it, how many memories were used, what for.

    \b
    Examples:
      memory-agent trajectory list
      memory-agent trajectory list --state open --limit 5
      memory-agent trajectory list --user alice --json
    """
    with open_for_reading(target, "run_list") as memory:
        runs = memory.runs.list(state, limit)
    if target.as_json:
        print_document(runs)
    elif not runs:
        click.echo("no runs are known" if state is None else f"no run is in the state {state}")
        note_unknown(target)
    else:
        print_runs(runs)


@trajectory.command(short_help="All that is known of a run.")
@_run
@daemon_options
def show(target: Target, run_id: str) -> None:
    """All that is known of RUN: its steps, the memories it used, and each change of its quality with the reason.

    \b
    Examples:
      memory-agent trajectory show run-7
      memory-agent trajectory show run-7 --json
    """
    with open_for_reading(target, "run_get") as memory:
        run = memory.runs.get(run_id)
    if run is None:
        raise InvalidInputError("run", f"{run_id} is not known")
    if target.as_json:
        print_document(run)
    else:
        print_run(run)


def _require_known(memory: MemoryClient | Memory, run_id: str) -> None:
    """Raise for a run that was neither begun nor seen in events: by hand that is a name mistyped, and not a new run."""
    if memory.runs.get(run_id) is None:
        raise InvalidInputError(
            "run", f"{run_id} is not known: `trajectory list` has the runs, `trajectory begin` begins one"
        )


def print_runs(runs: list[Trajectory]) -> None:
    """Print runs as a table."""
    columns = ("run", "began", "state", "quality", "used", "objective")
    rows = [(run.id, run.began_at, run.state, quality_of(run), len(run.used), _objective(run)) for run in runs]
    print_table("runs", columns, rows)


def print_run(run: Trajectory) -> None:
    """Print one run with its steps, its memories and how its quality changed."""
    figures = {
        "state": run.state,
        "objective": None if run.objective is None else one_line(run.objective),
        "session": run.session_id,
        "began": run.began_at,
        "ended": run.ended_at,
        "quality": quality_of(run),
        "recalls": run.recall_ids,
    }
    print_figures(f"run {plain(run.id)}", figures)
    if run.steps:
        click.echo()
        steps = [(step.timestamp, step.event_type, step.record_id or step.event_id) for step in run.steps]
        print_table("steps", ("when", "what", "memory or event"), steps)
    if run.used:
        click.echo()
        used = [(one.record_id, one.credit, one.how, one.recall_id) for one in run.used]
        print_table("memories used", ("memory", "credit", "known from", "recall"), used)
    if run.revisions:
        click.echo()
        revisions = [(one.at, one.quality, _because(one.reason), one.cause) for one in run.revisions]
        print_table("quality, as it changed", ("when", "quality", "reason", "cause"), revisions)


def quality_of(run: Trajectory) -> str:
    """Return the quality of a run with the reason of its last revision; "-" while nothing is known."""
    if run.quality is None:
        return "-"
    reason = f" ({_because(run.revisions[-1].reason)})" if run.revisions else ""
    return f"{run.quality:g}{reason}"


def _because(reason: str) -> str:
    return reason.replace("_", " ")


def _objective(run: Trajectory) -> str:
    head = one_line(run.objective or "-")
    return head if len(head) <= _OBJECTIVE_CHARS else f"{head[: _OBJECTIVE_CHARS - 1]}…"


def _several(number: int, one: str, more: str | None = None) -> str:
    return f"{number} {one if number == 1 else more or one + 's'}"


def _tell(target: Target, run: Trajectory, sentence: str) -> None:
    if target.as_json:
        print_document(run)
    else:
        click.echo(plain(sentence))
