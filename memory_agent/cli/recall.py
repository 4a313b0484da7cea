"""The commands that store, find, list and show memories: `remember`, `recall`, `list`, `sessions`, `get` and `map`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from memory_agent.cli.access import note_unknown_user, open_memory
from memory_agent.cli.command import SectionedCommand
from memory_agent.cli.failure import note
from memory_agent.cli.fields import FILTERS, FURTHER_FILTERS, Pair, field_options, filter_options
from memory_agent.cli.options import Target, daemon_options, read_text
from memory_agent.cli.render import (
    counted,
    one_line,
    plain,
    print_document,
    print_done,
    print_figures,
    print_memories,
    print_record,
    print_table,
    printed_json,
    result_document,
    without_vector,
)
from memory_agent.errors import InvalidInputError
from memory_agent.recall.context import USUAL_TOKENS
from memory_agent.recall.query import profile_defaults
from memory_agent.records.memories import MemoryFilter, MemoryRecord, Order, RecallResult
from memory_agent.verbs.params import ListParams, MapParams, RecallParams, RememberParams, SessionsParams

_SHOWN_CHARS = 100
_TITLE_CHARS = 60


@click.command(
    cls=SectionedCommand,
    sections={
        "Filters": FURTHER_FILTERS,
        "How to search": ("--mode", "--min-relevance", "--deadline-ms", "--dates", "--at", "--runs", "--unlogged"),
        "The caller, whose own words are left out": ("--by-run", "--by-session", "--by-event"),
        "Output": ("--max-tokens", "--with-embedding"),
    },
)
@click.argument("query", metavar="TEXT")
@field_options(RecallParams, reference_time="--at")
@filter_options
@click.option(
    "--deadline-ms",
    type=click.FloatRange(min=0, min_open=True),
    help="Time limit; stages that would exceed it are skipped.",
)
@click.option("--explain", "explained", is_flag=True, help="Print a table that shows why each memory was found.")
@click.option("--context", "as_context", is_flag=True, help="Print a block of text for a planner's prompt.")
@click.option("--max-tokens", type=click.IntRange(min=1), help=f"Maximum length of --context. Default: {USUAL_TOKENS}.")
@daemon_options
def recall(
    target: Target,
    query: str,
    filter: MemoryFilter,
    explained: bool,
    as_context: bool,
    max_tokens: int | None,
    **given: Any,
) -> None:
    """Find memories that resemble TEXT, best first. TEXT may be - for standard input.

    Only memories that match all filters are returned. Uses the data folder's daemon, or its files if no daemon is
    running. Parts of the search that were unavailable (for lack of a model) or skipped (because of a deadline) are
    listed as degraded. Memories that are not relevant to TEXT are left out; an empty result is not an error.

    \b
    Examples:
      memory-agent recall "fix the bug in the auth module"
      memory-agent recall "deploy hangs" --kind finding --since 7d --min-quality 0.8
      memory-agent recall "staging" --channel ops --phase rollout --metadata host=staging
      memory-agent recall "what did we change last week?" --dates filter --explain
      memory-agent recall "write the runbook" --profile document --context
      memory-agent recall "set up a service with tests" --profile before_planning --context
      memory-agent recall - --context --max-tokens 300 < task.txt
      memory-agent recall "auth race" --user alice --json
      memory-agent recall "fix the flaky deploy" --by-session s-17 --by-run run_7
      memory-agent recall "deploy hangs" --exclude-session s-16 --exclude-since 1d
      memory-agent recall "deploy hangs" --tier local --tier global
    """
    if max_tokens is not None and not as_context:
        raise click.UsageError("--max-tokens requires --context")
    if given["with_embedding"] and (not target.as_json or as_context):
        raise click.UsageError("--with-embedding requires --json and cannot be combined with --context")
    if explained and as_context:
        raise click.UsageError("--explain cannot be combined with --context")
    if explained and target.as_json:
        raise click.UsageError("--explain cannot be combined with --json, which includes every explanation")
    context_tokens = (max_tokens or USUAL_TOKENS) if as_context else None
    with open_memory(target, "recall") as memory:
        result = memory.recall(read_text(query), filter=filter, context_tokens=context_tokens, **given)
    now = given["reference_time"] or datetime.now(UTC)
    if as_context:
        _print_context(result, target.as_json)
    elif target.as_json:
        print_document(result_document(result, given["with_embedding"]))
    elif explained:
        from memory_agent.cli.explanation import Asked, print_explanation  # imported late: loads the phrases for dates

        kinds = filter.kinds or profile_defaults(given["profile"]).kinds
        print_explanation(result, now, Asked(msgspec.structs.replace(filter, kinds=kinds), given["dates"]))
    else:
        print_memories(result, now)
    if result.total and not (result.memories or target.as_json):
        _note_none(result.total, is_filtered=filter != MemoryFilter(), is_strict=given["min_relevance"] != 0)
    elif not result.memories:
        note_unknown_user(target)


def _note_none(total: int, *, is_filtered: bool, is_strict: bool) -> None:
    if total == 1:
        none = f"the only memory{' that matches' if is_filtered else ''} is not relevant to this"
    else:
        none = f"none of the {total} memories{' that match' if is_filtered else ''} is relevant to this"
    note(none + ("; --min-relevance 0 shows the nearest ones" if is_strict else ""))


def _print_context(result: RecallResult, as_json: bool) -> None:
    if printed_json(as_json, {"recall_id": result.recall_id, "degraded": result.degraded, "context": result.context}):
        return
    if result.context:
        click.echo(plain(result.context))
    if result.degraded:
        note(f"degraded: {', '.join(result.degraded)}")


@click.command(
    cls=SectionedCommand,
    sections={
        "Where it comes from": ("--source", "--provenance", "--session", "--run", "--channel", "--agent", "--at"),
        "To filter by": ("--type", "--phase", "--metadata", "--quality"),
    },
)
@click.argument("text")
@field_options(RememberParams, quality_score="--quality", timestamp="--at")
@daemon_options
def remember(target: Target, text: str, metadata: tuple[Pair, ...], **fields: Any) -> None:
    """Store TEXT as a memory; it is durable on return. TEXT may be - for standard input.

    With --id, the whole memory with this id is replaced, except for its recalls and, unless --at is given, its time.
    Repeating the command is harmless.

    \b
    Examples:
      memory-agent remember "Staging needs the VPN" --tag deploy --provenance verified
      memory-agent remember - --kind pattern --title "Release steps" < steps.txt
      memory-agent remember "Staging needs no VPN" --id staging-vpn --type note --metadata host=staging
    """
    with open_memory(target, "remember") as memory:
        record = memory.remember(read_text(text), metadata=dict(metadata), **fields)
    done = "remembered" if record.updated_at is None else "replaced"
    sentence = f"{done} {one_line(record.id)} ({record.kind}, {record.source})"
    print_done(target.as_json, without_vector(record), sentence)


@click.command("list", cls=SectionedCommand, sections={"Filters": FILTERS})
@filter_options
@field_options(ListParams)
@daemon_options
def list_memories(target: Target, filter: MemoryFilter, order: Order, limit: int, after: str | None) -> None:
    """List memories that match all filters, page by page, with their time, kind, id, and the start of the text.

    Memories added between two pages cause no repeats or gaps. A memory whose time changes between two pages may be
    missed or shown twice; with --order updated, this also applies to a memory that is replaced. --order updated starts
    with the most recently replaced memory. --json prints whole records, and the cursor as `next_cursor`.

    \b
    Examples:
      memory-agent list --since 7d --kind finding
      memory-agent list --type worker.report.received --phase rollout --order oldest
      memory-agent list --metadata report.status=open --metadata report.status=late --json
      memory-agent list --order updated --limit 10 --user alice
    """
    with open_memory(target, "list") as memory:
        page = memory.list(filter, order, limit, after)
    if target.as_json:
        records = [without_vector(record) for record in page.records]
        print_document({"records": records, "total": page.total, "next_cursor": page.next_cursor})
        return
    columns = ["updated" if order == "updated" else "time", "kind", "id", "text"]
    rows = [(_time(record, order), record.kind, record.id, _beginning(record)) for record in page.records]
    print_table(f"{len(rows)} of {counted(page.total, 'memory', 'memories')}", columns, rows, whole="id")
    if page.next_cursor is not None:
        click.echo(f"next page: --after {page.next_cursor}")
    if not page.total:
        note_unknown_user(target)


def _time(record: MemoryRecord, order: Order) -> datetime:
    return record.updated_at or record.timestamp if order == "updated" else record.timestamp


def _beginning(record: MemoryRecord) -> str:
    line = one_line(": ".join(filter(None, (record.title, record.text))))
    return line if len(line) <= _SHOWN_CHARS else f"{line[:_SHOWN_CHARS]}…"


@click.command()
@click.argument("record_id", metavar="ID")
@daemon_options
def get(target: Target, record_id: str) -> None:
    """Show the memory with this ID in full: its text, and every field that is set.

    `recall`, `list` and `trajectory show` print ids.

    \b
    Examples:
      memory-agent get 01KHJY9080NWG22H9Q8BBD7B80
      memory-agent get staging-vpn --json
    """
    with open_memory(target, "get") as memory:
        found = memory.get([record_id])
    if not found:
        note_unknown_user(target)
        raise InvalidInputError("id", f"{record_id} not found; `list` shows the memories of this user")
    if not printed_json(target.as_json, without_vector(found[0])):
        print_record(found[0])


@click.command(cls=SectionedCommand, sections={"Filters": FILTERS})
@filter_options
@field_options(SessionsParams)
@daemon_options
def sessions(target: Target, filter: MemoryFilter, limit: int, after: str | None) -> None:
    """List the sessions with memories that match all filters, newest first, page by page.

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
    if printed_json(target.as_json, page):
        return
    rows = [
        (one.last, one.memories, one.runs, one_line(one.title)[:_TITLE_CHARS], one.session_id) for one in page.sessions
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
    """Compute positions of memories in a plane, such that similar memories are near each other.

    --json prints the positions as columns, each with one value per memory: `ids`, `x` and `y` (-1 to 1), `kinds`,
    `session_ids`, `qualities`, `timestamps` and `titles`. If there are more memories than --limit, a fixed pseudorandom
    sample is used. Memories without a vector have no position.

    \b
    Examples:
      memory-agent map
      memory-agent map --limit 1000 --json > map.json
    """
    with open_memory(target, "map") as memory:
        found = memory.map(limit)
    if printed_json(target.as_json, found):
        return
    figures = {
        "memories with a position": f"{len(found.ids)} of {found.total}",
        "sessions": len(set(found.session_ids) - {None}),
        "linear share of variance": found.explained,
        "model": found.model,
    }
    print_figures("map (--json prints the positions)", figures)
    if not found.total:
        note_unknown_user(target)
