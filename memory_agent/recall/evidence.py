"""Computes how well memories match the words of a query, and how likely they are to be relevant. Pure.

**Late interaction** (Khattab and Zaharia, 2020): each word of the query is matched with a memory's nearest word. A
memory is represented by the signs of its content words' vectors (`storage/passages`). Each word t of the query is
weighted by its share of the query's total rarity. If a memory's word vectors are unknown, a word of the query has the
similarity `_SAME_WORD` if the memory contains it in any inflection.

    met(t, i)    = 3 similarity(t, i)^2.5 - .055 ln(words of i)     the discount is for words that match by chance
    own_i        = sum over t of share_t met(t, i)
    near_i       = sum over t of share_t max over |j - i| <= 2 in the session of met(t, j)
    closeness_i  = as near_i, with the cosines of the word vectors instead of met
    closest_i    = max over t and |j - i| <= 2 in the session of met(t, j)
    held_i       = sum of share_t over the words t that i contains
    lacked_i     = square root of the sum over t of (rarity_t (1 - cosine_t))^2     cosine_t as in closeness, 0 to 1

The last four values contribute to the relevance. In these values, the contribution of neighbours is multiplied by the
memory's credit, so that a memory about another topic gains nothing. A memory that follows a question similar to the
query, or belongs to a neighbour's run, has full credit. Rarities are smoothed for small stores. Words that name a time
are ignored here, since a memory need not state its own time; the ranking does count them.

**Relevance** is the likelihood that a memory is relevant to the query, from 0 to 1, on the same scale in every mode. It
is not the probability that the memory is *the* evidence.

    s_i          = cosine + 1.35 closeness + .4 closest + .35 held^2 - .03 lacked - .3 (G(T) - G(20,000))
    G(T)         = sqrt(2 ln(1 + T / 30))                      T = tokens of all memories that may answer
    e_i          = 9 (s_i - 1.2)                               the evidence, a logit
    relevance_i  = sigma(e_i + credit_i max(min(E, 3) - e_i, 0) / 2)
    credit_i     = (cosine - .1) / .2, from 0 to 1             E = the best e of all but earlier requests

G(T) is the expected best match by chance, which grows with the amount of text. A good match raises the relevance of the
other memories, because evidence often uses different words than the query. If the word vectors, the words or the vector
are missing, a different `Line` computes the relevance on the same scale. Relevance is calibrated for the bundled model
(decision 0014); with a different model, the relevance of memories with a vector is unknown (NaN).

Shapes: q words of the query, n memories.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from memory_agent.embedders import comparable_words
from memory_agent.recall.dates import words_of
from memory_agent.recall.search import Search
from memory_agent.storage.column import Mask, Scores, Slots
from memory_agent.storage.terms import asks
from memory_agent.storage.view import NO_NAME

REACH = 2
_SAME_WORD = 0.5
_GAIN = 3.0
_DISCOUNT = 0.055
_LEAST_WORDS = 4
_LEAST_RARITY = 0.001
_LIKE_QUESTION = 0.6  # cosine of two similar questions
_PRIOR_MEMORIES = 100  # number of memories without the word that are added to the count, to smooth the rarity

CALIBRATED_MODEL = "all-MiniLM-L6-v2"  # the constants are fitted to this model

_TOKENS_PER_WORD = 1.3
_USUAL_TOKENS = 20_000
_TOKENS_PER_CHANCE = 30.0  # assumed length of a text that may match by chance, about one message
_LEAST_TOKENS = 16  # shorter memories are not discounted
_SHRINKAGE = 8.0  # discount for rarity matched by chance, as a multiple of the square root of the query's rarity


class Line(NamedTuple):
    """The logit of a sum of parts: `slope` (sum - `growth` G(T) - `centre`)."""

    slope: float
    centre: float
    growth: float


# These values are fitted to LoCoMo, BEAM, SWE and airline runs (decision 0014) by `python -m ops.bench.relevance`.
ALL = Line(9.0, 1.2, 0.3)
NO_WORD_VECTORS = Line(11.0, 0.46, 0.2)
NO_WORDS = Line(21.1, 0.4, 0.1)
NO_VECTOR = Line(9.0, -0.08, 0.1)
_NEAR, _CLOSEST, _HELD, _LACKED = 1.35, 0.4, 0.35, 0.03
_SAID, _SAID_NEARBY, _UNSAID = 0.2, 0.3, 0.015  # without word vectors
_GAIN_OF_SHARE, _LENGTH, _LOSS = 3.0, 0.07, 0.06  # without a vector
_FAR, _NEAR_ENOUGH = 0.1, 0.3  # cosines at which credit is 0 and 1; a tenth of the evidence has less than .3
_MOST_VOUCHED = 3.0  # a limit of 2 loses 1 point of R@10; a limit of 4 adds 0.1 to 0.4 memories to an answer


class Met(NamedTuple):
    """How well memories (n,) match a query's words, by their own words and by those of their neighbours.

    `closeness` and `closest` are NaN if the memory's word vectors are missing. `rarity` is the sum over the query's
    words that do not name a time.
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
    """The query's words, and how memories match them."""

    words: tuple[str, ...]
    similarities: Scores  # (q, n), to each memory's nearest word; NaN if unknown
    has: Mask  # (q, n)


def late_interaction(search: Search, slots: Slots, credit: Scores, reach: int = REACH) -> Met:
    """Return how well `slots` (n,) match the query's words, alone and together with neighbours that pass the filter.

    `credit` (n,) is the share of the neighbours' contribution that counts towards the relevance. `reach` is the number
    of neighbours on each side.
    """
    around = search.view.windows(slots, reach)
    everyone = search.passing(search.view.distinct(around))
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
    """Return which of `slots` (n,) continue a neighbour. `around` (n, r) contains each slot's neighbours; those that
    are not `known` (n, r) are ignored.

    A memory continues a neighbour if both belong to the same run, or if the neighbour is a question similar to the
    query and directly precedes the memory.
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
        similarities[:, view.words.lengths[slots] == 0] = 0.0  # no words, as in "..." or a single emoji
    else:
        similarities = np.full((len(words), len(slots)), np.nan)
    return _Compared(words, similarities, view.words.hits(words, slots))


def _telling(search: Search, words: tuple[str, ...]) -> Mask:
    """Return which of `words` (q,) do not belong to a date; if all words belong to dates, return all."""
    of_dates = words_of(date.phrase for date in search.dates)
    telling = np.array([word not in of_dates for word in words])
    return telling if telling.any() else ~telling


def _rarities(search: Search, words: tuple[str, ...]) -> tuple[Scores, Scores]:
    """Return each word's share (q,) of the total inverse document frequency, and its smoothed rarity (q,).

    The caller's own words do not count, so that storing them does not change the answer.
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
    """For each row of `places` (n, r), return the `values` (v, q, m) at the place in column `middle`, and the maximum
    over all places of the row. Both results are (v, q, n).

    A place equal to m stands for a missing memory. The middle of a row is never missing.
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


def evidence(met: Met, cosines: Scores, lengths: npt.NDArray[np.int32], words: int) -> Scores:
    """Return each memory's evidence (n,) as a logit, ignoring other candidates, or NaN if unknown.

    `cosines` (n,) is NaN for a memory without a vector. `lengths` (n,) contains each memory's number of words, and
    `words` is the sum over all memories that an answer may contain.
    """
    size = _by_chance(words * _TOKENS_PER_WORD) - _by_chance(_USUAL_TOKENS)
    if not met.rarity:
        return _logit(NO_WORDS, cosines, size)
    parts = _NEAR * met.closeness + _CLOSEST * met.closest + _HELD * met.held**2 - _LACKED * met.lacked
    found = _logit(ALL, cosines + parts, size)
    if (is_bare := np.isnan(met.closeness)).any():
        said = cosines + _SAID_NEARBY * met.held_nearby + _SAID * met.held**2 - _UNSAID * met.lacked
        found = np.where(is_bare, _logit(NO_WORD_VECTORS, said, size), found)
    if (is_bare := np.isnan(cosines)).any():
        found = np.where(is_bare, _logit(NO_VECTOR, _by_words(met, lengths), size), found)
    return found


def credit(cosines: Scores) -> Scores:
    """Return the share (n,), 0 to 1, of others' evidence that counts for each memory, or 1 if it has no vector."""
    found: Scores = np.fmin(np.maximum((cosines - _FAR) / (_NEAR_ENOUGH - _FAR), 0.0), 1.0)  # 1 for NaN
    return found


def relevance(evidence: Scores, credit: Scores, best: float) -> Scores:
    """Return the relevance (n,), 0 to 1; NaN if there is no evidence. The `best` evidence raises the other values."""
    logits = evidence + credit * np.maximum(min(best, _MOST_VOUCHED) - evidence, 0.0) / 2
    found: Scores = 1.0 / (1.0 + np.exp(-np.minimum(np.maximum(logits, -40.0), 40.0)))
    return found


def _by_words(met: Met, lengths: npt.NDArray[np.int32]) -> Scores:
    """Return the sum for `NO_VECTOR`: the matched share of the query's rarity, minus discounts for length and for
    unmatched rare words.
    """
    rarity = met.rarity * (met.held + met.held_nearby) / 2
    tokens = np.maximum(lengths * _TOKENS_PER_WORD, _LEAST_TOKENS)
    share = rarity / (met.rarity + _SHRINKAGE * np.sqrt(met.rarity))
    by_words: Scores = _GAIN_OF_SHARE * share - _LENGTH * np.log(tokens / _LEAST_TOKENS) - _LOSS * met.lacked
    return by_words


def _by_chance(tokens: float) -> float:
    return math.sqrt(2.0 * math.log1p(tokens / _TOKENS_PER_CHANCE))


def _logit(line: Line, sums: Scores, size: float) -> Scores:
    found: Scores = line.slope * (sums - line.growth * size - line.centre)
    return found


def places_of(slots: Slots, wanted: Slots) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
    """Return the positions (m,) of `wanted` (m,) in `slots` (ascending), and which of them are present."""
    if not slots.size:
        return np.zeros(wanted.shape, dtype=np.intp), np.zeros(wanted.shape, dtype=np.bool_)
    places = np.minimum(slots.searchsorted(wanted), slots.size - 1)
    return places, slots[places] == wanted
