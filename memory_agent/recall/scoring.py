"""The score of each candidate, kept as its parts, so that an answer can explain it.

    score = fused + dates + context + lent + association

Shapes: n candidates.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from memory_agent.recall import fusion
from memory_agent.recall.boosts import Loan
from memory_agent.recall.candidates import Candidates, join, keep
from memory_agent.recall.fusion import Rows, Scores


class Scored(msgspec.Struct, frozen=True):
    """Candidates with the parts of their scores, each (n,). `weight` is that of the vector side in `fused`.

    `association` is 0 unless the learner ranks (`learned`).
    """

    found: Candidates
    weight: float
    fused: Scores
    dates: Scores
    context: Scores
    lent: Scores
    association: Scores
    loans: tuple[Loan, ...] = ()

    @property
    def rows(self) -> Rows:
        """The candidates' rows, ascending."""
        return self.found.rows

    @property
    def total(self) -> Scores:
        """The score that they are ranked by."""
        return self.fused + self.dates + self.context + self.lent + self.association


def score(found: Candidates, vector_weight: float, dates: Scores) -> Scored:
    """Return the candidates with their fused scores and date boosts."""
    weight = fusion.effective_weight(found.cosines, found.bm25, vector_weight)
    nothing = np.zeros(found.rows.shape)
    fused = fusion.fuse(found.cosines, found.bm25, weight)
    return Scored(found, weight, fused, dates, nothing, nothing, nothing)


def with_context(scored: Scored, rows: Rows, amounts: Scores) -> Scored:
    """Add what `rows` gain from context words."""
    return msgspec.structs.replace(scored, context=fusion.spread(scored.rows, rows, amounts, missing=0.0))


def with_loans(scored: Scored, loans: Iterable[Loan], own: Rows) -> Scored:
    """Add the loans, one per borrower; drop neighbours that got none and are not among the `own` candidates."""
    made = tuple(loans)
    borrowers = np.array([loan.borrower for loan in made], dtype=np.int64)
    lent = fusion.spread(scored.rows, borrowers, np.array([loan.amount for loan in made]), missing=0.0)
    kept = (lent > 0) | np.isin(scored.rows, own)
    return Scored(
        found=keep(scored.found, kept),
        weight=scored.weight,
        fused=scored.fused[kept],
        dates=scored.dates[kept],
        context=scored.context[kept],
        lent=lent[kept],
        association=scored.association[kept],
        loans=made,
    )


def joined(scored: Scored, others: Scored) -> Scored:
    """Join scored candidates of the same query with distinct rows."""
    order = np.argsort(np.concatenate((scored.rows, others.rows)))
    parts = ("fused", "dates", "context", "lent", "association")
    return msgspec.structs.replace(
        scored,
        found=join(scored.found, others.found, order),
        **{part: np.concatenate((getattr(scored, part), getattr(others, part)))[order] for part in parts},
    )


def with_association(scored: Scored, association: Scores) -> Scored:
    """Add what each candidate gains from past use, (n,)."""
    return msgspec.structs.replace(scored, association=association)
