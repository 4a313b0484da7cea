"""Neighbours in time: the best matches lend part of their score to what happened right before and after them.

What answers a question often stands next to what resembles it, in the same session, as people remember too (temporal
contiguity; Howard and Kahana, 2002). Only the best `LENDERS` candidates lend, and only what they have above the next
best, so that a crowd of middling matches moves nothing. What this does not do: look neighbours up (`candidates`).
Rejected by measurement (decision 0013): lending by every candidate, which costs recall at 1 and a query per candidate.

Shapes: n candidates, l loans.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from memory_agent.recall.ranking import Rows, Scores, best_first

LENDERS = 20
REACH = 2
_FAR_SHARE = 0.6
"""What a neighbour gets that is not the next one, as a part of what the next one gets."""


class Loan(NamedTuple):
    """What the memory in row `lender` lends to the one in row `borrower`."""

    lender: int
    borrower: int
    amount: float


def surpluses(scores: Scores, rows: Rows) -> dict[int, float]:
    """Return, by row, what each of the best candidates has above the first one that is not among them."""
    order = best_first(scores, rows, LENDERS + 1)
    if order.size < 2:
        return {}
    floor = scores[order[-1]]
    return {int(rows[place]): float(scores[place] - floor) for place in order[:-1] if scores[place] > floor}


def loan(lender: int, borrower: int, offset: int, surplus: float, share: float) -> Loan:
    """Return the loan to a neighbour `offset` places away in the session, `share` of the surplus to the next one."""
    return Loan(lender, borrower, surplus * share * (1.0 if abs(offset) == 1 else _FAR_SHARE))


def lend(scores: Scores, rows: Rows, loans: list[Loan]) -> Scores:
    """Return (n,) the scores with what was lent. `rows` (n,) ascending; loans to rows that are not there are void."""
    lent = np.zeros_like(scores)
    for _, borrower, amount in loans:
        place = int(np.searchsorted(rows, borrower))
        if place < rows.size and rows[place] == borrower:
            lent[place] += amount
    return scores + lent
