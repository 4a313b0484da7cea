"""Distinguish natural language from tokens, paths, numbers, code and serialised data. Pure.

Used for payload fields that the signal table does not list. Uses no dictionary, so it works for any language.
"""

from __future__ import annotations

import re
from itertools import pairwise
from unicodedata import category

LEAST_WORDS = 3  # below this, texts in unknown fields are more often labels than sentences

_READ_CHARS = 10_000
_LONGEST_WORD = 40  # characters
_WORD_SHARE = 0.5  # share of the characters that are not white space
_MARKS_PER_WORD = 0.25
_CHARS_PER_WORD = 2  # in scripts without spaces between words

_AROUND = ".,;:!?…()[]\"'“”‘’«»„‚¡¿*_`~–—-#>。，、；：！？（）「」『』【】《》・"
_INSIDE = "'’-\u00ad\u200c\u200d"
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uff66-\uff9f\U00020000-\U0003ffff]"
)
"""Characters of Thai, Lao, Burmese, Khmer, Japanese and Chinese."""
# Texts are untrusted, so no pattern may take quadratic time. Indents are `[^\S\n]*`, because `\s*` would rescan the
# remaining empty lines from each empty line (1.8 s for 10,000, measured). Repetitions within a line are bounded.
_SERIALISED = re.compile(
    r"""
      ^[^\S\n]*[\[{]\s*(?:["'\[{\]}]|\\["']|-?\d[\d.]*\s*,)  # an object or list, even truncated or as a Python literal
    | \A\s*(?:<[?!/a-zA-Z]|---\s*\n|data:\w+/)            # XML, HTML, YAML, a data URL
    | \{\s*\\?["'] | (?P<quote>\\?["'])[^"'\n]{0,80}(?P=quote)\s*:  # a quoted key, after any words
    """,
    re.VERBOSE | re.MULTILINE,
)
_STACK_TRACE = re.compile(
    r'^[^\S\n]*(?:File ".+", line \d+|at \S.{0,300}[(:]\S{0,300}:\d+\)?|goroutine \d+|Traceback \(most recent)',
    re.MULTILINE,
)
_CODE = re.compile(
    r"""
      [=!<>:]=|[=-]>|&&|\|\||[;{}]\s*$|\w\([^()\s]*\)
    | ^[^\S\n]*(?:def|class|import|function|const|let|var|public|private|return|\#include|from\s\S+\simport)\b
    """,
    re.VERBOSE | re.MULTILINE,
)
_HEX = frozenset("0123456789abcdefABCDEF")


def reads_as_language(text: str, least_words: int = LEAST_WORDS) -> bool:
    """Return whether the first 10,000 characters of `text` contain at least `least_words` words of any language.

    Half of the characters must belong to words. A word has at most 40 letters, no digits, and at most one inner capital
    for every five characters (as in "McDonald"); two characters of a script without spaces count as one word. Stack
    traces, code and serialised data do not count as language.
    """
    text = text[:_READ_CHARS]
    if _SERIALISED.search(text) or _STACK_TRACE.search(text):
        return False
    tokens = text.split()
    words = [word for token in tokens if _is_word(word := token.strip(_AROUND))]
    unspaced = len(_UNSPACED.findall(text))
    count = len(words) + unspaced // _CHARS_PER_WORD
    chars = sum(map(len, words)) + unspaced
    marks = sum(1 for _ in _CODE.finditer(text))
    return (
        count >= least_words
        and chars >= _WORD_SHARE * sum(len(token.strip(_AROUND)) for token in tokens)
        and marks <= _MARKS_PER_WORD * count
        and (unspaced > 0 or not all(_HEX.issuperset(word) for word in words))
    )


def _is_word(token: str) -> bool:
    if not 0 < len(token) <= _LONGEST_WORD or _UNSPACED.search(token):
        return False
    if not all(char.isalpha() or char in _INSIDE or category(char).startswith("M") for char in token):
        return False
    capitals_inside = sum(before.islower() and after.isupper() for before, after in pairwise(token))
    return capitals_inside * 5 <= len(token)
