"""`recall --explain`: show how the query was understood, and tabulate why each memory was found.

The parts of a row add up to its score.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

import click
import msgspec
from rich.padding import Padding
from rich.text import Text

from memory_agent.cli.render import beside_text, emit, left_out, plain, print_figures, print_table, shortened, shown
from memory_agent.recall.context import age, age_of_memory, endings, repeats, shared_origin, sharing
from memory_agent.recall.dates import describe
from memory_agent.records.memories import Dates, MemoryFilter, RecallResult, RetrievedMemory

_PARTS = {
    "fused": "fused",
    "date": "date_boost",
    "speaker": "speaker",
    "context": "context",
    "lent": "contiguity",
    "kind": "kind",
    "outcome": "outcome",
    "learned": "learned",
}
"""Columns that add up to the score, and their keys in an explanation. Some are shown only if they changed a score."""
_CLASSES = {
    "proven": "after your relevant memories: relevant and proven",
    "new": "after all your memories: relevant but not yet proven",
    "worse": "after new items: runs that used it ended worse than usual",
    "relevance unknown": "in a place that would otherwise be empty: its relevance is unknown",
}
"""Where `recall/shared` ranks each class of shared items, and why."""
_WORDS = "words: word match relative to the best match"
_HEAD_CHARS = 60
_INDENT = 3


class Asked(NamedTuple):
    """The requested filter and date mode (None: as in the settings), printed if there are no memories."""

    filter: MemoryFilter
    dates: Dates | None


def print_explanation(result: RecallResult, now: datetime, asked: Asked) -> None:
    print_figures("query", _query(result, asked))
    click.echo()
    if not result.memories:
        return
    reasons = [memory.explanation for memory in result.memories]
    shown_only_if = {
        "speaker": any(why.get("speaker") for why in reasons),
        "kind": any(why.get("kind") for why in reasons),
        "outcome": any(why["outcome"] for why in reasons if "quality" in why),  # older daemons report it as learned
        "learned": any(why.get("arm") == "learned" for why in reasons),
    }
    parts = [name for name in _PARTS if shown_only_if.get(name, True)]
    rows = [_row(place, memory, parts, now) for place, memory in enumerate(result.memories, 1)]
    legend = f"score = {' + '.join(parts)} - alike\n{_WORDS}"
    columns = ("#", "score", "cosine", "words", *parts, "alike", "when", "what")
    print_table(legend, columns, rows)
    numbers = {id_: place for place, memory in enumerate(result.memories, 1) for id_ in _ids(memory)}
    for place, memory in enumerate(result.memories, 1):
        emit(Text.assemble((f"\n{place:>2} ", "bold cyan"), (memory.record.id, "dim")))
        for line in _details(memory, numbers, now):
            emit(Padding(Text(plain(line)), (0, 0, 0, _INDENT)))


def _query(result: RecallResult, asked: Asked) -> dict[str, object]:
    figures: dict[str, object] = {
        "recall": result.recall_id,
        "took": f"{result.took_ms:.1f} ms",
        "degraded": result.degraded or "no",
        "dates understood": [describe(date) for date in result.dates] or "none",
    }
    if result.excluded:
        figures["left out"] = left_out(result)
    if (judged := result.judgement) is not None:
        figures["judge"] = f"selected {judged.selected} of {judged.offered}{' (cached)' * judged.is_cached}"
        figures["judge left out"] = judged.left_out or "none of the first"
        if judged.notes:
            figures["judge's notes"] = plain(judged.notes)
    own = [memory.explanation for memory in result.memories if memory.tier == "local"]
    return figures | (_found(result, own[0]) if own else _nothing_found(result, asked))


def _found(result: RecallResult, explanation: Mapping[str, Any]) -> dict[str, object]:
    return {
        "dates do": explanation["dates_mode"] if result.dates else "nothing",
        "weight of vectors": explanation["alpha"],
        **({"kinds asked for": kinds} if (kinds := explanation.get("kinds")) else {}),
        "filters": [*_conditions(explanation["filters"]), *_dates(result, explanation["dates_mode"])] or "none",
        **({} if explanation.get("matching") is None else {"memories that pass": explanation["matching"]}),
    }


def _nothing_found(result: RecallResult, asked: Asked) -> dict[str, object]:
    """Return details of the query for a result that contains none of the user's memories. A memory's explanation
    contains more.
    """
    return {
        "dates do": (asked.dates or "as set by recall.dates") if result.dates else "nothing",
        "filters": [*_conditions(msgspec.to_builtins(asked.filter)), *_dates(result, asked.dates)] or "none",
        **({} if result.memories else {"memories that pass": "none was found"}),
    }


def _conditions(filters: Mapping[str, Any]) -> list[str]:
    return [f"{field} {shown(value)}" for field, value in filters.items() if field != "spans"]


def _dates(result: RecallResult, mode: Dates | None) -> list[str]:
    """Return the query's dates as conditions if the recall filters by date."""
    return [f"date {describe(date)}" for date in result.dates] if mode == "filter" else []


def _row(place: int, memory: RetrievedMemory, parts: Iterable[str], now: datetime) -> list[object]:
    why = memory.explanation
    scores = [why.get(name) for name in ("vector", "lexical", *(_PARTS[name] for name in parts), "likeness")]
    return [
        place,
        f"{memory.sona_score:.3f}",
        *("-" if score is None else f"{score:.3f}" for score in scores),
        age_of_memory(memory, now),
        shortened(memory.record.title or memory.record.text, _HEAD_CHARS),
    ]


def _details(memory: RetrievedMemory, numbers: Mapping[str, int], now: datetime) -> Iterable[str]:
    record, parts, shared = memory.record, memory.explanation, shared_origin(memory)
    what = f"{record.kind} from {record.source}" if shared is None else f"{shared.content_type} of another user"
    yield what + "".join(
        f", {name} {value}" for name, value in (("session", record.session_id), ("run", record.run_id)) if value
    )
    yield from _shared(memory)
    if memory.relevance is not None:
        yield f"relevance {memory.relevance:.2f}"
    yield from (f"matched: {passage}" for passage in memory.highlights)
    if "by_score" in parts:
        yield f"selected by the judge; number {parts['by_score']} by score"
    if parts.get("lent_by"):
        own = _ids(memory)
        lenders = ("another copy of it" if id_ in own else _named(id_, numbers) for id_ in parts["lent_by"])
        yield f"lent by {', '.join(lenders)}"
    if parts.get("like"):
        yield f"much like {_named(parts['like'], numbers)}"
    yield from _stands_for(parts)
    if "quality" in parts and parts["outcome"]:  # older daemons report it as learned
        ended = "end of the run unknown" if parts["quality"] is None else f"ended with {parts['quality']:.1f}"
        yield f"outcome {parts['outcome']:+.3f}: {ended}"
    yield from _learned(parts)
    yield from (fact for fact in (endings(memory), repeats(memory, now)) if fact)
    for origin in memory.origins:
        place = f" in session {origin.session_id}" if origin.session_id else ""
        yield f"also {age(origin.timestamp, now)}: {origin.id}{place}"
    others = memory.count - 1 - len(memory.origins)
    if others > 0 and memory.origins:
        yield f"… and {others} more"


def _shared(memory: RetrievedMemory) -> Iterable[str]:
    if memory.shared is None:
        return
    unproven = "worse than usual when used" if memory.shared.is_worse else "not yet proven by use"
    proven = "proven by use" if memory.shared.is_proven else unproven
    yield f"{sharing(memory)}; {proven}; access {memory.shared.access_policy}"
    yield from _place(memory.explanation)
    yield from beside_text(memory.shared)


def _place(parts: Mapping[str, Any]) -> Iterable[str]:
    if "class" not in parts:
        return
    rank = f"{_CLASSES.get(parts['class'], parts['class'])} (cut-off {parts['cut_off']:g})"
    boost = f", past use adds {parts['boost']:+.3f} to its score" if parts["boost"] else ""
    yield f"ranked {rank}{boost}" + ("; the place is reserved for shared items" if parts["is_reserved"] else "")


def _stands_for(parts: Mapping[str, Any]) -> Iterable[str]:
    folded = parts.get("repeats")
    if not folded:
        return
    ended = [f"{quality:.1f}" for quality in folded["qualities"] if quality is not None]
    yield f"similar requests represented: {folded['count']}" + (f", ended {', '.join(ended)}" if ended else "")


def _learned(parts: Mapping[str, Any]) -> Iterable[str]:
    if parts.get("arm") != "learned":
        return
    names = {"association": "used before", "shift": "query moved"}
    if "quality" not in parts:
        names["outcome"] = "how its run ended"
    changed = ", ".join(f"{label} {parts[name]:+.3f}" for name, label in names.items() if parts[name])
    yield f"learned: {changed}" if changed else "learned: nothing changed"
    for run in parts["caused_by"]:
        ended = "" if run["quality"] is None else f", which ended with {run['quality']:.1f}"
        yield f"because of run {run['trajectory_id']}, whose request has a similarity of {run['similarity']:.0%}{ended}"


def _ids(memory: RetrievedMemory) -> list[str]:
    return [memory.record.id, *(origin.id for origin in memory.origins)]


def _named(record_id: str, numbers: Mapping[str, int]) -> str:
    return f"#{numbers[record_id]}" if record_id in numbers else record_id
