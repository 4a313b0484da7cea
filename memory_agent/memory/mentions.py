"""Finds words and numbers in a text that may identify its author, other people or a machine. Pure.

A preview shows the mentions but removes none of them, so a false positive does little harm. Personal names are
recognised only by their capital letters.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Iterable, Iterator, Mapping

from memory_agent.records.shared import Mention, MentionKind
from memory_agent.storage.languages import STOP_WORDS
from relay import personal_numbers

_MOST = 200
_EMAIL = re.compile(r"[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,8}")
_PATH = re.compile(r"(?<![\w/:.])(?:~|\.{0,2})/(?:[\w.@+-]+/)*[\w.@+-]+/?|\b[A-Za-z]:\\[^\s\"'<>|]+")
_ADDRESS = re.compile(
    r"\b(?:\d{1,3}\.){3}\d{1,3}(?::\d{1,5})?\b|\b[\w-]{1,63}(?:\.[\w-]{1,63}){0,6}\.(?:local|internal|corp|lan|intranet)\b"
)
_ACCOUNT = re.compile(r"(?<![\w@./])@[A-Za-z][\w-]{1,38}\b")
_PATTERNS: tuple[tuple[MentionKind, re.Pattern[str]], ...] = (
    ("email", _EMAIL),
    ("path", _PATH),
    ("address", _ADDRESS),
    ("account", _ACCOUNT),
)
_NAME = r"[A-Z][a-zà-öø-ÿ]{1,30}"
_PERSON = re.compile(rf"\b{_NAME}(?: (?:[A-Z]\.|{_NAME})){{1,2}}\b")
_TOLD = re.compile(rf"\b(?:[Aa]sk(?:ed)?|[Tt]ell|[Tt]old|[Tt]hanks to|cc|by|from|with|for|to) ({_NAME})\b(?! [A-Z])")
_NOT_NAMES = STOP_WORDS | {name.lower() for name in (*calendar.day_name, *calendar.month_name)}


def mentions(fields: Mapping[str, str], own_names: Iterable[str] = ()) -> tuple[Mention, ...]:
    """Return the distinct mentions in the fields, at most 200. The author's `own_names` are reported as accounts.

    >>> [(found.kind, found.text) for found in mentions({"body": "Ann Lee fixed /srv/app/deploy.sh on 10.0.0.7"})]
    [('person', 'Ann Lee'), ('path', '/srv/app/deploy.sh'), ('address', '10.0.0.7')]
    """
    names = [re.compile(rf"(?<!\w){re.escape(name)}(?!\w)", re.IGNORECASE) for name in own_names if len(name) > 1]
    found = {
        (kind, text, field): None for field, value in fields.items() for _, kind, text in sorted(_found(value, names))
    }
    return tuple(Mention(kind=kind, text=text, field=field) for kind, text, field in list(found)[:_MOST])


def _found(text: str, own_names: Iterable[re.Pattern[str]]) -> Iterator[tuple[int, MentionKind, str]]:
    yield from personal_numbers(text)
    for kind, pattern in _PATTERNS:
        yield from ((match.start(), kind, match[0]) for match in pattern.finditer(text))
    for pattern in own_names:
        yield from ((match.start(), "account", match[0]) for match in pattern.finditer(text))
    for match in _PERSON.finditer(text):
        words = match[0].split()
        while words and words[0].lower() in _NOT_NAMES:
            words.pop(0)
        if len(words) > 1:
            yield match.end() - len(" ".join(words)), "person", " ".join(words)
    for match in _TOLD.finditer(text):
        if match[1].lower() not in _NOT_NAMES:
            yield match.start(1), "person", match[1]
