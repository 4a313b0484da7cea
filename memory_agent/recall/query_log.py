"""The log entry of a recall, for feedback and attribution: ids and vectors, never text."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from memory_agent.learning.learner import Advice
from memory_agent.recall.interleaving import Pick
from memory_agent.recall.query import Query
from memory_agent.recall.query_vectors import QueryVector
from memory_agent.records.memories import RetrievedMemory, microseconds
from memory_agent.records.trajectories import Arm
from memory_agent.storage.recall_notes import (
    BASELINE,
    LEARNED,
    NO_ARM,
    RecallNote,
    Served,
    Shown,
    request_digest,
    vector_of_query,
)
from sona.gate import Route

_ARMS: dict[Arm | None, int] = {None: NO_ARM, "baseline": BASELINE, "learned": LEARNED}
_SERVED: dict[Route, Served] = {
    "baseline": "baseline",
    "compare": "baseline",
    "learned": "learned",
    "interleave": "interleaved",
}


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
