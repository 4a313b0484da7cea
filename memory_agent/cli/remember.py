"""`remember`: store one memory by hand."""

from __future__ import annotations

import click
import msgspec

from memory_agent.cli.access import open_memory
from memory_agent.cli.options import Target, daemon_options
from memory_agent.cli.render import print_document
from memory_agent.cli.values import read_text
from memory_agent.records import KINDS, PROVENANCES, SOURCES, Kind, Provenance, Source


@click.command(short_help="Store one memory by hand.")
@click.argument("text")
@click.option("--kind", type=click.Choice(KINDS), default="finding", show_default=True, help="What it is.")
@click.option("--source", type=click.Choice(SOURCES), default="user_input", show_default=True, help="Who knows it.")
@click.option("--tag", "tags", multiple=True, help="A word to find it by. May be repeated.")
@click.option("--title", help="A short name.")
@click.option("--provenance", type=click.Choice(PROVENANCES), help="How sure it is.")
@click.option("--session", metavar="ID", help="The session that it belongs to.")
@daemon_options
def remember(
    target: Target,
    text: str,
    kind: Kind,
    source: Source,
    tags: tuple[str, ...],
    title: str | None,
    provenance: Provenance | None,
    session: str | None,
) -> None:
    """Store TEXT as a memory; it is on the disk when this returns. TEXT may be - for standard input.

    \b
    Examples:
      memory-agent remember "Staging needs the VPN" --tag deploy --provenance verified
      memory-agent remember - --kind pattern --title "Release steps" < steps.txt
    """
    with open_memory(target, "remember") as memory:
        record = memory.remember(
            read_text(text), kind, source, tags=tags, title=title, provenance=provenance, session_id=session
        )
    if target.as_json:
        document = msgspec.to_builtins(record)
        del document["embedding"]
        print_document(document)
    else:
        click.echo(f"remembered {record.id} ({record.kind}, {record.source})")
