"""`blocks`: follow the blocks that the daemon publishes. `shared follow` takes the same options (`Followed`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import click
import msgspec

from memory_agent.cli.access import open_client
from memory_agent.cli.command import SectionedCommand, Verb, as_struct, with_options
from memory_agent.cli.exit_codes import ExitCode
from memory_agent.cli.failure import note
from memory_agent.cli.options import Target, daemon_options
from memory_agent.cli.render import one_line, plain
from memory_agent.triggers.block import Block
from memory_agent.triggers.table import TriggerTable
from relay import Endpoints, relay_endpoints

if TYPE_CHECKING:
    from memory_agent.client import Following

T = TypeVar("T")
_WAIT_S = 3_600.0


@dataclass(frozen=True)
class Followed:
    """The options of the commands `blocks` and `shared follow`."""

    count: int | None
    timeout_s: float | None
    ingest: str | None
    feed: str | None

    def relay(self, target: Target) -> Endpoints | None:
        """Return the relay's endpoints, or None if only a daemon's endpoint was given."""
        here = relay_endpoints(target.data_dir)
        is_named = self.ingest or self.feed or target.endpoint is None
        return Endpoints(self.ingest or here.ingest, self.feed or here.feed) if is_named else None

    def each(self, following: Following[T]) -> Iterator[T]:
        """Yield each item as it arrives. Exits with code 1 if none arrives within `timeout_s`."""
        shown = 0
        while self.count is None or shown < self.count:
            found = following.wait(_WAIT_S if self.timeout_s is None else self.timeout_s)
            if found is not None:
                shown += 1
                yield found
            elif self.timeout_s is not None:
                raise SystemExit(ExitCode.FAILED)


_FOLLOWING = (
    click.option("--count", type=click.IntRange(min=1), help="Exit after this many results. Default: no limit."),
    click.option("--timeout", "timeout_s", type=click.FloatRange(min=0), metavar="S",
                 help="Exit with code 1 if nothing arrives for S seconds."),
    click.option("--relay", "ingest", metavar="URL", help="The relay's endpoint. Default: the data folder's relay."),
    click.option("--relay-feed", "feed", metavar="URL", help="The relay's feed. Default: the data folder's relay."),
)  # fmt: skip


def following_options(command: Verb) -> Verb:
    """Add the options of a command that follows the journal; they are passed as `followed`, a `Followed`."""
    return with_options(as_struct("followed", Followed)(command), _FOLLOWING)


@click.command(cls=SectionedCommand)
@click.option("--role", help="Only blocks for this role: conductor, worker, writer, or a role in your trigger table.")
@click.option(
    "--run", metavar="ID", help="Only blocks about this run. With --user system: blocks for the owner of the run."
)
@click.option(
    "--session",
    metavar="ID",
    help="Only blocks about this session. With --user system: blocks for the owner of the session.",
)
@following_options
@daemon_options
def blocks(target: Target, role: str | None, run: str | None, session: str | None, followed: Followed) -> None:
    """Print each new block that the daemon publishes for the user, exactly as its role receives it.

    The daemon runs a recall when a message, run, assignment or document arrives (see the trigger table). A block
    without relevant memories is printed as one line. --json prints each block as a JSON object on one line. Each event
    causes a block for one role: `chat.user_msg` for the conductor, `conductor.run.started` for the worker.

    \b
    Examples:
      memory-agent blocks --role conductor
      memory-agent blocks --role worker --run run-7 --json
      memory-agent blocks --user system --run run-7 --count 1 --timeout 10
    """
    relay = followed.relay(target)
    with open_client(target) as client, client.blocks(role, run, session, relay=relay) as following:
        if not target.as_json:
            note(f"{_caused(target, role)}; stop with Ctrl-C")
        for block in followed.each(following):
            click.echo(msgspec.json.encode(block)) if target.as_json else _print(block)


def _caused(target: Target, role: str | None) -> str:
    """Describe which events cause a block for the role, according to the triggers in these settings."""
    rows = [row for row in TriggerTable.load(target.settings.triggers.table).rows.values() if row.enabled]
    roles = ", ".join(sorted({row.role for row in rows}))
    if role is None:
        return f"following the blocks for {roles}"
    causes = ", ".join(event for row in rows if row.role == role for event in row.events)
    if not causes:
        return f"following, but the local trigger table has no role {one_line(role)}, only {roles}"
    return f"following the blocks for {role}, caused by {causes}"


def _print(block: Block) -> None:
    about = [name for name in (block.run_id, block.session_id) if name]
    click.echo(plain(f"{block.role} · {block.trigger} · {' · '.join([*about, block.cause_event_id])}"))
    click.echo(plain(block.text) if block.text else "nothing relevant")
    click.echo()
