"""`recall --explain`: why each memory is in the answer, as a table, and what was understood of the query.

The parts of a row add up to its score. Below stand what a column is too narrow for: the passage with the words that
matched, who lent, where else it was said.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import click
from rich.padding import Padding
from rich.text import Text

from memory_agent.cli.render import emit, plain, print_figures, print_table, shown
from memory_agent.recall.context import age, endings, repeats
from memory_agent.recall.dates import describe
from memory_agent.records import RecallResult, RetrievedMemory

_COLUMNS = ("#", "score", "cosine", "words", "fused", "date", "context", "lent", "alike", "when", "what")
_HEAD_CHARS = 60
_INDENT = 3


def print_explanation(result: RecallResult, now: datetime) -> None:
    """Print the answer to a recall with its reasons; ages are relative to `now`."""
    print_figures("query", _query(result))
    click.echo()
    if not result.memories:
        return
    rows = [_row(place, memory, now) for place, memory in enumerate(result.memories, 1)]
    print_table("score = fused + date + context + lent - alike", _COLUMNS, rows)
    numbers = {id_: place for place, memory in enumerate(result.memories, 1) for id_ in _ids(memory)}
    for place, memory in enumerate(result.memories, 1):
        emit(Text.assemble((f"\n{place:>2} ", "bold cyan"), (memory.record.id, "dim")))
        for line in _details(memory, numbers, now):
            emit(Padding(Text(plain(line)), (0, 0, 0, _INDENT)))


def _query(result: RecallResult) -> dict[str, object]:
    explanation: Mapping[str, Any] = result.memories[0].explanation if result.memories else {}
    figures: dict[str, object] = {
        "took": f"{result.took_ms:.1f} ms",
        "degraded": result.degraded or "no",
        "dates understood": [describe(date) for date in result.dates] or "none",
    }
    if explanation:
        figures["dates do"] = explanation["dates_mode"] if result.dates else "nothing"
        figures["weight of vectors"] = explanation["alpha"]
        figures["query centred"] = "yes" if explanation["centred"] else "no"
        figures["filters"] = _conditions(explanation["filters"]) or "none"
        figures |= _plan(explanation.get("plan"))
    return figures


def _plan(plan: Mapping[str, Any] | None) -> dict[str, object]:
    """Say how the filter was worked, where there was one."""
    if not plan:
        return {}
    costs = ", ".join(f"{name.replace('_', ' ')} {cost:.2f} ms" for name, cost in plan["cost_ms"].items())
    return {
        "filter worked": plan["strategy"].replace("_", " "),
        "memories that pass": plan["matching"] if plan["matching"] is not None else f"~{plan['estimated_matching']}",
        "estimated cost": costs,
    }


def _conditions(filters: Mapping[str, Any]) -> list[str]:
    return [f"{field} {shown(value)}" for field, value in filters.items() if field != "spans"]


def _row(place: int, memory: RetrievedMemory, now: datetime) -> list[object]:
    parts = memory.explanation
    scores = [parts["vector"], parts["lexical"], parts["fused"], parts["date_boost"], parts["context"]]
    scores += [parts["contiguity"], parts["likeness"]]
    head = " ".join((memory.record.title or memory.record.text).split())
    return [
        place,
        f"{memory.sona_score:.3f}",
        *("-" if score is None else f"{score:.3f}" for score in scores),
        age(memory.last_seen or memory.record.timestamp, now),
        head if len(head) <= _HEAD_CHARS else f"{head[: _HEAD_CHARS - 1]}…",
    ]


def _details(memory: RetrievedMemory, numbers: Mapping[str, int], now: datetime) -> Iterable[str]:
    record, parts = memory.record, memory.explanation
    yield f"{record.kind} from {record.source}" + "".join(
        f", {name} {value}" for name, value in (("session", record.session_id), ("run", record.run_id)) if value
    )
    yield from (f"matched: {passage}" for passage in memory.highlights)
    if parts["lent_by"]:
        yield f"lent by {', '.join(_named(id_, numbers) for id_ in parts['lent_by'])}"
    if parts["like"]:
        yield f"much like {_named(parts['like'], numbers)}"
    yield from (fact for fact in (repeats(memory, now), endings(memory)) if fact)
    yield from (
        f"also {age(origin.timestamp, now)}: {_origin(origin.id, origin.session_id)}" for origin in memory.origins
    )


def _ids(memory: RetrievedMemory) -> list[str]:
    """The record that is shown, and those that say the same."""
    return [memory.record.id, *(origin.id for origin in memory.origins)]


def _named(record_id: str, numbers: Mapping[str, int]) -> str:
    """A memory of the answer by its number, another one by its id."""
    return f"#{numbers[record_id]}" if record_id in numbers else record_id


def _origin(record_id: str, session_id: str | None) -> str:
    return f"{record_id} in session {session_id}" if session_id else record_id
