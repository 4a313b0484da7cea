"""`publish`: events as JSON lines, through the relay, with acks."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import click

from memory_agent.cli.access import open_client
from memory_agent.cli.addresses import listens, relay_ingest
from memory_agent.cli.event_lines import BadLine, EventLines, count_lines
from memory_agent.cli.failure import note
from memory_agent.cli.options import Target, daemon_options
from memory_agent.cli.progress import Report, progress_bars
from memory_agent.cli.render import print_document
from memory_agent.cli.sending import Summary, send
from memory_agent.cli.waiting import wait_until_recallable
from memory_agent.errors import UnavailableError
from relay import Progress

_ALWAYS = ("published", "acknowledged", "duplicates", "rejected")


@click.command(short_help="Send events, as JSON lines, through the relay.")
@click.argument("file", type=click.File("rb"), default="-")
@click.option("--wait", is_flag=True, help="Return when every event is recallable, or in quarantine.")
@click.option("--timeout", "timeout_s", type=click.FloatRange(min=0, min_open=True), default=300, show_default=True,
              metavar="S", help="Give up when acks, or with --wait memories, are not there by then.")  # fmt: skip
@click.option("--spool", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
              help="Keep events here while the relay is away; the next publish with it sends them.")  # fmt: skip
@click.option("--relay", "ingest", metavar="URL", help="The relay's endpoint. Default: that of the data folder.")
@daemon_options
def publish(
    target: Target, file: IO[bytes], wait: bool, timeout_s: float, spool: Path | None, ingest: str | None
) -> None:
    """Send events, one JSON object a line, from FILE or standard input, and wait until the relay has them on disk.

    A line that is no event is named on standard error and counted; the others go on, and the exit code is 1 at the end.
    A repeat (the same event_id) is recognised and counted. An explicit --user owns the events that name no user.

    \b
    Examples:
      memory-agent publish events.jsonl --wait
      my-agent --emit-events | memory-agent publish --user alice
      memory-agent publish events.jsonl --spool ~/.cache/my-agent/spool
      memory-agent publish events.jsonl --relay curve+tcp://memory.example:7422 --key-file alice.key
      echo '{"event_type": "chat.user_msg", "payload": {"text": "Use uv here."}}' | memory-agent publish --user alice
    """
    if file.isatty():
        note("reading events from the keyboard; end with Ctrl-D")
    endpoint = relay_ingest(target, ingest)
    reachable = listens(endpoint)
    if not reachable and (spool is None or wait):
        raise UnavailableError(_unreachable(target, endpoint, is_named=ingest is not None, may_spool=not wait))
    with progress_bars() as report, ExitStack() as stack:
        client = stack.enter_context(open_client(target)) if wait else None
        lines = EventLines(file, target.user_id if target.user_named else None)
        outcome = _Outcome(report, count_lines(file))
        started_s = time.monotonic()
        patience_s = timeout_s if reachable else 0
        summary = send(
            lines, endpoint, target.identity, target.settings.relay, spool, patience_s, outcome.told, outcome.refused
        )
        if client is not None and summary.all_arrived():
            wait_until_recallable(client, summary.acked_through, summary.published, timeout_s, report)
            summary.recallable_s = round(time.monotonic() - started_s, 3)
    print_document(summary) if target.as_json else print_summary(summary)
    if summary.rejected or summary.unacknowledged or summary.failure:
        raise SystemExit(1)


def _unreachable(target: Target, endpoint: str, *, is_named: bool, may_spool: bool) -> str:
    spool = " (or give --spool DIR to keep the events until it is there)" if may_spool else ""
    if is_named:
        return f"no relay listens at {endpoint}; a daemon listens there with the setting relay.broker.listen{spool}"
    if target.endpoint is not None:
        return (
            f"no relay listens at {endpoint}; --endpoint is where a daemon answers: name where its relay listens with "
            f"--relay URL (the daemon's setting relay.broker.listen){spool}"
        )
    return f"no relay listens at {endpoint}; start one with: memory-agent serve --data-dir {target.data_dir}{spool}"


class _Outcome:
    """Shows what becomes of the lines while they are sent."""

    def __init__(self, report: Report, lines: int) -> None:
        self._report = report
        self._lines = lines
        self._settled = self._refused = 0

    def told(self, progress: Progress) -> None:
        """Show acks; called by the publisher's thread."""
        self._settled = progress.acked + progress.duplicates
        self._show()

    def refused(self, bad: BadLine) -> None:
        """Name a line that is of no use."""
        click.echo(f"error: {bad}", err=True)
        self._refused += 1
        self._show()

    def _show(self) -> None:
        self._report("publish", self._settled + self._refused, self._lines)


def print_summary(summary: Summary) -> None:
    """Print what became of the lines, in words."""
    counts = {
        "published": summary.published,
        "acknowledged": summary.acknowledged,
        "duplicates": summary.duplicates,
        "rejected": summary.rejected,
        "spooled (not at the relay yet)": summary.spooled,
        "without an ack": summary.unacknowledged,
    }
    click.echo(", ".join(f"{name} {count}" for name, count in counts.items() if count or name in _ALWAYS))
    if summary.recallable_s is not None and summary.acknowledged + summary.duplicates == 0:
        click.echo("nothing arrived, so there was nothing to wait for")
    elif summary.recallable_s is not None:
        click.echo(
            f"all handled after {summary.recallable_s:g} s: recallable, in quarantine, or dropped as noise "
            "(memory-agent stats tells what, and why)"
        )
    if summary.failure is not None:
        click.echo(f"error: {summary.failure}", err=True)
