"""`quarantine list|retry|drop`: events that could not be handled, with the reason."""

from __future__ import annotations

from collections.abc import Sequence

import click

from memory_agent.cli.access import authorize, open_client, uses_daemon
from memory_agent.cli.command import Group
from memory_agent.cli.exit_codes import ExitCode
from memory_agent.cli.fields import field_options
from memory_agent.cli.options import Target, daemon_options
from memory_agent.cli.render import print_document, print_done, print_table, size
from memory_agent.verbs.params import QuarantineParams
from memory_agent.verbs.protocol import QuarantinedEvent

_ids = click.argument("ids", nargs=-1, type=click.IntRange(min=1), metavar="[ID]...")
_all = click.option("--all", "every", is_flag=True, help="All entries, instead of ids.")


@click.group(cls=Group)
def quarantine() -> None:
    """Events that could not be decoded or ingested. They are kept here instead of being retried forever.

    \b
    Examples:
      memory-agent quarantine list
      memory-agent quarantine retry 3 4
      memory-agent quarantine drop --all
    """


@quarantine.command("list", short_help="Show quarantined events and why they failed.")
@field_options(QuarantineParams)
@daemon_options
def list_entries(target: Target, after: int, limit: int) -> None:
    """Show quarantined events, oldest first, with the reason but without their content.

    Uses the daemon, or the journal's files if no daemon is running.

    \b
    Examples:
      memory-agent quarantine list
      memory-agent quarantine list --after 100 --limit 50 --json
    """
    entries: Sequence[QuarantinedEvent]
    if uses_daemon(target):
        with open_client(target) as client:
            entries = client.quarantined(after, limit)
    else:
        from memory_agent.care import read_quarantine  # imports the engines

        target = authorize(target, "quarantine_list")
        entries = read_quarantine(target.data_dir, target.settings, after, limit)
    if target.as_json:
        print_document([{name: getattr(entry, name) for name in entry.__struct_fields__} for entry in entries])
    elif not entries:
        click.echo("nothing is in quarantine")
    else:
        rows = (
            (entry.id, entry.quarantined_at, entry.source, size(entry.size_bytes), entry.code, entry.reason)
            for entry in entries
        )
        print_table("quarantine", ("id", "when", "from", "size", "code", "reason"), rows)


@quarantine.command()
@_ids
@_all
@daemon_options
def retry(target: Target, ids: tuple[int, ...], every: bool) -> None:
    """Retry quarantined events; handled events leave quarantine. The exit code is 1 if some still fail.

    \b
    Examples:
      memory-agent quarantine retry 3 4
      memory-agent quarantine retry --all
    """
    with open_client(target) as client:
        report = client.retry_quarantined(_chosen(ids, every))
    counts = {"handled": report.handled, "still_failing": report.still_failing}
    print_done(target.as_json, counts, f"handled {report.handled}, still failing {report.still_failing}")
    if report.still_failing:
        raise SystemExit(ExitCode.FAILED)


@quarantine.command()
@_ids
@_all
@daemon_options
def drop(target: Target, ids: tuple[int, ...], every: bool) -> None:
    """Delete quarantined events permanently.

    \b
    Examples:
      memory-agent quarantine drop 3
      memory-agent quarantine drop --all
    """
    with open_client(target) as client:
        dropped = client.drop_quarantined(_chosen(ids, every))
    print_done(target.as_json, {"dropped": dropped}, f"dropped {dropped}")


def _chosen(ids: tuple[int, ...], every: bool) -> tuple[int, ...]:
    if every == bool(ids):
        raise click.UsageError("specify either ids or --all")
    return ids
