"""Boosts of a memory's score by its neighbours in the session and by its time. Pure.

Contiguity: what answers a question often stands next to what resembles it (temporal contiguity; Howard and Kahana,
2002). Only the best `LENDERS` candidates lend, and only what they score above the next best, so that a crowd of
middling matches moves nothing; a neighbour of several takes the best offer. Rejected by measurement: lending by every
candidate, which costs recall at 1 and a query per candidate (decision 0013); adding offers, which costs recall at 1
(decision 0015).

Context words: the words of a question are often spread over a few turns. The best matches and their neighbours are
credited with the query words that they or a memory at most `REACH` places away have, weighted by rarity among these
memories. Rejected by measurement (decision 0015): adding BM25 over neighbours, which counts repeated words several
times; rarity in the whole store, which is no better and reads every memory that has the word.

Dates: an event of a day is often told on the days after it and never before, so a memory inside a span that the query
names scores 1, and fades after its end.

Shapes: n candidates, m memories, w words.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from memory_agent.recall.fusion import Rows, Scores, best_first, places_of
from memory_agent.records import UnderstoodDate
from memory_agent.storage.codec import microseconds

LENDERS = 20
REACH = 2
_FAR_SHARE = 0.6
"""What a neighbour two places away gets, as a share of what an adjacent one gets."""
_LEAST_FLOOR = 0.4
"""The least floor, as a share of the best score: with few matches it would be 0, and neighbours outrank matches."""


class Window(NamedTuple):
    """The memory in row `centre` with its neighbours: `rows` of one session by time, centre included."""

    centre: int
    rows: tuple[int, ...]


class Loan(NamedTuple):
    """The score that the memory in row `lender` lends to the one in row `borrower`."""

    lender: int
    borrower: int
    amount: float


_NOTHING = Loan(0, 0, 0.0)


def lenders(scores: Scores, rows: Rows) -> list[int]:
    """Return the rows of the best `LENDERS` candidates, best first."""
    chosen: list[int] = rows[best_first(scores, rows, LENDERS)].tolist()
    return chosen


def loans(scores: Scores, rows: Rows, windows: Iterable[Window], share: float) -> list[Loan]:
    """Return the best offer to each borrower: `share` of what a neighbour scores above the floor.

    The floor is the first candidate that is not a lender, at least `_LEAST_FLOOR` of the best. `rows` (n,) ascend.
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


Hits = npt.NDArray[np.bool_]


def coverage(hits: Hits, rows: Rows, windows: Iterable[Window]) -> Scores:
    """Return (m,) the weight of the query words that each of `rows` (ascending) covers, relative to the best.

    `hits` (w, m) marks which memory has which word. All zeros when none has any.
    """
    within = hits.astype(np.float64) @ _beside(rows, windows) > 0
    weights = _rarity(hits) @ within
    best = float(np.max(weights, initial=0.0))
    return weights / best if best > 0 else np.zeros(rows.shape)


def _beside(rows: Rows, windows: Iterable[Window]) -> Scores:
    """Return (m, m): 1 where two memories are the same or at most `REACH` places apart."""
    place_of = {row: place for place, row in enumerate(rows.tolist())}
    pairs = [
        (place_of[one], place_of[other])
        for window in windows
        for apart in range(1, REACH + 1)
        for one, other in zip(window.rows, window.rows[apart:], strict=False)
        if one in place_of and other in place_of
    ]
    near = np.eye(rows.size)
    if pairs:
        ones, others = np.array(pairs).T
        near[ones, others] = near[others, ones] = 1.0
    return near


def _rarity(hits: Hits) -> Scores:
    """Return (w,) the inverse document frequency of BM25 of each word among these memories."""
    having = hits.sum(axis=1)
    weights: Scores = np.log1p((hits.shape[1] - having + 0.5) / (having + 0.5))
    return np.where(having > 0, weights, 0.0)


_LEAST_FADING = timedelta(days=1)
_MOST_FADING = timedelta(days=7)


def nearness(times_us: Rows, dates: Iterable[UnderstoodDate]) -> Scores:
    """Return (n,) from 0 to 1: how near each time, in microseconds since 1970, is to the nearest of `dates`."""
    nearest = np.zeros(times_us.shape)
    for date in dates:
        nearest = np.maximum(nearest, _to_one(times_us, date))
    return nearest


def _to_one(times_us: Rows, date: UnderstoodDate) -> Scores:
    since_us = -np.inf if date.since is None else microseconds(date.since, "since")
    if date.until is None:
        return np.where(times_us >= since_us, 1.0, 0.0)
    late_us = np.maximum(times_us - microseconds(date.until, "until"), 0) / _fading(date).total_seconds() / 1e6
    told_later = date.since is not None
    fading = np.exp(-late_us) if told_later else np.where(late_us > 0, 0.0, 1.0)
    within = times_us < microseconds(date.until, "until")
    return np.where(times_us >= since_us, np.where(within, 1.0, fading), 0.0)


def _fading(date: UnderstoodDate) -> timedelta:
    """Return the time after a span in which its boost fades to 1/e: the length of the span, within bounds."""
    if date.since is None or date.until is None:
        return _LEAST_FADING
    return min(max(date.until - date.since, _LEAST_FADING), _MOST_FADING)
