"""How well the words of a query are met by the words of each memory, and of its neighbours in the session. Pure.

Late interaction (Khattab and Zaharia, 2020): each word of the query looks for the nearest word of a memory. Here a
memory's words are the signs of the model's vectors for its content words (`storage/word_bits`), and a word of the query
counts by its rarity. Where a memory's words are not known, a word that it has in any inflection counts `_SAME_WORD`.

    met(t, i)    = 3 similarity(t, i)^2.5 - .065 ln(words of i)
    own_i        = sum over t of share_t met(t, i)
    near_i       = sum over t of share_t max over |j - i| <= 2 in the session of met(t, j)
    closeness_i  = as near_i, of the similarities themselves

Long texts have a near word for everything by chance: hence the discount, and the power, which leaves the few close
words of a long report above it.

Shapes: q words of the query, n memories.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from memory_agent.embedders import comparable_words
from memory_agent.recall.fusion import places_of
from memory_agent.recall.search import Search
from memory_agent.storage.indexes import Scores, Slots

REACH = 2
_SAME_WORD = 0.5
_GAIN, _STEEPNESS = 3.0, 2.5
_DISCOUNT = 0.065
_LEAST_WORDS = 4
_LEAST_RARITY = 0.001


class Met(NamedTuple):
    """How well the words of a query are met by memories (n,): by their own words, and with their neighbours'."""

    own: Scores
    near: Scores
    closeness: Scores


def late_interaction(search: Search, slots: Slots) -> Met:
    """Return how well the query's words are met by `slots` (n,), ascending; only these are neighbours of each other."""
    words, similarities = _similarities(search, slots)
    if not words or not len(slots):
        nothing = np.zeros(slots.shape)
        return Met(nothing, nothing, nothing)
    shares = _shares(search, words)
    length = np.maximum(search.view.words.lengths[slots], _LEAST_WORDS)
    met = _GAIN * np.maximum(similarities, 0.0) ** _STEEPNESS - _DISCOUNT * np.log(length)
    around = search.view.windows(slots, REACH)
    places, known = places_of(slots, around)
    places = np.where(known, places, len(slots))
    return Met(shares @ met, shares @ _nearest(met, places), shares @ _nearest(similarities, places))


def _similarities(search: Search, slots: Slots) -> tuple[tuple[str, ...], Scores]:
    """Return the content words of the query, and their similarities (q, n) to the nearest word of each memory."""
    view, vector = search.view, search.vector
    if vector is None or not vector.words or not comparable_words(vector.words_stamp, view.words_stamp):
        words = tuple(search.words)
        return words, np.where(view.words.hits(words, slots), _SAME_WORD, 0.0)
    found = np.nan_to_num(view.word_bits.similarities(vector.word_vectors, slots))
    np.maximum(found, _SAME_WORD, out=found, where=view.words.hits(vector.words, slots))
    return vector.words, found


def _shares(search: Search, words: tuple[str, ...]) -> Scores:
    """Return the share (q,) of each word in the rarity of all: inverse document frequency, own words aside."""
    view, own = search.view, search.own.slots
    having = view.words.having(words)
    held = np.array([having[word] for word in words]) - view.words.hits(words, own).sum(axis=1)
    rarity = np.maximum(np.log((view.live - own.size + 1) / (held + 0.5)), 0.0) + _LEAST_RARITY
    shares: Scores = rarity / rarity.sum()
    return shares


def _nearest(values: Scores, places: Slots) -> Scores:
    """Return the greatest of `values` (q, n) at each row of `places` (n, r), n for none."""
    padded = np.concatenate([values, np.full((len(values), 1), -np.inf)], axis=1)
    greatest = values
    for column in places.T:
        greatest = np.maximum(greatest, padded[:, column])
    return greatest
