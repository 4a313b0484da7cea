"""Split texts and queries into words, find stems and stop words, and compute fingerprints of texts.

Words are runs of letters and digits, folded to lower case without diacritics. Text in scripts without spaces between
words is split into overlapping pairs of letters. Terms are the indexed form of words. For English, they are the stems
that FTS5 produces (`porter unicode61 remove_diacritics 2`). In another language written in Latin script, terms are
prefixed with the language. A word of a query is expanded to its stems in every language of the store.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.metadata import version
from itertools import dropwhile
from typing import NamedTuple

import Stemmer
import xxhash

from memory_agent.storage.languages import STEMMERS, language_of, stop_words_of

TERMS_VERSION = f"3, PyStemmer {version('PyStemmer')}, Unicode {unicodedata.unidata_version}"
"""The version of `text_words` and `text_terms`; other versions may return different words."""

_MARKS = (
    "\u0300\u0301\u0302\u0303\u0304\u0306\u0307\u0308\u0309\u030a\u030b\u030c\u030f"
    "\u0311\u031b\u0323\u0324\u0325\u0326\u0327\u0328\u032d\u032e\u0330\u0331"
)
"""Diacritics, which are part of the preceding word and are dropped by folding."""
_POINTS = "".join(
    char
    for char in map(chr, (*range(0x591, 0x5C8), *range(0x610, 0x61B), *range(0x64B, 0x671), *range(0x6D6, 0x6EE)))
    if unicodedata.category(char) == "Mn"
)
_VOWELS = "".join(
    char
    for char in map(chr, (*range(0x900, 0x10A0), *range(0x1780, 0x1800), 0x3099, 0x309A))
    if unicodedata.category(char) in ("Mn", "Mc")
)
"""Signs for vowels and tones, which are part of the preceding letter and are kept by folding."""
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3005\u3040-\u30ff\u3130-\u318f\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff66-\uffdc\U00020000-\U0003ffff"
)
"""Thai, Lao, Burmese, Khmer, Han, the kana, and Hangul."""

_WORD = re.compile(r"[^\W_]+")
_PIECES = re.compile(rf"({_WORD.pattern})")
_MARKED_PIECES = re.compile(rf"([^\W_](?:[^\W_]+|[{_MARKS}]+)*)")
_STEMMED_SCRIPTS = re.compile(
    "(?P<russian>[а-яё]+)|(?P<greek>[\u0370-\u03ff]+)|(?P<arabic>[\u0620-\u064a]+)|(?P<hindi>[\u0900-\u0963]+)"
    "|(?P<armenian>[\u0561-\u0587]+)|(?P<tamil>[\u0b82-\u0bcd]+)"
)
"""Words of scripts that have a stemmer. The Russian stemmer is used for all Cyrillic languages."""
_SHORTEST_INFLECTED = 3  # characters; words that are shorter than this or longer than `LONGEST_WORD` are not stemmed
_FOLDED_CHARS = 1 << 15  # maximum number of characters in the table; all scripts in use have fewer
LONGEST_WORD = 64  # characters; longer runs are usually digests or base64
_MOST_WORDS = 64  # distinct words; each adds to the search time
_READ_CHARS = 100_000
_LANGUAGE_CHARS = 2_000

_QUESTION_MARKS = frozenset("?？؟")
_PUNCTUATION = ".,;:!\"'“”‘’…`"
_ARTICLES = frozenset({"an", "the"})  # omits "a", which can be a name, as in "plan A"
_COURTESIES = frozenset("alright also and hello hey hi ok okay please so sure thanks well".split())  # noqa: SIM905
"""Words that are meaningless at the start or end of a text, but meaningful inside it."""


_DROPPED = frozenset(_MARKS + _POINTS)


class _Scripts(NamedTuple):
    """Patterns for scripts with vowel signs, with points, or without spaces; `special` finds their characters."""

    special: re.Pattern[str]
    letter: re.Pattern[str]
    runs: re.Pattern[str]


@cache
def _scripts() -> _Scripts:
    """Compile the patterns on first use, because this takes 10 ms and many processes never read such text."""
    signs = f"[{_MARKS}{_POINTS}{_VOWELS}]"
    letter = rf"(?=[^\W_])[{_UNSPACED}]{signs}*"
    return _Scripts(
        special=re.compile(rf"[{_POINTS}{_VOWELS}{_UNSPACED}]"),
        letter=re.compile(letter),
        runs=re.compile(rf"((?:{letter})+)|[^\W_{_UNSPACED}](?:[^\W_{_UNSPACED}]+|{signs}+)*"),
    )


LANGUAGE_MARKS = {language: f"{language}:" for language in STEMMERS}
"""For each language written in Latin script, except English, the prefix of its terms."""


class _Folds(dict[int, str]):
    def __missing__(self, code: int) -> str:
        char = chr(code)
        if _WORD.match(char):
            lower = next((form for form in (char.casefold(), char.lower()) if len(form) == 1), char)
            base = unicodedata.normalize("NFD", lower)[0].lower()
            folded = base if base.isascii() else lower
        else:
            folded = "" if char in _DROPPED else char
        if len(self) < _FOLDED_CHARS:
            self[code] = folded
        return folded


_FOLDS = _Folds()


class _Stemmers(threading.local):
    """The stemmers of one thread. Their cache is disabled, so that no erased word stays in memory."""

    def __init__(self) -> None:
        self._stemmers: dict[str, Stemmer.Stemmer] = {}

    def stems(self, algorithm: str, words: Sequence[str]) -> list[str]:
        """Return the stems of folded words. A word that is too short or long, or only an ending, is its own stem."""
        stemmer = self._stemmers.get(algorithm)
        if stemmer is None:
            stemmer = self._stemmers[algorithm] = Stemmer.Stemmer(algorithm, 0)
        return [
            stem if stem and _SHORTEST_INFLECTED <= len(word) <= LONGEST_WORD else word
            for word, stem in zip(words, stemmer.stemWords(words), strict=True)
        ]


_STEMMERS = _Stemmers()


def fold(text: str) -> str:
    """Return `text` in lower case without diacritics; each word remains one word."""
    return text.lower() if text.isascii() else text.translate(_FOLDS)


def text_words(text: str) -> list[str]:
    return list(map(fold, words_of(_runs(text)))) if _is_special(text) else _WORD.findall(fold(text))


def pieces(text: str) -> list[str]:
    """Split `text` into words (odd positions) and the text between them (even positions). Overlaps: see `words_of`."""
    if _is_special(text):
        return _runs(text)
    return (_PIECES if text.isascii() else _MARKED_PIECES).split(text)


def words_of(split: Sequence[str]) -> list[str]:
    words = list(split[1::2])
    for place in overlaps(split):
        words[place] += first_letter(words[place + 1])
    return words


def overlaps(split: Sequence[str]) -> list[int]:
    """Return the indices of words in `pieces` that include the first letter of the next word."""
    gaps, words = split[2:-1:2], split[1::2]
    if "" not in gaps:
        return []
    return [
        place
        for place, gap in enumerate(gaps)
        if not gap and _scripts().letter.match(words[place]) and _scripts().letter.match(words[place + 1])
    ]


def _is_special(text: str) -> bool:
    return not text.isascii() and _scripts().special.search(text) is not None


def _runs(text: str) -> list[str]:
    """Return the `pieces` of a text in any script; the last piece of a run without spaces has two letters."""
    split, end, scripts = [], 0, _scripts()
    for found in scripts.runs.finditer(text):
        split.append(text[end : found.start()])
        end = found.end()
        letters = scripts.letter.findall(text, *found.span(1)) if found[1] else [found[0]]
        for letter in letters[:-2]:
            split += [letter, ""]
        split.append("".join(letters[-2:]))
    return [*split, text[end:]]


def first_letter(piece: str) -> str:
    """Return the letter that a piece shares with the previous word, or "" if they do not overlap."""
    found = _scripts().letter.match(piece)
    return found[0] if found else ""


def stems(folded: Sequence[str], language: str = "") -> list[str]:
    """Return the stems of folded words, by their script or, for Latin letters, by `language` (default: English)."""
    found = _STEMMERS.stems(STEMMERS.get(language, "porter"), folded)
    if "".join(folded).isascii():
        return found
    of_script: defaultdict[str, list[int]] = defaultdict(list)
    for place, word in enumerate(folded):
        if (script := _STEMMED_SCRIPTS.fullmatch(word)) is not None:
            of_script[script.lastgroup or ""].append(place)
    for algorithm, places in of_script.items():
        for place, stem in zip(places, _STEMMERS.stems(algorithm, [folded[place] for place in places]), strict=True):
            found[place] = stem
    return found


def text_terms(words: Sequence[str], language: str) -> list[str]:
    if not language:
        return stems(words)
    mark = LANGUAGE_MARKS[language]
    return [mark + stem for stem in stems(words, language)]


def word_terms(folded: Sequence[str], languages: Iterable[str]) -> list[list[str]]:
    """Return, for each folded word of a query, its terms in these languages and in English."""
    found = [text_terms(folded, language) for language in ("", *languages)]
    return list(map(list, zip(*found, strict=True)))


def query_words(text: str) -> list[str]:
    """Return the distinct words to search for, in order and in lower case. Stop words are included only if there are no
    other words.
    """
    text = text[:_READ_CHARS]
    found = words_of(_runs(text)) if _is_special(text) else _WORD.findall(text)
    words = dict.fromkeys(word.lower() for word in found if len(word) <= LONGEST_WORD)
    folded = list(map(fold, words))
    stop_words = stop_words_of(folded)
    telling = [word for word, plain in zip(words, folded, strict=True) if plain not in stop_words]
    return (telling or list(words))[:_MOST_WORDS]


def is_foreign(text: str) -> bool:
    """Whether the first words of a text are in a language other than English that is written in Latin script."""
    return bool(language_of(text_words(text[:_LANGUAGE_CHARS])))


def said_words(text: str) -> list[str]:
    """Return the words of `text` in order and in lower case, without surrounding punctuation, without articles, and
    without pleasantries (such as "please") at the start and end.

    Signs, symbols and all other words are kept, so that "succeeded" differs from "almost succeeded", and "-5" from "5".
    If nothing is left, returns all words, or the text itself.
    """
    words = [word.strip(_PUNCTUATION) for word in unicodedata.normalize("NFC", text).casefold().split()]
    words = [word for word in words if word]
    bare = [word for word in words if word not in _ARTICLES]
    while bare and bare[-1] in _COURTESIES:
        bare.pop()
    return list(dropwhile(_COURTESIES.__contains__, bare)) or words or [text]


def first_said_word(text: str) -> str:
    """Return the first of `said_words`, in a third of the time it takes to compute all of them."""
    for word in unicodedata.normalize("NFC", text).casefold().split():
        bare = word.strip(_PUNCTUATION)
        if bare and bare not in _ARTICLES and bare not in _COURTESIES:
            return bare
    return said_words(text)[0]


def asks(text: str) -> bool:
    """Whether a text ends with a question, that is, has a question mark in its last two fifths."""
    return not _QUESTION_MARKS.isdisjoint(text[len(text) * 3 // 5 :])


def said(text: str) -> str:
    return " ".join(said_words(text))


def fingerprint(*texts: str) -> int:
    """Return a 63-bit XXH3 hash over the `said_words` of all texts."""
    return fingerprint_of_said(*map(said, texts))


def fingerprint_of_said(*texts: str) -> int:
    return xxhash.xxh3_64_intdigest("\0".join(texts).encode("utf-8", "surrogatepass")) >> 1
