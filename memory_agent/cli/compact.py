"""`compact`: give back the room of what was deleted, and its bytes."""

from __future__ import annotations

import click

from memory_agent.cli.access import asks_daemon
from memory_agent.cli.each_user import for_each_user
from memory_agent.cli.options import Target, daemon_options
from memory_agent.cli.render import print_document, size


@click.command(short_help="Give back the room of what was deleted.")
@daemon_options
def compact(target: Target) -> None:
    """Copy the records without their free pages, compare, and put the copy in place; without --user, for all users.

    What was deleted leaves the file with its bytes. Needs room for the copy. Recall answers meanwhile, and what is to
    be written waits; killed at any moment, the old file or the new one is there, whole. The journal too, without --user
    and without a daemon; with one, the relay compacts it by itself after something was erased.

    \b
    Examples:
      memory-agent compact
      memory-agent compact --user alice
    """
    sizes = for_each_user(target, "compact", "compacting", lambda memory: memory.care.compact())
    if not target.user_named and not asks_daemon(target):
        from memory_agent.care.offline import compact_journal  # imports the engines

        compact_journal(target.data_dir, target.settings)
    if target.as_json:
        print_document({"users": sizes})
        return
    for user_id, sized in sizes.items():
        click.echo(f"user {user_id}: {size(sized.bytes_before)} -> {size(sized.bytes_after)}")
