"""`forget`: complete erasure, with a receipt."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

import click
import msgspec

from memory_agent.cli.access import authorize, note_unknown_user, open_client, uses_daemon
from memory_agent.cli.command import SectionedCommand, as_struct
from memory_agent.cli.exit_codes import ExitCode
from memory_agent.cli.failure import confirm, note
from memory_agent.cli.fields import FURTHER_FILTERS, selection_options
from memory_agent.cli.options import Target, daemon_options
from memory_agent.cli.progress import waiting
from memory_agent.cli.render import counted, plain, print_figures, printed_json
from memory_agent.erasure.request import ErasureReceipt, Selection
from memory_agent.records.memories import MemoryFilter


class _Chosen(NamedTuple):
    """What to erase."""

    ids: tuple[str, ...]
    session_id: str | None
    filter: MemoryFilter
    expired: bool
    user_all: bool

    def selection(self, target: Target) -> Selection:
        filter = None if self.filter == MemoryFilter() else self.filter
        selection = Selection(ids=self.ids, session_id=self.session_id, filter=filter, expired=self.expired)
        if self.user_all == (selection != Selection()):
            raise click.UsageError("specify either --user-all or what to forget: --id, --session, filters, --expired")
        if self.user_all and not target.user_named:
            raise click.UsageError("--user-all requires --user")
        if self.expired and not uses_daemon(target) and not target.settings.retention.rules:
            raise click.UsageError("no retention rule is set (retention.rules), so nothing expires")
        return Selection(everything=True) if self.user_all else selection


@click.command(cls=SectionedCommand, sections={"Filters": FURTHER_FILTERS}, context_settings={"allow_extra_args": True})
@click.option("--id", "ids", multiple=True, metavar="ID", help="This memory. May be repeated.")
@click.option("--session", "session_id", help="Everything in this session: memories, runs, recalls, events.")
@selection_options
@click.option("--expired", is_flag=True, help="Everything that has expired under the rules in retention.rules.")
@click.option("--user-all", is_flag=True, help="All data of the user named by --user.")
@click.option("--dry-run", is_flag=True, help="Only print what would be erased.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@daemon_options
@as_struct("chosen", _Chosen)
def forget(target: Target, chosen: _Chosen, dry_run: bool, yes: bool) -> None:
    """Erase memories and their source events from every file, and print a receipt.

    Only memories that match all filters are erased. This cannot be undone. Backups, and events that publishers have not
    sent yet, are not erased. Unknown ids are listed. If the erasure is not complete yet, the last line gives the
    reason, the receipt's `complete` is false, and the exit code is 1.

    \b
    Examples:
      memory-agent forget --id 01KHJY9080NWG22H9Q8BBD7B80
      memory-agent forget --session s-17 --dry-run
      memory-agent forget --kind episode --until 90d --yes --json
      memory-agent forget --channel ops --metadata host=staging --dry-run
      memory-agent forget --expired --dry-run
      memory-agent forget --user alice --user-all
    """
    if unnamed := click.get_current_context().args:
        ids_named = " ".join(f"--id {plain(word)}" for word in unnamed)
        raise click.UsageError(f"memory ids must be passed with --id: forget {ids_named}")
    selection = chosen.selection(target)
    if not uses_daemon(target):
        target = authorize(target, "erase")
    if not dry_run and not yes:
        planned = _erase(target, selection, dry_run=True)
        what = "everything" if selection.everything else counted(planned.memories, "memory", "memories")
        shared = planned.unpublished + planned.offers + planned.ratings
        with_shared = (
            f" and {counted(shared, 'shared item, offer or rating', 'shared items, offers and ratings')}"
            if shared
            else ""
        )
        confirm(f"permanently erase {what} of {planned.user_id}, {counted(planned.events, 'event')}{with_shared}?")
    with waiting("erasing, including from the journal"):
        receipt = _erase(target, selection, dry_run=dry_run)
    if not printed_json(target.as_json, msgspec.structs.asdict(receipt)):
        _print(receipt)
    if not dry_run and not receipt.complete:
        raise SystemExit(ExitCode.FAILED)


def _print(receipt: ErasureReceipt) -> None:
    counts = {
        "memories": receipt.memories,
        "events in the journal": receipt.events,
        "events in quarantine": receipt.quarantined,
        "shared items": receipt.unpublished,
        "offers of patterns": receipt.offers,
        "ratings of shared items": receipt.ratings,
    }
    figures: dict[str, object] = {name: count for name, count in counts.items() if count or name == "memories"}
    figures |= {f"expired by {rule}": count for rule, count in receipt.by_rule.items()}
    if not receipt.dry_run:
        figures |= {"at": receipt.erased_at, "SHA-256 of the ids": receipt.ids_sha256}
    print_figures(f"{'would be erased' if receipt.dry_run else 'erased'}, of {plain(receipt.user_id)}", figures)
    click.echo("\nnot covered:")
    for part in receipt.not_covered:
        click.echo(f"- {part}")
    if receipt.unknown_ids:
        note(f"no memory of {receipt.user_id} has the id {', '.join(map(plain, receipt.unknown_ids))}")
    if not receipt.dry_run and not receipt.complete:
        click.echo(f"not complete yet: {receipt.reason}")


def _erase(target: Target, selection: Selection, *, dry_run: bool) -> ErasureReceipt:
    if uses_daemon(target):
        with open_client(target) as client:
            if selection.everything:
                return client.erasure.erase_user(dry_run=dry_run)
            if selection.expired:
                return client.erasure.erase_expired(dry_run=dry_run)
            return client.erasure.erase(
                selection.ids, session_id=selection.session_id, filter=selection.filter, dry_run=dry_run
            )
    from memory_agent.care import offline  # imports the engines

    now = datetime.now(UTC)
    receipt = offline.erase(
        target.data_dir, target.settings, target.user_id, selection, now, dry_run=dry_run, warn=note
    )
    if not selection.everything:
        note_unknown_user(target)
    return receipt
