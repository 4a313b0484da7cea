"""What users share, as memories of an answer: a search that was begun elsewhere, awaited for as long as it may take."""

from __future__ import annotations

from collections.abc import Sequence

from memory_agent.errors import MemoryAgentError
from memory_agent.recall.deadline import Deadline
from memory_agent.records.memories import MemoryRecord, RetrievedMemory
from memory_agent.records.shared import FoundItem, SharedOrigin
from memory_agent.shared_asks import PendingItems
from memory_agent.shared_content import text_to_read
from relay.log import log

MOST_WAITED_S = 0.25
"""How long an answer waits for what users share, beyond its own memories: a search of 100,000 items takes .02 s."""


def found_items(shared: PendingItems, deadline: Deadline) -> list[FoundItem]:
    """Return the items; none where they are late or their store is down, which `degraded` says."""
    try:
        return shared.result(min(max(deadline.remaining_s, 0.0), MOST_WAITED_S))
    except MemoryAgentError as error:
        log.warning("recall.without_shared", code=error.code)
        deadline.degrade("global_unavailable")
        return []


def as_memories(items: Sequence[FoundItem], *, with_embedding: bool) -> list[RetrievedMemory]:
    """Return the items as memories of the tier `global`."""
    return [_memory(found, with_embedding=with_embedding) for found in items]


def _memory(found: FoundItem, *, with_embedding: bool) -> RetrievedMemory:
    item = found.item
    text, passage_at = text_to_read(item.summary, item.body, found.passage_at)
    record = MemoryRecord(
        id=item.id,
        text=text,
        source="worker_result",
        kind="pattern" if item.content_type == "pattern" else "finding",
        timestamp=item.published_at,
        embedding=item.embedding if with_embedding else None,
        title=item.title,
        tags=item.tags,
    )
    return RetrievedMemory(
        record=record,
        score=found.score,
        lexical_score=None,
        sona_score=found.sona_score,
        retrieval="hybrid",
        tier="global",
        highlights=found.highlights,
        relevance=found.relevance,
        first_seen=item.published_at,
        last_seen=item.published_at,
        shared=SharedOrigin(
            author=item.author,
            version=item.version,
            content_type=item.content_type,
            access_policy=item.access_policy,
            published_at=item.published_at,
            metrics=item.quality_metrics,
            is_proven=found.is_proven,
            is_worse=found.is_worse,
            item_id=item.id,
            reference=item.reference,
            attachment=item.attachment,
        ),
        passage_at=passage_at,
        explanation={"vector": found.score, "boost": found.boost, "policy": item.access_policy},
    )
