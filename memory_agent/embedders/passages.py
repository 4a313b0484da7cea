"""Split the tokens of a text into passages, and compute word vectors from the token vectors of the last layer.

A word is a run of letters and digits, as in `storage.terms`. Stop words and runs of more than 64 characters are
omitted, unless a text contains only stop words. Words are treated as equal if they have the same stem (in a text) or
the same folded form (in a query).

Shapes: t tokens, p passages, w occurrences of words, k words, d dimensions.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from memory_agent.embedders.wordpiece import Tokens
from memory_agent.records.embedded import WORD_DIMENSIONS
from memory_agent.storage.languages import STOP_WORDS, stop_words_of
from memory_agent.storage.terms import LONGEST_WORD, pieces, stems, text_words

WORDS_REVISION = "signs-1"  # part of the stamps of passages and word bits; change it when either format changes
MOST_PASSAGES = 16
OVERLAP = 32  # tokens that a passage shares with the previous one
MOST_TEXT_WORDS = 40  # per memory; with 32, R@10 is 1.4 points lower on long reports and 2 points higher on messages
MOST_QUERY_WORDS = 64
_LETTERS = 12  # when words are selected, the length of a longer word counts as this many letters

Array = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]
Bits = npt.NDArray[np.uint8]


class Words(NamedTuple):
    """Occurrences of words in a text, at token positions `begins` to `ends`. `places` contains each word's index in
    `names`."""

    names: tuple[str, ...]
    begins: Ints
    ends: Ints
    places: Ints

    def at(self, chosen: npt.NDArray[np.intp]) -> Words:
        return Words(self.names, self.begins[chosen], self.ends[chosen], self.places[chosen])

    def within(self, count: int) -> Words:
        beyond = len(self.ends) and self.ends[-1] > count
        return self.at(np.flatnonzero(self.ends <= count)) if beyond else self

    def divided(self, begin: int, end: int) -> tuple[Words, Words]:
        """Return two groups: the occurrences up to token `end`, with positions relative to `begin`, and the others."""
        here = self.within(end)
        moved = here._replace(begins=np.maximum(here.begins - begin, 0), ends=here.ends - begin) if begin else here
        return moved, self.at(np.flatnonzero(self.ends > end))


def cut(tokens: Tokens, room: int) -> Ints:
    """Return the (p, 2) token positions [start, end) of at most 16 passages of at most `room` tokens.

    Each passage except the first starts at a word boundary, at most 2 * `OVERLAP` tokens before the end of the previous
    passage.
    """
    count, step = len(tokens.ids), min(OVERLAP, room // 4)
    passages = [(0, min(tokens.first, room))]
    while passages[-1][1] < count and len(passages) < MOST_PASSAGES:
        begin = max(passages[-1][1] - step, 0)
        low = max(begin - step, 0)
        words = np.flatnonzero(tokens.begins_word[low : begin + 1])
        begin = low + int(words[-1]) if len(words) else begin
        passages.append((begin, min(begin + room, count)))
    return np.array(passages, dtype=np.int32)


def spans_of(passages: Ints, tokens: Tokens, length: int) -> Ints:
    """Return the (p, 2) character positions of passages, each ending with a word; the text has `length` characters."""
    spans = np.zeros((len(passages), 2), dtype=np.int32)
    for place, (begin, end) in enumerate(passages.tolist()):
        if end < len(tokens.ids):
            whole = np.flatnonzero(tokens.begins_word[begin + 1 : end + 1])
            end = begin + 1 + int(whole[-1]) if len(whole) else end
            spans[place, 1] = tokens.spans[end - 1, 1] if end else 0
        else:
            spans[place, 1] = length
        spans[place, 0] = tokens.spans[begin, 0] if place else 0
    return spans


def text_words_of(text: str, tokens: Tokens, count: int) -> Words:
    """Return up to 40 of the most informative words in the first `count` tokens of a text.

    They have the highest ln(1 + occurrences) * min(letters of the stem, 12). Ties are broken by order of first
    occurrence.
    """
    folded, spans = _said(text, tokens, count, lambda _: STOP_WORDS)
    named = stems(folded)
    times = Counter(named)
    telling = sorted(times, key=lambda name: -math.log1p(times[name]) * min(len(name), _LETTERS))
    names = tuple(telling[:MOST_TEXT_WORDS])
    chosen = [place for place, name in enumerate(named) if name in set(names)] if len(times) > len(names) else None
    return _words(names, named, spans).at(np.array(chosen)) if chosen else _words(names, named, spans)


def query_words_of(text: str, tokens: Tokens, count: int) -> Words:
    """Return the first 64 distinct folded words in the first `count` tokens of a query."""
    folded, spans = _said(text, tokens, count, stop_words_of)
    names = tuple(dict.fromkeys(folded))
    words = _words(names, folded, spans)
    kept = np.flatnonzero(words.places < MOST_QUERY_WORDS)
    return words if len(kept) == len(folded) else words.at(kept)._replace(names=names[:MOST_QUERY_WORDS])


def _words(names: Sequence[str], said: Sequence[str], spans: Ints) -> Words:
    places = {name: place for place, name in enumerate(names)}
    of_said = np.array([places.get(name, -1) for name in said], dtype=np.int32)
    return Words(tuple(names), spans[:, 0], spans[:, 1], of_said)


def _said(
    text: str, tokens: Tokens, count: int, stop_words: Callable[[Iterable[str]], frozenset[str]]
) -> tuple[list[str], Ints]:
    """Return the folded words in the first `count` tokens, and the words' tokens. Stop words are omitted if there are
    other words."""
    end = int(tokens.spans[:count, 1].max(initial=0))
    text = text[: end + LONGEST_WORD + 1]  # later words are beyond these tokens, and a text may be megabytes long
    edges = list(accumulate(map(len, pieces(text))))  # ends of gaps and words, which alternate
    where = zip(edges[::2], edges[1::2], strict=False)
    said = [pair for pair in zip(text_words(text), where, strict=True) if len(pair[0]) <= LONGEST_WORD]
    left_out = stop_words(word for word, _ in said)
    telling = [pair for pair in said if pair[0] not in left_out]
    for found in (telling, said):
        spans = np.array([span for _, span in found], dtype=np.int32).reshape(len(found), 2)
        among = np.searchsorted(tokens.spans[:, 0], spans).astype(np.int32)
        kept = np.flatnonzero((among[:, 1] > among[:, 0]) & (among[:, 1] <= count))
        if len(kept):
            return [found[place][0] for place in kept.tolist()], among[kept]
    return [], np.zeros((0, 2), np.int32)


def add_words(words: Words, states: Array, sums: Array) -> None:
    """Compute the unit mean of the (t, d) token vectors of each occurrence, and add it to the (k, d) `sums`."""
    vectors: Array = states[words.begins]  # `reduceat` takes ten times as long (measured)
    lengths = words.ends - words.begins
    for offset in range(1, int(lengths.max(initial=1))):
        longer = np.flatnonzero(lengths > offset)
        vectors[longer] += states[words.begins[longer] + offset]
    np.add.at(sums, words.places, vectors / _lengths(vectors))


def query_vectors(sums: Array) -> npt.NDArray[np.float16]:
    """Return the first 256 dimensions of (k, d) sums, normalised to unit length."""
    first = sums[:, :WORD_DIMENSIONS]
    vectors: npt.NDArray[np.float16] = (first / _lengths(first)).astype(np.float16)
    return vectors


def signs(sums: Array) -> Bits:
    """Return the signs of the first 256 dimensions as (k, 32) packed bits, the first in the most significant bit."""
    return np.packbits(sums[:, :WORD_DIMENSIONS] > 0, axis=1)


def _lengths(vectors: Array) -> Array:
    lengths: Array = np.sqrt(np.einsum("wd,wd->w", vectors, vectors))[:, None]
    return lengths
