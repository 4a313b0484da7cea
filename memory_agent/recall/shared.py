"""Merges the user's own memories and shared items into one answer, if the items arrive in time.

Each memory belongs to a class, and the classes share the places of an answer:

    class  tier    relevance                    proven  places
    1      local   at least the cut-off         -       all except the reserved places
    2      global  at least the cut-off         yes     the places left by 1, but half (rounded up) if 3 fills the rest;
                                                        if 1 leaves none, a reserved place in half of the recalls
    3      local   unknown, or below            -       the places left by 2
    4      global  at least the cut-off         no      the places left by 3 and reserved places; worse items last
    5      global  unknown                      either  the places left by 4; proven items first
    none   global  below                        either  none

The cut-off is `recall.min_relevance`, or the caller's value. Earlier stages have applied the cut-off, so a local memory
below it can only be one that runs used repeatedly for similar requests. Shared items of unknown relevance take only
places that would otherwise be empty: without evidence that it helps, another user's text displaces nothing.

One place in five (`top_k // 5`) is reserved for class 4, so that new items are shown. Reserved places displace the last
memories of classes 1 to 3. If class 4 cannot fill a reserved place, the other classes get it. If class 1 fills all
other places, the best proven item gets a reserved place in half of the recalls, which are drawn with the recall's key.
Otherwise, an item would disappear from these answers once it was proven (decision 0024).

Items of class 4 whose scores are within a tenth of the best score are equally likely to get the class's places. They
are drawn with the same key and listed by score. Each item has its own random number, so an additional item lowers the
chances of all others equally. Items with a released mean below the prior are drawn in the same way, after the other
items of class 4.

Local memories keep the order of their ranking within a class. Shared items are ranked by `sona_score`. Without shared
items, the local answer is unchanged.

The `explanation` of a shared item contains its `class` (`proven` for class 2, `new` or `worse` for 4, `relevance
unknown` for 5), the `cut_off`, and `is_reserved`, which is true if it has a reserved place. `vector` is the cosine,
`boost` is the part of the score that past use adds, and `policy` is the policy that admits the caller.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from memory_agent.errors import MemoryAgentError
from memory_agent.recall.highlights import marked
from memory_agent.recall.query import Deadline, Query
from memory_agent.records.memories import MemoryRecord, RecallResult, RetrievedMemory
from memory_agent.records.shared import FoundItem, SharedOrigin
from memory_agent.records.shared_content import text_to_read
from memory_agent.records.shared_requests import PendingItems
from memory_agent.storage.terms import fingerprint, first_said_word
from relay.log import log
from sona import share

MOST_WAITED_S = 0.25  # wait for shared items after a recall's own search; a search of 100,000 items takes 0.02 s
RESERVED_OF = 5  # one in this many places is reserved for new shared items
PROVEN_SHARE = 0.5  # share of the recalls without a free place in which the best proven item gets a reserved place
_NEAR = 0.1  # maximum distance from the best score, as a fraction of that score
_HEAD_CHARS = 64

Key = TypeVar("Key", int, str)


def with_shared(
    result: RecallResult, shared: PendingItems | None, query: Query, words: Sequence[str], deadline: Deadline
) -> RecallResult:
    """Merge shared items into an answer that contains the user's own memories; `words` are the query's.

    If the items are late or their store is unavailable, records the reason in the deadline.
    """
    if shared is None:
        return result
    try:
        items = shared(min(max(deadline.remaining_s, 0.0), MOST_WAITED_S))
    except MemoryAgentError as error:
        log.warning("recall.without_shared", code=error.code)
        deadline.degrade("global_unavailable")
        items = []
    others = as_memories(items, with_embedding=query.with_embedding)
    found = merged(result.memories, others, query.top_k, result.recall_id, query.min_relevance)
    complete = {memory.record.id for memory in result.memories[: places_without_items(query.top_k)]}
    memories = (memory if memory.record.id in complete else marked(memory, words) for memory in found)
    return replace(result, memories=tuple(memories))


def places_without_items(top_k: int) -> int:
    """Return how many places of an answer are not reserved for shared items. Memories in the other places get their
    highlights only once it is certain that they will be shown.
    """
    return top_k - top_k // RESERVED_OF


def merged(
    local: tuple[RetrievedMemory, ...],
    shared: Sequence[RetrievedMemory],
    top_k: int,
    key: str,
    cut_off: float,
) -> tuple[RetrievedMemory, ...]:
    """Return at most `top_k` memories from both tiers, by class. If there are no items, return the local memories
    unchanged.

    A shared item with the same words as local memories is folded into them: they get the item's `shared` and remain
    local. If several shared items have the same words, the one with the stronger evidence is retained or, if they are
    tied, the earlier one. Kind and title are ignored. Similar texts are not folded, because they may differ in an
    essential word, such as "not". An item with the same id as a local memory is excluded.

    `shared` contains the items that passed the filter, best first. It has more than `top_k` items, because new items
    are drawn from it. `key` is the id of the recall.
    """
    own_ids = {memory.record.id for memory in local}
    offered = [item for item in shared if not _is_below(item, cut_off) and item.record.id not in own_ids]
    if not offered:
        return local[:top_k]
    own, others = _folded(local, offered)
    places = _divided(own, others, top_k, key, cut_off)
    better = [
        *places.above,
        *_explained(places.proven, "proven", cut_off, is_reserved=places.is_proven_reserved),
        *places.below,
    ]
    free = top_k - len(better)
    worse, untried = _split(places.unproven, _is_worse)
    drawn = _explained(_drawn(untried, free, key), "new", cut_off, is_reserved=places.is_full)
    drawn += _explained(_drawn(worse, free - len(drawn), key), "worse", cut_off, is_reserved=places.is_full)
    last = _explained(places.unknown[: free - len(drawn)], "relevance unknown", cut_off, is_reserved=False)
    answer = (*better, *drawn, *last)
    return answer if any(memory.tier == "global" for memory in answer) else tuple(own[:top_k])


class _Places(NamedTuple):
    """The memories of classes 1 to 3 that have a place (`above`, `proven`, `below`), and all of classes 4 and 5."""

    above: list[RetrievedMemory]
    proven: list[RetrievedMemory]
    below: list[RetrievedMemory]
    unproven: list[RetrievedMemory]
    unknown: list[RetrievedMemory]
    is_proven_reserved: bool
    is_full: bool  # classes 1 to 3 would fill the answer: items of other classes can take only reserved places


def _divided(
    own: Sequence[RetrievedMemory], others: Sequence[RetrievedMemory], top_k: int, key: str, cut_off: float
) -> _Places:
    above, below = _split(own, lambda memory: _is_above(memory, cut_off))
    relevant, unknown = _split(sorted(others, key=_rank), lambda item: item.relevance is not None)
    proven, unproven = _split(relevant, _is_proven)
    unknown.sort(key=_is_proven, reverse=True)
    most = top_k // RESERVED_OF
    is_crowded = len(above) >= top_k - min(most, len(unproven))
    kept = min(most, len(proven), 1) if is_crowded and share(key, "proven") < PROVEN_SHARE else 0
    reserved = min(most - kept, len(unproven))
    is_full = len(above) + len(proven) + len(below) >= top_k
    above = above[: top_k - kept - reserved]
    room = top_k - reserved - len(above)
    proven = proven[: max(kept, -(-room // 2), room - len(below))]
    return _Places(above, proven, below[: room - len(proven)], unproven, unknown, kept > 0, is_full)


def _split(
    memories: Iterable[RetrievedMemory], belongs: Callable[[RetrievedMemory], bool]
) -> tuple[list[RetrievedMemory], list[RetrievedMemory]]:
    parts: tuple[list[RetrievedMemory], list[RetrievedMemory]] = [], []
    for memory in memories:
        parts[not belongs(memory)].append(memory)
    return parts


def _explained(
    items: Sequence[RetrievedMemory], class_: str, cut_off: float, *, is_reserved: bool
) -> list[RetrievedMemory]:
    why = {"class": class_, "cut_off": cut_off, "is_reserved": is_reserved}
    return [replace(item, explanation=item.explanation | why) for item in items]


def _is_above(memory: RetrievedMemory, cut_off: float) -> bool:
    return memory.relevance is not None and memory.relevance >= cut_off


def _is_below(memory: RetrievedMemory, cut_off: float) -> bool:
    return memory.relevance is not None and memory.relevance < cut_off


def _is_proven(item: RetrievedMemory) -> bool:
    return item.shared is not None and item.shared.is_proven


def _is_worse(item: RetrievedMemory) -> bool:
    return item.shared is not None and item.shared.is_worse


def _rank(item: RetrievedMemory) -> tuple[float, str]:
    return -item.sona_score, item.record.id


def _drawn(ranked: Sequence[RetrievedMemory], places: int, key: str) -> list[RetrievedMemory]:
    """Return at most `places` items: first those drawn from the items that score close to the best one, in order of
    score, then the next items.
    """
    if len(ranked) <= places:
        return list(ranked)
    best = ranked[0].sona_score
    near = [item for item in ranked if item.sona_score >= best - _NEAR * abs(best)]
    drawn = sorted(near, key=lambda item: share(key, f"new {item.record.id}"))[:places]
    return [*sorted(drawn, key=_rank), *ranked[len(near) :][: places - len(drawn)]]


class _Worth(NamedTuple):
    """Sort key: better proven items first, then earlier items, so that an original precedes its copies.

    An item with a released mean, however low, precedes an item without one. Otherwise a copy could replace a bad item.
    """

    is_unproven: bool
    negated_mean: float
    negated_users: int
    published_at: datetime
    id: str


def _worth(item: RetrievedMemory) -> _Worth:
    shared, record = item.shared, item.record
    if shared is None:
        return _Worth(True, 0.0, 0, record.timestamp, record.id)
    mean, users = shared.metrics.avg_trajectory_score or 0.0, shared.metrics.distinct_users
    return _Worth(not shared.is_proven, -mean, -users, shared.published_at, record.id)


def _folded(
    local: Sequence[RetrievedMemory], shared: Sequence[RetrievedMemory]
) -> tuple[list[RetrievedMemory], list[RetrievedMemory]]:
    """Return the local memories, with `shared` set if an item has the same words, and separately the other items."""
    items = list(_best((item.record.id, item) for item in shared).values())
    prints = _fingerprints([memory.record.text for memory in (*local, *items)])
    of_local = prints[: len(local)]
    by_print = _best(zip(prints[len(local) :], items, strict=True))
    own = [
        replace(memory, shared=by_print[print_].shared) if print_ in by_print else memory
        for memory, print_ in zip(local, of_local, strict=True)
    ]
    return own, [item for print_, item in by_print.items() if print_ not in of_local]


def _best(items: Iterable[tuple[Key, RetrievedMemory]]) -> dict[Key, RetrievedMemory]:
    """Return the best item for each key."""
    found: dict[Key, RetrievedMemory] = {}
    for key, item in items:
        if key not in found or _worth(item) < _worth(found[key]):
            found[key] = item
    return found


def _fingerprints(texts: Sequence[str]) -> list[int]:
    """Return the fingerprints of the texts.

    A text whose first word begins no other text gets a unique negative number instead, because computing the
    fingerprints of 35 texts of 2,000 characters takes 2.4 ms, a quarter of the time of a recall.
    """
    heads = [first_said_word(text[:_HEAD_CHARS]) for text in texts]
    times = Counter(heads)
    found = enumerate(zip(heads, texts, strict=True), 1)
    return [fingerprint(text) if times[head] > 1 else -number for number, (head, text) in found]


def as_memories(items: Sequence[FoundItem], *, with_embedding: bool) -> list[RetrievedMemory]:
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
