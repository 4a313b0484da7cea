"""Why a memory is in the answer: the parts of its score, who lent to it, what was asked of all. Pure.

    sona_score = vector and lexical fused + date_boost + context + contiguity + learned - likeness
    learned    = association + shift + outcome

`vector` is the cosine of the centred query, `lexical` BM25 in shares of the best match, and `alpha` the weight of the
first. `learned` is what the learner added, 0 unless its ranking brought the memory in (`arm`), and `caused_by` are the
past runs that made it: the one that used the memory for a request like this one, else those most like it. `repeats`,
for a former request that asks what the query asks, says for which others it stands. The names are part of the
interface: new ones may come, none changes its meaning.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from memory_agent.recall import ranking
from memory_agent.recall.inquiry import Inquiry
from memory_agent.recall.learned import Lift
from memory_agent.recall.scoring import Scored
from memory_agent.recall.selection import Choice
from memory_agent.records import UnderstoodDate
from memory_agent.trajectory import Arm

_NO_CONDITIONS: tuple[object, ...] = (None, ())


def explain(
    scored: Scored,
    choice: Choice,
    inquiry: Inquiry,
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
    """Return the explanation of a chosen candidate. `lent_by` and `like` are ids of memories."""
    found, place = scored.found, choice.place
    return {
        "vector": number(found.cosines[place]),
        "lexical": float(ranking.lexical_share(found.bm25)[place]),
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
        "filter": "none" if inquiry.filter is None and inquiry.floor is None else "exact",
        "filters": filters(inquiry),
        "dates": [msgspec.to_builtins(date) for date in dates],
        "dates_mode": inquiry.dates,
        "matching": found.sieve.matching,
        "plan": found.sieve.explanation,
    }


def filters(inquiry: Inquiry) -> dict[str, Any]:
    """Return the conditions that were set, by field."""
    conditions = {} if inquiry.filter is None else msgspec.to_builtins(inquiry.filter)
    if inquiry.floor is not None:
        conditions["min_score"] = inquiry.floor
    return {field: value for field, value in conditions.items() if value not in ([], *_NO_CONDITIONS)}


def number(value: float) -> float | None:
    """Return a score, or None for NaN: there is none."""
    return None if math.isnan(value) else float(value)
