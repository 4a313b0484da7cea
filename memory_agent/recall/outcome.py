"""What memories gain by how their runs ended: of about equally good ones, those that worked come first. Pure numpy.

    outcome = w_o * best * (quality - 1/2) * own^6        own = min(score / best, 1)        best = the best score

`quality` is how the memory itself went, else its run; so it follows each revision: a retry, a later approval, feedback.
A user's message has that of the run it began. What followed the run counts in, where it has an implicit quality, which
never turns the order of two verdicts. Without a quality a memory neither gains nor loses. Former requests do not set
`best`: nothing scores like the query's own words, and beside them all answers would be far below the best.

A memory a tenth below the best gains or loses half as much, one at .6 a twentieth: a success passes a failure that
scores up to some 30 % more, and a clearly better match stays first. It needs no learning and no gate, since it decides
between memories that are about equally relevant and brings none in (decision 0041). Rejected by measurement: a weight
that ignores the scale of the scores, which differs from query to query; lower powers, which cost relevance.

Shapes: n candidates, m slots.
"""

from __future__ import annotations

import msgspec
import numpy as np

from memory_agent.recall.candidates import Candidates
from memory_agent.recall.search import Search
from memory_agent.records.memories import SOURCES
from memory_agent.storage.indexes import Mask, Scores, Slots
from memory_agent.storage.view import View

_NEUTRAL = 0.5
_STEEPNESS = 6
_REACH = 2  # memories of the session after a message among which its run begins: there may be a reply before it
_BEGINS_WITHIN_US = 600_000_000
_MESSAGE, _PLAN = SOURCES.index("user_input"), SOURCES.index("conductor_plan")


def with_qualities(found: Candidates, view: View) -> Candidates:
    """Add how the runs of the candidates ended."""
    qualities, implicit = qualities_of(view, found.slots)
    return msgspec.structs.replace(found, qualities=qualities, implicit=implicit)


def with_outcomes(found: Candidates, is_request: Mask, search: Search) -> Candidates:
    """Add what candidates with qualities gain or lose by them in a hybrid recall.

    `is_request` (n,) says which are former requests in the words of the query.
    """
    if search.query.mode != "hybrid":
        return found
    totals = found.total
    answers = totals[~is_request]
    best = float((answers if answers.size else totals).max(initial=0.0))
    if best <= 0.0:
        return found
    own = np.minimum(np.maximum(totals / best, 0.0), 1.0)
    counted = np.where(np.isnan(found.implicit), found.qualities, found.implicit)
    apart = np.where(np.isnan(counted), 0.0, counted - _NEUTRAL)
    return msgspec.structs.replace(found, outcome=search.settings.outcome * best * apart * own**_STEEPNESS)


def qualities_of(view: View, slots: Slots) -> tuple[Scores, Scores]:
    """Return how each memory went (m,), else its run, else the run that a user's message began; NaN where unknown.

    First as stated, then with what followed.
    """
    found, implicit = view.qualities_with_runs(slots)
    (asked,) = (np.isnan(found) & np.isnan(implicit) & (view.sources[slots] == _MESSAGE)).nonzero()
    if asked.size:
        plans = _begun_by(view, slots[asked])
        is_known = plans >= 0
        found[asked[is_known]] = view.qualities[plans[is_known]]
        implicit[asked[is_known]] = view.implicit[plans[is_known]]
    return found, implicit


def _begun_by(view: View, messages: Slots) -> Slots:
    """Return the first plan (m,) after each message and before the user's next one, -1 for none."""
    found: Slots = np.full(messages.shape, -1, dtype=np.int64)
    is_open = np.ones(messages.shape, dtype=np.bool_)
    for after in view.windows(messages, _REACH)[:, _REACH + 1 :].T:
        is_open &= (after >= 0) & (view.sources[after] != _MESSAGE)
        is_open &= view.times_us[after] - view.times_us[messages] <= _BEGINS_WITHIN_US
        is_plan = is_open & (view.sources[after] == _PLAN)
        found[is_plan] = after[is_plan]
        is_open &= ~is_plan
    return found
