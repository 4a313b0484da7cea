"""The learner's part of the scores of one recall. Pure numpy.

    association = w_a * reach * own + w_r * min(support, 1) + w_p * lift        shift = w_s * <memory, direction>
    outcome = w_o * (quality - 1/2) * own^6, 0 without a quality

`reach` is the likeness of the request to one for which a run used the memory, `support` adds up over all such runs from
a cosine of .5 on (`sona/association`), `lift` is how much better than usual the runs went that used it, `own` the
memory's score as a share of the best. A used memory gains only as far as it also answers this query, unless runs used
it again and again for the same request; so frequently used memories do not displace better answers (decision 0020). The
outcome counts half for a memory a tenth below the best and next to nothing further down: among about equally good ones,
those that worked come first. Each part is bounded, so no score rises by more than their sum. Whether the learner may
rank is decided by `learning/learner`.

Shapes: n candidates, m memories reached.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from memory_agent.recall import fusion
from memory_agent.recall.fusion import Rows, Scores
from memory_agent.records import Embedding, MemoryRecord
from memory_agent.settings import LearningSettings
from sona.association import Reached
from sona.learner import Adaptation

_MOST_RECURRING = 16
_WORTH_READING = 0.1
_STEEPNESS = 6
"""Power of `own` in the outcome; lower ones cost relevance among three (decision 0020)."""


def associations(rows: Rows, totals: Scores, adaptation: Adaptation, settings: LearningSettings) -> Scores:
    """Return (n,) what candidates in `rows` (ascending) with scores `totals` gain from past use."""
    reached = adaptation.reached
    places, known = fusion.places_of(rows, reached.memories)
    places, reach, support = places[known], reached.amounts[known], reached.support[known]
    gained = np.zeros(rows.shape)
    gained[places] = settings.association * reach * _own(totals)[places]
    gained[places] += settings.recurrence * np.minimum(support, 1.0)
    if settings.prior:
        gained += settings.prior * np.array([adaptation.prior.lift(row) for row in rows.tolist()])
    return gained


def recurring(reached: Reached, rows: Rows, settings: LearningSettings) -> Rows:
    """Return the memories not in `rows` (ascending) that runs used repeatedly for such a request.

    At most 16, the best supported ones, ascending: what one run used once is a candidate anyway, or no answer.
    """
    supported = np.flatnonzero(reached.support * settings.recurrence >= _WORTH_READING)
    if not supported.size:
        return reached.memories[:0]
    new = supported[~fusion.places_of(rows, reached.memories[supported])[1]]
    best = new[np.argsort(-reached.support[new], kind="stable")[:_MOST_RECURRING]]
    return np.sort(reached.memories[best])


class Lift(msgspec.Struct, frozen=True):
    """What one of the best candidates gains from its vector and its outcome."""

    shift: float = 0.0
    outcome: float = 0.0

    @property
    def total(self) -> float:
        """The sum of both."""
        return self.shift + self.outcome


class Lifts(NamedTuple):
    """The lifts of all candidates, each (n,)."""

    shift: Scores
    outcome: Scores

    def of(self, place: int) -> Lift:
        """Return the lift of the candidate at `place`."""
        return Lift(float(self.shift[place]), float(self.outcome[place]))


def lifts(
    totals: Scores,
    vectors: Embedding,
    records: Sequence[MemoryRecord],
    adaptation: Adaptation,
    settings: LearningSettings,
) -> Lifts:
    """Return the lifts of memories with scores `totals` (n,), from `vectors` (n, d) and the outcomes of their runs."""
    shifts = settings.shift * (vectors @ adaptation.direction).astype(np.float64)
    outcomes = settings.outcome * _own(totals) ** _STEEPNESS * np.array([_beyond_half(record) for record in records])
    return Lifts(shifts, outcomes)


def _beyond_half(record: MemoryRecord) -> float:
    return 0.0 if record.quality_score is None else record.quality_score - 0.5


def _own(totals: Scores) -> Scores:
    """Return (n,) scores as shares of the best, 0 to 1."""
    best = float(totals.max(initial=0.0))
    return np.clip(totals / best, 0.0, 1.0) if best > 0 else np.zeros(totals.shape)
