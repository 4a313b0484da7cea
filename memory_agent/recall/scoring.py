"""What each candidate is worth, part by part: fused likeness, its time, words in context, what neighbours lend, and
what was learnt of it.

    score = fused + dates + context + lent + association

The parts stay apart, so that an answer can say why. What this does not do: find candidates (`candidates`), or leave out
what says the same twice (`selection`).

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

    `association` is what the learner adds to candidates, nothing unless it ranks (`learned`).
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
        """What they are ranked by."""
        return self.fused + self.dates + self.context + self.lent + self.association


def score(found: Candidates, alpha: float, dates: Scores) -> Scored:
    """Return what the candidates are worth by themselves, with what they gain by their time."""
    weight = fusion.vector_weight(found.cosines, found.bm25, alpha)
    nothing = np.zeros(found.rows.shape)
    fused = fusion.fuse(found.cosines, found.bm25, weight)
    return Scored(found, weight, fused, dates, nothing, nothing, nothing)


def with_context(scored: Scored, rows: Rows, amounts: Scores) -> Scored:
    """Add what some of them gain by the words around them."""
    return msgspec.structs.replace(scored, context=fusion.spread(scored.rows, rows, amounts, missing=0.0))


def with_loans(scored: Scored, loans: Iterable[Loan], own: Rows) -> Scored:
    """Add what neighbours lend, one loan each; leave out who is lent nothing and is no candidate of its `own`."""
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
    """Return the candidates of both, whose rows are distinct; `others` were scored by the same query."""
    order = np.argsort(np.concatenate((scored.rows, others.rows)))
    parts = ("fused", "dates", "context", "lent", "association")
    return msgspec.structs.replace(
        scored,
        found=join(scored.found, others.found, order),
        **{part: np.concatenate((getattr(scored, part), getattr(others, part)))[order] for part in parts},
    )


def with_association(scored: Scored, association: Scores) -> Scored:
    """Add what each, (n,), gains by having been used."""
    return msgspec.structs.replace(scored, association=association)
