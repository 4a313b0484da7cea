"""The learner's part of the scores of one recall. Pure numpy.

    association = scale * (w_a * reach * own + w_r * min(support, 1) + w_p * lift)
    shift       = scale * w_s * <memory, direction>
    scale       = 2.5 times the spread of the best fifty scores without the best tenth of them

`reach` is the likeness of the request to one for which a run used the memory, `support` adds up over all such runs from
a cosine of .5 on (`sona/association`), `lift` is how much better than usual the runs went that used it, `own` the
memory's score as a share of the best. A used memory gains only as far as it also answers this query, unless runs used
it again and again for the same request; so frequently used memories do not displace better answers (decision 0020).
What learning adds is measured in the spread of the scores, so it moves a memory past as many others whether they lie
near or far, in any query and after a change of the ranking. It is about 1 in LoCoMo. Leaders that stand out do not
widen it: they would be overtaken the more easily the better they match (decision 0045). Each part is bounded, so no
score rises by more than their sum.

Candidates are those of the query itself: searching with the moved query too finds some that never reach the first
five (decision 0045). Whether the learner may rank is decided by `learning/learner`. How the runs of the memories
themselves ended counts in either ranking (`outcome`).

Shapes: n candidates, m memories reached, p leaders or answers among them, d dimensions.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from memory_agent.recall.candidates import Candidates, scored
from memory_agent.recall.fusion import places_of
from memory_agent.recall.neighbours import with_neighbours
from memory_agent.recall.search import Search, passing
from memory_agent.records.embedded import Embedding
from memory_agent.settings import LearningSettings
from memory_agent.storage.indexes import Mask, Scores
from sona.learner import Adaptation

_MOST_RECURRING = 16
_WORTH_READING = 0.1
_SPREAD_OVER, _OUTSTANDING = 50, 10
_SPREADS, _LEAST = 2.5, 0.1


def scale_of(totals: Scores) -> float:
    """Return what a weight of 1 adds, given the scores of answers (p,), best first, one of each text.

    Of equal scores, which past use decides between, it is a tenth of the best.
    """
    if not totals.size:
        return 0.0
    near = totals[:_SPREAD_OVER]
    spread = float(near[near.size // _OUTSTANDING] - near[-1])
    return max(_SPREADS * spread, _LEAST * float(totals[0]))


class PastUse(NamedTuple):
    """What the learner advises for a query, the weights of its parts, and what a weight of 1 adds (`scale_of`)."""

    adaptation: Adaptation
    settings: LearningSettings
    scale: float


def with_recurring(found: Candidates, search: Search, past_use: PastUse) -> Candidates:
    """Add the memories that runs used repeatedly for such a request; without any, return `found` itself.

    At most 16, the best supported ones, that pass the filter and have a vector: what one run used once is a candidate
    anyway, or no answer.
    """
    reached = past_use.adaptation.reached
    (supported,) = (reached.support * past_use.settings.recurrence >= _WORTH_READING).nonzero()
    if not supported.size or search.vector is None:
        return found
    slots = search.view.slots(reached.memories[supported])
    (new,) = ((slots >= 0) & ~places_of(found.slots, slots)[1]).nonzero()
    if not new.size:
        return found
    slots, support = slots[new], reached.support[supported[new]]
    best = passing(search, slots[np.argsort(-support, kind="stable")[:_MOST_RECURRING]])
    new = best[np.isfinite(search.view.vectors.cosines(search.vector.raw, best))]
    return with_neighbours(scored(search, np.union1d(found.slots, new)), search) if new.size else found


def with_past_use(found: Candidates, past_use: PastUse) -> tuple[Candidates, Mask]:
    """Add what candidates gain from past use.

    Also return which of them (n,) runs used so much for such requests that this alone makes them relevant.
    """
    adaptation, settings, scale = past_use
    reached = adaptation.reached
    places, is_used = places_of(reached.memories, found.rows)
    (used,) = is_used.nonzero()
    gained = np.zeros(found.rows.shape)
    if used.size:
        places = places[used]
        own = _own(found.total, used)
        support = np.minimum(reached.support[places], 1.0)
        gained[used] = settings.association * reached.amounts[places] * own + settings.recurrence * support
    if settings.prior:
        gained += settings.prior * np.array([adaptation.prior.lift(row) for row in found.rows.tolist()])
    return msgspec.structs.replace(found, association=scale * gained), gained >= _WORTH_READING


def shifts(vectors: Embedding, past_use: PastUse) -> Scores:
    """Return what memories with `vectors` (p, d) gain from the adapted query (p,)."""
    along = vectors.dot(past_use.adaptation.direction).astype(np.float64)
    found: Scores = past_use.scale * past_use.settings.shift * along
    return found


def _own(totals: Scores, places: npt.NDArray[np.intp]) -> Scores:
    """Return the scores at `places` as shares of the best, 0 to 1."""
    best, own = float(totals[totals.argmax()]), totals[places]
    return np.maximum(own / best, 0.0) if best > 0 else np.zeros(own.shape)
