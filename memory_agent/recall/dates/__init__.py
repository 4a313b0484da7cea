"""Dates in a query: "last week", "on Monday", "in March 2023" become spans of time, without a language model.

Recall is about the past: an ambiguous phrase ("in March", "on Monday") means the latest that has begun, and today is
not "Monday"; an explicit future ("next week") stays in the future. Days begin in the time zone of the reference time. A
false alarm costs more than a miss, so what may be something else is left alone. English, and dates in figures. The
modules behind it (`contexts`, `phrases`, `windows`) are loaded by the first query that has a word of time.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta, tzinfo

import msgspec

from memory_agent.errors import InvalidInputError
from memory_agent.recall.dates.words import mentions_time, plain
from memory_agent.records import UnderstoodDate

MOST_CHARS = 4_000
"""Characters of a query that are read, to bound the time."""
_DAY = timedelta(days=1)


class DateSpan(msgspec.Struct, frozen=True):
    """A span of time that a query names. At least one side is not open, and `since` lies before `until`."""

    phrase: str
    """The words as written, preposition included: `query[start:end]`."""
    start: int
    end: int
    since: datetime | None
    """Inclusive, UTC; None is open."""
    until: datetime | None
    """Exclusive, UTC; None is open."""


def understand_dates(query: str, reference_time: datetime) -> tuple[DateSpan, ...]:
    """Return the spans of time that a query names, in its order.

    They do not overlap in the text, save that one phrase with two readings ("05/07/2023") gives two spans with the same
    offsets; each span stands for itself, and a memory in any of them is meant. Raises `InvalidInputError` when the
    reference time has no time zone, and nothing else.
    """
    if reference_time.tzinfo is None:
        raise InvalidInputError("reference_time", "must be a time with a time zone")
    text = query[:MOST_CHARS]
    if not mentions_time(text):
        return ()
    from memory_agent.recall.dates.readings import read

    spans = (
        _span(text, reading.start, reading.end, *window)
        for reading in read(plain(text), reference_time)
        for window in reading.windows
    )
    return tuple(span for span in spans if span is not None)


def describe(span: DateSpan | UnderstoodDate, zone: tzinfo = UTC) -> str:
    """Return a line such as `last week = 2026-11-09 … 2026-11-15`: whole days with the last one, else times to the
    minute, in `zone`; an open side is left out."""
    since, until = (None if time is None else time.astimezone(zone) for time in (span.since, span.until))
    in_days = all(time is None or (time.hour, time.minute, time.second) == (0, 0, 0) for time in (since, until))
    shown = "%Y-%m-%d" if in_days else "%Y-%m-%d %H:%M"
    first = since.strftime(shown) if since else ""
    last = (until - _DAY if in_days else until).strftime(shown) if until else ""
    phrase = " ".join(span.phrase.split())
    return f"{phrase} = {first if first == last else f'{first} … {last}'.strip()}"


def _span(text: str, start: int, end: int, since: datetime | None, until: datetime | None) -> DateSpan | None:
    """Return the span in UTC, None where it is empty or outside the calendar."""
    with suppress(OverflowError, ValueError):
        since, until = (None if time is None else time.astimezone(UTC) for time in (since, until))
        if since is None or until is None or since < until:
            return DateSpan(text[start:end], start, end, since, until)
    return None
