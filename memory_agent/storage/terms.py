"""Text as words: the words of a query, and a fingerprint that is equal for texts that say the same. Pure.

Any input (query syntax, SQL, NUL, a megabyte) becomes quoted words joined by OR. Words are split as the index's
tokenizer splits them, at everything that is neither letter nor digit. Spelling and phrases are ignored: a query is a
whole message, which means neither.
"""

from __future__ import annotations

import re
import unicodedata
from itertools import dropwhile

import xxhash

_WORD = re.compile(r"[^\W_]+")
_LONGEST_WORD = 64  # characters; longer runs are digests and base64
_MOST_WORDS = 64  # distinct; search time grows with each
_READ_CHARS = 100_000

_STOP_WORDS = """
    a about after all also am an and any are as at be because been before being but by can could did do does
    doing for from had has have having he her here him his how i if in into is it its just me my no nor not now
    of off on once or our out over own she should so some such than that the their them then there these they
    this those to too us was we were what when where which while who whom why will with would you your
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())

_PUNCTUATION = ".,;:!\"'“”‘’…`"
_ARTICLES = frozenset({"an", "the"})  # "a" is a name as well: plan A
_COURTESIES = frozenset("alright also and hello hey hi ok okay please so sure thanks well".split())  # noqa: SIM905
"""Words without meaning at the start or end of a text; within it they count: "not sure", "works so well"."""


def query_words(text: str) -> list[str]:
    """Return the distinct words to search for, in order, lower case; stop words only where there are no others."""
    words = dict.fromkeys(word.lower() for word in _WORD.findall(text[:_READ_CHARS]) if len(word) <= _LONGEST_WORD)
    telling = [word for word in words if word not in STOP_WORDS]
    return (telling or list(words))[:_MOST_WORDS]


def match_expression(words: list[str]) -> str:
    """Return the FTS5 expression that matches any of `words`."""
    return " OR ".join(f'"{word}"' for word in words)


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


def fingerprint(*texts: str) -> int:
    """Return 63 bits of XXH3 over the texts, equal where `said_words` of each are."""
    said = "\0".join(" ".join(said_words(text)) for text in texts)
    return xxhash.xxh3_64_intdigest(said.encode("utf-8", "surrogatepass")) >> 1
