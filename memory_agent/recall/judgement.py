"""Uses a judge (`rerankers`) to select the memories of an answer, or keeps the best by score if the judge fails.

The judge receives snippets of more memories than the answer needs (`Query.pool`). It selects and orders the memories of
the answer. Only the user's own memories are judged and sent to a server. Memories that the judge leaves out count
neither as recalled nor as unused. A judged answer is not used to compare the rankings (`sona/comparison`), because its
order is the judge's. Interleaving continues, because the judge's input does not show which ranking proposed a memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from memory_agent.learning import USUAL
from memory_agent.recall.answer import answer_of
from memory_agent.recall.candidates import Candidates
from memory_agent.recall.context import visible
from memory_agent.recall.highlights import marked
from memory_agent.recall.search import Search
from memory_agent.records.memories import Judgement, RetrievedMemory
from memory_agent.rerankers import Judge, Snippet

_REST_SHARE = 0.2  # share of the deadline that is reserved for the steps after the judge
_MOST_REST_S = 0.05
_ELLIPSIS = "…"


def judged(found: Candidates, search: Search, judge: Judge) -> tuple[Candidates, Judgement | None]:
    """Return the candidates that the judge selects, in its order, and the judgement.

    Without a judge (`Query.pool`), returns the candidates and None. If the judge makes no selection, returns the best
    candidates by score, with None as the judgement, and passes the reason to `deadline.degrade`.
    """
    if not search.query.pool:
        return found, None
    top_k, deadline = search.query.top_k, search.deadline
    brief = replace(search.query, is_explained=False, is_marked=False, with_embedding=False)
    offer = answer_of(found.first(judge.settings.candidates), replace(search, query=brief), USUAL)
    if not offer.memories:
        return found, None
    snippets = [_snippet(memory, search.words, judge.settings.snippet_chars) for memory in offer.memories]
    left_s = deadline.remaining_s - min(_REST_SHARE * deadline.limit_s, _MOST_REST_S)
    verdict = judge.select(search.query.stored_text, snippets, left_s)
    search.store.tally(verdict.counts)
    if verdict.fault is not None:
        deadline.degrade(verdict.fault)
    if verdict.selection is None:
        return found.first(min(top_k, judge.settings.fallback)), None
    ids = [snippet.id for snippet in snippets]
    places = np.array([ids.index(id) for id in verdict.selection.selected], dtype=np.intp)
    judgement = Judgement(
        offered=len(ids),
        selected=places.size,
        left_out=tuple(id for id in ids[:top_k] if id not in verdict.selection.selected),
        notes=verdict.selection.notes,
        is_cached=verdict.is_cached,
    )
    kept = offer.found.take(places[:top_k])
    return replace(kept, ranks=np.zeros_like(kept.ranks), by_score=places[:top_k] + 1), judgement


def _snippet(memory: RetrievedMemory, words: Sequence[str], most: int) -> Snippet:
    record = memory.record
    title = f"{record.title}: " if record.title else ""
    spare = len(title) + len(record.text) - most
    begin = 0 if spare <= 0 else min(marked(memory, words).passage_at, spare)
    text = visible(" ".join((title + record.text[begin : begin + 2 * most]).split()))
    text = _ELLIPSIS * (begin > 0) + text
    return Snippet(
        record.id, text if len(text) <= most else text[: most - 1] + _ELLIPSIS, memory.sona_score, record.timestamp
    )
