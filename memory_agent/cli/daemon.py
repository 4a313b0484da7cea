"""`stats` shows the figures of a memory and of the daemon; `status` shows those of the daemon."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import click
import msgspec

from memory_agent.cli.access import note_unknown_user, open_client, open_memory
from memory_agent.cli.command import SectionedCommand
from memory_agent.cli.fields import FILTERS, filter_options
from memory_agent.cli.options import Target, daemon_options
from memory_agent.cli.render import print_figures, print_table, printed_json, size
from memory_agent.client import MemoryClient
from memory_agent.records.memories import ApiCounts, MemoryFilter, MemoryStats
from memory_agent.verbs.protocol import DaemonStatus, PartStatus

_MOST_TYPES = 8


@click.command(cls=SectionedCommand, sections={"Filters": FILTERS})
@filter_options
@daemon_options
def stats(target: Target, filter: MemoryFilter) -> None:
    """Show the number of memories by kind, what was dropped and why, and the parts and timings of a running daemon.

    Counts the current memories, which come from events, `remember`, `import` and learned patterns. Every event ever
    received is counted as kept, repeated or dropped, or as quarantined if it could not be processed. With a filter, the
    times and the counts of memories (all, waiting, by kind and by source) cover only matching memories. The other
    figures cover the whole memory.

    \b
    Examples:
      memory-agent stats --user alice
      memory-agent stats --in-channel shop --session s-17
      memory-agent stats --json | jq .daemon.recalls
    """
    with open_memory(target, "stats") as memory:
        figures = memory.stats(None if filter == MemoryFilter() else filter)
        status = memory.status() if isinstance(memory, MemoryClient) else None
    if printed_json(target.as_json, msgspec.to_builtins(figures) | {"daemon": _document(status)}):
        return
    print_figures(f"memory of {figures.user_id}", _of_memory(figures))
    click.echo()
    if status is None:
        click.echo(f"no daemon serves {target.data_dir}; these figures were read from the files")
    else:
        _print_status(status)
    note_unknown_user(target)


@click.command()
@daemon_options
def status(target: Target) -> None:
    """Show the daemon's parts, users, timings and journal; `stats` also shows the figures of a memory. Needs a running
    daemon.

    \b
    Examples:
      memory-agent status
      memory-agent status --json | jq '.parts[] | select(.state != "running")'
    """
    with open_client(target) as client:
        state = client.status()
    if not printed_json(target.as_json, _document(state)):
        _print_status(state)


def _document(status: DaemonStatus | None) -> dict[str, object] | None:
    """Return every field, including those at their defaults, which msgspec would omit."""
    if status is None:
        return None
    parts = [{name: getattr(part, name) for name in part.__struct_fields__} for part in status.parts]
    nodes = [{name: getattr(node, name) for name in node.__struct_fields__} for node in status.nodes]
    whole = {name: getattr(status, name) for name in status.__struct_fields__}
    return whole | {"parts": parts, "nodes": nodes}


def _of_memory(figures: MemoryStats) -> Mapping[str, object]:
    return {
        "memories": figures.memories,
        "by kind": figures.by_kind,
        "by source": figures.by_source,
        "oldest": figures.oldest,
        "newest": figures.newest,
        "waiting for a vector": figures.without_vector,
        "waiting to be embedded": figures.waiting,
        "events kept, ever": figures.events_kept,
        "events repeated": figures.events_duplicate,
        "events dropped": figures.events_dropped,
        "of these types": dict(Counter(figures.dropped_types).most_common(_MOST_TYPES)),
        "secrets masked": figures.masked,
        "expired": figures.expired,
        "journal cursor": figures.cursor,
        "model": figures.model,
        "calls to its server": None if figures.provider is None else _of_provider(figures.provider),
        "dimension": figures.ndim,
        "index": figures.index,
        "schema version": figures.schema_version,
        "created at": figures.created_at,
        "rebuilt at": figures.rebuilt_at,
        "judge": figures.judge,
        "on disk": size(figures.disk_bytes),
    }


def _of_provider(calls: ApiCounts) -> str:
    cost = f", {calls.cost_usd:.4f} USD" if calls.cost_usd else ""
    problem = f"; last problem: {calls.problem}" if calls.problem else ""
    numbers = f"{calls.calls}, {calls.failed} failed, {calls.refused} not sent, {calls.tokens_read:,} tokens"
    return f"{numbers}{cost}, since its process started{problem}"


def _of_journal(journal: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
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
        "form": status.form,
        "model": status.model,
        "users awake": status.active_users,
        "dispatcher": status.dispatched,
        "recalls": status.recalls,
        "triggers": status.triggers,
        "limits": status.limits,
        **{name: endpoint for name, endpoint in status.endpoints.items() if endpoint},
    }
    print_figures(f"daemon {status.version}", figures)
    click.echo()
    if status.nodes:
        columns = ("name", "address", "state", "users", "cores", "joined")
        machines = [
            (node.name, node.address, "full" if node.is_full else node.state, node.users, node.cores, node.joined_at)
            for node in status.nodes
        ]
        print_table("machines", columns, machines)
        click.echo()
    print_figures("journal", dict(_of_journal(status.journal)))
    click.echo()
    rows = [(part.name, part.state, part.pid, part.restarts, _resident(part)) for part in status.parts]
    print_table("parts", ("name", "state", "pid", "restarts", "resident"), rows)
    resident = size(sum(part.resident_bytes for part in status.parts))
    click.echo(f"resident in all: {resident}" + (", without Ray's own processes" if status.form == "full" else ""))


def _resident(part: PartStatus) -> str:
    return size(part.resident_bytes) if part.resident_bytes or part.pid is None else "in daemon"
