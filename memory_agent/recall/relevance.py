"""How likely it is that a memory bears on the query: one number from 0 to 1, with one meaning in every mode. Pure.

    s_i          = cosine + 1.35 near + .4 closest + .35 held^2 - .03 lacked - .3 (G(T) - G(20,000))
    G(T)         = sqrt(2 ln(1 + T / 30))
    e_i          = 9 (s_i - 1.2)
    relevance_i  = sigma(e_i + credit_i max(min(E, 3) - e_i, 0) / 2)
    credit_i     = (cosine - .1) / .2, from 0 to 1         E = the best e among the candidates, requests left out

`near` is how near the query's words are to those of the memory and its neighbours, `closest` how well the best of them
is met, `held` the share of them that the memory itself has. `lacked` is how much of their rarity is not met, however
large the share that is: of a long query, anything meets much (`late_interaction`). T are the tokens of what may answer:
the best of more text is better by chance, by the expected maximum of as many normal variables, which grows fast among
few memories and slowly among many. One good memory vouches for the others of its answer, since evidence is often said
in other words: each memory by itself loses 9 points of R@10 at the same refusal. But it vouches with 3 at most, or it
would take everything along. What others say, here and in `near`, `closest` and `lacked`, counts by the credit of a
memory. A store or a session of different things has others beside the one that answers; their vectors are far from the
query, as those of evidence hardly ever are (decision 0052). Without word vectors, without words or without a vector,
another line with its own slope and centre says the same (`Line`). A mode decides who is a candidate, and nothing here.

It is calibrated between the evidence of questions and what stores that know nothing of a question answer (decision
0036), for the bundled model; with another one the relevance of what has a vector is not known, NaN. It is no
probability of being *the* evidence, of which there is a tenth as much in one data set as in another.

Shapes: n memories.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from memory_agent.storage.indexes import Scores

CALIBRATED_MODEL = "all-MiniLM-L6-v2"
"""The model whose cosines and word vectors the constants are for: those of E5 lie between .7 and .9 for anything."""

_TOKENS_PER_WORD = 1.3
_USUAL_TOKENS = 20_000
_TOKENS_PER_CHANCE = 30.0  # to resemble a query: about a message
_LEAST_TOKENS = 16  # of a memory: shorter ones are not discounted
_SHRINKAGE = 8.0  # of rarity held by chance, in square roots of the query's


class Line(NamedTuple):
    """A logit from a sum of parts: `slope` (sum - `centre`), where the sum loses `growth` per unit of G(T)."""

    slope: float
    centre: float
    growth: float


# Fitted on LoCoMo, BEAM, SWE and airline runs (decision 0036); `python -m ops.bench.relevance` fits them again.
ALL = Line(9.0, 1.2, 0.3)
NO_WORD_VECTORS = Line(11.0, 0.46, 0.2)
NO_WORDS = Line(21.1, 0.4, 0.1)
NO_VECTOR = Line(9.0, -0.08, 0.1)
_NEAR, _CLOSEST, _HELD, _LACKED = 1.35, 0.4, 0.35, 0.03
_SAID, _SAID_NEARBY, _UNSAID = 0.2, 0.3, 0.015  # without word vectors
_GAIN, _LENGTH, _LOSS = 3.0, 0.07, 0.06  # without a vector
_FAR, _NEAR_ENOUGH = 0.1, 0.3  # cosines of no credit and of all; a tenth of the evidence of questions has less than .3
_MOST_VOUCHED = 3.0  # at 2, 1 point of R@10 is lost, at 4 an answer has .1 to .4 more memories


class Parts(NamedTuple):
    """What the relevance of memories is made of, each (n,) but the last two.

    `cosines` are NaN without a vector, `near` and `closest` without word vectors. `held` and `held_nearby` are the
    shares of the query's rarity in words that the memory has, or it or a neighbour; `lacked` is the rarity that neither
    meets. `lengths` are words. `rarity` is that of the whole query, 0 without words; `words` are those of all memories
    that may answer.
    """

    cosines: Scores
    near: Scores
    closest: Scores
    held: Scores
    held_nearby: Scores
    lacked: Scores
    lengths: npt.NDArray[np.int32]
    rarity: float
    words: int


def evidence(parts: Parts) -> Scores:
    """Return the evidence of each memory by itself (n,), as a logit; NaN where nothing is known of it."""
    size = _by_chance(parts.words * _TOKENS_PER_WORD) - _by_chance(_USUAL_TOKENS)
    if not parts.rarity:
        return _logit(NO_WORDS, parts.cosines, size)
    met = _NEAR * parts.near + _CLOSEST * parts.closest + _HELD * parts.held**2 - _LACKED * parts.lacked
    found = _logit(ALL, parts.cosines + met, size)
    if (is_bare := np.isnan(parts.near)).any():
        said = parts.cosines + _SAID_NEARBY * parts.held_nearby + _SAID * parts.held**2 - _UNSAID * parts.lacked
        found = np.where(is_bare, _logit(NO_WORD_VECTORS, said, size), found)
    if (is_bare := np.isnan(parts.cosines)).any():
        found = np.where(is_bare, _logit(NO_VECTOR, _by_words(parts), size), found)
    return found


def credit(cosines: Scores) -> Scores:
    """Return the share (n,), 0 to 1, of what other memories say that counts for each memory; 1 without a vector."""
    found: Scores = np.fmin(np.maximum((cosines - _FAR) / (_NEAR_ENOUGH - _FAR), 0.0), 1.0)  # 1 for NaN
    return found


def relevance(evidence: Scores, credit: Scores, best: float) -> Scores:
    """Return the relevance (n,), 0 to 1, given the `best` evidence that vouches for all; NaN where there is none."""
    logits = evidence + credit * np.maximum(min(best, _MOST_VOUCHED) - evidence, 0.0) / 2
    found: Scores = 1.0 / (1.0 + np.exp(-np.minimum(np.maximum(logits, -40.0), 40.0)))
    return found


def _by_words(parts: Parts) -> Scores:
    """Return the sum without a vector: the share of rarity met, less what it has by chance, and what is lacked."""
    met = parts.rarity * (parts.held + parts.held_nearby) / 2
    tokens = np.maximum(parts.lengths * _TOKENS_PER_WORD, _LEAST_TOKENS)
    share = met / (parts.rarity + _SHRINKAGE * np.sqrt(parts.rarity))
    by_words: Scores = _GAIN * share - _LENGTH * np.log(tokens / _LEAST_TOKENS) - _LOSS * parts.lacked
    return by_words


def _by_chance(tokens: float) -> float:
    """Return the expected best of unrelated memories, in standard deviations."""
    return math.sqrt(2.0 * math.log1p(tokens / _TOKENS_PER_CHANCE))


def _logit(line: Line, sums: Scores, size: float) -> Scores:
    found: Scores = line.slope * (sums - line.growth * size - line.centre)
    return found
