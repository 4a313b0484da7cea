"""English time words, a quick check whether a text has any, and ages in words. Imports no engine.

A plain space in a pattern matches one to three whitespace characters (`compiled`); the bound keeps long runs of
whitespace from being scanned twice.
"""

from __future__ import annotations

import re
from datetime import timedelta

Match = re.Match[str]


def word_set(text: str) -> frozenset[str]:
    """Return the words of the text."""
    return frozenset(text.split())


BEGIN = r"(?<!\w)"
END = r"(?!\w)"
NUMBER_BEGINS = r"(?<![\w.,:/$€£#=@+-])"
NUMBER_ENDS = r"(?![\w/%°-]|[.,:][0-9])"
"""Nothing that would make the figures an identifier, a version, a path, a price or part of a longer number."""

NUMBER = (
    r"(?:[0-9]{1,4}|an? couple(?: of)?|an? few|couple(?: of)?|few|several|an?|one|two|three|four|five|six|seven|eight|"
    r"nine|ten|eleven|twelve|fifteen|twenty|thirty)"
)
UNIT = (
    r"(?:minutes?|mins?|hours?|hrs?|days?|weekends?|weeks?|wks?|fortnights?|months?|quarters?|years?|yrs?|decades?|"
    r"(?:(?<=[0-9])|(?<=[0-9]\s))[hdwy])"
)
OF_THEM = r"(?: |(?<=[0-9]))"
"""What stands between a number and its unit: "two days", "2d"."""
WHICH = r"(?P<which>(?:this )?(?:last|past)|previous|this(?: coming)?|current|next)"
NO_OWNER = (
    r"(?<!the\s)(?<!an\s)(?<!a\s)(?<!his\s)(?<!her\s)(?<!its\s)(?<!my\s)(?<!our\s)(?<!your\s)(?<!their\s)(?<!['’]s\s)"
    r"(?<!every\s)(?<!each\s)"
)
"""Not as in "his last year", "the next week", "Ann's last fall"."""
WEEKDAY = r"(?:mon|tues|wednes|thurs|fri|satur|sun)day"
SHORT_WEEKDAY = r"(?:mon|tues?|wed|thu(?:rs?)?|fri|sat|sun)\.?"
MONTH = (
    r"(?:january|february|march|april|may|june|july|august|september|october|november|december|"
    r"(?:jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec)(?:\.(?=\s))?)"
)
SEASON = r"(?:summer|winter|spring|autumn|fall)"
PART_OF_DAY = r"(?:morning|afternoon|evening|night)"
CLOCK = r"(?:(?:[01]?[0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9])?(?:\s?[ap]\.?m\b\.?)?|(?:1[0-2]|[1-9])\s?[ap]\.?m\b\.?)"
FOUR_FIGURES = r"(?:19|20)[0-9]{2}"

LAST, THIS, NEXT = "last", "this", "next"
OFFSETS = {LAST: -1, THIS: 0, NEXT: 1}

_NUMBERS = {"a": 1, "an": 1, "couple": 2, "fifteen": 15, "twenty": 20, "thirty": 30} | {
    word: number
    for number, word in enumerate(
        ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"), 1
    )
}
_FEW = (2, 5)
"""From how many to how many "a few" and "several" are."""
_UNITS = {"min": "minute", "hr": "hour", "h": "hour", "d": "day", "wk": "week", "w": "week", "yr": "year", "y": "year"}
_WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")

_AGES = (
    ("year", timedelta(days=365), timedelta(days=730)),
    ("month", timedelta(days=365) / 12, timedelta(days=60)),
    ("week", timedelta(days=7), timedelta(days=14)),
    ("day", timedelta(days=1), timedelta(days=1)),
    ("hour", timedelta(hours=1), timedelta(hours=1)),
    ("minute", timedelta(minutes=1), timedelta.min),
)
"""Each unit, its length, and the least age that is said in it."""
_ROUNDED = frozenset({"year", "month", "week"})
"""Units that are said to the nearest; others count when they are over."""

_TRIGGERS = word_set(
    "yesterday today tonight tomorrow ago back now minute hour day weekend week fortnight month quarter year decade "
    "night morning afternoon evening minutes hours days weekends weeks fortnights months quarters years decades "
    "monday tuesday wednesday thursday friday saturday sunday mon tue tues wed thu thur thurs fri sat "
    "january february march april may june july august september october november december "
    "jan feb mar apr jun jul aug sep sept oct nov dec q1 q2 q3 q4 summer winter spring autumn fall"
)
_FOLDED = str.maketrans("\u017f\u212a\u0131\u0130", "skii")
_WORDS = re.compile(r"[a-z0-9]+")
_YEARS = re.compile(rf"(?<![0-9]){FOUR_FIGURES}(?![0-9])")


def mentions_time(text: str) -> bool:
    """Whether the text may name a time: every phrase has one of these words, or a year."""
    return not _TRIGGERS.isdisjoint(_WORDS.findall(text.lower())) or _YEARS.search(text) is not None


def compiled(pattern: str) -> re.Pattern[str]:
    """Compile the pattern, ignoring case, with its spaces widened."""
    return re.compile(pattern.replace(" ", r"\s{1,3}"), re.IGNORECASE)


def plain(text: str) -> str:
    """Replace letters that case folding equates with ASCII ones (the Kelvin sign); the length stays the same.

    Otherwise patterns would match words that are missing in the tables.
    """
    return text.translate(_FOLDED)


def count(text: str) -> tuple[int, int]:
    """Return the smallest and the largest value that a number in figures or words may mean."""
    if text.isdigit():
        return int(text), int(text)
    words = text.lower().split()
    if {"few", "several"} & set(words):
        return _FEW
    number = _NUMBERS["couple" if "couple" in words else words[0]]
    return number, number


def unit_of(text: str) -> str:
    """Return the unit's full name in the singular."""
    word = text.lower().removesuffix("s")
    return _UNITS.get(word, word)


def weekday_of(text: str) -> int:
    """Return 0 for Monday to 6 for Sunday."""
    return _WEEKDAYS.index(text[:3].lower())


def age_of(elapsed: timedelta) -> tuple[int, str]:
    """Return an age in the largest unit that fits: 20 days are 3 weeks, 11 days and 20 hours 11 days."""
    return next(((elapsed + _early(unit, length)) // length, unit) for unit, length, least in _AGES if elapsed >= least)


def ages_of(number: int, unit: str) -> tuple[timedelta, timedelta] | None:
    """Return the least age that `age_of` gives as `number` units, and the least one above; None if there is none."""
    for known, length, least in _AGES:
        if known == unit and age_of(number * length) == (number, unit):
            begin = number * length - _early(unit, length)
            return max(begin, least), begin + length
    return None


def _early(unit: str, length: timedelta) -> timedelta:
    """Return how long before a unit is over it counts."""
    return length / 2 if unit in _ROUNDED else timedelta(0)


def which_of(text: str | None) -> str:
    """Return `last`, `this` or `next`, as the words mean; empty without such a word."""
    word = text.lower().split()[-1] if text else ""
    return {"past": LAST, "previous": LAST, "current": THIS, "coming": THIS}.get(word, word)
