"""What a memory gains from its neighbours in the session. Pure.

Context: the words of a question are often spread over a few turns, so a memory gains by how well they are met here or
beside it (`late_interaction`).

Answers: what answers a question often follows where it was asked before. If the query asks, a memory that asks lends
what it scores above the next best to the memory that follows it, and gives way to it. Both count less the longer the
answer, since a long text needs no help to be found. Rejected by measurement (decision 0037): lending to both sides, and
lending by every candidate.

Shapes: n candidates, r = 2 REACH + 1 places of a window.
"""

from __future__ import annotations

import msgspec
import numpy as np

from memory_agent.recall.candidates import Candidates, is_hybrid
from memory_agent.recall.fusion import places_of
from memory_agent.recall.search import Search
from memory_agent.storage.indexes import Scores
from memory_agent.storage.terms import asks

_FLOOR = 20
"""Candidates that lend nothing to each other: what the next best scores is the floor."""
_WHOLE_TOKENS = 64
"""Of an answer, up to which it counts whole."""
_GIVES_WAY = 0.06
_BEFORE, _AFTER = 0, 2


def with_neighbours(found: Candidates, search: Search) -> Candidates:
    """Add what the candidates gain from each other."""
    if not is_hybrid(search):
        return found
    found = msgspec.structs.replace(found, context=search.settings.context_words * found.near)
    return _with_answers(found, search) if search.settings.contiguity and asks(search.query.text) else found


def _with_answers(found: Candidates, search: Search) -> Candidates:
    beside = search.view.windows(found.slots, 1)
    places, known = places_of(found.slots, beside)
    asking = search.view.asks[found.slots]
    whole = _WHOLE_TOKENS / np.maximum(search.view.word_bits.lengths[found.slots], _WHOLE_TOKENS)
    before, is_answer = places[:, _BEFORE], known[:, _BEFORE] & asking[places[:, _BEFORE]]
    lent = np.where(is_answer, _above_floor(found.fused)[before] * whole, 0.0)
    after, gives_way = places[:, _AFTER], known[:, _AFTER] & asking
    taken = np.where(gives_way, _GIVES_WAY * whole[after], 0.0)
    return msgspec.structs.replace(
        found,
        lent=search.settings.contiguity * (lent - taken),
        lenders=np.where(lent > 0, beside[:, _BEFORE], -1),
    )


def _above_floor(scores: Scores) -> Scores:
    """Return what each score (n,) exceeds the first one that lends nothing by, 0 for the others."""
    place = max(scores.size - _FLOOR - 1, 0)
    floor = float(np.partition(scores, place)[place]) if scores.size else 0.0
    above: Scores = np.maximum(scores - floor, 0.0)
    return above
