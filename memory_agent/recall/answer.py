"""The selected candidates as memories of an answer: passages, counts, other occurrences, and why each is there.

    sona_score = vector and lexical fused + date_boost + speaker + context + contiguity + outcome + learned
    learned    = association + shift

These are fields of `explanation`. `vector` is the cosine, `lexical` BM25 as a share of the best match, `words` and
`near` are how well the query's words are met, and `alpha` is the weight of the first. `centred` is always False and
`likeness` always 0, since queries are no longer centred, nor memories penalised that resemble each other. `quality` is
how the memory or its run ended, None where unknown, `outcome` what that adds or takes in either ranking. `learned` is
what the learner added, 0 unless its ranking brought the memory in (`arm`); `caused_by` are the past runs behind it: the
one that used the memory for a request like this one, else those most like it. `repeats` lists the former requests
folded into this one. The names are part of the interface: new ones may be added, none changes its meaning.

`note_of` makes the log entry of a recall, for feedback and attribution: ids and vectors, never text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import datetime
from heapq import nlargest
from typing import Any, NamedTuple

import msgspec
import numpy as np

from memory_agent.learning.learner import Advice
from memory_agent.recall.context import FAILED_BELOW
from memory_agent.recall.highlights import Highlight, beginning, highlight, highlight_of
from memory_agent.recall.query import Query
from memory_agent.recall.search import QueryVector, Search
from memory_agent.recall.selection import REQUEST_COSINE, Pick
from memory_agent.records.embedded import span_in_text
from memory_agent.records.memories import MemoryRecord, Origin, Retrieval, RetrievedMemory, microseconds, time_of
from memory_agent.records.trajectories import Arm
from memory_agent.storage.column import Scores, Slots
from memory_agent.storage.stored_runs import (
    BASELINE,
    LEARNED,
    NO_ARM,
    RecallNote,
    Served,
    Shown,
    request_digest,
    vector_of_query,
)
from memory_agent.storage.view import NO_NAME
from sona.gate import Route

_MOST_ORIGINS = 8
_MOST_REQUESTS = 20
_ARMS: dict[Arm | None, int] = {None: NO_ARM, "baseline": BASELINE, "learned": LEARNED}
_SERVED: dict[Route, Served] = {
    "baseline": "baseline",
    "compare": "baseline",
    "learned": "learned",
    "interleave": "interleaved",
}


class _Occurrences(NamedTuple):
    """A memory and its duplicates: how many, their first and last time, and the rows of the newest.

    There is one more of these than origins in the answer. `failed` is how many runs with one of them failed, or with a
    former request folded into it.
    """

    number: int
    first_us: int
    last_us: int
    newest: list[int]
    failed: int


class Answering:
    """Builds the answer to one recall. Reads each memory once, all from one snapshot, newer than the search."""

    def __init__(self, search: Search, advice: Advice, picks: Sequence[Pick]) -> None:
        self._search = search
        self._advice = advice
        self._slots = np.array([pick.slot for pick in picks], dtype=np.int64)
        self._picks = list(zip(picks, self._all_occurrences(picks), strict=True))
        named = dict.fromkeys(row for pick, occurring in self._picks for row in self._named(pick, occurring))
        found = zip(named, search.store.records(named, search.query.with_embedding), strict=True)
        self._records = {row: record for row, record in found if record is not None and self._may_show(row, record)}
        self._cosines, best = self._nearest()
        self._passages = self._places_of(best)
        self._of_all = self._of_all_memories()

    @property
    def shown(self) -> list[Pick]:
        """The picks that `memories` shows, in their order."""
        return [pick for pick, _ in self._picks if pick.row in self._records]

    def memories(self) -> tuple[RetrievedMemory, ...]:
        """Return the memories of the answer, in the order of the picks.

        Without any that was deleted meanwhile, or, under a filter, replaced.
        """
        return tuple(
            self._memory(pick, self._records[pick.row], cosine, occurring)
            for (pick, occurring), cosine in zip(self._picks, self._cosines.tolist(), strict=True)
            if pick.row in self._records
        )

    def _may_show(self, row: int, record: MemoryRecord) -> bool:
        """Whether the filter passed this record, and not one that it replaced since the search."""
        if not self._search.is_filtered:
            return True
        view = self._search.view
        updated_us = microseconds(record.updated_at or record.timestamp, "updated_at")
        return updated_us == int(view.updated_us[view.slots([row])[0]])

    def _all_occurrences(self, picks: Sequence[Pick]) -> list[_Occurrences]:
        view = self._search.view
        if not self._search.query.is_explained:
            return [_Occurrences(1, time_us, time_us, [], 0) for time_us in view.times_us[self._slots].tolist()]
        alike = view.same(view.fingerprints[self._slots])
        return [self._occurrences(pick, same) for pick, same in zip(picks, alike, strict=True)]

    def _occurrences(self, pick: Pick, same: Slots) -> _Occurrences:
        view, slots = self._search.view, self._search.passing(same)
        placed = list(zip(view.times_us[slots].tolist(), view.rows[slots].tolist(), strict=True))
        newest = nlargest(_MOST_ORIGINS + 1, placed)
        asking = pick.found.slots[list(pick.requests)]
        failed = self._failed(np.concatenate((slots, asking)))
        return _Occurrences(len(placed), min(placed)[0], newest[0][0], [row for _, row in newest], failed)

    def _failed(self, slots: Slots) -> int:
        """Return how many runs of these memories failed; one without a run counts by itself."""
        view = self._search.view
        has_failed = view.qualities_with_runs(slots)[0] < FAILED_BELOW
        if not has_failed.any():
            return 0
        runs = view.runs[slots[has_failed]]
        return int(np.unique(runs[runs != NO_NAME]).size + np.count_nonzero(runs == NO_NAME))

    def _named(self, pick: Pick, occurring: _Occurrences) -> list[int]:
        """Return the rows of all memories that the answer reads for a pick."""
        if not self._search.query.is_explained:
            return [pick.row]
        requests = pick.found.rows[list(pick.requests[:_MOST_REQUESTS])].tolist()
        return [pick.row, *requests, *self._lenders(pick), *occurring.newest]

    def _lenders(self, pick: Pick) -> list[int]:
        lender = int(pick.found.lenders[pick.place])
        return [] if lender < 0 else [int(self._search.view.rows[lender])]

    def _memory(self, pick: Pick, record: MemoryRecord, cosine: float, occurring: _Occurrences) -> RetrievedMemory:
        bm25 = float(pick.found.bm25[pick.place])
        found = self._highlight(record, self._passages.get(pick.row))
        return RetrievedMemory(
            record=record,
            score=number(cosine),
            lexical_score=bm25 if bm25 > 0 else None,
            sona_score=pick.score,
            retrieval=_retrieval(pick),
            highlights=() if found is None else (found.passage,),
            explanation=self._explanation(pick) if self._search.query.is_explained else {},
            count=occurring.number,
            first_seen=time_of(occurring.first_us),
            last_seen=time_of(occurring.last_us),
            origins=tuple(_origin(other) for other in self._read(occurring.newest) if other.id != record.id),
            relevance=number(float(pick.found.relevance[pick.place])),
            learned=pick.learned,
            failed=occurring.failed,
            passage_at=0 if found is None else found.at,
        )

    def _nearest(self) -> tuple[Scores, Slots]:
        """Return the cosines of the memories (p,), NaN without the query's vector, and which passages they are of."""
        vector = self._search.vector
        if vector is None:
            return np.full(self._slots.shape, np.nan), np.zeros(self._slots.shape, dtype=np.int64)
        return self._search.view.vectors.best_passages(vector.raw, self._slots)

    def _places_of(self, best: Slots) -> dict[int, tuple[int, int]]:
        """Return where the `best` passage of a text begins and ends, by row, unless it is the first."""
        places = dict(zip(self._search.view.rows[self._slots].tolist(), best.tolist(), strict=True))
        later = {row: place for row, place in places.items() if place}
        if not later:
            return {}
        found = {}
        with self._search.store.snapshot() as snapshot:
            for row, place in later.items():
                passages = snapshot.passages(row)
                if passages is not None and place < len(passages[0]):  # else it was replaced meanwhile
                    begin, end = passages[0][place].tolist()
                    found[row] = begin, end
        return found

    def _highlight(self, record: MemoryRecord, passage: tuple[int, int] | None) -> Highlight | None:
        """Return the best words of a memory, of a long text those of its best passage, marked or as it begins."""
        words = self._search.words
        if passage is None:
            return highlight_of(record, words) if self._search.query.is_marked else None
        begin, end = span_in_text(record, *passage)
        text = record.text[begin:end]
        found = highlight(words, "", text, ()) or beginning(text)
        return None if found is None else found._replace(at=begin + found.at)

    def _explanation(self, pick: Pick) -> dict[str, Any]:
        search, found, place = self._search, pick.found, pick.place
        association = float(found.association[place])
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
            "lent_by": self._ids(self._lenders(pick)),
            "learned": pick.learned,
            "association": association,
            "shift": pick.shift,
            "quality": number(float(found.qualities[place])),
            "implicit_quality": number(float(found.implicit[place])),
            "outcome": float(found.outcome[place]),
            "arm": pick.arm,
            "caused_by": self._advice.causes(pick.row) if association > 0 or pick.shift > 0 else [],
            "likeness": 0.0,
            "like": None,
            "repeats": self._repeats(pick),
            **self._of_all,
        }

    def _of_all_memories(self) -> dict[str, Any]:
        """Return the part of the explanation that all memories of the answer have."""
        search = self._search
        return {
            "filter": "exact" if search.is_filtered else "none",
            "filters": _conditions(search),
            "dates": [msgspec.to_builtins(date) for date in search.dates],
            "dates_mode": search.query.dates,
            "matching": int(np.count_nonzero(search.mask)) if search.is_filtered and search.mask is not None else None,
        }

    def _repeats(self, pick: Pick) -> dict[str, object] | None:
        """Return the explanation of the requests folded into a pick, the best ranked 20 by id; None without any."""
        places = pick.requests
        if not places:
            return None
        records = self._read(pick.found.rows[list(places[:_MOST_REQUESTS])].tolist())
        return {
            "count": len(places),
            "because": "asks what the query asks",
            "least_cosine": REQUEST_COSINE,
            "ids": [record.id for record in records],
            "qualities": [record.quality_score for record in records],
        }

    def _read(self, rows: Iterable[int]) -> list[MemoryRecord]:
        return [self._records[row] for row in rows if row in self._records]

    def _ids(self, rows: Iterable[int]) -> list[str]:
        return [record.id for record in self._read(rows)]


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


def _retrieval(pick: Pick) -> Retrieval:
    place = pick.place
    if math.isnan(pick.found.cosines[place]):
        return "lexical"
    return "hybrid" if pick.found.bm25[place] > 0 else "vector"


_NO_CONDITIONS: tuple[object, ...] = (None, ())


def _conditions(search: Search) -> dict[str, Any]:
    """Return the conditions of the query's filter, by field; `spans` are the times of the query, where they filter."""
    query = search.query
    conditions = {} if query.filter is None else msgspec.to_builtins(query.filter)
    if query.floor is not None:
        conditions["min_score"] = query.floor
    if query.dates == "filter":
        conditions["spans"] = msgspec.to_builtins([(date.since, date.until) for date in search.dates])
    return {field: value for field, value in conditions.items() if value not in ([], *_NO_CONDITIONS)}


def number(value: float) -> float | None:
    """Return a score, None for NaN."""
    return None if math.isnan(value) else value


def note_of(
    recall_id: str,
    query: Query,
    vector: QueryVector | None,
    advice: Advice,
    picked: Sequence[Pick],
    now: datetime,
    items: Sequence[RetrievedMemory] = (),
) -> RecallNote:
    """Return the log entry of an answered recall, which shows shared `items` too."""
    filter, ranks = query.filter, [pick.rank for pick in picked]
    return RecallNote(
        recall_id=recall_id,
        at_us=microseconds(now, "now"),
        session_id=query.by_session or (None if filter is None else filter.session_id),
        by_run=None if query.by_trigger else query.by_run,
        vector=vector_of_query(None if vector is None else vector.raw),
        stamp=None if vector is None else vector.stamp,
        shown=tuple(Shown(pick.row, _ARMS[pick.arm], pick.folded, place) for place, pick in enumerate(picked)),
        served=_SERVED[advice.route],
        is_contested=advice.route == "interleave",
        request=request_digest(query.text),
        size=len(picked),
        by_trigger=query.by_trigger,
        ranks=() if ranks == sorted(ranks) else tuple(ranks),
        items=tuple((item.record.id, item.shared.version) for item in items if item.shared is not None),
    )
