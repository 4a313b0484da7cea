"""`quarantine list|retry|drop`: events that could not be handled, with the reason."""

from __future__ import annotations

import click

from memory_agent.cli.access import asks_daemon, open_client
from memory_agent.cli.options import Target, daemon_options
from memory_agent.cli.permission import as_permitted
from memory_agent.cli.render import print_document, print_table, size
from memory_agent.protocol import QuarantinedEvent
from relay import Journal, journal_folder

_ids = click.argument("ids", nargs=-1, type=click.IntRange(min=1), metavar="[ID]...")
_all = click.option("--all", "every", is_flag=True, help="Every entry, instead of naming ids.")


@click.group(short_help="Events that could not be handled: list, retry, drop.")
def quarantine() -> None:
    """Events that could not be read or handled: nothing is lost, nothing is retried for ever.

    \b
    Examples:
      memory-agent quarantine list
      memory-agent quarantine retry 3 4
      memory-agent quarantine drop --all
    """


@quarantine.command("list", short_help="Show what is in quarantine, and why.")
@click.option("--after", type=click.IntRange(min=0), default=0, show_default=True, help="Only ids after this one.")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="At most so many.")
@daemon_options
def list_entries(target: Target, after: int, limit: int) -> None:
    """Show what is in quarantine, oldest first, and why; never the content.

    Asks the daemon, or reads the journal's files where none runs.

    \b
    Examples:
      memory-agent quarantine list
      memory-agent quarantine list --after 100 --limit 50 --json
    """
    is_asked = asks_daemon(target)
    entries = _asked(target, after, limit) if is_asked else _read(as_permitted(target, "quarantine_list"), after, limit)
    if target.as_json:
        print_document([{name: getattr(entry, name) for name in entry.__struct_fields__} for entry in entries])
    elif not entries:
        click.echo("nothing is in quarantine")
    else:
        print_table("quarantine", ("id", "when", "from", "size", "code", "reason"), map(_row, entries))


@quarantine.command()
@_ids
@_all
@daemon_options
def retry(target: Target, ids: tuple[int, ...], every: bool) -> None:
    """Try quarantined events again; those that work leave. Exit code 1 when some still fail.

    \b
    Examples:
      memory-agent quarantine retry 3 4
      memory-agent quarantine retry --all
    """
    with open_client(target) as client:
        report = client.retry_quarantined(_chosen(ids, every))
    if target.as_json:
        print_document({"handled": report.handled, "still_failing": report.still_failing})
    else:
        click.echo(f"handled {report.handled}, still failing {report.still_failing}")
    if report.still_failing:
        raise SystemExit(1)


@quarantine.command()
@_ids
@_all
@daemon_options
def drop(target: Target, ids: tuple[int, ...], every: bool) -> None:
    """Delete quarantined events for good.

    \b
    Examples:
      memory-agent quarantine drop 3
      memory-agent quarantine drop --all
    """
    with open_client(target) as client:
        dropped = client.drop_quarantined(_chosen(ids, every))
    if target.as_json:
        print_document({"dropped": dropped})
    else:
        click.echo(f"dropped {dropped}")


def _chosen(ids: tuple[int, ...], every: bool) -> tuple[int, ...]:
    """Return the ids to ask for, empty for every entry: which is never what saying nothing means."""
    if every == bool(ids):
        raise click.UsageError("name ids, or give --all for every entry (and not both)")
    return ids


def _asked(target: Target, after: int, limit: int) -> list[QuarantinedEvent]:
    with open_client(target) as client:
        return client.quarantined(after, limit)


def _read(target: Target, after: int, limit: int) -> list[QuarantinedEvent]:
    """Read the journal's files; a journal that does not exist yet holds nothing back."""
    folder = journal_folder(target.data_dir)
    if not folder.exists():
        return []
    with Journal.open(folder, target.settings.relay.journal, readonly=True, keys=target.keys) as journal:
        return [QuarantinedEvent.of(entry) for entry in journal.quarantined(after, limit)]


def _row(entry: QuarantinedEvent) -> tuple[object, ...]:
    return (entry.id, entry.quarantined_at, entry.source, size(entry.size_bytes), entry.code, entry.reason)
