"""Text as words: of a text and of a query, their stems, and a fingerprint that is equal for texts that say the same.

Words are split at everything that is neither letter nor digit, and folded: lower case, without diacritics. Spelling
and phrases are ignored: a query is a whole message, which means neither. The words and stems of a text are those of
FTS5 (`porter unicode61 remove_diacritics 2`), but for characters newer than its tables and for 18 of the 20,766 words
of the evaluation's texts: Snowball's Porter leaves "logi", "bli" and the doubled letter of "trekked".
"""

from __future__ import annotations

import re
import threading
import unicodedata
from collections.abc import Sequence
from importlib.metadata import version
from itertools import dropwhile

import Stemmer
import xxhash

TERMS_VERSION = f"PyStemmer {version('PyStemmer')}, Unicode {unicodedata.unidata_version}"
"""Of what `text_words` and `stems` return: those of another version may differ."""

_MARKS = (
    "\u0300\u0301\u0302\u0303\u0304\u0306\u0307\u0308\u0309\u030a\u030b\u030c\u030f"
    "\u0311\u031b\u0323\u0324\u0325\u0326\u0327\u0328\u032d\u032e\u0330\u0331"
)
"""Combining marks that belong to the word before them; all others separate words."""

_WORD = re.compile(r"[^\W_]+")
_PIECES = re.compile(rf"({_WORD.pattern})")
_MARKED_PIECES = re.compile(rf"([^\W_](?:[^\W_]+|[{_MARKS}]+)*)")
_SHORTEST_INFLECTED = 3  # characters; shorter words, and those longer than `LONGEST_WORD`, are their own stem
_FOLDED_CHARS = 1 << 15  # kept in the table; all scripts in use have fewer
LONGEST_WORD = 64  # characters; longer runs are digests and base64
_MOST_WORDS = 64  # distinct; search time grows with each
_READ_CHARS = 100_000

_STOP_WORDS = """
    a about after all also am an and any are as at be because been before being but by can could did do does
    doing for from had has have having he her here him his how i if in into is it its just me my no nor not now
    of off on once or our out over own she should so some such than that the their them then there these they
    this those to too us was we were what when where which while who whom why will with would you your
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())

_QUESTION_MARKS = frozenset("?？؟")
_PUNCTUATION = ".,;:!\"'“”‘’…`"
_ARTICLES = frozenset({"an", "the"})  # "a" is a name as well: plan A
_COURTESIES = frozenset("alright also and hello hey hi ok okay please so sure thanks well".split())  # noqa: SIM905
"""Words without meaning at the start or end of a text; within it they count: "not sure", "works so well"."""


class _Folds(dict[int, str]):
    """Each character in lower case without diacritics, "" for a mark of `_MARKS`; filled as characters are met."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        if _WORD.match(char):
            lower = _in_lower_case(char)
            base = unicodedata.normalize("NFD", lower)[0].lower()
            folded = base if base.isascii() else lower
        else:
            folded = "" if char in _MARKS else char
        if len(self) < _FOLDED_CHARS:
            self[code] = folded
        return folded


def _in_lower_case(char: str) -> str:
    return next((form for form in (char.casefold(), char.lower()) if len(form) == 1), char)


_FOLDS = _Folds()


class _Stemmers(threading.local):
    """One stemmer a thread. Its cache is off: 0.22 us a word without, 0.12 with, and it would hold erased words."""

    def __init__(self) -> None:
        self.porter = Stemmer.Stemmer("porter", 0)


_STEMMERS = _Stemmers()


def fold(text: str) -> str:
    """Return `text` in lower case without diacritics; each word of it stays one word."""
    return text.lower() if text.isascii() else text.translate(_FOLDS)


def text_words(text: str) -> list[str]:
    """Return the folded words of `text` in order."""
    return _WORD.findall(fold(text))


def word_spans(text: str) -> list[tuple[int, int]]:
    """Return where each of `text_words(text)` begins and ends in `text`."""
    return [found.span() for found in (_PIECES if text.isascii() else _MARKED_PIECES).finditer(text)]


def pieces(text: str) -> list[str]:
    """Return `text` in pieces: what stands before, between and after its words at even places, these at odd ones."""
    return (_PIECES if text.isascii() else _MARKED_PIECES).split(text)


def stems(folded: Sequence[str]) -> list[str]:
    """Return the Porter stems of folded words; each begins with the first character of its word. Thread-safe."""
    return [
        stem if _SHORTEST_INFLECTED <= len(word) <= LONGEST_WORD else word
        for word, stem in zip(folded, _STEMMERS.porter.stemWords(folded), strict=True)
    ]


def query_words(text: str) -> list[str]:
    """Return the distinct words to search for, in order, lower case; stop words only where there are no others."""
    words = dict.fromkeys(word.lower() for word in _WORD.findall(text[:_READ_CHARS]) if len(word) <= LONGEST_WORD)
    telling = [word for word in words if word not in STOP_WORDS]
    return (telling or list(words))[:_MOST_WORDS]


def said_words(text: str) -> list[str]:
    """Return the words of `text` in order, without case, surrounding punctuation, articles and courtesies.

    Signs, symbols, question marks, emoji and every other word stay: "succeeded" and "almost succeeded", "-5" and "5",
    "from A to B" and "from B to A" differ. A text of nothing else is returned whole.
    """
    words = [word.strip(_PUNCTUATION) for word in unicodedata.normalize("NFC", text).casefold().split()]
    words = [word for word in words if word]
    bare = [word for word in words if word not in _ARTICLES]
    while bare and bare[-1] in _COURTESIES:
        bare.pop()
    return list(dropwhile(_COURTESIES.__contains__, bare)) or words or [text]


def asks(text: str) -> bool:
    """Whether a text ends by asking: a question mark in its last two fifths."""
    return not _QUESTION_MARKS.isdisjoint(text[len(text) * 3 // 5 :])


def said(text: str) -> str:
    """Return `said_words` as one text."""
    return " ".join(said_words(text))


def fingerprint(*texts: str) -> int:
    """Return 63 bits of XXH3 over the texts, equal where `said_words` of each are."""
    return fingerprint_of_said(*map(said, texts))


def fingerprint_of_said(*texts: str) -> int:
    """Return `fingerprint` of texts that went through `said`."""
    return xxhash.xxh3_64_intdigest("\0".join(texts).encode("utf-8", "surrogatepass")) >> 1
