"""`recall`: memories that resemble a text."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from memory_agent.cli.access import note_unknown, open_for_reading
from memory_agent.cli.explanation import Asked, print_explanation
from memory_agent.cli.failure import note
from memory_agent.cli.options import Target, daemon_options
from memory_agent.cli.render import plain, print_document, print_memories, result_document
from memory_agent.cli.values import Moment, read_text
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
    MemoryFilter,
    Mode,
    Profile,
    RecallResult,
)


@click.command(short_help="Memories that resemble a text, best first.")
@click.argument("text")
@click.option(
    "--top-k", type=click.IntRange(1, MOST_ANSWERS), help="At most so many memories. Default: 5, or the profile's."
)
@click.option("--profile", type=click.Choice(PROFILES), help="The moment at which a planner asks; says how many of "
              "which kinds: before_planning (5 of all), document (3 findings and patterns), trajectory (5 strategies "
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
@click.option("--min-quality", type=click.FloatRange(0, 1), help="Only what is known to have ended at least so well.")
@click.option("--mode", type=click.Choice(MODES), help="How to look. Default: the setting recall.mode.")
@click.option(
    "--deadline-ms", type=click.FloatRange(min=0, min_open=True), help="Answer within; what is late is left out."
)
@click.option("--dates", type=click.Choice(DATES), help="What a time in TEXT does: boost memories of that time, filter "
              "by it, or be ignored. Default: the setting recall.dates.")  # fmt: skip
@click.option("--at", "reference_time", type=Moment(), help='What "last week" is relative to. Default: now.')
@click.option("--by-run", metavar="ID", help="The run that asks: how it ends is credited to what it was shown.")
@click.option("--explain", "explained", is_flag=True, help="Print why each memory is there, as a table.")
@click.option("--context", "as_context", is_flag=True, help="Print the block that a planner would put into its prompt.")
@click.option("--max-tokens", type=click.IntRange(min=1), help=f"Bound of --context. Default: {USUAL_TOKENS}.")
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
    explained: bool,
    as_context: bool,
    max_tokens: int | None,
    with_embedding: bool,
    **conditions: Any,
) -> None:
    """Memories that resemble TEXT, best first. TEXT may be - for standard input.

    Asks the daemon of the data folder, or reads the files where none runs. What could not take part (no model, a
    deadline) is named as degraded; an answer without memories is no error.

    \b
    Examples:
      memory-agent recall "fix the bug in the auth module"
      memory-agent recall "deploy hangs" --kind finding --since 7d --min-quality 0.8
      memory-agent recall "what did we change last week?" --dates filter --explain
      memory-agent recall "write the runbook" --profile document --context
      memory-agent recall - --context --max-tokens 300 < task.txt
      memory-agent recall "auth race" --user alice --json
      memory-agent recall "fix the flaky deploy" --by-run run_7
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
            note_unknown(target)


def _refuse_ignored(
    as_json: bool, explained: bool, as_context: bool, max_tokens: int | None, with_embedding: bool
) -> None:
    """Refuse options that would change nothing."""
    if max_tokens is not None and not as_context:
        raise click.UsageError("--max-tokens is the bound of --context, which is not given")
    if with_embedding and (not as_json or as_context):
        raise click.UsageError("--with-embedding is for the records of --json, and not with --context")
    if explained and as_context:
        raise click.UsageError("--explain and --context print different things: give one of them")
    if explained and as_json:
        raise click.UsageError("--explain is for people: --json has every explanation anyway")


def _with_kinds(filter: MemoryFilter, profile: Profile | None) -> MemoryFilter:
    return filter if filter.kinds else msgspec.structs.replace(filter, kinds=profile_defaults(profile).kinds)


def _filter(session: str | None, run: str | None, **fields: Any) -> MemoryFilter:
    return MemoryFilter(session_id=session, run_id=run, **fields)


def _print_context(result: RecallResult, as_json: bool) -> None:
    if as_json:
        print_document({"recall_id": result.recall_id, "degraded": result.degraded, "context": result.context})
        return
    if result.context:
        click.echo(plain(result.context))
    if result.degraded:
        note(f"degraded: {', '.join(result.degraded)}")
