"""Converts selected candidates to the memories of an answer, with passages, counts, occurrences and explanations.

    sona_score = vector and lexical fused + date_boost + speaker + context + contiguity + kind + outcome + learned
    learned    = association + shift

The terms are fields of `explanation`. `vector` is the cosine, and `lexical` is BM25 as a share of the best match.
`words` and `near` measure how well the memory matches the query's words. `alpha` is the weight of the vector side.
`quality` is the quality of the memory or, if it has none, of its run; it is None if unknown. `learned` is 0 unless the
memory comes from the learned ranking (`arm`). `caused_by` lists the run that used the memory for a similar request, or
else the runs with the most similar requests. `repeats` lists the earlier requests folded into this memory. If a judge
selected the memory, `by_score` is its place by score, from 1. `centred`, `likeness` and `like` are constant. The names
are part of the public interface: names may be added, but existing names never change their meaning.

Shapes: p selected candidates.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import datetime
from heapq import nlargest
from typing import Any, NamedTuple

import msgspec
import numpy as np

from memory_agent.learning import USUAL, Advice
from memory_agent.recall.candidates import Candidates
from memory_agent.recall.context import FAILED_BELOW
from memory_agent.recall.highlights import Highlight, beginning, highlight, highlight_of
from memory_agent.recall.query import Query
from memory_agent.recall.search import Search
from memory_agent.recall.selection import ARMS
from memory_agent.recall.shared import places_without_items
from memory_agent.recall.stages import REQUEST_COSINE
from memory_agent.records.embedded import span_in_text
from memory_agent.records.memories import (
    MemoryRecord,
    Origin,
    RecallResult,
    Retrieval,
    RetrievedMemory,
    microseconds,
    time_of,
)
from memory_agent.storage.column import Scores, Slots
from memory_agent.storage.stored_runs import RecallNote, Served, Shown, request_digest, vector_of_query
from memory_agent.storage.view import NO_NAME, View
from sona import Route

_MOST_ORIGINS = 8
_MOST_REQUESTS = 20
_MOST_FOLDED = 100
_SERVED: dict[Route, Served] = {
    "baseline": "baseline",
    "compare": "baseline",
    "learned": "learned",
    "interleave": "interleaved",
}


class Answer(NamedTuple):
    """The user's own memories that answer a query, and their candidates in the same order."""

    search: Search
    advice: Advice
    found: Candidates
    memories: tuple[RetrievedMemory, ...]

    def showing(self, memories: Sequence[RetrievedMemory]) -> Answer:
        places = {memory.record.id: place for place, memory in enumerate(self.memories)}
        shown = [places[memory.record.id] for memory in memories if memory.record.id in places]
        own = tuple(self.memories[place] for place in shown)
        return self._replace(found=self.found.take(np.array(shown, dtype=np.intp)), memories=own)


class _Occurrences(NamedTuple):
    """A memory and its duplicates: their number, their first and last times, and the rows of the newest duplicates."""

    number: int
    first_us: int
    last_us: int
    newest: list[int]  # one more than the maximum number of origins
    failed: int  # failed runs that these memories, or the earlier requests folded into them, belong to


def answer_of(found: Candidates, search: Search, advice: Advice) -> Answer:
    """Return an answer with the selected candidates (p,) as memories, in the same order.

    Reads each memory once. All reads use one snapshot, taken after the search. Omits memories that were deleted after
    the search and, if there is a filter, memories that were replaced after the search.
    """
    occurrences = _occurrences(found, search)
    named = [row for place, one in enumerate(occurrences) for row in _named(found, search, place, one)]
    rows = list(dict.fromkeys(named))
    stored = zip(rows, search.store.records(rows, search.query.with_embedding), strict=True)
    records = {row: record for row, record in stored if record is not None and _may_show(search, row, record)}
    cosines, passages = _best_passages(found, search)
    presented = _Presented(found, search, advice, records, _of_all_memories(search))
    shown = [place for place, row in enumerate(found.rows.tolist()) if row in records]
    certain = len(shown) if search.shared is None else places_without_items(search.query.top_k)
    memories = [
        presented.memory(
            place,
            float(cosines[place]),
            passages.get(place),
            occurrences[place],
            is_marked=search.query.is_marked and number < certain,
        )
        for number, place in enumerate(shown)
    ]
    return Answer(search, advice, found.take(np.array(shown, dtype=np.intp)), tuple(memories))


def _occurrences(found: Candidates, search: Search) -> list[_Occurrences]:
    view = search.view
    if not search.query.is_explained:
        return [_Occurrences(1, time_us, time_us, [], 0) for time_us in view.times_us[found.slots].tolist()]
    occurrences = []
    for same, folded in zip(view.same(found.fingerprints), found.folded, strict=True):
        slots = search.passing(same)
        placed = list(zip(view.times_us[slots].tolist(), view.rows[slots].tolist(), strict=True))
        newest = nlargest(_MOST_ORIGINS + 1, placed)
        failed = _failed(view, np.concatenate((slots, folded)))
        occurrences.append(_Occurrences(len(placed), min(placed)[0], newest[0][0], [row for _, row in newest], failed))
    return occurrences


def _failed(view: View, slots: Slots) -> int:
    """Return the number of failed runs; a failed memory that belongs to no run counts as one."""
    has_failed = view.qualities_with_runs(slots) < FAILED_BELOW
    if not has_failed.any():
        return 0
    runs = view.runs[slots[has_failed]]
    return int(np.unique(runs[runs != NO_NAME]).size + np.count_nonzero(runs == NO_NAME))


def _named(found: Candidates, search: Search, place: int, occurring: _Occurrences) -> list[int]:
    own = int(found.rows[place])
    if not search.query.is_explained:
        return [own]
    return [own, *_requests(found, search, place), *_lenders(found, search, place), *occurring.newest]


def _requests(found: Candidates, search: Search, place: int) -> list[int]:
    rows: list[int] = search.view.rows[found.folded[place][:_MOST_REQUESTS]].tolist()
    return rows


def _lenders(found: Candidates, search: Search, place: int) -> list[int]:
    lender = int(found.lenders[place])
    return [] if lender < 0 else [int(search.view.rows[lender])]


def _may_show(search: Search, row: int, record: MemoryRecord) -> bool:
    """Return whether `record` is the record that passed the filter, rather than a later replacement."""
    if not search.is_filtered:
        return True
    updated_us = microseconds(record.updated_at or record.timestamp, "updated_at")
    return updated_us == int(search.view.updated_us[search.view.slots([row])[0]])


def _best_passages(found: Candidates, search: Search) -> tuple[Scores, dict[int, tuple[int, int]]]:
    """Return the cosine of each candidate's nearest passage, (p,), or NaN without a query vector, and, by place, the
    passage's offsets (begin, end).

    The first passage of a text has no offsets.
    """
    if search.vector is None:
        return np.full(found.slots.shape, np.nan), {}
    cosines, passages = search.view.vectors.best_passages(search.vector.raw, found.slots)
    (later,) = passages.nonzero()
    if not later.size:
        return cosines, {}
    spans = {}
    with search.store.snapshot() as snapshot:
        for place in later.tolist():
            stored = snapshot.passages(int(found.rows[place]))
            if stored is not None and passages[place] < len(stored[0]):  # otherwise it was replaced after the search
                begin, end = stored[0][passages[place]].tolist()
                spans[place] = begin, end
    return cosines, spans


class _Presented(NamedTuple):
    """Builds the memories of an answer. `of_all` is the part of the explanation that is common to all memories."""

    found: Candidates
    search: Search
    advice: Advice
    records: dict[int, MemoryRecord]
    of_all: dict[str, Any]

    def memory(
        self, place: int, cosine: float, passage: tuple[int, int] | None, occurring: _Occurrences, *, is_marked: bool
    ) -> RetrievedMemory:
        """Return the memory at `place`. `cosine` is the cosine of its best passage; `passage` is None if the best
        passage is the first.

        Without `is_marked`, a short text has no highlights yet.
        """
        found, record = self.found, self.records[int(self.found.rows[place])]
        bm25 = float(found.bm25[place])
        passages = self._highlight(record, passage, is_marked=is_marked)
        return RetrievedMemory(
            record=record,
            score=number(cosine),
            lexical_score=bm25 if bm25 > 0 else None,
            sona_score=float(found.scores[place]),
            retrieval=_retrieval(float(found.cosines[place]), bm25),
            highlights=() if passages is None else (passages.passage,),
            explanation=self._explanation(place) if self.search.query.is_explained else {},
            count=occurring.number,
            first_seen=time_of(occurring.first_us),
            last_seen=time_of(occurring.last_us),
            origins=tuple(_origin(other) for other in self._read(occurring.newest) if other.id != record.id),
            relevance=number(float(found.relevance[place])),
            learned=float(found.learned[place]),
            failed=occurring.failed,
            passage_at=0 if passages is None else passages.at,
        )

    def _highlight(self, record: MemoryRecord, passage: tuple[int, int] | None, *, is_marked: bool) -> Highlight | None:
        """Return the highlighted words of a memory; `passage` is the best passage of a long text."""
        words = self.search.words
        if passage is None:
            return highlight_of(record, words) if is_marked else None
        begin, end = span_in_text(record, *passage)
        text = record.text[begin:end]
        found = highlight(words, "", text, ()) or beginning(text)
        return None if found is None else found._replace(at=begin + found.at)

    def _explanation(self, place: int) -> dict[str, Any]:
        search, found = self.search, self.found
        association, shift = float(found.association[place]), float(found.shift[place])
        is_learned = association > 0 or shift > 0
        return {
            "vector": number(float(found.cosines[place])),
            "lexical": float(found.shares[place]),
            "words": float(found.words[place]),
            "near": float(found.near[place]),
            "centred": False,
            "alpha": search.settings.vector_weight if search.is_hybrid else float(search.cosines is not None),
            "fused": float(found.fused[place]),
            "date_boost": float(found.dates[place]),
            "speaker": float(found.speaker[place]),
            "context": float(found.context[place]),
            "contiguity": float(found.lent[place]),
            "kind": float(found.kind[place]),
            "lent_by": [record.id for record in self._read(_lenders(found, search, place))],
            "learned": float(found.learned[place]),
            "association": association,
            "shift": shift,
            "quality": number(float(found.qualities[place])),
            "outcome": float(found.outcome[place]),
            "arm": ARMS[int(found.arms[place])],
            "caused_by": self.advice.causes(int(found.rows[place])) if is_learned else [],
            "likeness": 0.0,
            "like": None,
            "repeats": self._repeats(place),
            **({"by_score": int(found.by_score[place])} if found.by_score[place] else {}),
            **self.of_all,
        }

    def _repeats(self, place: int) -> dict[str, object] | None:
        folded = self.found.folded[place]
        if not folded.size:
            return None
        records = self._read(_requests(self.found, self.search, place))
        return {
            "count": folded.size,
            "because": "asks what the query asks",
            "least_cosine": REQUEST_COSINE,
            "ids": [record.id for record in records],
            "qualities": [record.quality_score for record in records],
        }

    def _read(self, rows: Iterable[int]) -> list[MemoryRecord]:
        return [self.records[row] for row in rows if row in self.records]


def _of_all_memories(search: Search) -> dict[str, Any]:
    return {
        "filter": "exact" if search.is_filtered else "none",
        "filters": _conditions(search),
        "dates": [msgspec.to_builtins(date) for date in search.dates],
        "dates_mode": search.query.dates,
        "kinds": [] if search.asked is None else sorted(search.asked.kinds),
        "matching": search.total if search.is_filtered else None,
    }


def _origin(record: MemoryRecord) -> Origin:
    return Origin(
        id=record.id,
        timestamp=record.timestamp,
        source=record.source,
        session_id=record.session_id,
        run_id=record.run_id,
        quality_score=record.quality_score,
        provenance=record.provenance,
    )


def _retrieval(cosine: float, bm25: float) -> Retrieval:
    if math.isnan(cosine):
        return "lexical"
    return "hybrid" if bm25 > 0 else "vector"


def _conditions(search: Search) -> dict[str, Any]:
    """Return the conditions of the query's filter, by field. `spans` lists the query's times if they filter results."""
    query = search.query
    conditions = {} if query.filter is None else msgspec.to_builtins(query.filter)
    if query.floor is not None:
        conditions["min_score"] = query.floor
    if query.dates == "filter":
        conditions["spans"] = msgspec.to_builtins([(date.since, date.until) for date in search.dates])
    return {field: value for field, value in conditions.items() if value not in (None, (), [])}


def number(value: float) -> float | None:
    return None if math.isnan(value) else value


def note_of(result: RecallResult, query: Query, now: datetime, answer: Answer | None) -> RecallNote:
    """Return the log entry of a recall: ids and vectors, no text. `answer` is None if the user's memories were not
    searched.
    """
    route, shown, ranks, boosts = USUAL.route, list[Shown](), list[int](), list[int]()
    if answer is not None:
        route, shown = answer.advice.route, _shown(answer)
        ranks, boosts = answer.found.ranks.tolist(), answer.found.boosts.tolist()
    is_compared = ranks != sorted(ranks) or any(boosts)
    vector = None if answer is None else answer.search.vector
    items = [memory for memory in result.memories if memory.tier == "global"]
    filter = query.filter
    return RecallNote(
        recall_id=result.recall_id,
        at_us=microseconds(now, "now"),
        session_id=query.by_session or (None if filter is None else filter.session_id),
        by_run=None if query.by_trigger else query.by_run,
        vector=vector_of_query(None if vector is None else vector.raw),
        stamp=None if vector is None else vector.stamp,
        shown=tuple(shown),
        served=_SERVED[route],
        is_contested=route == "interleave",
        request=request_digest(query.text),
        size=len(shown),
        by_trigger=query.by_trigger,
        ranks=tuple(ranks) if is_compared else (),
        boosts=tuple(boosts) if is_compared else (),
        items=tuple((item.record.id, item.shared.version) for item in items if item.shared is not None),
    )


def _shown(answer: Answer) -> list[Shown]:
    found, rows = answer.found, answer.search.view.rows
    duplicates = [
        tuple(rows[np.concatenate(parts)][:_MOST_FOLDED].tolist())
        for parts in zip(found.copies, found.folded, strict=True)
    ]
    columns = zip(found.rows.tolist(), found.arms.tolist(), duplicates, strict=True)
    return [Shown(row, arm, others, place) for place, (row, arm, others) in enumerate(columns)]
