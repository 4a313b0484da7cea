"""Finds the passage that best shows why a memory was found, with the words of the query **marked**. Pure.

Chooses the same passage as `snippet()` of FTS5, in time linear in the length of the text. Words are numbered from 0; a
hit is the number of a word that also occurs in the query.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from msgspec.structs import replace

from memory_agent.records.memories import MemoryRecord, RetrievedMemory
from memory_agent.storage.languages import language_of
from memory_agent.storage.terms import first_letter, fold, overlaps, pieces, stems, words_of

_PASSAGE_WORDS = 24
_MARK, _ELLIPSIS = "**", "…"
_FIRST_SCORE, _REPEAT_SCORE = 1000, 1  # scores of a word's first hit in the passage, and of each further hit
_BEGINNING_BONUS, _SENTENCE_BONUS = 120, 100
_FIRST_UNSTEMMED = "\u0c00"
"""A word that begins with this letter or a later one is its own stem. An English stem keeps the word's first letter."""
_ENDS, _SPACE = (".", ":"), " \t\n\r"  # a sentence ends with one of `_ENDS`, followed by one of `_SPACE`


class _Part(NamedTuple):
    """A text split into `terms.pieces`, with its number of words and the stem of each hit, in text order."""

    pieces: list[str]
    size: int
    hits: dict[int, str]


class _Passage(NamedTuple):
    score: int
    start: int
    part: _Part


class _Wanted(NamedTuple):
    """The number of query words for each stem, and the first characters of the stems."""

    counts: Counter[str]
    initials: frozenset[str]


class Highlight(NamedTuple):
    """A passage with the query's words marked, and its offset in the text (0 for the title or the tags)."""

    passage: str
    at: int = 0


def highlight(query_words: Sequence[str], title: str, text: str, tags: Sequence[str]) -> Highlight | None:
    """Return the best passage of at most 24 words, or None if it contains no word of the query.

    `query_words` are the result of `terms.query_words`. A word matches in any inflected form.
    """
    columns = [pieces(column) if column else [] for column in (title, text, " ".join(tags))]
    folded = [fold(" ".join(words_of(split))).split(" ") if split else [] for split in columns]
    language = language_of(chain.from_iterable(folded))
    wanted = _wanted(tuple(query_words), language)
    best: _Passage | None = None
    is_of_text = False
    for place, (split, words) in enumerate(zip(columns, folded, strict=True)):
        if hits := _hits(wanted, words, language) if words else {}:
            found = _best_passage(wanted.counts, _Part(split, len(split) // 2, hits))
            if best is None or found.score > best.score:
                best, is_of_text = found, place == 1
    if best is None:
        return None
    before = best.part.pieces[: 2 * best.start + 1] if is_of_text and best.start else ()
    return Highlight(_marked(best), sum(map(len, before)))


def highlight_of(record: MemoryRecord, words: Sequence[str]) -> Highlight | None:
    return highlight(words, record.title or "", record.text, record.tags)


def marked(memory: RetrievedMemory, words: Sequence[str]) -> RetrievedMemory:
    """Return the memory with the highlights that its search omitted (`Query.is_marked`)."""
    found = None if memory.highlights else highlight_of(memory.record, words)
    return memory if found is None else replace(memory, highlights=(found.passage,), passage_at=found.at)


def beginning(text: str) -> Highlight | None:
    """Return the first 24 words of `text`, between ellipses, or None if there is no word."""
    split = pieces(text)
    words = split[1 : 2 * _PASSAGE_WORDS]
    end = _ELLIPSIS if len(split) > 2 * _PASSAGE_WORDS + 1 else ""
    return Highlight(f"{_ELLIPSIS}{''.join(words)}{end}") if words else None


@lru_cache(maxsize=16)
def _wanted(query_words: tuple[str, ...], language: str) -> _Wanted:
    """Return the stems of a query's words in a language. Cached, since every memory of an answer needs the stems."""
    counts = Counter(stems([fold(word) for word in query_words], language))
    return _Wanted(counts, frozenset(stem[0] for stem in counts))


def _hits(wanted: _Wanted, folded: Sequence[str], language: str) -> dict[int, str]:
    likely = {
        number: word
        for number, word in enumerate(folded)
        if word[:1] in wanted.initials or language or "\x7f" < word < _FIRST_UNSTEMMED
    }
    found = zip(likely, stems(list(likely.values()), language), strict=True)
    return {number: stem for number, stem in found if stem in wanted.counts}


def _best_passage(wanted: Mapping[str, int], part: _Part) -> _Passage:
    if part.size <= _PASSAGE_WORDS:
        first = next(iter(part.hits))
        return _Passage(_scores(wanted, part.hits, [first])[first][0], 0, part)
    sentences = _sentence_starts(part)
    scores = _scores(wanted, part.hits, sorted({*part.hits, *sentences}))
    best_score, best_start = 0, 0
    for hit in part.hits:
        score, last = scores[hit]
        if score > best_score:
            centred = hit - (_PASSAGE_WORDS - (last + 1 - hit)) // 2
            best_score, best_start = score, max(0, min(centred, part.size - _PASSAGE_WORDS))
        start = sentences[bisect_right(sentences, hit) - 1]
        score = scores[start][0] + (_SENTENCE_BONUS if start else _BEGINNING_BONUS)
        if start < hit and score > best_score:
            best_score, best_start = score, start
    return _Passage(best_score, best_start, part)


def _sentence_starts(part: _Part) -> list[int]:
    """Return the first word and each word that follows a full stop or colon and white space, up to the last hit."""
    between = part.pieces[2 : 2 * max(part.hits) + 1 : 2]
    return [0, *(number for number, piece in enumerate(between, 1) if piece != " " and _ends_sentence(piece))]


def _ends_sentence(piece: str) -> bool:
    bare = piece.rstrip(_SPACE)
    return len(bare) < len(piece) and bare.endswith(_ENDS)


def _scores(wanted: Mapping[str, int], hits: Mapping[int, str], starts: Iterable[int]) -> dict[int, tuple[int, int]]:
    """Return the score and last hit of the passage at each of `starts`. These must be in ascending order, and at most
    the last hit.
    """
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
    part, end = passage.part, passage.start + _PASSAGE_WORDS
    shown = part.pieces.copy()
    overlapping = [number for number in overlaps(shown) if passage.start <= number < end]
    if end - 1 in overlapping:
        shown[2 * end + 1] = first_letter(shown[2 * end + 1])
    marked = {number: len(shown[2 * number + 1]) for number in part.hits}
    for number in set(overlapping).intersection(part.hits):
        marked.setdefault(number + 1, len(first_letter(shown[2 * number + 3])))
    joined = {number for number in overlapping if number in marked and number + 1 in marked}
    for number, chars in marked.items():
        piece = shown[2 * number + 1]
        before, after = ("" if number - 1 in joined else _MARK), ("" if number in joined else _MARK)
        shown[2 * number + 1] = f"{before}{piece[:chars]}{after}{piece[chars:]}"
    if end < part.size:
        shown[2 * (end + (end - 1 in overlapping)) :] = [_ELLIPSIS]
    if passage.start:
        shown[: 2 * passage.start + 1] = [_ELLIPSIS]
    return "".join(shown)
