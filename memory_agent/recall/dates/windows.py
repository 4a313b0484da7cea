"""Calendar arithmetic: spans of time relative to a moment, in its time zone.

`dateutil` parses and calculates. This module decides the width of a span, and which Monday or May is meant: the latest
that has begun. Weeks begin on Monday, and seasons are those of the northern hemisphere. All methods raise `ValueError`
or `OverflowError` for a date that does not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from dateutil.parser import parse
from dateutil.relativedelta import relativedelta, weekday

_DAY = timedelta(days=1)
_STEPS = {
    "minute": relativedelta(minutes=1),
    "hour": relativedelta(hours=1),
    "day": relativedelta(days=1),
    "weekend": relativedelta(weeks=1),
    "week": relativedelta(weeks=1),
    "fortnight": relativedelta(weeks=2),
    "month": relativedelta(months=1),
    "quarter": relativedelta(months=3),
    "year": relativedelta(years=1),
    "decade": relativedelta(years=10),
}
_LEEWAY = {
    "minute": relativedelta(minutes=5),
    "hour": relativedelta(minutes=30),
    "week": relativedelta(days=3),
    "fortnight": relativedelta(days=3),
    "month": relativedelta(days=15),
    "quarter": relativedelta(days=45),
    "year": relativedelta(months=6),
    "decade": relativedelta(years=5),
}
"""Tolerance of "n units ago" in both directions: half a unit. "A week ago", said on a Monday, may mean Saturday."""
_PARTS_OF_DAY = {
    "morning": (relativedelta(hour=4), relativedelta(hour=12)),
    "afternoon": (relativedelta(hour=12), relativedelta(hour=18)),
    "evening": (relativedelta(hour=17), relativedelta(days=1)),
    "night": (relativedelta(hour=18), relativedelta(days=1, hour=6)),
}
_SEASONS = {"spring": 3, "summer": 6, "autumn": 9, "fall": 9, "winter": 12}
_DAYS_OF_MONTH = 30.4
_MOST_MONTHS_IN_DAYS = 9  # a longer span is divided at month boundaries, not by days
_MOST_YEARS_BACK = 8  # the longest time between leap days


class Window(NamedTuple):
    """A span of time. `since` is inclusive, `until` is exclusive, and both have a time zone; an open end is None."""

    since: datetime | None
    until: datetime | None


class Span(NamedTuple):
    since: datetime
    until: datetime

    @property
    def days(self) -> int:
        return (self.until - self.since).days


class Calendar:
    """Spans of time relative to a moment, in its time zone."""

    def __init__(self, now: datetime) -> None:
        self.now = now
        self.today = now.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)

    def day(self, offset: int = 0) -> Span:
        return self.unit("day", offset)

    def unit(self, unit: str, offset: int = 0) -> Span:
        """Return a calendar unit relative to now: day, weekend (of the calendar week), week, month, quarter or year."""
        start = self._start(unit) + offset * _STEPS[unit]
        return Span(start, start + (2 * _DAY if unit == "weekend" else _STEPS[unit]))

    def shifted(self, counts: Iterable[tuple[int, str]], sign: int) -> Span:
        """Return the span around the moment `counts` units before (`sign` -1) or after now. Its length depends on
        the smallest unit.
        """
        counted = tuple(counts)
        moment = self.now.astimezone(UTC) if counted[-1][1] in ("minute", "hour") else self.today
        for number, unit in counted:
            moment += sign * number * _STEPS[unit]
        unit = counted[-1][1]
        if unit in ("day", "weekend"):
            return Calendar(moment).unit(unit)
        if unit in ("minute", "hour"):
            return Span(moment - _LEEWAY[unit], moment + _LEEWAY[unit])
        return Span(moment - _LEEWAY[unit], moment + _LEEWAY[unit] + _DAY)

    def running(self, number: int, unit: str, sign: int) -> Span:
        """Return the last (`sign` -1) or next `number` units, including today or, for hours, the current minute."""
        if unit in ("minute", "hour"):
            now = self.now.astimezone(UTC).replace(second=0, microsecond=0)
            end = now + sign * number * _STEPS[unit]
            return Span(min(now, end), max(now, end) + timedelta(minutes=1))
        end = self.today + sign * number * _STEPS[unit]
        return Span(min(self.today, end), max(self.today, end) + _DAY)

    def weekday(self, number: int, which: str | None) -> Span:
        """Return a weekday (0: Monday): the `last` before today, in `this` calendar week, or the `next` after today."""
        if which == "this":
            return _day_of(self._start("week") + number * _DAY)
        if which == "next":
            return _day_of(self.today + relativedelta(days=1, weekday=weekday(number)(1)))
        return _day_of(self.today + relativedelta(days=-1, weekday=weekday(number)(-1)))

    def weekday_of_week(self, number: int, offset: int) -> Span:
        """Return the given weekday (0: Monday) of the calendar week that is `offset` weeks from this one."""
        return _day_of(self.unit("week", offset).since + number * _DAY)

    def recurring(self, in_year: Callable[[int], Span], year: int | None, which: str | None) -> Span:
        """Return the occurrence of a yearly span in `year`, if `year` is given.

        Otherwise, `which` selects an occurrence: the `last` that has ended, the one of `this` year, or the `next` to
        begin. The default is the latest occurrence that has begun.
        """
        if year is not None or which == "this":
            return in_year(self.today.year if year is None else year)
        years = range(self.today.year, self.today.year - _MOST_YEARS_BACK - 1, -1)
        if which == "next":
            years = range(self.today.year, self.today.year + _MOST_YEARS_BACK + 1)
        for candidate in years:
            with suppress(ValueError):  # 29 February
                span = in_year(candidate)
                if self._is(which, span):
                    return span
        raise ValueError("no such date")

    def date(self, text: str, day_first: bool = False) -> Span:
        return _day_of(parse(text, dayfirst=day_first, default=self.today))

    def month(self, text: str) -> Span:
        start = parse(text, default=self.today.replace(day=1))
        return Span(start, start + _STEPS["month"])

    def quarter(self, number: int, year: int) -> Span:
        return self._months(year, 3 * number - 2)

    def season(self, name: str, year: int) -> Span:
        """Return the three months of a season; winter begins in December of `year`."""
        return self._months(year, _SEASONS[name])

    def year(self, year: int) -> Span:
        start = self.today.replace(year=year, month=1, day=1)
        return Span(start, start + _STEPS["year"])

    def timestamp(self, text: str) -> Span:
        """Return the day, minute or second of an ISO 8601 text, in its own time zone if it has one."""
        moment = parse(text, default=self.today)
        width = {0: _DAY, 1: timedelta(minutes=1)}.get(text.count(":", 0, 19), timedelta(seconds=1))
        moment = moment.replace(microsecond=0)
        return Span(moment, moment + width)

    def _is(self, which: str | None, span: Span) -> bool:
        if which == "last":
            return span.until <= self.now
        return span.since > self.now if which == "next" else span.since <= self.now

    def _start(self, unit: str) -> datetime:
        if unit in ("week", "weekend"):
            return self.today - (self.today.weekday() - (5 if unit == "weekend" else 0)) * _DAY
        month = {"quarter": (self.today.month - 1) // 3 * 3 + 1, "year": 1}.get(unit, self.today.month)
        return self.today if unit == "day" else self.today.replace(month=month, day=1)

    def _months(self, year: int, first: int) -> Span:
        start = self.today.replace(year=year, month=first, day=1)
        return Span(start, start + _STEPS["quarter"])


def part_of_day(day: Span, name: str) -> Span:
    """Return the morning, afternoon, evening or night of a day; a night ends on the next day."""
    start, end = _PARTS_OF_DAY[name]
    return Span(day.since + start, day.since + end)


def at_clock(day: Span, clock: str, begin: str | None = None) -> Span:
    """Return the span from `begin` to a clock time or, without `begin`, the hour that starts at a full hour ("3pm"), or
    the 15 minutes before and after a time with minutes.
    """
    moment = parse(clock, default=day.since)
    if begin is not None:
        return Span(parse(begin, default=day.since), moment)
    if ":" not in clock:
        return Span(moment, moment + timedelta(hours=1))
    return Span(moment - timedelta(minutes=15), moment + timedelta(minutes=15))


def share(span: Span, place: int, parts: int) -> Span:
    """Divide a span into `parts` equal parts; return part `place`, counted from 0. Years are split by month, other
    spans by day.
    """
    return Span(_cut(span, place, parts), _cut(span, place + 1, parts))


def week_of(span: Span, number: int) -> Span:
    """Return days 1 to 7, 8 to 14, … of a span; week -1 is its last seven days."""
    since = span.until - 7 * _DAY if number < 0 else span.since + 7 * (number - 1) * _DAY
    return Span(since, min(since + 7 * _DAY, span.until))


def next_to(span: Span, unit: str, sign: int) -> Span:
    """Return the unit directly before (`sign` -1) or after a span; for 0, the unit in which the span begins."""
    if not sign:
        return Calendar(span.since).unit(unit)
    if unit == "weekend":
        days = relativedelta(days=-2, weekday=weekday(5)(-1)) if sign < 0 else relativedelta(weekday=weekday(5)(1))
        start = (span.since if sign < 0 else span.until) + days
        return Span(start, start + 2 * _DAY)
    return Span(span.since - _STEPS[unit], span.since) if sign < 0 else Span(span.until, span.until + _STEPS[unit])


def _cut(span: Span, part: int, parts: int) -> datetime:
    months = round(span.days / _DAYS_OF_MONTH)
    if months > _MOST_MONTHS_IN_DAYS:
        border: datetime = span.since + relativedelta(months=months * part // parts)
        return border
    return span.until if part == parts else span.since + span.days * part // parts * _DAY


def _day_of(moment: datetime) -> Span:
    start = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    return Span(start, start + _DAY)
