"""`migrate`: move users' vectors to another index."""

from __future__ import annotations

from typing import get_args, get_type_hints

import click

from memory_agent.cli.access import skip_without_key
from memory_agent.cli.failure import note
from memory_agent.cli.options import ONLY, Target, options_where_user
from memory_agent.cli.progress import progress_bars
from memory_agent.cli.render import counted, print_document
from memory_agent.settings import IndexSettings

_ENGINES = get_args(get_type_hints(IndexSettings)["engine"])


@click.command()
@click.option("--to", "engine", type=click.Choice(_ENGINES), required=True, help="The new index.")
@options_where_user(ONLY)
def migrate(target: Target, engine: str) -> None:
    """Move vectors to another index; without --user, those of all users. Stop the daemon first.

    Fills the new index from the records, compares the number of memories and the nearest neighbours of a sample, and
    only then switches to it and removes the former index. Repeat the command to resume an interrupted migration. Set
    index.engine as well: it selects the index of new users.

    \b
    Examples:
      memory-agent migrate --to sqlite-vec --user alice
      memory-agent migrate --to pgvector --set 'index.url=postgresql://app:${PASSWORD}@db.example/app'
      memory-agent migrate --to builtin
    """
    from memory_agent.care import migrate_folder  # imports the engines

    with progress_bars() as report:
        moved = list(
            migrate_folder(target.data_dir, target.settings, engine, report, target.only_user, skip_without_key(target))
        )
    if target.as_json:
        print_document({"users": moved})
    for user in () if target.as_json else moved:
        state = "already there" if user.former == engine else f"moved from {user.former}"
        checked = "" if engine == "builtin" else f", {user.found:.0%} of the sample's neighbours found"
        click.echo(f"user {user.user_id}: {counted(user.memories, 'memory', 'memories')}, {state}{checked}")
    for user in moved:
        if user.left:
            note(user.left)
    if engine != target.settings.index.engine:
        note(f'new users get the index {target.settings.index.engine}; to change that, set index.engine = "{engine}"')
