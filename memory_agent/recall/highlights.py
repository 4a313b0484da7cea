"""The passage of a memory that shows best why it was found, with the words of the query **marked**. Pure.

Chosen as FTS5's `snippet()` chooses it, in time linear in the text (SQLite's grows with the square of the hits).

Words are numbered from 0; a hit is the number of a word that the query shares.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from memory_agent.storage.terms import fold, stems, text_words, word_spans

_PASSAGE_WORDS = 24
_MARK, _ELLIPSIS = "**", "…"
_FIRST_SCORE, _REPEAT_SCORE = 1000, 1  # of a hit, by whether its word is already in the passage
_BEGINNING_BONUS, _SENTENCE_BONUS = 120, 100
_BETWEEN_SENTENCES = re.compile(r"[.:][ \t\n\r]+")


class _Part(NamedTuple):
    """A text with where its words lie, and the stem of each hit, ascending."""

    text: str
    spans: list[tuple[int, int]]
    hits: dict[int, str]


class _Passage(NamedTuple):
    score: int
    start: int
    part: _Part


def highlights(query_words: Sequence[str], title: str, text: str, tags: Sequence[str]) -> tuple[str, ...]:
    """Return the best passage of at most 24 words, an empty tuple where no word is shared.

    `query_words` are those of `terms.query_words`; a word is shared in any inflection.
    """
    wanted = _wanted(tuple(query_words))
    best: _Passage | None = None
    for column in (title, text, " ".join(tags)):
        if column and (hits := _hits(wanted, column)):
            found = _best_passage(wanted, _Part(column, word_spans(column), hits))
            if best is None or found.score > best.score:
                best = found
    return () if best is None else (_marked(best),)


@lru_cache(maxsize=8)
def _wanted(query_words: tuple[str, ...]) -> Counter[str]:
    """Return how many words of the query have each stem; asked for once per memory of an answer."""
    return Counter(stems([fold(word) for word in query_words]))


def _hits(wanted: Mapping[str, int], text: str) -> dict[int, str]:
    words = text_words(text)
    distinct = list(set(words))
    shared = {word: stem for word, stem in zip(distinct, stems(distinct), strict=True) if stem in wanted}
    return {number: shared[word] for number, word in enumerate(words) if word in shared} if shared else {}


def _best_passage(wanted: Mapping[str, int], part: _Part) -> _Passage:
    """Compare the passages that begin with a hit, centred, and those that begin with a hit's sentence."""
    size = len(part.spans)
    sentences = _sentence_starts(part) if size > _PASSAGE_WORDS else []
    scores = _scores(wanted, part.hits, sorted({*part.hits, *sentences}))
    best_score, best_start = 0, 0
    for hit in part.hits:
        score, last = scores[hit]
        if score > best_score:
            centred = hit - (_PASSAGE_WORDS - (last + 1 - hit)) // 2
            best_score, best_start = score, max(0, min(centred, size - _PASSAGE_WORDS))
        if sentences:
            start = sentences[bisect_right(sentences, hit) - 1]
            score = scores[start][0] + (_SENTENCE_BONUS if start else _BEGINNING_BONUS)
            if start < hit and score > best_score:
                best_score, best_start = score, start
    return _Passage(best_score, best_start, part)


def _sentence_starts(part: _Part) -> list[int]:
    """Return the first word, and each one after a full stop or colon and white space, up to the last hit."""
    ends = {found.end() for found in _BETWEEN_SENTENCES.finditer(part.text)}
    last = max(part.hits)
    return [number for number, (start, _) in enumerate(part.spans[: last + 1]) if not number or start in ends]


def _scores(wanted: Mapping[str, int], hits: Mapping[int, str], starts: Iterable[int]) -> dict[int, tuple[int, int]]:
    """Return the score, and the last hit, of the passage at each of `starts`, which ascend up to the last hit."""
    numbers = list(hits)
    held = dict.fromkeys(wanted, 0)
    scores = {}
    score = first = end = 0
    for start in starts:
        while end < len(numbers) and numbers[end] < start + _PASSAGE_WORDS:
            stem = hits[numbers[end]]
            score += wanted[stem] * (_REPEAT_SCORE if held[stem] else _FIRST_SCORE)
            held[stem] += 1
            end += 1
        while numbers[first] < start:
            stem = hits[numbers[first]]
            held[stem] -= 1
            score -= wanted[stem] * (_REPEAT_SCORE if held[stem] else _FIRST_SCORE)
            first += 1
        scores[start] = score, numbers[end - 1]
    return scores


def _marked(passage: _Passage) -> str:
    text, spans, hits = passage.part
    end = passage.start + _PASSAGE_WORDS
    pieces = [_ELLIPSIS] if passage.start else []
    done = spans[passage.start][0] if passage.start else 0
    for number in range(passage.start, min(end, len(spans))):
        if number in hits:
            start, stop = spans[number]
            pieces += text[done:start], _MARK, text[start:stop], _MARK
            done = stop
    pieces += [text[done:]] if end >= len(spans) else [text[done : spans[end - 1][1]], _ELLIPSIS]
    return "".join(pieces)
