"""`rebuild`: the vector index and the lexicon, anew from the records."""

from __future__ import annotations

import click

from memory_agent.cli.each_user import for_each_user
from memory_agent.cli.options import Target, daemon_options
from memory_agent.cli.render import print_document


@click.command(short_help="Build index and lexicon anew from the records.")
@daemon_options
def rebuild(target: Target) -> None:
    """Build the vector index and the lexicon anew from the records; without --user, of all users.

    It happens by itself wherever one of them is missing or in doubt: this is for being sure. Recall answers meanwhile,
    by the other side, and says so. Takes about .5 s per 1,000 memories.

    \b
    Examples:
      memory-agent rebuild
      memory-agent rebuild --user alice --json
    """
    counts = for_each_user(target, "rebuild", "rebuilding", lambda memory: memory.care.rebuild())
    if target.as_json:
        print_document({"users": counts})
        return
    for user_id, count in counts.items():
        click.echo(f"user {user_id}: built from {count} memories")
