"""What the learner adds to the scores of one recall. Pure numpy.

    association = w_a * reach * own + w_r * min(support, 1) + w_p * lift        shift = w_s * <memory, direction>
    outcome = w_o * (quality - 1/2) * own^2, 0 without a quality

`reach` says how like the request is to one for which a run used the memory, `support` adds up over all such runs,
from a cosine of .5 on (`sona/association`), and `lift` how much better than usual the runs went that used it, and
`own` is the memory's own score in shares of the best one. What was used before gains only as far as it also answers
this query, unless runs used it again and again for the same: that keeps memories that are often used from standing
before better answers (decision 0020). Each part is bounded, so nothing can rise by more than their sum. What this
does not do: learn (`sona`), decide whether it may rank (`learning/teacher`).

Shapes: n candidates, m memories reached.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from memory_agent.config import LearningSettings
from memory_agent.recall import ranking
from memory_agent.recall.ranking import Rows, Scores
from memory_agent.records import Embedding, MemoryRecord
from sona.association import Reached
from sona.engine import Adaptation

_MOST_RECURRING = 16
_WORTH_READING = 0.1


def associations(rows: Rows, totals: Scores, adaptation: Adaptation, settings: LearningSettings) -> Scores:
    """Return (n,) what candidates in `rows` (ascending), worth `totals`, gain by having been used."""
    reached = adaptation.reached
    reach = ranking.spread(rows, reached.memories, reached.amounts, missing=0.0)
    support = ranking.spread(rows, reached.memories, reached.support, missing=0.0)
    gained = settings.association * reach * _own(totals) + settings.recurrence * np.minimum(support, 1.0)
    if settings.prior:
        gained += settings.prior * np.array([adaptation.prior.lift(row) for row in rows.tolist()])
    return gained


def recurring(reached: Reached, rows: Rows, settings: LearningSettings) -> Rows:
    """Return which memories that are no candidates, not in `rows` (ascending), runs used again and again for this.

    At most 16, ascending, the best supported ones: what one run used once is a candidate by itself, or no answer.
    """
    supported = np.flatnonzero(settings.recurrence * reached.support >= _WORTH_READING)
    new = supported[~np.isin(reached.memories[supported], rows)]
    best = new[np.argsort(-reached.support[new], kind="stable")[:_MOST_RECURRING]]
    return np.sort(reached.memories[best])


class Lift(msgspec.Struct, frozen=True):
    """What the best candidates, whose vectors and records are at hand, gain besides."""

    shift: float = 0.0
    outcome: float = 0.0

    @property
    def total(self) -> float:
        """Both together."""
        return self.shift + self.outcome


def lifts(
    totals: Scores,
    vectors: Embedding,
    records: Sequence[MemoryRecord],
    adaptation: Adaptation,
    settings: LearningSettings,
) -> list[Lift]:
    """Return what memories, worth `totals` (n,), gain by where they lie, `vectors` (n, d), and how their runs ended."""
    shifts = settings.shift * (vectors @ adaptation.direction)
    outcomes = settings.outcome * _own(totals) ** 2 * np.array([_beyond_half(record) for record in records])
    return [Lift(float(shift), float(outcome)) for shift, outcome in zip(shifts, outcomes, strict=True)]


def _beyond_half(record: MemoryRecord) -> float:
    return 0.0 if record.quality_score is None else record.quality_score - 0.5


def _own(totals: Scores) -> Scores:
    """Return (n,) scores in shares of the best one, 0 to 1."""
    best = float(totals.max(initial=0.0))
    return np.clip(totals / best, 0.0, 1.0) if best > 0 else np.zeros(totals.shape)
