"""`remember` and `recall`: store a memory, and find memories that resemble a text."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from memory_agent.cli.access import note_unknown_user, open_for_reading, open_memory
from memory_agent.cli.explanation import Asked, print_explanation
from memory_agent.cli.failure import note
from memory_agent.cli.options import Moment, Target, daemon_options, read_text
from memory_agent.cli.render import plain, print_document, print_memories, result_document
from memory_agent.recall.context import USUAL_TOKENS
from memory_agent.recall.query import MOST_ANSWERS, profile_defaults
from memory_agent.records import (
    DATES,
    KINDS,
    MODES,
    PROFILES,
    PROVENANCES,
    SOURCES,
    Dates,
    Exclusion,
    Kind,
    MemoryFilter,
    Mode,
    Profile,
    Provenance,
    RecallResult,
    Source,
)


@click.command(short_help="Find memories that resemble a text, best first.")
@click.argument("text")
@click.option(
    "--top-k", type=click.IntRange(1, MOST_ANSWERS), help="Maximum number of memories. Default: 5, or the profile's."
)
@click.option("--profile", type=click.Choice(PROFILES), help="When a planner recalls, which sets number and "
              "kinds: before_planning (5 of all), document (3 findings and patterns), trajectory (5 strategies "
              "and patterns).")  # fmt: skip
@click.option("--kind", "kinds", multiple=True, type=click.Choice(KINDS), help="Only of this kind. May be repeated.")
@click.option(
    "--source", "sources", multiple=True, type=click.Choice(SOURCES), help="Only from this source. Repeatable."
)
@click.option("--since", type=Moment(), help="Only since then: 2026-02-16, 2026-02-16T10:00:00Z, or an age: 7d, 12h.")
@click.option("--until", type=Moment(), help="Only before then.")
@click.option("--session", metavar="ID", help="Only of this session.")
@click.option("--run", metavar="ID", help="Only of this run.")
@click.option("--tag", "tags", multiple=True, help="Only with this tag; of several, at least one.")
@click.option(
    "--provenance", multiple=True, type=click.Choice(PROVENANCES), help="Only of this provenance. Repeatable."
)
@click.option("--min-quality", type=click.FloatRange(0, 1), help="Only with at least this known quality.")
@click.option("--exclude-session", "sessions", multiple=True, metavar="ID", help="Not of this session. Repeatable.")
@click.option("--exclude-run", "runs", multiple=True, metavar="ID", help="Not of this run. Repeatable.")
@click.option("--exclude-event", "events", multiple=True, metavar="ID", help="Not from this event. Repeatable.")
@click.option("--exclude-record", "records", multiple=True, metavar="ID", help="Not this memory. Repeatable.")
@click.option("--exclude-since", "excluded_since", type=Moment(), help="Nothing of then or later.")
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
    mode: Mode | None,
    deadline_ms: float | None,
    dates: Dates | None,
    reference_time: datetime | None,
    by_run: str | None,
    by_session: str | None,
    by_event: str | None,
    explained: bool,
    as_context: bool,
    max_tokens: int | None,
    with_embedding: bool,
    **conditions: Any,
) -> None:
    """Find memories that resemble TEXT, best first. TEXT may be - for standard input.

    Uses the daemon of the data folder, or the files if none runs. Parts that were unavailable (no model, a deadline)
    are listed as degraded. Finding no memories is not an error.

    \b
    Examples:
      memory-agent recall "fix the bug in the auth module"
      memory-agent recall "deploy hangs" --kind finding --since 7d --min-quality 0.8
      memory-agent recall "what did we change last week?" --dates filter --explain
      memory-agent recall "write the runbook" --profile document --context
      memory-agent recall - --context --max-tokens 300 < task.txt
      memory-agent recall "auth race" --user alice --json
      memory-agent recall "fix the flaky deploy" --by-session s-17 --by-run run_7
      memory-agent recall "deploy hangs" --exclude-session s-16 --exclude-since 1d
    """
    _refuse_ignored(target.as_json, explained, as_context, max_tokens, with_embedding)
    filter = _filter(**conditions)
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
        )
    if as_context:
        _print_context(result, target.as_json)
    elif target.as_json:
        print_document(result_document(result, with_embedding))
    else:
        now = reference_time or datetime.now(UTC)
        if explained:
            print_explanation(result, now, Asked(_with_kinds(filter, profile), dates))
        else:
            print_memories(result, now)
        if not result.memories:
            note_unknown_user(target)


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


def _filter(session: str | None, run: str | None, excluded_since: datetime | None, **fields: Any) -> MemoryFilter:
    lists = {field: fields.pop(field) for field in ("events", "records", "sessions", "runs")}
    exclude = Exclusion(since=excluded_since, **lists)
    return MemoryFilter(session_id=session, run_id=run, exclude=None if exclude == Exclusion() else exclude, **fields)


def _print_context(result: RecallResult, as_json: bool) -> None:
    if as_json:
        print_document({"recall_id": result.recall_id, "degraded": result.degraded, "context": result.context})
        return
    if result.context:
        click.echo(plain(result.context))
    if result.degraded:
        note(f"degraded: {', '.join(result.degraded)}")


@click.command(short_help="Store one memory.")
@click.argument("text")
@click.option("--kind", type=click.Choice(KINDS), default="finding", show_default=True, help="The kind of memory.")
@click.option("--source", type=click.Choice(SOURCES), default="user_input", show_default=True, help="Its origin.")
@click.option("--tag", "tags", multiple=True, help="A tag to filter by. May be repeated.")
@click.option("--title", help="A short title.")
@click.option("--provenance", type=click.Choice(PROVENANCES), help="How well it is established.")
@click.option("--session", metavar="ID", help="Its session.")
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
    """Store TEXT as a memory; it is durable on return. TEXT may be - for standard input.

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
