"""`sessions` and `map`: a memory's sessions, and positions of its memories in a plane."""

from __future__ import annotations

import click

from memory_agent.cli.access import note_unknown_user, open_memory
from memory_agent.cli.command import SectionedCommand
from memory_agent.cli.fields import FILTERS, field_options, filter_options
from memory_agent.cli.options import Target, daemon_options
from memory_agent.cli.render import counted, one_line, print_document, print_figures, print_table
from memory_agent.records.memories import MemoryFilter
from memory_agent.verbs.params import MapParams, SessionsParams

_SHOWN_CHARS = 60


@click.command(cls=SectionedCommand, sections={"Filters": FILTERS})
@filter_options
@field_options(SessionsParams)
@daemon_options
def sessions(target: Target, filter: MemoryFilter, limit: int, after: str | None) -> None:
    """List the sessions that have memories that match all filters, newest first, page by page.

    Shows the time of the newest memory, the numbers of memories and runs, the first request, and the session's id. A
    session that receives memories between two pages may be missed. --json also prints the time of the first memory, the
    channel, and the number of memories of each kind.

    \b
    Examples:
      memory-agent sessions
      memory-agent sessions --in-channel app --since 7d
      memory-agent sessions --limit 10 --user alice --json
    """
    with open_memory(target, "sessions") as memory:
        page = memory.sessions(filter, limit, after)
    if target.as_json:
        print_document(page)
        return
    rows = [
        (one.last, one.memories, one.runs, one_line(one.title)[:_SHOWN_CHARS], one.session_id) for one in page.sessions
    ]
    columns = ["last", "memories", "runs", "request", "session"]
    print_table(f"{len(rows)} of {counted(page.total, 'session')}", columns, rows, whole="session")
    if page.next_cursor is not None:
        click.echo(f"next page: --after {page.next_cursor}")
    if not page.total:
        note_unknown_user(target)


@click.command("map")
@field_options(MapParams)
@daemon_options
def map_memories(target: Target, limit: int) -> None:
    """Compute positions of memories in a plane: memories are near each other if they are alike.

    --json prints the positions as columns, each with one value per memory: `ids`, `x` and `y` (-1 to 1), `kinds`,
    `session_ids`, `qualities`, `timestamps` and `titles`. Of more memories than --limit, a fixed pseudorandom sample is
    used. Memories without a vector have no position.

    \b
    Examples:
      memory-agent map
      memory-agent map --limit 1000 --json > map.json
    """
    with open_memory(target, "map") as memory:
        found = memory.map(limit)
    if target.as_json:
        print_document(found)
        return
    figures = {
        "memories with a position": f"{len(found.ids)} of {found.total}",
        "sessions": len(set(found.session_ids) - {None}),
        "linear share of variance": found.explained,
        "model": found.model,
    }
    print_figures("map; --json prints the positions", figures)
    if not found.total:
        note_unknown_user(target)
