"""Finds dates in a query, such as "last week" or "in March 2023", and converts them to spans, without a language model.

Recall is about the past. So an ambiguous phrase ("in March", "on Monday") means the latest occurrence that has begun,
and "Monday" never means today. Days begin in the time zone of the reference time. A false positive is worse than a
miss, so doubtful phrases are ignored. Supports English phrases and numeric dates. `readings` decides which `phrases`
are times, and `windows` does the arithmetic. These modules are imported at the first query with a time word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta, tzinfo

import msgspec

from memory_agent.errors import InvalidInputError
from memory_agent.records.memories import UnderstoodDate
from memory_agent.storage.languages import STOP_WORDS
from memory_agent.storage.terms import query_words, stems

MOST_CHARS = 4_000  # only this part of a query is searched for dates, to bound the time
FOUR_FIGURES = r"(?:19|20)[0-9]{2}"  # a year
_DAY = timedelta(days=1)
_ASKING_FOR_ANYTHING = """
    activity anything been chat conversation did discuss discussed do event everything going happen happened happening
    history hear know let list log look memory mention new news note occur past please recall recap remember remind
    review said saw say see show something speak spoke summarise summarize summary talk tell thing told topic up update
    went work d ll m re s t ve
"""
_ANYTHING = frozenset(stems(_ASKING_FOR_ANYTHING.split()))  # asks for nothing specific
_TRIGGERS = frozenset(
    """
    yesterday today tonight tomorrow ago back now minute hour day weekend week fortnight month quarter year decade
    night morning afternoon evening minutes hours days weekends weeks fortnights months quarters years decades
    monday tuesday wednesday thursday friday saturday sunday mon tue tues wed thu thur thurs fri sat
    january february march april may june july august september october november december
    jan feb mar apr jun jul aug sep sept oct nov dec q1 q2 q3 q4 summer winter spring autumn fall
    """.split()  # noqa: SIM905 - a word list is read as text
)
"""A text that contains no year and none of these words mentions no date."""
_WORDS = re.compile(r"[a-z0-9]+")
_YEARS = re.compile(rf"(?<![0-9]){FOUR_FIGURES}(?![0-9])")
_FOLDED = str.maketrans("\u017f\u212a\u0131\u0130", "skii")  # non-ASCII letters that case-insensitive patterns match
_AGES = (
    ("year", timedelta(days=365), timedelta(days=730)),
    ("month", timedelta(days=365) / 12, timedelta(days=60)),
    ("week", timedelta(days=7), timedelta(days=14)),
    ("day", timedelta(days=1), timedelta(days=1)),
    ("hour", timedelta(hours=1), timedelta(hours=1)),
    ("minute", timedelta(minutes=1), timedelta.min),
)
"""The units of an age, with their lengths and the minimum age that each unit expresses."""
_ROUNDED = frozenset({"year", "month", "week"})  # rounded to the nearest whole number; other units are rounded down


class DateSpan(msgspec.Struct, frozen=True):
    """A time span in UTC that a query mentions. `since` is inclusive, `until` is exclusive; one may be None (open)."""

    phrase: str  # query[start:end]
    start: int
    end: int
    since: datetime | None
    until: datetime | None


def understand_dates(query: str, reference_time: datetime) -> tuple[DateSpan, ...]:
    """Return, in order, the time spans that a query mentions. A memory matches if its time is in any of them.

    The phrases do not overlap, except that an ambiguous phrase ("05/07/2023") yields two spans with the same offsets.
    Raises `InvalidInputError` if the reference time has no time zone.
    """
    if reference_time.tzinfo is None:
        raise InvalidInputError("reference_time", "must have a time zone")
    text = query[:MOST_CHARS]
    if _TRIGGERS.isdisjoint(_WORDS.findall(text.lower())) and _YEARS.search(text) is None:
        return ()
    from memory_agent.recall.dates.readings import read

    spans = (
        _span(text, reading.start, reading.end, *window)
        for reading in read(text.translate(_FOLDED), reference_time)
        for window in reading.windows
    )
    return tuple(span for span in spans if span is not None)


def words_of(phrases: Iterable[str]) -> frozenset[str]:
    """Return the words of date phrases, as `query_words` returns them."""
    return frozenset(word for phrase in phrases for word in query_words(phrase))


def ask_for_nothing_else(phrases: Iterable[str], words: Sequence[str]) -> bool:
    """Whether a query's `words` ask for nothing specific apart from the date `phrases`: "what did we do last week?"."""
    of_dates = words_of(phrases)
    return bool(of_dates) and are_general(word for word in words if word not in of_dates)


def are_general(words: Iterable[str]) -> bool:
    """Whether `words` ask for nothing specific, as in "what happened"."""
    return _ANYTHING.issuperset(stems([word for word in words if word not in STOP_WORDS]))


def describe(span: DateSpan | UnderstoodDate, zone: tzinfo = UTC) -> str:
    """Return a line such as `last week = 2026-11-09 … 2026-11-15`, in `zone`, with times unless the span consists of
    whole days.
    """
    since, until = (None if time is None else time.astimezone(zone) for time in (span.since, span.until))
    in_days = all(time is None or (time.hour, time.minute, time.second) == (0, 0, 0) for time in (since, until))
    shown = "%Y-%m-%d" if in_days else "%Y-%m-%d %H:%M"
    first = since.strftime(shown) if since else ""
    last = (until - _DAY if in_days else until).strftime(shown) if until else ""
    phrase = " ".join(span.phrase.split())
    return f"{phrase} = {first if first == last else f'{first} … {last}'.strip()}"


def age_of(elapsed: timedelta) -> tuple[int, str]:
    """Return an age as a number of the largest unit that fits: 20 days are 3 weeks, and 11.9 days are 11 days."""
    return next(((elapsed + _early(unit, length)) // length, unit) for unit, length, least in _AGES if elapsed >= least)


def ages_of(number: int, unit: str) -> tuple[timedelta, timedelta] | None:
    """Return the range of ages for which `age_of` returns `number` units (the upper bound is exclusive), or None."""
    for known, length, least in _AGES:
        if known == unit and age_of(number * length) == (number, unit):
            begin = number * length - _early(unit, length)
            return max(begin, least), begin + length
    return None


def _early(unit: str, length: timedelta) -> timedelta:
    return length / 2 if unit in _ROUNDED else timedelta(0)


def _span(text: str, start: int, end: int, since: datetime | None, until: datetime | None) -> DateSpan | None:
    """Return the span in UTC, or None if it is empty or outside the calendar's range."""
    with suppress(OverflowError, ValueError):
        since, until = (None if time is None else time.astimezone(UTC) for time in (since, until))
        if since is None or until is None or since < until:
            return DateSpan(text[start:end], start, end, since, until)
    return None
