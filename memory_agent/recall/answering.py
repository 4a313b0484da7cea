"""The selected candidates as memories of an answer: passages, counts, other occurrences, and why each is there.

    sona_score = vector and lexical fused + date_boost + context + contiguity + learned - likeness
    learned    = association + shift + outcome

These are fields of `explanation`. `vector` is the cosine of the centred query, `lexical` BM25 as a share of the best
match, and `alpha` the weight of the first. `learned` is what the learner added, 0 unless its ranking brought the memory
in (`arm`); `caused_by` are the past runs behind it: the one that used the memory for a request like this one, else
those most like it. `repeats` lists the former requests folded into this one. The names are part of the interface: new
ones may be added, none changes its meaning.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np

from memory_agent.learning.learner import Advice
from memory_agent.recall import fusion
from memory_agent.recall.fusion import Rows
from memory_agent.recall.interleaving import Pick
from memory_agent.recall.learned import Lift
from memory_agent.recall.query import Query
from memory_agent.recall.query_echoes import explain_echoes
from memory_agent.recall.query_vectors import QueryVector
from memory_agent.recall.ranked_search import RankedSearch
from memory_agent.recall.scoring import Scored
from memory_agent.recall.selection import Choice
from memory_agent.records import MemoryRecord, Origin, Retrieval, RetrievedMemory, UnderstoodDate
from memory_agent.storage.archive import Archive
from memory_agent.storage.changes import IndexScores
from memory_agent.storage.codec import microseconds, time_of
from memory_agent.storage.lexicon import Lexicon, Saying
from memory_agent.trajectory import Arm

_MOST_ORIGINS = 8

Answer = TypeVar("Answer")


class Answering:
    """Builds the answer to one recall."""

    def __init__(
        self,
        archive: Archive,
        search: RankedSearch,
        query: Query,
        vector: QueryVector | None,
        dates: Sequence[UnderstoodDate],
        advice: Advice,
    ) -> None:
        self._archive = archive
        self._search = search
        self._query = query
        self._vector = vector
        self._dates = dates
        self._advice = advice

    def memories(self, picked: Sequence[Pick]) -> tuple[RetrievedMemory, ...]:
        """Return the memories of the answer, in the order of the picks."""
        rows = [pick.row for pick in picked]
        records = self._search.load(rows)
        unmarked: dict[int, tuple[str, ...]] = dict.fromkeys(records, ())
        marked = self._ask(lambda lexicon: lexicon.passages(self._query.text, records), unmarked)
        raw = self._raw_cosines(np.array(rows, dtype=np.int64))
        said = self._said(picked)
        return tuple(
            self._memory(pick, records[row], float(raw[place]), marked[row], said[pick.choice.leader.fingerprint])
            for place, (row, pick) in enumerate(zip(rows, picked, strict=True))
        )

    def _memory(
        self,
        pick: Pick,
        record: MemoryRecord,
        cosine: float,
        highlights: tuple[str, ...],
        said: Saying,
    ) -> RetrievedMemory:
        bm25 = pick.scored.found.bm25[pick.choice.place]
        row = pick.row
        return RetrievedMemory(
            record=self._whole(row, record),
            score=number(cosine),
            lexical_score=number(bm25) if bm25 > 0 else None,
            sona_score=pick.choice.score,
            retrieval=_retrieval(pick.scored, pick.choice.place),
            highlights=highlights,
            explanation=self._explanation(pick),
            count=said.number,
            first_seen=time_of(said.first_us),
            last_seen=time_of(said.last_us),
            origins=self._origins([other for other in said.rows if other != row]),
        )

    def _explanation(self, pick: Pick) -> dict[str, object]:
        scored, choice = pick.scored, pick.choice
        lenders = [loan.lender for loan in scored.loans if loan.borrower == pick.row]
        return explain(
            scored,
            choice,
            self._query,
            self._dates,
            centred=self._vector is not None and self._vector.centred is not self._vector.raw,
            lent_by=[record.id for record in self._search.load(lenders).values()],
            like=None if choice.like is None else self._search.records[int(scored.rows[choice.like])].id,
            lift=pick.lift,
            arm=pick.arm,
            caused_by=self._advice.causes(pick.row) if _was_lifted(pick) else [],
            repeats=explain_echoes(pick, self._search.load),
        )

    def _said(self, picked: Sequence[Pick]) -> dict[int, Saying]:
        """Return, by fingerprint, all memories that say the same as the picks and pass the filter.

        Under a floor, or without the lexicon, only those among the candidates.
        """
        found = {pick.choice.leader.fingerprint: self._found_saying(pick) for pick in picked}
        if self._query.floor is not None:
            return found
        nothing: dict[int, Saying] = {}
        return found | self._ask(lambda lexicon: lexicon.saying(found, self._query.filter), nothing)

    def _found_saying(self, pick: Pick) -> Saying:
        leader = pick.choice.leader
        rows = [int(pick.scored.rows[place]) for place in (leader.place, *leader.folded)]
        times = {row: microseconds(record.timestamp, "timestamp") for row, record in self._search.load(rows).items()}
        newest = sorted(times, key=lambda row: (times[row], row), reverse=True)
        return Saying(len(times), min(times.values()), max(times.values()), newest[: _MOST_ORIGINS + 1])

    def _origins(self, rows: Sequence[int]) -> tuple[Origin, ...]:
        return tuple(
            Origin(
                id=record.id,
                timestamp=record.timestamp,
                source=record.source,
                session_id=record.session_id,
                run_id=record.run_id,
                quality_score=record.quality_score,
                provenance=record.provenance,
            )
            for record in self._search.load(rows[:_MOST_ORIGINS]).values()
        )

    def _raw_cosines(self, rows: Rows) -> IndexScores:
        vector, index = self._vector, self._archive.index
        nothing = np.full(rows.shape, np.nan, dtype=np.float32)
        if vector is None:
            return nothing
        return self._search.indexes.ask("index", lambda: index.score_rows(vector.raw, rows), nothing)

    def _ask(self, question: Callable[[Lexicon], Answer], otherwise: Answer) -> Answer:
        return self._search.indexes.ask("lexicon", lambda: question(self._archive.lexicon), otherwise)

    def _whole(self, row: int, record: MemoryRecord) -> MemoryRecord:
        """Return the record with its vector, where requested."""
        if not self._query.with_embedding:
            return record
        return self._archive.store.records([row], True)[0] or record


def _was_lifted(pick: Pick) -> bool:
    """Whether past runs raised its score; the outcome of its own run does not count."""
    return pick.scored.association[pick.choice.place] > 0 or pick.lift.shift > 0


def _retrieval(scored: Scored, place: int) -> Retrieval:
    has_vector, has_words = not np.isnan(scored.found.cosines[place]), scored.found.bm25[place] > 0
    if has_vector:
        return "hybrid" if has_words else "vector"
    return "lexical"


_NO_CONDITIONS: tuple[object, ...] = (None, ())


def explain(
    scored: Scored,
    choice: Choice,
    query: Query,
    dates: Sequence[UnderstoodDate],
    *,
    centred: bool,
    lent_by: list[str],
    like: str | None,
    lift: Lift,
    arm: Arm | None,
    caused_by: list[dict[str, Any]],
    repeats: dict[str, object] | None,
) -> dict[str, Any]:
    """Return the explanation of a selected candidate. `lent_by` and `like` are ids of memories."""
    found, place = scored.found, choice.place
    return {
        "vector": number(found.cosines[place]),
        "lexical": float(fusion.lexical_share(found.bm25)[place]),
        "alpha": scored.weight,
        "centred": centred,
        "fused": float(scored.fused[place]),
        "date_boost": float(scored.dates[place]),
        "context": float(scored.context[place]),
        "contiguity": float(scored.lent[place]),
        "lent_by": lent_by,
        "learned": float(scored.association[place]) + lift.total,
        "association": float(scored.association[place]),
        "shift": lift.shift,
        "outcome": lift.outcome,
        "arm": arm,
        "caused_by": caused_by,
        "likeness": choice.likeness,
        "like": like,
        "repeats": repeats,
        "filter": "none" if query.filter is None and query.floor is None else "exact",
        "filters": filters(query),
        "dates": [msgspec.to_builtins(date) for date in dates],
        "dates_mode": query.dates,
        "matching": found.filtered.matching,
        "plan": found.filtered.explanation,
    }


def filters(query: Query) -> dict[str, Any]:
    """Return the conditions of the query's filter, by field."""
    conditions = {} if query.filter is None else msgspec.to_builtins(query.filter)
    if query.floor is not None:
        conditions["min_score"] = query.floor
    return {field: value for field, value in conditions.items() if value not in ([], *_NO_CONDITIONS)}


def number(value: float) -> float | None:
    """Return a score, None for NaN."""
    return None if math.isnan(value) else float(value)
