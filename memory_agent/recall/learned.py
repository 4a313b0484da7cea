"""The learner's part of the scores of one recall. Pure numpy.

    association = w_a * reach * own + w_r * min(support, 1) + w_p * lift        shift = w_s * <memory, direction>

`reach` is the likeness of the request to one for which a run used the memory, `support` adds up over all such runs from
a cosine of .5 on (`sona/association`), `lift` is how much better than usual the runs went that used it, `own` the
memory's score as a share of the best. A used memory gains only as far as it also answers this query, unless runs used
it again and again for the same request; so frequently used memories do not displace better answers (decision 0020).
Each part is bounded, so no score rises by more than their sum. Whether the learner may rank is decided by
`learning/learner`. How the runs of the memories themselves ended counts in either ranking (`outcome`).

Shapes: n candidates, m memories reached, p leaders, d dimensions.
"""

from __future__ import annotations

import msgspec
import numpy as np

from memory_agent.embedded import Embedding
from memory_agent.recall.candidates import Candidates, scored
from memory_agent.recall.fusion import places_of
from memory_agent.recall.neighbours import with_neighbours
from memory_agent.recall.search import Search, passing
from memory_agent.settings import LearningSettings
from memory_agent.storage.indexes import Mask, Scores, Slots
from sona.association import Reached
from sona.learner import Adaptation

_MOST_RECURRING = 16
_WORTH_READING = 0.1


def with_past_use(found: Candidates, search: Search, adaptation: Adaptation, settings: LearningSettings) -> Candidates:
    """Add what candidates gain from past use; memories used repeatedly for such a request become candidates."""
    reached = adaptation.reached
    slots = search.view.slots(reached.memories)
    new = _recurring(found, slots, reached, search, settings)
    if new.size:
        found = with_neighbours(scored(search, np.union1d(found.slots, new)), search)
    total = found.total
    places, known = places_of(found.slots, slots)
    known &= slots >= 0
    places, reach, support = places[known], reached.amounts[known], reached.support[known]
    gained = np.zeros(found.slots.shape)
    gained[places] = settings.association * reach * _own(total)[places]
    gained[places] += settings.recurrence * np.minimum(support, 1.0)
    if settings.prior:
        gained += settings.prior * np.array([adaptation.prior.lift(row) for row in found.rows.tolist()])
    return msgspec.structs.replace(found, association=gained)


def is_vouched(found: Candidates) -> Mask:
    """Return which candidates (n,) runs used so much for such requests that this alone makes them relevant."""
    vouched: Mask = found.association >= _WORTH_READING
    return vouched


def _recurring(found: Candidates, slots: Slots, reached: Reached, search: Search, settings: LearningSettings) -> Slots:
    """Return the memories, not candidates yet, that runs used repeatedly for such a request, of those in `slots` (m,).

    At most 16, the best supported ones, that pass the filter and have a vector: what one run used once is a candidate
    anyway, or no answer.
    """
    (supported,) = ((reached.support * settings.recurrence >= _WORTH_READING) & (slots >= 0)).nonzero()
    if not supported.size or search.vector is None:
        return np.empty(0, dtype=np.int64)
    new = supported[~places_of(found.slots, slots[supported])[1]]
    best = passing(search, slots[new[np.argsort(-reached.support[new], kind="stable")[:_MOST_RECURRING]]])
    return np.sort(best[np.isfinite(search.view.vectors.cosines(search.vector.raw, best))])


def shifts(vectors: Embedding, adaptation: Adaptation, settings: LearningSettings) -> Scores:
    """Return what memories with `vectors` (p, d) gain from the adapted query (p,)."""
    found: Scores = settings.shift * (vectors @ adaptation.direction).astype(np.float64)
    return found


def _own(totals: Scores) -> Scores:
    """Return scores as shares of the best, 0 to 1."""
    best = float(totals.max(initial=0.0))
    return np.minimum(np.maximum(totals / best, 0.0), 1.0) if best > 0 else np.zeros(totals.shape)
