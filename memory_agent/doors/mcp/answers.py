"""Verb results, as a model reads them. Pure.

Some clients show a model only the text; others show only the structured content. So the text is in both. Text from
memories is data, and appears only in the fenced block from `context_block`; everything outside that block is our own
wording, ids or numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from memory_agent.errors import InvalidInputError
from memory_agent.recall.context import context_block, is_plain_id, shared_origin
from memory_agent.recall.shared import as_memories
from memory_agent.records.memories import MemoryPage, MemoryRecord, RecallResult, RetrievedMemory
from memory_agent.records.shared import FoundItem, GlobalRecord, QualityMetrics
from memory_agent.records.trajectories import FeedbackReport

_RECALL_TOKENS = 1_000
_ALL_TOKENS = 10_000_000
_LINE_CHARS = 300


def answered(verb: str, result: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """Convert a verb's result to its tool's result. `asked` contains the verb's parameters."""
    text, fields = _SHOWN[verb](result, asked)
    return {"content": [{"type": "text", "text": text}], "structuredContent": {"text": text, **fields}}


def _block(result: RecallResult) -> str:
    return context_block(result, _RECALL_TOKENS, with_ids=True) or "No relevant memories were found."


def block_of_records(records: Iterable[MemoryRecord]) -> str:
    """Return these memories in full, in a fenced block, or "" if there are none."""
    retrieved = tuple(
        RetrievedMemory(record=record, score=None, lexical_score=None, sona_score=0.0, retrieval="lexical")
        for record in records
    )
    return context_block(RecallResult(recall_id="", memories=retrieved), _ALL_TOKENS, with_ids=True)


def _recall(result: RecallResult, _: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    lines = [_block(result), f"recall_id: {result.recall_id}"]
    if result.degraded:
        lines.append(f"missing from this answer: {', '.join(result.degraded)}")
    memories = [
        {"id": one.record.id, "relevance": _rounded(one.relevance), **_tier(one)}
        for one in result.memories
        if is_plain_id(one.record.id)
    ]
    return "\n".join(lines), {
        "recall_id": result.recall_id,
        "memories": memories,
        "total": result.total,
        "runs": [run.id for run in result.runs if is_plain_id(run.id)],
        "degraded": result.degraded,
    }


def _tier(memory: RetrievedMemory) -> dict[str, Any]:
    """Return the fields of a shared memory that describe its reliability and file; {} for the user's own memories."""
    shared = shared_origin(memory)
    if shared is None:
        return {}
    return {"tier": memory.tier, "is_proven": shared.is_proven, "has_file": shared.attachment is not None}


def _remember(record: MemoryRecord, _: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return f"Remembered. id: {_plain(record.id)}", {"id": record.id}


def _get(records: list[MemoryRecord], asked: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    found = {record.id for record in records}
    missing = [one for one in dict.fromkeys(asked["ids"]) if one not in found]
    lines = [block_of_records(records)] if records else []
    none = "This user has no memories with these ids (get_shared shows shared items)"
    lines += [f"{none}: {', '.join(map(_plain, missing))}"] if missing else []
    return "\n".join(lines), {"ids": [record.id for record in records], "missing": missing}


def _feedback(report: FeedbackReport, _: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    how = "not rated" if report.quality is None else f"quality {round(report.quality, 2)}"
    text = f"Recorded: {how}; memories credited: {len(report.credited)}, not credited: {len(report.not_credited)}."
    return text, msgspec.to_builtins(report)


def _forget(forgotten: int, _: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return f"Memories forgotten: {forgotten}.", {"forgotten": forgotten}


def _timeline(page: MemoryPage, _: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    lines = [block_of_records(map(_line, page.records)) or "No memories match."]
    lines.append(f"shown: {len(page.records)} of {page.total}")
    lines += [f"next_cursor: {page.next_cursor}"] if page.next_cursor is not None else []
    ids = [record.id for record in page.records if is_plain_id(record.id)]
    return "\n".join(lines), {"ids": ids, "total": page.total, "next_cursor": page.next_cursor}


def _line(record: MemoryRecord) -> MemoryRecord:
    if len(record.text) <= _LINE_CHARS:
        return record
    return msgspec.structs.replace(record, text=record.text[: _LINE_CHARS - 1].rstrip() + "…")


def _search_shared(found: list[FoundItem], _: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    result = RecallResult(recall_id="", memories=tuple(as_memories(found, with_embedding=False)))
    text = context_block(result, _RECALL_TOKENS, with_ids=True) or "No relevant shared items were found."
    items = [
        {
            "id": one.item.id,
            "type": one.item.content_type,
            "relevance": _rounded(one.relevance),
            "is_proven": one.is_proven,
            "has_file": one.item.attachment is not None,
        }
        for one in found
    ]
    return text, {"items": items}


def _shared_item(item: GlobalRecord, _: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    (memory,) = as_memories([FoundItem(item=item, score=None, sona_score=0.0)], with_embedding=False)
    text = context_block(RecallResult(recall_id="", memories=(memory,)), _ALL_TOKENS, with_ids=True, is_whole=True)
    file = item.attachment
    has_file = {} if file is None else {"file_bytes": file.size_bytes, "file_sha256": file.sha256}
    return text, {"id": item.id, "type": item.content_type, **has_file}


def _rate(figures: QualityMetrics, asked: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    rating = asked["rating"]
    return "The rating was withdrawn." if rating is None else f"Rated: {rating}.", msgspec.to_builtins(figures)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _plain(id: str) -> str:
    return id if id.isprintable() else repr(id)


_SHOWN: dict[str, Any] = {
    "recall": _recall,
    "remember": _remember,
    "get": _get,
    "feedback": _feedback,
    "forget": _forget,
    "list": _timeline,
    "search_shared": _search_shared,
    "shared_item": _shared_item,
    "rate": _rate,
}


def check_task(arguments: Any) -> str:
    """Return the prompt's `task` argument. Raises `InvalidInputError`."""
    task = arguments.get("task") if isinstance(arguments, dict) else None
    if not isinstance(task, str) or not task.strip():
        raise InvalidInputError("task", "must describe what is to be done")
    return task


def planning_prompt(task: str, result: RecallResult) -> str:
    """Return the prompt: the task, the memories relevant to it, and what to do with them."""
    return (
        f"{task}\n\n{_block(result)}\n\n"
        "Before you plan, read the records above: what was tried, how it ended, what failed. Say which of them you "
        "rely on, and check what may have changed since. Then plan."
    )
