"""`recall`: memories that resemble a text."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from memory_agent.cli.access import asks_daemon, open_memory
from memory_agent.cli.failure import note
from memory_agent.cli.options import Target, daemon_options
from memory_agent.cli.render import print_document, print_memories, result_document
from memory_agent.cli.values import Moment, read_text
from memory_agent.recall.context import context_block
from memory_agent.records import KINDS, MODES, PROVENANCES, SOURCES, MemoryFilter, Mode, RecallResult


@click.command(short_help="Memories that resemble a text, best first.")
@click.argument("text")
@click.option("--top-k", type=click.IntRange(min=1), default=5, show_default=True, help="At most so many memories.")
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
@click.option("--context", "as_context", is_flag=True, help="Print the block that a planner would put into its prompt.")
@click.option("--max-tokens", type=click.IntRange(min=1), default=512, show_default=True, help="Bound of --context.")
@click.option("--with-embedding", is_flag=True, help="Keep each record's vector in --json.")
@daemon_options
def recall(
    target: Target,
    text: str,
    top_k: int,
    mode: Mode | None,
    deadline_ms: float | None,
    as_context: bool,
    max_tokens: int,
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
      memory-agent recall - --context --max-tokens 300 < task.txt
      memory-agent recall "auth race" --user alice --json
    """
    with open_memory(target) as memory:
        result = memory.recall(
            read_text(text), top_k, _filter(**conditions), mode, deadline_ms, with_embedding=with_embedding
        )
    now = datetime.now(UTC)
    if as_context:
        _print_context(result, context_block(result, max_tokens, now=now), target.as_json)
    elif target.as_json:
        print_document(result_document(result, with_embedding))
    else:
        print_memories(result, now)
        if not result.memories and not asks_daemon(target):
            note(f"no daemon runs; this looked in {target.data_dir} for memories of user {target.user_id}")


def _filter(session: str | None, run: str | None, **fields: Any) -> MemoryFilter:
    return MemoryFilter(session_id=session, run_id=run, **fields)


def _print_context(result: RecallResult, block: str, as_json: bool) -> None:
    if as_json:
        print_document({"recall_id": result.recall_id, "degraded": result.degraded, "context": block})
    elif block:
        click.echo(block)
