"""`stats`: figures of a user's memory, and of the daemon where one runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import click
import msgspec

from memory_agent.cli.access import note_unknown, open_for_reading
from memory_agent.cli.options import Target, daemon_options
from memory_agent.cli.render import print_document, print_figures, print_table, size
from memory_agent.client import MemoryClient
from memory_agent.protocol import DaemonStatus
from memory_agent.records import MemoryStats

_MOST_TYPES = 8


@click.command(short_help="Figures of a memory, and of the daemon.")
@daemon_options
def stats(target: Target) -> None:
    """How many memories of which kind, what was dropped and why; with a daemon also its parts and times.

    \b
    Examples:
      memory-agent stats --user alice
      memory-agent stats --json | jq .daemon.recalls
    """
    with open_for_reading(target, "stats") as memory:
        figures = memory.stats()
        status = memory.status() if isinstance(memory, MemoryClient) else None
    if target.as_json:
        print_document(msgspec.to_builtins(figures) | {"daemon": _document(status)})
        return
    print_figures(f"memory of {figures.user_id}", _of_memory(figures))
    click.echo()
    if status is None:
        click.echo(f"no daemon serves {target.data_dir}; these figures were read from the files")
    else:
        _print_status(status)
    note_unknown(target)


def _document(status: DaemonStatus | None) -> dict[str, object] | None:
    """Return every field, those at their defaults too: a program should not have to know which those are."""
    if status is None:
        return None
    parts = [{name: getattr(part, name) for name in part.__struct_fields__} for part in status.parts]
    return {name: getattr(status, name) for name in status.__struct_fields__} | {"parts": parts}


def _of_memory(figures: MemoryStats) -> Mapping[str, object]:
    return {
        "memories": figures.memories,
        "by kind": figures.by_kind,
        "by source": figures.by_source,
        "oldest": figures.oldest,
        "newest": figures.newest,
        "waiting for a vector": figures.without_vector,
        "events kept": figures.events_kept,
        "events repeated": figures.events_duplicate,
        "events dropped": figures.events_dropped,
        "of these types": dict(Counter(figures.dropped_types).most_common(_MOST_TYPES)),
        "secrets masked": figures.masked,
        "expired": figures.expired,
        "journal cursor": figures.cursor,
        "model": figures.model,
        "index": figures.index,
        "on disk": size(figures.disk_bytes),
    }


def _of_journal(journal: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Give one figure a line: bytes in a unit, each consumer and each count by itself."""
    for name, value in journal.items():
        if name == "counts":
            yield from ((count.replace("_", " "), number) for count, number in value.items())
        elif name == "consumers":
            yield from ((f"consumer {one['name']}", f"at {one['seq']}, {one['lag']} behind") for one in value)
        else:
            yield name.replace("_", " "), size(value) if name.endswith("_bytes") else value


def _print_status(status: DaemonStatus) -> None:
    figures = {
        "up": f"{status.uptime_s:g} s",
        "model": status.model,
        "users awake": status.active_users,
        "dispatcher": status.dispatched,
        "recalls": status.recalls,
        **{name: endpoint for name, endpoint in status.endpoints.items() if endpoint},
    }
    print_figures(f"daemon {status.version}", figures)
    click.echo()
    print_figures("journal", dict(_of_journal(status.journal)))
    click.echo()
    rows = [(part.name, part.state, part.pid, part.restarts, size(part.resident_bytes)) for part in status.parts]
    print_table("parts", ("name", "state", "pid", "restarts", "resident"), rows)
    resident = size(sum(part.resident_bytes for part in status.parts))
    click.echo(f"resident in all: {resident}, without Ray's own processes")
