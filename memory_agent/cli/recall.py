"""`remember`, `recall`, `list` and `get`: store a memory, find memories by a text, page through them, show one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from memory_agent.cli.access import note_unknown_user, open_for_reading, open_memory
from memory_agent.cli.failure import note
from memory_agent.cli.filters import MetadataPair, Pair, filter_options
from memory_agent.cli.options import Moment, Target, daemon_options, read_text
from memory_agent.cli.render import (
    counted,
    one_line,
    plain,
    print_document,
    print_memories,
    print_record,
    print_table,
    record_document,
    result_document,
)
from memory_agent.errors import InvalidInputError
from memory_agent.recall.context import USUAL_TOKENS
from memory_agent.recall.query import MOST_ANSWERS, profile_defaults
from memory_agent.records.arguments import MOST_LISTED, MOST_SIMILAR_RUNS
from memory_agent.records.memories import (
    DATES,
    KINDS,
    MODES,
    ORDERS,
    PROFILES,
    PROVENANCES,
    SOURCES,
    TIERS,
    Dates,
    Kind,
    MemoryFilter,
    MemoryRecord,
    Mode,
    Order,
    Profile,
    RecallResult,
    Source,
    Tier,
)

_SHOWN_CHARS = 100


@click.command()
@click.argument("text")
@click.option(
    "--top-k", type=click.IntRange(1, MOST_ANSWERS), help="Maximum number of memories. Default: 5, or the profile's."
)
@click.option("--profile", type=click.Choice(PROFILES), help="When a planner recalls, which sets number and "
              "kinds: before_planning (5 of all), document (3 findings and patterns), trajectory (5 strategies "
              "and patterns).")  # fmt: skip
@click.option("--tier", "tiers", multiple=True, type=click.Choice(TIERS), help="Where to search: local, your own "
              "memories; global, what users share. May be repeated. Default: local.")  # fmt: skip
@filter_options
@click.option(
    "--min-relevance",
    type=click.FloatRange(0, 1),
    help="Only with at least this relevance; 0 for the best there are. Default: the setting recall.min_relevance.",
)
@click.option("--mode", type=click.Choice(MODES), help="How to search. Default: the setting recall.mode.")
@click.option(
    "--deadline-ms",
    type=click.FloatRange(min=0, min_open=True),
    help="Answer within this time; late stages are left out.",
)
@click.option("--dates", type=click.Choice(DATES), help="How to use a time in TEXT: boost memories of that time, "
              "filter by it, or ignore it. Default: the setting recall.dates.")  # fmt: skip
@click.option("--at", "reference_time", type=Moment(), help='What "last week" is relative to. Default: now.')
@click.option(
    "--by-run", metavar="ID", help="The calling run: its words are left out; the memories it then uses are credited."
)
@click.option("--by-session", metavar="ID", help="The calling session: what it said in the last minutes (the setting "
              "recall.echo_minutes) is left out.")  # fmt: skip
@click.option("--by-event", metavar="ID", help="The event that causes this recall: its memory is left out.")
@click.option("--runs", type=click.IntRange(0, MOST_SIMILAR_RUNS), help="Also that many ended runs whose request "
              "resembles TEXT. Default: 2 in --context of the profiles before_planning and trajectory.")  # fmt: skip
@click.option("--explain", "explained", is_flag=True, help="Print why each memory was found, as a table.")
@click.option("--context", "as_context", is_flag=True, help="Print a block of text for a planner's prompt.")
@click.option("--max-tokens", type=click.IntRange(min=1), help=f"Maximum length of --context. Default: {USUAL_TOKENS}.")
@click.option("--with-embedding", is_flag=True, help="Keep each record's vector in --json.")
@daemon_options
def recall(
    target: Target,
    text: str,
    top_k: int | None,
    profile: Profile | None,
    tiers: tuple[Tier, ...],
    min_relevance: float | None,
    mode: Mode | None,
    deadline_ms: float | None,
    dates: Dates | None,
    reference_time: datetime | None,
    by_run: str | None,
    by_session: str | None,
    by_event: str | None,
    runs: int | None,
    explained: bool,
    as_context: bool,
    max_tokens: int | None,
    with_embedding: bool,
    filter: MemoryFilter,
) -> None:
    """Find memories that resemble TEXT, best first. TEXT may be - for standard input.

    Only memories that match all filters (--session to --min-quality) are found. Uses the daemon of the data folder, or
    the files if none runs. Parts that were unavailable (no model, a deadline) are listed as degraded. Memories that
    do not bear on TEXT are left out, so there may be none, which is not an error.

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
    _refuse_ignored(target.as_json, explained, as_context, max_tokens, with_embedding)
    with open_for_reading(target, "recall") as memory:
        result = memory.recall(
            read_text(text),
            top_k,
            filter,
            mode,
            deadline_ms,
            profile=profile,
            dates=dates,
            reference_time=reference_time,
            context_tokens=(max_tokens or USUAL_TOKENS) if as_context else None,
            with_embedding=with_embedding,
            by_run=by_run,
            by_session=by_session,
            by_event=by_event,
            min_relevance=min_relevance,
            runs=runs,
            tiers=tiers or None,
        )
        total = 0
        if not (result.memories or target.as_json or tiers == ("global",)):
            total = memory.list(msgspec.structs.replace(_with_kinds(filter, profile), min_score=None), limit=1).total
    if as_context:
        _print_context(result, target.as_json)
    elif target.as_json:
        print_document(result_document(result, with_embedding))
    else:
        now = reference_time or datetime.now(UTC)
        if explained:
            from memory_agent.cli.explanation import Asked, print_explanation  # imports the words of times

            print_explanation(result, now, Asked(_with_kinds(filter, profile), dates))
        else:
            print_memories(result, now)
    if total:
        _note_none(total, is_filtered=filter != MemoryFilter(), is_strict=min_relevance != 0)
    elif not result.memories:
        note_unknown_user(target)


def _note_none(total: int, *, is_filtered: bool, is_strict: bool) -> None:
    """Note how many memories were looked at in vain, and how to see the nearest of them."""
    if total == 1:
        none = f"the only memory{' that matches' if is_filtered else ''} does not bear on this"
    else:
        none = f"none of the {total} memories{' that match' if is_filtered else ''} bears on this"
    note(none + ("; --min-relevance 0 shows the nearest" if is_strict else ""))


def _refuse_ignored(
    as_json: bool, explained: bool, as_context: bool, max_tokens: int | None, with_embedding: bool
) -> None:
    """Reject options that would have no effect."""
    if max_tokens is not None and not as_context:
        raise click.UsageError("--max-tokens is the limit of --context, which is not given")
    if with_embedding and (not as_json or as_context):
        raise click.UsageError("--with-embedding is for the records of --json, and not with --context")
    if explained and as_context:
        raise click.UsageError("--explain and --context print different things: give one of them")
    if explained and as_json:
        raise click.UsageError("--explain is for people: --json has every explanation anyway")


def _with_kinds(filter: MemoryFilter, profile: Profile | None) -> MemoryFilter:
    return filter if filter.kinds else msgspec.structs.replace(filter, kinds=profile_defaults(profile).kinds)


def _print_context(result: RecallResult, as_json: bool) -> None:
    if as_json:
        print_document({"recall_id": result.recall_id, "degraded": result.degraded, "context": result.context})
        return
    if result.context:
        click.echo(plain(result.context))
    if result.degraded:
        note(f"degraded: {', '.join(result.degraded)}")


@click.command()
@click.argument("text")
@click.option("--id", "record_id", metavar="ID", help="Replace the memory with this id, or store it under this id.")
@click.option("--kind", type=click.Choice(KINDS), default="finding", show_default=True, help="The kind of memory.")
@click.option("--source", type=click.Choice(SOURCES), metavar="SOURCE", default="user_input", show_default=True,
              help=f"Its origin: {', '.join(SOURCES)}.")  # fmt: skip
@click.option("--type", "type", metavar="NAME", help="What you call it, to filter by.")
@click.option("--phase", metavar="NAME", help="The phase of the work that it belongs to.")
@click.option("--tag", "tags", multiple=True, help="A tag to filter by. May be repeated.")
@click.option("--title", help="A short title.")
@click.option("--provenance", type=click.Choice(PROVENANCES), help="How well it is established.")
@click.option(
    "--metadata", multiple=True, type=MetadataPair(), help="A field to filter by; a value that is JSON is read as such."
)
@click.option("--quality", type=click.FloatRange(0, 1), help="How it ended.")
@click.option("--at", "timestamp", type=Moment(), help="When it happened. Default: now.")
@click.option("--session", "session_id", metavar="ID", help="Its session.")
@click.option("--run", "run_id", metavar="ID", help="Its run.")
@click.option("--channel", "channel_id", metavar="ID", help="Its channel.")
@click.option("--agent", "agent_id", metavar="ID", help="Its agent.")
@daemon_options
def remember(
    target: Target,
    text: str,
    record_id: str | None,
    kind: Kind,
    source: Source,
    metadata: tuple[Pair, ...],
    quality: float | None,
    **fields: Any,
) -> None:
    """Store TEXT as a memory; it is durable on return. TEXT may be - for standard input.

    With --id, the memory that has this id is replaced as a whole; its time stays unless --at is given, and so do its
    recalls. Repeating such a command is harmless.

    \b
    Examples:
      memory-agent remember "Staging needs the VPN" --tag deploy --provenance verified
      memory-agent remember - --kind pattern --title "Release steps" < steps.txt
      memory-agent remember "Staging needs no VPN" --id staging-vpn --type note --metadata host=staging
    """
    with open_memory(target, "remember") as memory:
        record = memory.remember(
            read_text(text),
            kind,
            source,
            id=record_id,
            metadata=dict(metadata),
            quality_score=quality,
            **fields,
        )
    if target.as_json:
        print_document(record_document(record))
    else:
        done = "remembered" if record.updated_at is None else "replaced"
        click.echo(f"{done} {one_line(record.id)} ({record.kind}, {record.source})")


@click.command("list")
@filter_options
@click.option("--order", type=click.Choice(ORDERS), default="newest", show_default=True, help="Which come first.")
@click.option(
    "--limit", type=click.IntRange(1, MOST_LISTED), default=50, show_default=True, help="Maximum number of memories."
)
@click.option("--after", metavar="CURSOR", help="Continue after the page that printed this cursor, in the same order.")
@daemon_options
def list_memories(target: Target, filter: MemoryFilter, order: Order, limit: int, after: str | None) -> None:
    """List memories that match all filters, a page at a time: time, kind, id, and the beginning of the text.

    Memories that arrive between two pages neither repeat nor hide others; one that gets another time meanwhile, or by
    `updated` is replaced, may be missed or shown twice. By `updated`, memories that were replaced come first, by when.
    --json has the whole records, and the cursor as `next_cursor`.

    \b
    Examples:
      memory-agent list --since 7d --kind finding
      memory-agent list --type worker.report.received --phase rollout --order oldest
      memory-agent list --metadata report.status=open --metadata report.status=late --json
      memory-agent list --order updated --limit 10 --user alice
    """
    with open_for_reading(target, "list") as memory:
        page = memory.list(filter, order, limit, after)
    if target.as_json:
        records = [record_document(record) for record in page.records]
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
    """Show the memory ID in full: its text, and every field that is set.

    Ids are those that recall, list and trajectory show print.

    \b
    Examples:
      memory-agent get 01KHJY9080NWG22H9Q8BBD7B80
      memory-agent get staging-vpn --json
    """
    with open_for_reading(target, "get") as memory:
        found = memory.get([record_id])
    if not found:
        note_unknown_user(target)
        raise InvalidInputError("id", f"{record_id} is not known: `list` has the memories of this user")
    if target.as_json:
        print_document(record_document(found[0]))
    else:
        print_record(found[0])
