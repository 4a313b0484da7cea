"""`restore`: a backup brought back, all of it or one user; or one user begun anew from the journal."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from memory_agent.cli.failure import note
from memory_agent.cli.options import ONLY, Target, options_where_user
from memory_agent.cli.progress import progress_bars
from memory_agent.cli.render import print_document

if TYPE_CHECKING:
    from memory_agent.care.restoration import Restored


@click.command(short_help="A backup brought back, here or on another machine.")
@click.argument("directory", type=click.Path(path_type=Path), required=False)
@click.option("--replace", is_flag=True, help="Put aside what is in the data folder already.")
@click.option("--from-journal", is_flag=True, help="No backup: have the journal give this --user's events again.")
@options_where_user(ONLY)
def restore(target: Target, directory: Path | None, replace: bool, from_journal: bool) -> None:
    """Bring back what `memory-agent backup` copied to DIRECTORY; with --user, that user's memories alone.

    The daemon must be stopped. A backup that is not whole is refused and changes nothing. What is in the data folder
    already is only put aside with --replace, into a folder that is named, and never deleted. Events that came after the
    backup, and that the journal here still holds, are taken in at the daemon's next start. What was
    forgotten here after the backup stays forgotten. The journal has no memories that were remembered by hand or
    imported, no recalls, and no runs begun by hand: --from-journal does not bring those back.

    \b
    Examples:
      memory-agent restore /mnt/backups/monday --data-dir /srv/memory
      memory-agent restore /mnt/backups/monday --user alice --replace
      memory-agent restore --from-journal --user alice --replace
    """
    if from_journal == (directory is not None):
        raise click.UsageError("name a DIRECTORY, or say --from-journal")
    if from_journal and not target.user_named:
        raise click.UsageError("--from-journal needs --user")
    restored = _restored(target, directory, replace)
    if directory is not None and not restored.has_history:
        note("nothing is known here of what was erased; what was, elsewhere, since the backup was made, is back")
    if target.as_json:
        print_document(restored)
        return
    for user_id, count in restored.erased_again.items():
        click.echo(f"erased again, since it had been after the backup: {count} of {user_id}")
    for part in restored.parts:
        click.echo(f"restored {part.part}: {part.entries} entries")
    if restored.aside:
        click.echo(f"what was there before lies in {restored.aside}; delete it when it is not needed")
    if from_journal:
        from memory_agent.care.restoration import NOT_IN_JOURNAL

        click.echo(f"the events of {target.user_id} are taken in again when the daemon starts")
        if restored.aside:
            click.echo(f"the journal does not hold {NOT_IN_JOURNAL}: those stay where they were put aside")


def _restored(target: Target, directory: Path | None, replace: bool) -> Restored:
    from memory_agent.care.restoration import replay_user, restore_all, restore_user  # engines

    data_dir, user_id, settings, now = target.data_dir, target.user_id, target.settings, datetime.now(UTC)
    if directory is None:
        return replay_user(data_dir, user_id, settings, now, replace=replace, warn=note)
    with progress_bars() as report:
        if target.user_named:
            return restore_user(directory, data_dir, user_id, settings, now, report, replace=replace, warn=note)
        return restore_all(directory, data_dir, settings, now, report, replace=replace, warn=note)
