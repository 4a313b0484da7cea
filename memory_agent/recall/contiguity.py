"""Neighbours in time: the best matches lend part of their score to what happened right before and after them.

What answers a question often stands next to what resembles it, in the same session, as people remember too (temporal
contiguity; Howard and Kahana, 2002). Only the best `LENDERS` candidates lend, and only what they have above the next
best, so that a crowd of middling matches moves nothing. A neighbour of several takes the best offer. What this does
not do: look neighbours up (`candidates`). Rejected by measurement: lending by every candidate, which costs recall at 1
and a query per candidate (decision 0013); adding the offers up, which costs recall at 1 as well (decision 0015).

Shapes: n candidates.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from memory_agent.recall.ranking import Rows, Scores, best_first, places_of

LENDERS = 20
REACH = 2
_FAR_SHARE = 0.6
"""What a neighbour gets that is not the next one, as a part of what the next one gets."""
_LEAST_FLOOR = 0.4
"""Of the best score: where few memories match at all, the floor would lie at nothing, and neighbours above matches."""


class Window(NamedTuple):
    """The memory in row `centre` among its neighbours: `rows` of one session in order of time, the centre with them."""

    centre: int
    rows: tuple[int, ...]


class Loan(NamedTuple):
    """What the memory in row `lender` lends to the one in row `borrower`."""

    lender: int
    borrower: int
    amount: float


_NOTHING = Loan(0, 0, 0.0)


def lenders(scores: Scores, rows: Rows) -> list[int]:
    """Return the rows of the best candidates, best first."""
    chosen: list[int] = rows[best_first(scores, rows, LENDERS)].tolist()
    return chosen


def loans(scores: Scores, rows: Rows, windows: Iterable[Window], share: float) -> list[Loan]:
    """Return what each borrower is lent: the best offer of its neighbours, `share` of what they have above the floor.

    The floor is the first candidate that is no lender any more, or `_LEAST_FLOOR` of the best. `rows` (n,) ascending.
    """
    order = best_first(scores, rows, LENDERS + 1)
    if order.size < 2:
        return []
    floor = max(scores[order[-1]], _LEAST_FLOOR * scores[order[0]])
    around = list(windows)
    places, _ = places_of(rows, [window.centre for window in around])
    best: dict[int, Loan] = {}
    for window, score in zip(around, scores[places].tolist(), strict=True):
        for offer in _offers(window, (score - floor) * share):
            if offer.amount > best.get(offer.borrower, _NOTHING).amount:
                best[offer.borrower] = offer
    return list(best.values())


def _offers(window: Window, amount: float) -> list[Loan]:
    middle = window.rows.index(window.centre)
    return [
        Loan(window.centre, row, amount * (1.0 if abs(place - middle) == 1 else _FAR_SHARE))
        for place, row in enumerate(window.rows)
        if place != middle
    ]
