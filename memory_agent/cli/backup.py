"""`backup`: a copy of everything that belongs together, made while the daemon works."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from memory_agent.cli.failure import note
from memory_agent.cli.options import UNUSED, Target, options_where_user
from memory_agent.cli.progress import progress_bars
from memory_agent.cli.render import print_document, size

_INCOMPLETE = 2


@click.command(short_help="A consistent copy of everything, while the daemon runs.")
@click.argument("directory", type=click.Path(path_type=Path))
@options_where_user(UNUSED)
@click.pass_context
def backup(context: click.Context, target: Target, directory: Path) -> None:
    """Copy all users' memories and the journal into DIRECTORY, which must not exist yet.

    The daemon may go on meanwhile. The copy is consistent, is checked, and has its name only when all of it is on the
    disk. What is encrypted there stays so, and the keys are not in it: without their folder it is worth nothing. What
    is not encrypted there is not here: keep it as private as the data folder. Caches are left out, and so are tokens.
    A user whose records are damaged, or whose encryption key is gone, is left out and named, with exit code 2.

    \b
    Examples:
      memory-agent backup /mnt/backups/monday
      memory-agent backup "/mnt/backups/$(date +%F)" --json
    """
    from memory_agent.care.backup import make_backup  # engines

    with progress_bars() as report:
        made = make_backup(target.data_dir, directory, target.settings, datetime.now(UTC), report)
    if target.as_json:
        print_document(made)
    else:
        total = sum(part.bytes for part in made.parts)
        click.echo(f"{directory}: {len(made.parts)} parts, {size(total)}")
    if made.left_out:
        note(f"left out, damaged or without their key: {', '.join(made.left_out)}; see memory-agent verify")
        context.exit(_INCOMPLETE)
