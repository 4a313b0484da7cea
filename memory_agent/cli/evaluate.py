"""`eval locomo`: what a memory finds in long conversations, and how fast."""

from __future__ import annotations

from pathlib import Path

import click

from memory_agent.cli.access import note_settings
from memory_agent.cli.options import Target, common_options, given
from memory_agent.cli.progress import progress_bars
from memory_agent.cli.render import print_document, print_figures, print_table
from memory_agent.errors import UnavailableError
from memory_agent.evaluation.locomo import read_locomo
from memory_agent.evaluation.trial import LocomoReport
from memory_agent.records import MODES, Mode

_PREFIX = "locomo"


@click.group("eval")
def evaluate() -> None:
    """Measure on real inputs.

    \b
    Examples:
      memory-agent eval locomo locomo10.json
      memory-agent eval locomo locomo10.json --embedded --mode vector
    """


@evaluate.command(short_help="Share of the evidence in long conversations that is found.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--mode", type=click.Choice(MODES), help="How to look. Default: the setting recall.mode.")
@click.option("--top-k", type=click.IntRange(1, 1000), default=50, show_default=True, help="Memories per question.")
@click.option("--embedded", is_flag=True, help="In this process: no relay, no daemon.")
@click.option("--timeout", "timeout_s", type=click.FloatRange(min=1), default=1800, show_default=True, metavar="S",
              help="Give up when not all turns are recallable by then.")  # fmt: skip
@common_options
def locomo(target: Target, file: Path, mode: Mode | None, top_k: int, embedded: bool, timeout_s: float) -> None:
    """Publish the turns of LoCoMo conversations, ask the questions, count the evidence that comes back.

    One user per conversation (locomo-0, locomo-1, …; --user names another prefix). A separate process publishes every
    turn through the relay; the questions are asked over RPC. A daemon is started on a temporary folder and stopped
    again, unless --data-dir names a running one.

    Printed: the share of a question's evidence turns among the first 1, 5, 10 and 50 memories, averaged over all
    questions with evidence and per category, events per second from the first publish to the last event recallable,
    and how long a recall took.

    \b
    Examples:
      memory-agent eval locomo locomo10.json
      memory-agent eval locomo locomo10.json --embedded --json > report.json
      memory-agent eval locomo locomo10.json --mode lexical --top-k 10
    """
    from memory_agent.evaluation.runs import Plan, run_embedded, run_through_daemon  # engines

    plan = Plan(
        conversations=read_locomo(file),
        settings=target.settings,
        mode=mode or target.settings.recall.mode,
        top_k=top_k,
        data_dir=_folder(target, embedded),
        prefix=target.user_id if target.user_named else _PREFIX,
        timeout_s=timeout_s,
    )
    with progress_bars() as report:
        outcome = run_embedded(plan, report) if embedded else run_through_daemon(plan, report)
    print_document(outcome) if target.as_json else _print(outcome)


def _folder(target: Target, embedded: bool) -> Path | None:
    """Return the folder that was named on the command line; a temporary one is used without."""
    if not given("data_dir"):
        return None
    if not embedded and not target.layout.daemon_runs():
        raise UnavailableError(
            f"no daemon serves {target.data_dir}; leave --data-dir away to have one started for the measurement"
        )
    if not embedded:
        note_settings(target)
    return target.data_dir


def _print(outcome: LocomoReport) -> None:
    cutoffs = list(outcome.recall_at)
    rows = [
        (f"category {name}", part.questions, *map(_percent, part.recall_at.values()))
        for name, part in outcome.by_category.items()
    ]
    rows.append(("all", outcome.questions, *map(_percent, outcome.recall_at.values())))
    how = "embedded" if outcome.embedded else "through the daemon"
    title = f"evidence found, {outcome.mode}, {how}: share of its turns among the first k, %"
    print_table(title, ("questions", "number", *(f"at {k}" for k in cutoffs)), rows)
    click.echo()
    print_figures("figures", _figures(outcome))


def _figures(outcome: LocomoReport) -> dict[str, object]:
    return {
        "conversations": outcome.conversations,
        "events": outcome.events,
        "events/s": f"{outcome.events_per_s:g} (all recallable after {outcome.took_s:g} s)",
        "recall p50 / p99": f"{outcome.recall_ms['p50']} / {outcome.recall_ms['p99']} ms",
        "questions left out": f"{outcome.questions_without_evidence} (no evidence in the conversation)",
        "evidence ids ignored": f"{outcome.evidence_unmatched} (no such turn)",
        "degraded answers": outcome.degraded_answers,
    }


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"
