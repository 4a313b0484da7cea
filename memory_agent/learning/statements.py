"""A text as statements: what each says in words without their endings, which numbers it names, whether it denies.

Words are split, lower case and without accents, as the lexicon splits them, so that it can be asked how many memories
have them; endings are taken off roughly, by English rules, which leave other languages' words as they are. Pure.
Rejected: the lexicon's own stemmer, which lives in the engine and would have to be asked for each word.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

READ_CHARS = 100_000
MOST_STATEMENTS = 500

_LONGEST_WORD = 64  # characters; longer runs are digests and base64
_WORD = re.compile(r"[^\W_]+")
_NUMBER = re.compile(r"(?<!\w)\d+(?:[.,:]\d+)*")  # "30", "30s", not "v2"
_END = re.compile(r"[.!?;]+(?=\s|$)|[\n\r\u2028\u2029。！？；]+")
_MARKS = re.compile("[\u0300-\u036f]+")
_DENIAL = re.compile(r"\b(?:not|never|no|cannot|without|neither|nor|none|nothing|nobody)\b|n't\b")
_ENDINGS = ("ingly", "edly", "ings", "ing", "ies", "ied", "es", "ed", "s", "ly")
_SHORTEST_STEM = 3
_STOP_WORDS = """
    a about after all also am an and any are as at be because been before being but by can could did do does doing don
    for from had has have having he her here him his how i if in into is it its just ll me my no nor not now of off on
    once or our out over own re she should so some such t s than that the their them then there these they this those
    to too us ve was we were what when where which while who whom why will with would yes you your
"""
_REPORTING = """
    anything assist assistance complete completed done else everything fail failed feel finish finished free further
    glad ok okay please question questions ready report result results run step succeeded success successful
    successfully summary task tasks thank thanks welcome
"""


class Statement(NamedTuple):
    """One sentence or line. `words` are those that tell something, as written, by their stem."""

    words: dict[str, str]
    numbers: frozenset[str]
    denies: bool


def statements(text: str) -> list[Statement]:
    """Return what `text` says, in order; of a long text its first 100,000 characters and 500 statements."""
    return list(islice(_statements(text[:READ_CHARS]), MOST_STATEMENTS))


def _statements(text: str) -> Iterator[Statement]:
    plain = _MARKS.sub("", unicodedata.normalize("NFKD", text)).casefold().replace("’", "'")
    for part in _END.split(plain):
        words = {stem(word): word for word in _WORD.findall(part) if len(word) <= _LONGEST_WORD}
        telling = {stem_: word for stem_, word in words.items() if stem_ not in STOP_STEMS}
        if words:
            numbers = frozenset(number.replace(",", "") for number in _NUMBER.findall(part))
            yield Statement(telling, numbers, _DENIAL.search(part) is not None)


def stem(word: str) -> str:
    """Return a lower-case `word` without its ending, at least three letters; a number as it is."""
    if not word.isalpha():
        return word
    ending = next((end for end in _ENDINGS if word.endswith(end) and len(word) - len(end) >= _SHORTEST_STEM), "")
    bare = word.removesuffix(ending)
    if len(bare) > _SHORTEST_STEM and bare[-1] in "eyi":
        bare = bare[:-1]
    if len(bare) > _SHORTEST_STEM and bare[-1] == bare[-2]:
        bare = bare[:-1]
    return bare


STOP_STEMS = frozenset(stem(word) for word in (_STOP_WORDS + _REPORTING).split())
