"""Words in context: how much of the query a memory and its neighbours in the session say between them.

A question's words are often spread over a few turns: one names the thing, the next says what became of it. Each of the
best matches and of their neighbours is given the query's words that it or a memory at most `REACH` places away has,
weighed by how rare they are among these memories. Pure. Rejected by measurement (decision 0015): adding up BM25 over
neighbours, which counts a word that each of them repeats several times; rarity in the whole store, which is no better
and costs a look at every memory that has the word.

Shapes: m memories, w words.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from memory_agent.recall.contiguity import REACH, Window
from memory_agent.recall.ranking import Rows, Scores

Hits = npt.NDArray[np.bool_]


def coverage(hits: Hits, rows: Rows, windows: Iterable[Window]) -> Scores:
    """Return (m,) the share of the query's weight that each of `rows` (ascending) covers, of the best one's share.

    `hits` (w, m) says which memory has which word. All zeros when none has any.
    """
    within = hits.astype(np.float64) @ _beside(rows, windows) > 0
    weights = _rarity(hits) @ within
    best = float(np.max(weights, initial=0.0))
    return weights / best if best > 0 else np.zeros(rows.shape)


def _beside(rows: Rows, windows: Iterable[Window]) -> Scores:
    """Return (m, m): 1 where two memories are the same, or stand at most `REACH` places apart."""
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
    """Return (w,) the weight of each word: the inverse document frequency of BM25 among these memories."""
    having = hits.sum(axis=1)
    weights: Scores = np.log1p((hits.shape[1] - having + 0.5) / (having + 0.5))
    return np.where(having > 0, weights, 0.0)
