"""Selects the memories for an answer: one for each text, and one for all earlier requests that repeat the query.

Memories with the same fingerprint (`storage/terms`) are folded into the best of them, their leader. The best earlier
request (`stages`) keeps its place, and the others are folded into it, unless there is nothing else to show.

If the baseline and the learned ranking are both enabled, their answers are interleaved by team draft
(`sona/interleaving`). Otherwise the answer uses the baseline ranking, which may be compared with the learned ranking
(`sona/comparison`).
`learning/learner` decides which rankings are enabled.

Shapes: n candidates, p leaders.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from memory_agent.recall.candidates import Candidates, Places, best_first
from memory_agent.recall.evidence import places_of
from memory_agent.recall.query import Query
from memory_agent.recall.search import Search
from memory_agent.recall.stages import PastUse, shifts
from memory_agent.storage.column import Slots
from memory_agent.storage.stored_runs import BASELINE, LEARNED, NO_ARM
from sona import WHOLE_BOOST, Arm, Reached, team_draft

ARMS: dict[int, Arm | None] = {NO_ARM: None, BASELINE: "baseline", LEARNED: "learned"}
"""The ranking that contributed a memory. None if only the baseline answered, or if both rankings contributed it."""
_NUMBERS = {arm: number for number, arm in ARMS.items()}
_SPARE = 25
_NONE: Slots = np.empty(0, dtype=np.int64)


def examined(query: Query) -> int:
    """Return the number of leaders to examine for a query: more than needed, since some are folded or moved."""
    return max(query.top_k + max(_SPARE, query.top_k // 2), query.pool)


def has_enough(found: Candidates, wanted: int) -> bool:
    """Return whether there are at least `wanted` leaders; all earlier requests count as one."""
    return bool((_different(found) >= wanted).any())


def selected(found: Candidates, search: Search) -> Candidates:
    """Return more leaders than the answer needs, best first. Folds earlier requests if there are other leaders."""
    top_k = search.query.top_k
    different = _different(found)
    size = min(int(different.searchsorted(examined(search.query))) + 1, different.size)
    places = found.leaders[:size]
    copies = _copies(found)
    leaders = replace(
        found.take(places),
        copies=tuple(copies.get(place, _NONE) for place in places.tolist()),
        folded=(_NONE,) * size,
    )
    (asking,) = leaders.requests.nonzero()
    spare = min(asking.size - 1, size - top_k)
    return leaders if spare <= 0 else _without_requests(leaders, asking, spare)


def _different(found: Candidates) -> Places:
    """For each leader (p,), count the leaders up to and including that leader; all earlier requests count as one."""
    requests = np.cumsum(found.requests[found.leaders] > 0)
    different: Places = np.arange(1, requests.size + 1) - np.maximum(requests - 1, 0)
    return different


def _copies(found: Candidates) -> dict[int, Slots]:
    """Return a mapping from a leader's position to the slots of the other candidates with the same text, best first."""
    is_copy = np.ones(found.slots.shape, dtype=np.bool_)
    is_copy[found.leaders] = False
    (places,) = is_copy.nonzero()
    if not places.size:
        return {}
    places = places[best_first(found.total[places], found.rows[places], places.size)]
    leaders = dict(zip(found.fingerprints[found.leaders].tolist(), found.leaders.tolist(), strict=True))
    copies: dict[int, list[int]] = {}
    for slot, fingerprint in zip(found.slots[places].tolist(), found.fingerprints[places].tolist(), strict=True):
        copies.setdefault(leaders[fingerprint], []).append(slot)
    return {place: np.array(slots, dtype=np.int64) for place, slots in copies.items()}


def _without_requests(leaders: Candidates, asking: Places, spare: int) -> Candidates:
    """Fold the last `spare` earlier requests into the best one; `asking` has the positions of all earlier requests."""
    best = int(asking[leaders.requests[asking].argmin()])
    gone = asking[asking != best][-spare:]
    slots = [part for place in gone.tolist() for part in (leaders.slots[place : place + 1], leaders.copies[place])]
    folded = [*leaders.folded]
    folded[best] = np.concatenate(slots)
    stays = np.ones(leaders.slots.shape, dtype=np.bool_)
    stays[gone] = False
    return replace(leaders, folded=tuple(folded)).take(stays)


def shifted(found: Candidates, search: Search, past_use: PastUse) -> Candidates:
    """Return the results of the learned ranking, best first, with what the adapted query adds to each score."""
    shift = shifts(search.view.vectors.vectors(found.slots), past_use)
    found = replace(found, shift=shift, arms=np.full(found.slots.shape, LEARNED))
    return found.take(np.argsort(-found.scores, kind="stable"))


def interleaved(baseline: Candidates, learned: Candidates, limit: int, key: str) -> Candidates:
    """Return at most `limit` memories from two rankings, without duplicates; `key` seeds the draft."""
    drafted = team_draft(baseline.fingerprints.tolist(), learned.fingerprints.tolist(), limit, key)
    own = {fingerprint: place for place, fingerprint in enumerate(baseline.fingerprints.tolist())}
    others = {fingerprint: place for place, fingerprint in enumerate(learned.fingerprints.tolist(), len(own))}
    places = [(others if pick.arm == "learned" else own)[pick.item] for pick in drafted]
    arms = np.array([_NUMBERS[pick.arm] for pick in drafted], dtype=np.int64)
    return replace(baseline.joined(learned).take(np.array(places, dtype=np.intp)), arms=arms)


def compared(baseline: Candidates, learned: Candidates, reached: Reached) -> Candidates:
    """Return the baseline with each memory's rank in the learned ranking, and its boost from runs of any outcome.

    Memories that the learned ranking does not contain share a rank after its last one.
    """
    ranks = {fingerprint: rank for rank, fingerprint in enumerate(learned.fingerprints.tolist(), 1)}
    beyond = max(baseline.slots.size, learned.slots.size) + 1
    found = [ranks.get(fingerprint, beyond) for fingerprint in baseline.fingerprints.tolist()]
    places, is_used = places_of(reached.memories, baseline.rows)
    boosts = np.zeros(baseline.rows.shape, dtype=np.int64)
    boosts[is_used] = np.rint(WHOLE_BOOST * reached.unweighted[places[is_used]]).clip(min=0)
    return replace(baseline, ranks=np.array(found, dtype=np.int64), boosts=boosts)
