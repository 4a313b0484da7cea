"""What the learner adds to the scores of one recall. Pure numpy.

    association = w_a * reach * own + w_r * min(support, 1) + w_p * lift        shift = w_s * <memory, direction>
    outcome = w_o * (quality - 1/2) * own^6, 0 without a quality

`reach` says how like the request is to one for which a run used the memory, `support` adds up over all such runs,
from a cosine of .5 on (`sona/association`), and `lift` how much better than usual the runs went that used it, and
`own` is the memory's own score in shares of the best one. What was used before gains only as far as it also answers
this query, unless runs used it again and again for the same: that keeps memories that are often used from standing
before better answers (decision 0020). How its run ended counts half for what stands a tenth below the best, and next
to nothing further down: among those about equally close, the ones that worked come first. Each part is bounded, so
nothing can rise by more than their sum. What this does not do: learn (`sona`), decide whether it may rank
(`learning/learner`).

Shapes: n candidates, m memories reached.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from memory_agent.config import LearningSettings
from memory_agent.recall import ranking
from memory_agent.recall.ranking import Rows, Scores
from memory_agent.records import Embedding, MemoryRecord
from sona.association import Reached
from sona.learner import Adaptation

_MOST_RECURRING = 16
_WORTH_READING = 0.1
_STEEPNESS = 6
"""By which power of its own share the outcome counts; lower ones cost relevance among three (decision 0020)."""


def associations(rows: Rows, totals: Scores, adaptation: Adaptation, settings: LearningSettings) -> Scores:
    """Return (n,) what candidates in `rows` (ascending), worth `totals`, gain by having been used."""
    reached = adaptation.reached
    places, known = ranking.places_of(rows, reached.memories)
    places, reach, support = places[known], reached.amounts[known], reached.support[known]
    gained = np.zeros(rows.shape)
    gained[places] = settings.association * reach * _own(totals)[places]
    gained[places] += settings.recurrence * np.minimum(support, 1.0)
    if settings.prior:
        gained += settings.prior * np.array([adaptation.prior.lift(row) for row in rows.tolist()])
    return gained


def recurring(reached: Reached, rows: Rows, settings: LearningSettings) -> Rows:
    """Return which memories that are no candidates, not in `rows` (ascending), runs used again and again for this.

    At most 16, ascending, the best supported ones: what one run used once is a candidate by itself, or no answer.
    """
    supported = np.flatnonzero(reached.support * settings.recurrence >= _WORTH_READING)
    if not supported.size:
        return reached.memories[:0]
    new = supported[~ranking.places_of(rows, reached.memories[supported])[1]]
    best = new[np.argsort(-reached.support[new], kind="stable")[:_MOST_RECURRING]]
    return np.sort(reached.memories[best])


class Lift(msgspec.Struct, frozen=True):
    """What one of the best candidates, whose vectors and records are at hand, gains besides."""

    shift: float = 0.0
    outcome: float = 0.0

    @property
    def total(self) -> float:
        """Both together."""
        return self.shift + self.outcome


class Lifts(NamedTuple):
    """The same of all of them, each (n,)."""

    shift: Scores
    outcome: Scores

    def of(self, place: int) -> Lift:
        """Return what the candidate at `place` gains."""
        return Lift(float(self.shift[place]), float(self.outcome[place]))


def lifts(
    totals: Scores,
    vectors: Embedding,
    records: Sequence[MemoryRecord],
    adaptation: Adaptation,
    settings: LearningSettings,
) -> Lifts:
    """Return what memories, worth `totals` (n,), gain by where they lie, `vectors` (n, d), and how their runs ended."""
    shifts = settings.shift * (vectors @ adaptation.direction).astype(np.float64)
    outcomes = settings.outcome * _own(totals) ** _STEEPNESS * np.array([_beyond_half(record) for record in records])
    return Lifts(shifts, outcomes)


def _beyond_half(record: MemoryRecord) -> float:
    return 0.0 if record.quality_score is None else record.quality_score - 0.5


def _own(totals: Scores) -> Scores:
    """Return (n,) scores in shares of the best one, 0 to 1."""
    best = float(totals.max(initial=0.0))
    return np.clip(totals / best, 0.0, 1.0) if best > 0 else np.zeros(totals.shape)
