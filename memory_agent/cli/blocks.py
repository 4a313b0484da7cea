"""`blocks`: follow what memory says of its own accord."""

from __future__ import annotations

import click
import msgspec

from memory_agent.cli.access import open_client
from memory_agent.cli.failure import note
from memory_agent.cli.following import Followed, following_options
from memory_agent.cli.options import Target, daemon_options
from memory_agent.cli.render import one_line, plain
from memory_agent.triggers.block import Block
from memory_agent.triggers.table import TriggerTable


@click.command()
@click.option("--role", help="Only blocks for this role: conductor, worker, writer, or one of your own table's.")
@click.option("--run", metavar="ID", help="Only about this run. As --user system: of the user that owns it.")
@click.option("--session", metavar="ID", help="Only about this session. As --user system: of the user that owns it.")
@following_options
@daemon_options
def blocks(
    target: Target,
    role: str | None,
    run: str | None,
    session: str | None,
    followed: Followed,
) -> None:
    """Print each block that memory publishes for the user from now on, as its role receives it.

    The daemon recalls by itself when messages, runs, assignments and documents arrive (the table of triggers); nobody
    asks. A block without relevant memories is empty, and only a line says that it came. With --json each block is an
    object on a line. Each event causes a block for one role: `chat.user_msg` for the conductor, `conductor.run.started`
    for the worker.

    \b
    Examples:
      memory-agent blocks --role conductor
      memory-agent blocks --role worker --run run-7 --json
      memory-agent blocks --user system --run run-7 --count 1 --timeout 10
    """
    relay = followed.relay(target)
    with open_client(target) as client, client.blocks(role, run, session, relay=relay) as following:
        if not target.as_json:
            note(f"{_caused(target, role)}; end with Ctrl-C")
        for block in followed.each(following):
            click.echo(msgspec.json.encode(block)) if target.as_json else _print(block)


def _caused(target: Target, role: str | None) -> str:
    """Say what is followed: which events cause a block for the role, by the table of triggers of these settings."""
    rows = [row for row in TriggerTable.load(target.settings.triggers.table).rows.values() if row.enabled]
    roles = ", ".join(sorted({row.role for row in rows}))
    if role is None:
        return f"following the blocks for {roles}"
    causes = ", ".join(event for row in rows if row.role == role for event in row.events)
    if not causes:
        return f"following, but the table of triggers here has no role {one_line(role)}: there are {roles}"
    return f"following the blocks for {role}, caused by {causes}"


def _print(block: Block) -> None:
    about = [name for name in (block.run_id, block.session_id) if name]
    click.echo(plain(f"{block.role} · {block.trigger} · {' · '.join([*about, block.cause_event_id])}"))
    click.echo(plain(block.text) if block.text else "nothing relevant")
    click.echo()
