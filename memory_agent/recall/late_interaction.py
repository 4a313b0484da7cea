"""How well the words of a query are met by the words of each memory, and of its neighbours in the session. Pure.

Late interaction (Khattab and Zaharia, 2020): each word of the query looks for the nearest word of a memory. Here a
memory's words are the signs of the model's vectors for its content words (`storage/word_bits`), and a word of the query
counts by its rarity. Where a memory's words are not known, a word that it has in any inflection counts `_SAME_WORD`.

    met(t, i)    = 3 similarity(t, i)^2.5 - .055 ln(words of i)
    own_i        = sum over t of share_t met(t, i)
    near_i       = sum over t of share_t max over |j - i| <= 2 in the session of met(t, j)
    closeness_i  = as near_i, of the likenesses of word vectors themselves
    closest_i    = max over t and |j - i| <= 2 in the session of met(t, j)
    held_i       = sum over t of share_t, of the words that i has
    lacked_i     = root of the sum over t of (rarity_t (1 - likeness_t))^2     likeness_t as in closeness, 0 to 1

The last four are for the relevance. There what neighbours add counts by the memory's credit, 0 to 1: a memory of
something else in the same session owes them nothing. What follows a question like the query, or has the run of a
neighbour, goes on with that, whatever its own words: there all of it counts. Where a memory's words are not known, its
likeness to a word is 1 if it has it, or 0. Their rarity is one in a store of few memories, too. Words by which the
query names a time have no part in them: a memory need not say when it was. In the ranking they keep it: without, the
nearness of a time weighs less beside the other words (4 points of R@10 on LoCoMo's questions with a time).

Long texts have a near word for everything by chance: hence the discount, and the power, which leaves the few close
words of a long report above it.

Shapes: q words of the query, n memories.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from memory_agent.embedders import comparable_words
from memory_agent.recall.dates import words_of
from memory_agent.recall.fusion import places_of
from memory_agent.recall.search import Search, passing
from memory_agent.storage.indexes import Mask, Scores, Slots
from memory_agent.storage.terms import asks
from memory_agent.storage.view import NO_NAME

REACH = 2
_SAME_WORD = 0.5
_GAIN = 3.0
_DISCOUNT = 0.055
_LEAST_WORDS = 4
_LEAST_RARITY = 0.001
_LIKE_QUESTION = 0.6  # cosine of two questions that ask the like
_PRIOR_MEMORIES = 100  # that have none of the words, for the smooth rarity


class Met(NamedTuple):
    """How well the words of a query are met by memories (n,): by their own words, and with their neighbours'.

    `closeness` and `closest` are NaN where the memory's word vectors are missing. `rarity` is that of all words of the
    query but those of a time, 0 without words.
    """

    own: Scores
    near: Scores
    closeness: Scores
    closest: Scores
    held: Scores
    held_nearby: Scores
    lacked: Scores
    rarity: float


class _Compared(NamedTuple):
    """The query's words, their similarities (q, n) to the nearest word of each memory, and which of them it has.

    `similarities` are NaN where word vectors are missing.
    """

    words: tuple[str, ...]
    similarities: Scores
    has: Mask


def late_interaction(search: Search, slots: Slots, credit: Scores, reach: int = REACH) -> Met:
    """Return how well the query's words are met by `slots` (n,), and by their neighbours that pass the filter.

    `credit` (n,) is the share of what neighbours add that counts for the relevance, `reach` their number on each side.
    """
    around = search.view.windows(slots, reach)
    everyone = passing(search, search.view.distinct(around))
    words, similarities, has = _compare(search, everyone)
    if not words or not len(slots):
        nothing = np.zeros(slots.shape)
        unknown = np.full(slots.shape, np.nan)
        return Met(nothing, nothing, unknown, unknown, nothing, nothing, nothing, 0.0)
    places, known = places_of(everyone, around)
    mine, places = places[:, reach], np.where(known, places, len(everyone))
    compared = np.fmax(similarities, np.where(has, _SAME_WORD, 0.0))
    length = np.maximum(search.view.words.lengths[everyone], _LEAST_WORDS)
    met = _GAIN * compared**2 * np.sqrt(compared) - _DISCOUNT * np.log(length)
    shares, rarities = _rarities(search, words)
    telling = _telling(search, words)
    rarities = np.where(telling, rarities, 0.0)
    smooth = rarities / rarities.sum()
    own, nearest = _nearest((np.where(np.isnan(similarities), has, similarities), met, has), places, reach)
    lent = nearest - own
    lent *= np.where(_is_continued(search, slots, around, known), 1.0, credit)
    lent += own
    likenesses, best, held_nearby = lent
    is_known = ~np.isnan(similarities[0, mine])
    return Met(
        own=shares @ own[1],
        near=shares @ nearest[1],
        closeness=np.where(is_known, smooth @ likenesses, np.nan),
        closest=np.where(is_known, best[telling].max(axis=0), np.nan),
        held=smooth @ own[2],
        held_nearby=smooth @ held_nearby,
        lacked=np.linalg.norm(rarities[:, None] * (1.0 - np.clip(likenesses, 0.0, 1.0)), axis=0),
        rarity=float(rarities.sum()),
    )


def _is_continued(search: Search, slots: Slots, around: Slots, known: Mask) -> Mask:
    """Return which of `slots` (n,) go on with what is beside them (n, r), as far as that is `known` (n, r).

    What follows a question does, if the query asks the like, and so does what has the run of a neighbour.
    """
    view, reach = search.view, around.shape[1] // 2
    found = np.zeros(slots.shape, dtype=np.bool_)
    if not reach:
        return found
    if search.cosines is not None and asks(search.query.text):
        before = around[:, reach - 1]
        found |= known[:, reach - 1] & view.asks[before] & (search.cosines.values[before] >= _LIKE_QUESTION)
    runs = view.runs[slots]
    if (runs != NO_NAME).any():
        shared = known & (view.runs[around] == runs[:, None])
        found |= (runs != NO_NAME) & (np.count_nonzero(shared, axis=1) > 1)
    return found


def _compare(search: Search, slots: Slots) -> _Compared:
    view, vector = search.view, search.vector
    has_words = vector is not None and bool(vector.words) and comparable_words(vector.words_stamp, view.words_stamp)
    words = vector.words if vector is not None and has_words else tuple(search.words)
    if vector is not None and has_words:
        similarities = view.word_bits.similarities(vector.word_vectors, slots)
        similarities[:, view.words.lengths[slots] == 0] = 0.0  # an emoji alone, "...": no word to be near
    else:
        similarities = np.full((len(words), len(slots)), np.nan)
    return _Compared(words, similarities, view.words.hits(words, slots))


def _telling(search: Search, words: tuple[str, ...]) -> Mask:
    """Return which of `words` (q,) are more than the name of a time, all of them where none is."""
    of_dates = words_of(date.phrase for date in search.dates)
    telling = np.array([word not in of_dates for word in words])
    return telling if telling.any() else ~telling


def _rarities(search: Search, words: tuple[str, ...]) -> tuple[Scores, Scores]:
    """Return the share (q,) of each word in the inverse document frequency of all, and the smooth frequency (q,).

    The caller's own words aside: the answer is the same before and after they arrive.
    """
    view, own = search.view, search.own.slots
    having = view.words.having(words)
    held = np.array([having[word] for word in words])
    if own.size:
        held -= view.words.hits(words, own).sum(axis=1)
    live = view.live - own.size
    rarity = np.maximum(np.log((live + 1) / (held + 0.5)), 0.0) + _LEAST_RARITY
    return rarity / rarity.sum(), np.log((live + _PRIOR_MEMORIES) / (held + 1.0))


def _nearest(values: Sequence[Scores | Mask], places: Slots, middle: int) -> tuple[Scores, Scores]:
    """Return `values` (v, q, m) at the `middle` of each row of `places` (n, r), and the greatest in the row, (v, q, n).

    A place of m is none; that in the middle is one.
    """
    words, count = values[0].shape
    padded = np.full((len(values), words, count + 1), -np.inf)
    for known, there in zip(padded, values, strict=True):
        known[:, :-1] = there
    own = greatest = padded.take(places[:, middle], axis=2)
    columns = places.T
    for column in (*columns[:middle], *columns[middle + 1 :]):
        greatest = np.maximum(greatest, padded.take(column, axis=2), out=None if greatest is own else greatest)
    return own, greatest
