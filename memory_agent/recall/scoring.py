"""What each candidate is worth, part by part: fused likeness, its time, words in context, what neighbours lend.

    score = fused + dates + context + lent

The parts stay apart, so that an answer can say why. What this does not do: find candidates (`candidates`), or leave out
what says the same twice (`selection`).

Shapes: n candidates.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from memory_agent.recall import ranking
from memory_agent.recall.candidates import Candidates, keep
from memory_agent.recall.contiguity import Loan
from memory_agent.recall.ranking import Rows, Scores


class Scored(msgspec.Struct, frozen=True):
    """Candidates with the parts of their scores, each (n,). `weight` is that of the vector side in `fused`."""

    found: Candidates
    weight: float
    fused: Scores
    dates: Scores
    context: Scores
    lent: Scores
    loans: tuple[Loan, ...] = ()

    @property
    def rows(self) -> Rows:
        """The candidates' rows, ascending."""
        return self.found.rows

    @property
    def total(self) -> Scores:
        """What they are ranked by."""
        return self.fused + self.dates + self.context + self.lent


def score(found: Candidates, alpha: float, dates: Scores) -> Scored:
    """Return what the candidates are worth by themselves, with what they gain by their time."""
    weight = ranking.vector_weight(found.cosines, found.bm25, alpha)
    nothing = np.zeros(found.rows.shape)
    return Scored(found, weight, ranking.fuse(found.cosines, found.bm25, weight), dates, nothing, nothing)


def with_context(scored: Scored, rows: Rows, amounts: Scores) -> Scored:
    """Add what some of them gain by the words around them."""
    context = scored.context.copy()
    context[ranking.places_of(scored.rows, rows)] += amounts
    return msgspec.structs.replace(scored, context=context)


def with_loans(scored: Scored, loans: Iterable[Loan], own: Rows) -> Scored:
    """Add what neighbours lend, and leave out those who are lent nothing and are no candidates of their `own`."""
    made = tuple(loans)
    lent = scored.lent.copy()
    for _, borrower, amount in made:
        lent[ranking.places_of(scored.rows, [borrower])] += amount
    kept = (lent > 0) | np.isin(scored.rows, own)
    return Scored(
        found=keep(scored.found, kept),
        weight=scored.weight,
        fused=scored.fused[kept],
        dates=scored.dates[kept],
        context=scored.context[kept],
        lent=lent[kept],
        loans=made,
    )
