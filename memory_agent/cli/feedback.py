"""`feedback`: which memories of a recall were used, and how well it ended."""

from __future__ import annotations

import click

from memory_agent.cli.access import open_memory
from memory_agent.cli.options import Target, daemon_options
from memory_agent.cli.render import plain, print_document
from memory_agent.trajectory import FeedbackReport


@click.command(short_help="Say which memories helped, and how it ended.")
@click.argument("recall_id")
@click.option("--used", multiple=True, metavar="ID", help="A memory of that answer that was used. May be repeated.")
@click.option("--quality", type=click.FloatRange(0, 1), help="How well it ended: 0 failed, 1 approved.")
@click.option("--comment", metavar="TEXT", help="Why, in words; it is remembered.")
@click.option(
    "--event-id", metavar="ID", help="An id of yours: the same command again, with the same id, is done once."
)
@daemon_options
def feedback(
    target: Target,
    recall_id: str,
    used: tuple[str, ...],
    quality: float | None,
    comment: str | None,
    event_id: str | None,
) -> None:
    """Say which memories of an answer were used, and how well it ended; that is what is learned from.

    RECALL_ID is what `recall --json` calls recall_id. Name only what was used: whoever names all of four or more
    memories says nothing about any. What cannot be credited is told with the reason, and is no error.

    \b
    Examples:
      memory-agent feedback 01KB3V8Z5M3R0YQH6D7W2X9F4A --used 01KB3V6T1N8C5EJG2S4P7K0ABD --quality 1
      memory-agent feedback 01KB3V8Z5M3R0YQH6D7W2X9F4A --quality 0 --comment "The fix did not hold"
    """
    if not used and quality is None and comment is None:
        raise click.UsageError("say something: --used, --quality or --comment")
    with open_memory(target, "feedback") as memory:
        report = memory.feedback(recall_id, used, quality, comment, event_id=event_id)
    if target.as_json:
        print_document(report)
    else:
        print_report(report, waits=quality is not None and report.quality is None)


def print_report(report: FeedbackReport, *, waits: bool = False) -> None:
    """Print what became of feedback; `waits`: its quality counts from the end of the run on."""
    count = len(report.credited)
    judged = "" if report.quality is None else f", quality {report.quality:g}"
    credited = f"credited {count} {'memory' if count == 1 else 'memories'}"
    click.echo(plain(f"run {report.trajectory_id}{judged}: {credited}"))
    if waits:
        click.echo("the run has not ended: the quality counts when it does")
    for record_id, reason in report.not_credited.items():
        click.echo(plain(f"not credited: {record_id}: {reason}"))
