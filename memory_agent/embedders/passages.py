"""Cuts the tokens of a text into passages, and makes vectors of its words from the token vectors of the last layer.

A word is a run of letters and digits, as in the lexicon; stop words and runs of more than 64 characters are left out,
and a text of stop words alone keeps them. Rejected: subtracting a mean before the signs are taken, which needs a
constant for each model and changed no result (`ops/decisions/0033-passages-and-words.md`).

Shapes: t tokens, p passages, w words, d dimensions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from memory_agent.embedders.wordpiece import Tokens
from memory_agent.storage.terms import LONGEST_WORD, STOP_WORDS, text_words, word_spans

WORDS_REVISION = "signs-1"
"""Change it whenever passages or word bits change: part of the stamp of both."""
MOST_PASSAGES = 16
OVERLAP = 32
"""Tokens of a passage that are also in the one before."""
MOST_TEXT_WORDS = 64
MOST_QUERY_WORDS = 32

Array = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]
Bits = npt.NDArray[np.uint8]


class Words(NamedTuple):
    """Words of a text, folded, and their tokens: `begins` and `ends` (w,)."""

    folded: tuple[str, ...]
    begins: Ints
    ends: Ints

    def at(self, places: npt.NDArray[np.intp]) -> Words:
        """Return the words at these places."""
        return Words(tuple(self.folded[place] for place in places), self.begins[places], self.ends[places])

    def distinct(self) -> Words:
        """Return the first occurrence of each word."""
        first = dict(zip(reversed(self.folded), range(len(self.folded) - 1, -1, -1), strict=True))
        return self if len(first) == len(self.folded) else self.at(np.sort(np.array(list(first.values()))))

    def within(self, count: int) -> Words:
        """Return the words of the first `count` tokens."""
        beyond = len(self.ends) and self.ends[-1] > count
        return self.at(np.flatnonzero(self.ends <= count)) if beyond else self

    def divided(self, begin: int, end: int) -> tuple[Words, Words]:
        """Return the words that end by token `end`, with their tokens from `begin` on, and the others."""
        words = self.within(end)
        moved = Words(words.folded, np.maximum(words.begins - begin, 0), words.ends - begin) if begin else words
        return moved, self.at(np.flatnonzero(self.ends > end))


def cut(tokens: Tokens, room: int) -> Ints:
    """Return the (p, 2) first and last-but-one tokens of the passages: at most `room` tokens each, at most 16 passages.

    Each but the first begins with a word, at most twice `OVERLAP` tokens before the end of the one before.
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
    """Return the (p, 2) characters of passages in a text of `length` characters, ending with whole words."""
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


def content_words(text: str, tokens: Tokens) -> Words:
    """Return the content words of `text` that have tokens, in order, with repeats."""
    said = [(word, span) for word, span in zip(text_words(text), word_spans(text), strict=True) if _is_short(word)]
    telling = [(word, span) for word, span in said if word not in STOP_WORDS]
    for found in (telling, said):
        spans = np.array([span for _, span in found], dtype=np.int32).reshape(len(found), 2)
        edges = np.searchsorted(tokens.spans[:, 0], spans).astype(np.int32)
        words = Words(tuple(word for word, _ in found), edges[:, 0], edges[:, 1])
        kept = np.flatnonzero(edges[:, 1] > edges[:, 0])
        if len(kept):
            return words if len(kept) == len(found) else words.at(kept)
    return words.at(kept)


def _is_short(word: str) -> bool:
    return len(word) <= LONGEST_WORD


def kept_words(words: Words) -> Words:
    """Return the words of a text whose bits are stored: the first 64 distinct ones, each at its first occurrence."""
    return words.distinct().at(np.arange(min(len(set(words.folded)), MOST_TEXT_WORDS)))


def word_sums(words: Words, states: Array) -> Array:
    """Return the (w, d) sums of the (t, d) token vectors of words."""
    sums: Array = states[words.begins]  # `reduceat` takes ten times as long (measured)
    lengths = words.ends - words.begins
    for offset in range(1, int(lengths.max(initial=1))):
        longer = np.flatnonzero(lengths > offset)
        sums[longer] += states[words.begins[longer] + offset]
    return sums


def query_words(words: Words, states: Array) -> tuple[tuple[str, ...], npt.NDArray[np.float16]]:
    """Return the first 32 distinct words, and their (w, d) mean token vectors over all repeats, of unit length."""
    sums = word_sums(words, states)
    distinct = tuple(dict.fromkeys(words.folded))
    if len(distinct) < len(words.folded):
        places, said = dict(zip(distinct, range(len(distinct)), strict=True)), sums
        sums = np.zeros((len(distinct), states.shape[1]), np.float32)
        np.add.at(sums, [places[word] for word in words.folded], said)
    sums = sums[:MOST_QUERY_WORDS]
    sums /= np.sqrt(np.einsum("wd,wd->w", sums, sums))[:, None]
    return distinct[:MOST_QUERY_WORDS], sums.astype(np.float16)


def signs(vectors: Array) -> Bits:
    """Return the signs of (w, d) vectors as (w, d / 8) packed bits, the first dimension in the highest bit."""
    return np.packbits(vectors > 0, axis=1)
