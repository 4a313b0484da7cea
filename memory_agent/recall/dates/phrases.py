"""English time phrases and the span of each: "three days ago", "7 May 2023".

Tuned for few false positives: "may" is a verb and "2000" a number unless the context says otherwise. So a bare month,
year, weekday, season, quarter or weekend is weak: it counts only in a suitable context (`readings`). Numeric dates are
read in any language.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC
from typing import NamedTuple

from memory_agent.recall.dates import words
from memory_agent.recall.dates.windows import Calendar, Span, part_of_day
from memory_agent.recall.dates.words import BEGIN, END, NO_OWNER, NUMBER_BEGINS, NUMBER_ENDS, OFFSETS, Match

_DAY = r"(?:0?[1-9]|[12][0-9]|3[01])"
_NTH = r"(?P<nth>st|nd|rd|th)?"
_YEAR = rf"(?P<year>{words.FOUR_FIGURES}{NUMBER_ENDS}|['’][0-9]{{2}}{NUMBER_ENDS}|(?:last|this|next) year{END})"
_OF_YEAR = rf"(?:(?:\s?,\s{{0,3}}| )(?:of |in )?{_YEAR})"
_WHICH = rf"(?:{NO_OWNER}{words.WHICH} )"
_ON_WEEKDAY = rf"(?:(?:{words.WEEKDAY}|{words.SHORT_WEEKDAY})(?:\s?,)? (?:the )?)?"
_NO_HOLIDAY = (
    r"(?<!every\s)(?<!each\s)(?<!any\s)(?<!most\s)(?<!\ba\s)(?<!black\s)(?<!good\s)(?<!cyber\s)(?<!super\s)(?<!taco\s)"
    r"(?<!ash\s)(?<!palm\s)(?<!easter\s)"
)
_NOT_OF = r"(?! of\b)"
_NO_NAME = r"(?!\.\w|['’]s\b)"
_NO_STAMP = rf"(?! [0-9:]{{5,8}} (?:[a-z]{{3,4}} )?{words.FOUR_FIGURES})"
"""Not as in `Jun 9 10:18:14 2021`, where the year comes last."""
_TO = r"(?:\s?[-–—]\s?| (?:to|and|until|till|through|thru) )"
_QUARTERS = {"first": 1, "1st": 1, "second": 2, "2nd": 2, "third": 3, "3rd": 3, "fourth": 4, "4th": 4, "last": 4}
_HALVES = {"hour": (30, "minute"), "day": (12, "hour"), "year": (6, "month")}
_WEAK = frozenset({"weekday", "month", "year", "season", "quarter", "weekend"})
_FLOATING = frozenset({"weekday", "month", "season", "quarter", "day", "days"})


class Rule(NamedTuple):
    """One kind of phrase. An ambiguous one reads as two spans: "05/07/2023"."""

    kind: str
    pattern: re.Pattern[str]
    read: Callable[[Match, Calendar], list[Span]]


def is_weak(kind: str, match: Match) -> bool:
    """Whether the phrase is a time only in a suitable context."""
    return kind in _WEAK and not _is_fixed(match)


def floats(kind: str, match: Match) -> bool:
    """Whether its year follows from the end of a range that it begins: "from March to May 2023"."""
    return kind in _FLOATING and not _is_fixed(match)


def is_dated(match: Match) -> bool:
    """Whether the phrase names its year or week: "May 2025", "Monday last week"."""
    groups = match.groupdict()
    return any(groups.get(name) for name in ("year", "of_week"))


def shifted(calendar: Calendar, number: str, unit: str, sign: int) -> Span:
    """Return the time `number` units before (`sign` -1) or after the calendar's moment."""
    near, far = (calendar.shifted([(n, words.unit_of(unit))], sign) for n in words.count(number))
    return Span(min(near.since, far.since), max(near.until, far.until))


def with_ages(match: Match, calendar: Calendar, span: Span) -> Span:
    """Extend the span of "n units ago" to every time whose age a block for a prompt shows as n units (`age_of`)."""
    now = calendar.now.astimezone(UTC)
    for number in words.count(match["number"]) if match["number"] and not match["and_number"] else ():
        if ages := words.ages_of(number, words.unit_of(match["unit"])):
            span = Span(min(span.since, now - ages[1]), max(span.until, now - ages[0]))
    return span


def _is_fixed(match: Match) -> bool:
    groups = match.groupdict()
    return any(groups.get(name) for name in ("which", "year", "of_week", "the_year"))


def _ago(match: Match, calendar: Calendar) -> list[Span]:
    sign = -1 if match["way"].lower() == "ago" else 1
    if match["half"]:
        return [calendar.shifted([_HALVES[match["half"].lower()]], sign)]
    if match["and_number"]:
        counts = [(words.count(match[f"{n}number"])[0], words.unit_of(match[f"{n}unit"])) for n in ("", "and_")]
        return [calendar.shifted(counts, sign)]
    return [shifted(calendar, match["number"], match["unit"], sign)]


def _running(match: Match, calendar: Calendar) -> list[Span]:
    sign = 1 if match["way"].lower() == "next" else -1
    number = words.count(match.groupdict().get("number") or "one")[1]
    return [calendar.running(number, words.unit_of(match["unit"]), sign)]


def _unit(match: Match, calendar: Calendar) -> list[Span]:
    return [calendar.unit(match["unit"].lower(), OFFSETS[words.which_of(match["which"])])]


def _unit_before_last(match: Match, calendar: Calendar) -> list[Span]:
    return [calendar.unit(match["unit"].lower(), -2)]


def _part(match: Match, calendar: Calendar) -> list[Span]:
    return [part_of_day(calendar.day(OFFSETS[words.which_of(match["which"])]), match["part"].lower())]


def _tonight(_: Match, calendar: Calendar) -> list[Span]:
    return [part_of_day(calendar.day(), "night")]


def _weekend(_: Match, calendar: Calendar) -> list[Span]:
    """Return the latest weekend that has begun."""
    present = calendar.unit("weekend")
    return [present if present.since <= calendar.now else calendar.unit("weekend", -1)]


def _near_day(match: Match, calendar: Calendar) -> list[Span]:
    offset = {"yesterday": -1, "today": 0, "tomorrow": 1}[match["day"].lower()]
    return [calendar.day(2 * offset if match["twice"] else offset)]


def _weekday(match: Match, calendar: Calendar) -> list[Span]:
    number = words.weekday_of(match["weekday"])
    if match["of_week"]:
        return [calendar.weekday_of_week(number, OFFSETS[match["of_week"].lower()])]
    return [calendar.weekday(number, words.which_of(match["which"]))]


def _day(match: Match, calendar: Calendar) -> list[Span]:
    return _yearly(match, calendar, lambda year: calendar.date(f"{match['day']} {_month_of(match)} {year}"))


def _days(match: Match, calendar: Calendar) -> list[Span]:
    def in_year(year: int) -> Span:
        first, last = (calendar.date(f"{match[day]} {_month_of(match)} {year}") for day in ("day", "last_day"))
        return Span(first.since, last.until)

    return _yearly(match, calendar, in_year)


def _month(match: Match, calendar: Calendar) -> list[Span]:
    return _yearly(match, calendar, lambda year: calendar.month(f"{_month_of(match)} {year}"))


def _season(match: Match, calendar: Calendar) -> list[Span]:
    return _yearly(match, calendar, lambda year: calendar.season(match["season"].lower(), year))


def _quarter(match: Match, calendar: Calendar) -> list[Span]:
    groups = match.groupdict()
    number = int(groups.get("number") or 0) or _QUARTERS[match["ordinal"].lower()]
    return _yearly(match, calendar, lambda year: calendar.quarter(number, year))


def _year(match: Match, calendar: Calendar) -> list[Span]:
    return [calendar.year(int(match["only_year"]))]


def _iso(match: Match, calendar: Calendar) -> list[Span]:
    return [calendar.timestamp(match["text"].replace("/", "-").upper())]


def _figures(match: Match, calendar: Calendar) -> list[Span]:
    """Return the readings as day/month and month/day that exist and differ; past ones are preferred."""
    orders = (False, True) if match["separator"] else (True,)
    spans = sorted({calendar.date(match["text"], day_first) for day_first in orders})
    return [span for span in spans if span.since <= calendar.now] or spans


def _yearly(match: Match, calendar: Calendar, in_year: Callable[[int], Span]) -> list[Span]:
    """Return a yearly span, in the phrase's year if it has one."""
    groups = match.groupdict()
    text = (groups.get("year") or "").lower()
    which = words.which_of(groups.get("which"))
    if not text:
        return [calendar.recurring(in_year, None, which)]
    if text.endswith("year"):
        return [in_year(calendar.today.year + OFFSETS[text.split()[0]])]
    return [in_year(int(text) if text.isdigit() else 2000 + int(text[1:]))]


def _month_of(match: Match) -> str:
    return str(match["month"]).removesuffix(".")


_HOW_MANY = rf"(?P<number>{words.NUMBER}){words.OF_THEM}(?P<unit>{words.UNIT})"
_AND_MORE = rf"(?:\s?,\s?| and | )(?P<and_number>{words.NUMBER}){words.OF_THEM}(?P<and_unit>{words.UNIT})"
_LONG = r"(?P<unit>week|month|year|quarter|weekend)"
_THE_PAST = r"(?:(?:in|over|during|within|for|from) the (?=last|past)|(?:the |this )?(?=past))"
_WEEKDAYS = rf"(?P<weekday>{words.WEEKDAY}|mon|tues?|wed|thu(?:rs?)?|fri)"
_MONTH = rf"(?P<month>{words.MONTH})"
_NUMBERED = rf"(?P<day>{_DAY}){_NTH}"
_ISO_CLOCK = r"(?:[T\s][0-2][0-9]:[0-5][0-9](?::[0-5][0-9](?:\.[0-9]{1,9})?)?(?:\s?(?:Z|UTC|[+-][0-9]{2}:?[0-9]{2}))?)?"
_DOTTED = rf"{_DAY}\.(?:0?[1-9]|1[0-2])\.{words.FOUR_FIGURES}"
_FIGURES = rf"{_DOTTED}|{_DAY}(?P<separator>[/-]){_DAY}(?P=separator){words.FOUR_FIGURES}"


def _rule(kind: str, pattern: str, read: Callable[[Match, Calendar], list[Span]]) -> Rule:
    return Rule(kind, words.compiled(pattern), read)


RULES = (
    _rule(
        "ago",
        rf"{NUMBER_BEGINS}(?:half an? (?P<half>hour|day|year)|{_HOW_MANY}(?:{_AND_MORE})?)"
        rf" (?P<way>ago|from (?:now|today))(?: today)?{END}",
        _ago,
    ),
    _rule(
        "running",
        rf"{BEGIN}(?<!half\s)(?<!quarter\s)(?:(?:the|these|this) )?(?P<way>last|past|previous|next) "
        rf"{_HOW_MANY}{END}{_NOT_OF}",
        _running,
    ),
    _rule(
        "running",
        rf"{BEGIN}{_THE_PAST}(?P<way>last|past) (?P<unit>hour|day|week|fortnight|month|quarter|year|decade){END}"
        r"(?! (?:of\b|[0-9]))",
        _running,
    ),
    _rule("unit", rf"{BEGIN}{_WHICH}{_LONG}{END}{_NOT_OF}", _unit),
    _rule("unit", rf"{BEGIN}(?:the )?{_LONG} before last{END}", _unit_before_last),
    _rule(
        "part",
        rf"{BEGIN}{NO_OWNER}(?P<which>this|last) (?P<part>(?<=this\s)(?:morning|afternoon|evening)|evening|night){END}",
        _part,
    ),
    _rule("part", rf"{BEGIN}tonight{END}", _tonight),
    _rule(
        "near_day",
        rf"{BEGIN}(?<!usa\s)(?:(?:earlier|later) (?=today))?"
        r"(?P<twice>(?:the )?day (?:before (?=yesterday)|after (?=tomorrow)))?"
        rf"(?P<day>yesterday|today|tomorrow){END}(?!\.\w)",
        _near_day,
    ),
    _rule(
        "weekday",
        rf"{BEGIN}(?:{_WHICH}|{_NO_HOLIDAY}){_WEEKDAYS}{END}"
        rf"(?:(?:\s?,)? (?:of )?(?P<of_week>last|this|next) week{END})?(?!\.\w){_NOT_OF}",
        _weekday,
    ),
    _rule("day", rf"{NUMBER_BEGINS}{_ON_WEEKDAY}(?:the )?{_NUMBERED} (?:(?:day )?of )?{_MONTH}{END}{_OF_YEAR}?", _day),
    _rule("day", rf"{BEGIN}{_ON_WEEKDAY}{_MONTH} (?:the )?{_NUMBERED}(?:{_OF_YEAR}|{NUMBER_ENDS}{_NO_STAMP})", _day),
    _rule(
        "days",
        rf"{NUMBER_BEGINS}{_NUMBERED}{_TO}(?P<last_day>{_DAY})(?:st|nd|rd|th)? (?:of )?{_MONTH}{END}{_OF_YEAR}?",
        _days,
    ),
    _rule(
        "days",
        rf"{BEGIN}{_MONTH} {_NUMBERED}{_TO}(?P<last_day>{_DAY})(?:st|nd|rd|th)?(?:{_OF_YEAR}|{NUMBER_ENDS})",
        _days,
    ),
    _rule("month", rf"{BEGIN}{_WHICH}?{_MONTH}{END}{_OF_YEAR}?{_NO_NAME}", _month),
    _rule("season", rf"{BEGIN}{_WHICH}?(?P<season>{words.SEASON}){END}{_OF_YEAR}?{_NO_NAME}", _season),
    _rule("quarter", rf"{BEGIN}q(?P<number>[1-4]){END}{_OF_YEAR}?{_NO_NAME}", _quarter),
    _rule("quarter", rf"{NUMBER_BEGINS}(?P<year>{words.FOUR_FIGURES}) q(?P<number>[1-4]){END}", _quarter),
    _rule("quarter", rf"{BEGIN}(?:the )?(?P<ordinal>{'|'.join(_QUARTERS)}) quarter{_OF_YEAR}", _quarter),
    _rule("weekend", rf"{BEGIN}(?P<the>the )?weekend{END}{_NOT_OF}", _weekend),
    _rule(
        "year", rf"{NUMBER_BEGINS}(?P<the_year>(?:the )?year )?(?P<only_year>{words.FOUR_FIGURES}){NUMBER_ENDS}", _year
    ),
    _rule(
        "iso", rf"{NUMBER_BEGINS}(?P<text>{words.FOUR_FIGURES}-[01][0-9]-[0-3][0-9]{_ISO_CLOCK})(?![\w/:-]|\.\w)", _iso
    ),
    _rule("iso", rf"{NUMBER_BEGINS}(?P<text>{words.FOUR_FIGURES}/[01]?[0-9]/[0-3]?[0-9])(?![\w/:-]|\.\w)", _iso),
    _rule(
        "figures", rf"{NUMBER_BEGINS}(?<!version\s)(?<!release\s)(?P<text>{_FIGURES}){NUMBER_ENDS}(?!\.\w)", _figures
    ),
)
"""Where two match the same words, the earlier."""
