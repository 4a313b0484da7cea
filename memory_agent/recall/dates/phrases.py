"""Finds English time phrases with their modifiers, such as "three days ago" or "since early March", and their spans.

The rules are tuned for few false positives: a bare month, year, weekday, season, quarter or weekend is a weak phrase,
which counts as a time only in a suitable context (`readings`). Numeric dates are found in any language. A plain space
in a pattern matches one to three whitespace characters (`compiled`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, timedelta
from typing import NamedTuple

from memory_agent.recall.dates import FOUR_FIGURES, ages_of, windows
from memory_agent.recall.dates.windows import Calendar, Span, Window, part_of_day

Match = re.Match[str]


def word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


BEGIN = r"(?<!\w)"
END = r"(?!\w)"
NUMBER_BEGINS = r"(?<![\w.,:/$€£#=@+-])"
NUMBER_ENDS = r"(?![\w/%°-]|[.,:][0-9])"
"""Excludes characters that make the digits part of an identifier, version, path, price or longer number."""

NUMBER = (
    r"(?:[0-9]{1,4}|an? couple(?: of)?|an? few|couple(?: of)?|few|several|an?|one|two|three|four|five|six|seven|eight|"
    r"nine|ten|eleven|twelve|fifteen|twenty|thirty)"
)
UNIT = (
    r"(?:minutes?|mins?|hours?|hrs?|days?|weekends?|weeks?|wks?|fortnights?|months?|quarters?|years?|yrs?|decades?|"
    r"(?:(?<=[0-9])|(?<=[0-9]\s))[hdwy])"
)
OF_THEM = r"(?: |(?<=[0-9]))"  # between a number and its unit: "two days", "2d"
WHICH = r"(?P<which>(?:this )?(?:last|past)|previous|this(?: coming)?|current|next)"
NO_OWNER = (
    r"(?<!the\s)(?<!an\s)(?<!a\s)(?<!his\s)(?<!her\s)(?<!its\s)(?<!my\s)(?<!our\s)(?<!your\s)(?<!their\s)(?<!['’]s\s)"
    r"(?<!every\s)(?<!each\s)"
)
"""Excludes "his last year", "the next week", "Ann's last fall"."""
WEEKDAY = r"(?:mon|tues|wednes|thurs|fri|satur|sun)day"
SHORT_WEEKDAY = r"(?:mon|tues?|wed|thu(?:rs?)?|fri|sat|sun)\.?"
MONTH = (
    r"(?:january|february|march|april|may|june|july|august|september|october|november|december|"
    r"(?:jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec)(?:\.(?=\s))?)"
)
SEASON = r"(?:summer|winter|spring|autumn|fall)"
PART_OF_DAY = r"(?:morning|afternoon|evening|night)"
CLOCK = r"(?:(?:[01]?[0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9])?(?:\s?[ap]\.?m\b\.?)?|(?:1[0-2]|[1-9])\s?[ap]\.?m\b\.?)"

LAST, THIS, NEXT = "last", "this", "next"
OFFSETS = {LAST: -1, THIS: 0, NEXT: 1}

_NUMBERS = {"a": 1, "an": 1, "couple": 2, "fifteen": 15, "twenty": 20, "thirty": 30} | {
    word: number
    for number, word in enumerate(
        ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"), 1
    )
}
_FEW = (2, 5)  # the smallest and largest number that "a few" and "several" may mean
_UNITS = {"min": "minute", "hr": "hour", "h": "hour", "d": "day", "wk": "week", "w": "week", "yr": "year", "y": "year"}
_WEEKDAY_NAMES = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


def compiled(pattern: str) -> re.Pattern[str]:
    """Compile a case-insensitive pattern in which a space matches one to three whitespace characters."""
    return re.compile(pattern.replace(" ", r"\s{1,3}"), re.IGNORECASE)


def count(text: str) -> tuple[int, int]:
    """Return the smallest and largest numbers that `text`, in digits or words, can mean."""
    if text.isdigit():
        return int(text), int(text)
    words = text.lower().split()
    if {"few", "several"} & set(words):
        return _FEW
    number = _NUMBERS["couple" if "couple" in words else words[0]]
    return number, number


def unit_of(text: str) -> str:
    word = text.lower().removesuffix("s")
    return _UNITS.get(word, word)


def weekday_of(text: str) -> int:
    return _WEEKDAY_NAMES.index(text[:3].lower())


def which_of(text: str | None) -> str:
    """Return what the words mean: `last`, `this` or `next`, or "" if they contain none of these."""
    word = text.lower().split()[-1] if text else ""
    return {"past": LAST, "previous": LAST, "current": THIS, "coming": THIS}.get(word, word)


_DAY = r"(?:0?[1-9]|[12][0-9]|3[01])"
_NTH = r"(?P<nth>st|nd|rd|th)?"
_YEAR = rf"(?P<year>{FOUR_FIGURES}{NUMBER_ENDS}|['’][0-9]{{2}}{NUMBER_ENDS}|(?:last|this|next) year{END})"
_OF_YEAR = rf"(?:(?:\s?,\s{{0,3}}| )(?:of |in )?{_YEAR})"
_WHICH = rf"(?:{NO_OWNER}{WHICH} )"
_ON_WEEKDAY = rf"(?:(?:{WEEKDAY}|{SHORT_WEEKDAY})(?:\s?,)? (?:the )?)?"
_NO_HOLIDAY = (
    r"(?<!every\s)(?<!each\s)(?<!any\s)(?<!most\s)(?<!\ba\s)(?<!black\s)(?<!good\s)(?<!cyber\s)(?<!super\s)(?<!taco\s)"
    r"(?<!ash\s)(?<!palm\s)(?<!easter\s)"
)
_NOT_OF = r"(?! of\b)"
_NO_NAME = r"(?!\.\w|['’]s\b)"
_NO_STAMP = rf"(?! [0-9:]{{5,8}} (?:[a-z]{{3,4}} )?{FOUR_FIGURES})"  # excludes `Jun 9 10:18:14 2021`
_TO = r"(?:\s?[-–—]\s?| (?:to|and|until|till|through|thru) )"
_ORDINALS = {"first": 1, "1st": 1, "second": 2, "2nd": 2, "third": 3, "3rd": 3, "fourth": 4, "4th": 4, "last": -1}
_ORDINAL = "|".join(_ORDINALS)
_HALVES = {"hour": (30, "minute"), "day": (12, "hour"), "year": (6, "month")}
_OF_MONTHS = word_set("in during since before after until till from throughout")


class Kind(NamedTuple):
    """The contexts and modifiers that a kind of phrase allows."""

    prepositions: frozenset[str] = frozenset()  # a bare phrase denotes a time only after one of these (empty: always)
    floats: bool = False  # a phrase without a year inherits the year of the range that it begins
    is_day: bool = False  # whether the phrase may have a time of day
    is_long: bool = False  # whether a modifier may select a part of it ("early March")


_KINDS = {
    "ago": Kind(),
    "running": Kind(),
    "unit": Kind(is_long=True),
    "part": Kind(),
    "near_day": Kind(is_day=True),
    "weekday": Kind(word_set("on since before after until till from"), floats=True, is_day=True),
    "day": Kind(floats=True, is_day=True),
    "days": Kind(floats=True, is_long=True),
    "month": Kind(_OF_MONTHS, floats=True, is_long=True),
    "season": Kind(word_set("during over since before after until till throughout"), floats=True, is_long=True),
    "quarter": Kind(_OF_MONTHS, floats=True, is_long=True),
    "weekend": Kind(word_set("on at during over since before after until till from throughout")),
    "year": Kind(_OF_MONTHS, is_long=True),
    "iso": Kind(is_day=True),
    "figures": Kind(is_day=True),
}


class Rule(NamedTuple):
    """The pattern for one kind of phrase. `read` returns two spans for an ambiguous phrase: "05/07/2023"."""

    kind: str
    pattern: re.Pattern[str]
    read: Callable[[Match, Calendar], list[Span]]


def is_dated(match: Match) -> bool:
    groups = match.groupdict()
    return any(groups.get(name) for name in ("year", "of_week"))


def shifted(calendar: Calendar, number: str, unit: str, sign: int) -> Span:
    near, far = (calendar.shifted([(n, unit_of(unit))], sign) for n in count(number))
    return Span(min(near.since, far.since), max(near.until, far.until))


def with_ages(match: Match, calendar: Calendar, span: Span) -> Span:
    """Extend the span of "n units ago" to all times whose age is shown as n units (`age_of`)."""
    now = calendar.now.astimezone(UTC)
    for number in count(match["number"]) if match["number"] and not match["and_number"] else ():
        if ages := ages_of(number, unit_of(match["unit"])):
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
        counts = [(count(match[f"{n}number"])[0], unit_of(match[f"{n}unit"])) for n in ("", "and_")]
        return [calendar.shifted(counts, sign)]
    return [shifted(calendar, match["number"], match["unit"], sign)]


def _running(match: Match, calendar: Calendar) -> list[Span]:
    sign = 1 if match["way"].lower() == "next" else -1
    number = count(match.groupdict().get("number") or "one")[1]
    return [calendar.running(number, unit_of(match["unit"]), sign)]


def _unit(match: Match, calendar: Calendar) -> list[Span]:
    return [calendar.unit(match["unit"].lower(), OFFSETS[which_of(match["which"])])]


def _unit_before_last(match: Match, calendar: Calendar) -> list[Span]:
    return [calendar.unit(match["unit"].lower(), -2)]


def _part(match: Match, calendar: Calendar) -> list[Span]:
    return [part_of_day(calendar.day(OFFSETS[which_of(match["which"])]), match["part"].lower())]


def _tonight(_: Match, calendar: Calendar) -> list[Span]:
    return [part_of_day(calendar.day(), "night")]


def _weekend(_: Match, calendar: Calendar) -> list[Span]:
    present = calendar.unit("weekend")
    return [present if present.since <= calendar.now else calendar.unit("weekend", -1)]


def _near_day(match: Match, calendar: Calendar) -> list[Span]:
    offset = {"yesterday": -1, "today": 0, "tomorrow": 1}[match["day"].lower()]
    return [calendar.day(2 * offset if match["twice"] else offset)]


def _weekday(match: Match, calendar: Calendar) -> list[Span]:
    number = weekday_of(match["weekday"])
    if match["of_week"]:
        return [calendar.weekday_of_week(number, OFFSETS[match["of_week"].lower()])]
    return [calendar.weekday(number, which_of(match["which"]))]


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
    number = int(groups.get("number") or 0) or _ORDINALS[match["ordinal"].lower()]
    return _yearly(match, calendar, lambda year: calendar.quarter(4 if number < 0 else number, year))


def _year(match: Match, calendar: Calendar) -> list[Span]:
    return [calendar.year(int(match["only_year"]))]


def _iso(match: Match, calendar: Calendar) -> list[Span]:
    return [calendar.timestamp(match["text"].replace("/", "-").upper())]


def _figures(match: Match, calendar: Calendar) -> list[Span]:
    """Return the distinct valid readings of a numeric date as day/month and month/day; past dates are preferred."""
    orders = (False, True) if match["separator"] else (True,)
    spans = sorted({calendar.date(match["text"], day_first) for day_first in orders})
    return [span for span in spans if span.since <= calendar.now] or spans


def _yearly(match: Match, calendar: Calendar, in_year: Callable[[int], Span]) -> list[Span]:
    """Return a span that recurs yearly, in the phrase's year if it has one."""
    groups = match.groupdict()
    text = (groups.get("year") or "").lower()
    which = which_of(groups.get("which"))
    if not text:
        return [calendar.recurring(in_year, None, which)]
    if text.endswith("year"):
        return [in_year(calendar.today.year + OFFSETS[text.split()[0]])]
    return [in_year(int(text) if text.isdigit() else 2000 + int(text[1:]))]


def _month_of(match: Match) -> str:
    return str(match["month"]).removesuffix(".")


_HOW_MANY = rf"(?P<number>{NUMBER}){OF_THEM}(?P<unit>{UNIT})"
_AND_MORE = rf"(?:\s?,\s?| and | )(?P<and_number>{NUMBER}){OF_THEM}(?P<and_unit>{UNIT})"
_LONG = r"(?P<unit>week|month|year|quarter|weekend)"
_THE_PAST = r"(?:(?:in|over|during|within|for|from) the (?=last|past)|(?:the |this )?(?=past))"
_WEEKDAYS = rf"(?P<weekday>{WEEKDAY}|mon|tues?|wed|thu(?:rs?)?|fri)"
_MONTH = rf"(?P<month>{MONTH})"
_NUMBERED = rf"(?P<day>{_DAY}){_NTH}"
_ISO_CLOCK = r"(?:[T\s][0-2][0-9]:[0-5][0-9](?::[0-5][0-9](?:\.[0-9]{1,9})?)?(?:\s?(?:Z|UTC|[+-][0-9]{2}:?[0-9]{2}))?)?"
_DOTTED = rf"{_DAY}\.(?:0?[1-9]|1[0-2])\.{FOUR_FIGURES}"
_FIGURES = rf"{_DOTTED}|{_DAY}(?P<separator>[/-]){_DAY}(?P=separator){FOUR_FIGURES}"


def _rule(kind: str, pattern: str, read: Callable[[Match, Calendar], list[Span]]) -> Rule:
    return Rule(kind, compiled(pattern), read)


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
    _rule("season", rf"{BEGIN}{_WHICH}?(?P<season>{SEASON}){END}{_OF_YEAR}?{_NO_NAME}", _season),
    _rule("quarter", rf"{BEGIN}q(?P<number>[1-4]){END}{_OF_YEAR}?{_NO_NAME}", _quarter),
    _rule("quarter", rf"{NUMBER_BEGINS}(?P<year>{FOUR_FIGURES}) q(?P<number>[1-4]){END}", _quarter),
    _rule("quarter", rf"{BEGIN}(?:the )?(?P<ordinal>{_ORDINAL}) quarter{_OF_YEAR}", _quarter),
    _rule("weekend", rf"{BEGIN}(?P<the>the )?weekend{END}{_NOT_OF}", _weekend),
    _rule("year", rf"{NUMBER_BEGINS}(?P<the_year>(?:the )?year )?(?P<only_year>{FOUR_FIGURES}){NUMBER_ENDS}", _year),
    _rule("iso", rf"{NUMBER_BEGINS}(?P<text>{FOUR_FIGURES}-[01][0-9]-[0-3][0-9]{_ISO_CLOCK})(?![\w/:-]|\.\w)", _iso),
    _rule("iso", rf"{NUMBER_BEGINS}(?P<text>{FOUR_FIGURES}/[01]?[0-9]/[0-3]?[0-9])(?![\w/:-]|\.\w)", _iso),
    _rule(
        "figures", rf"{NUMBER_BEGINS}(?<!version\s)(?<!release\s)(?P<text>{_FIGURES}){NUMBER_ENDS}(?!\.\w)", _figures
    ),
)
"""The rules in order of precedence: if two match the same words, the earlier one applies."""


REACH = 48  # the maximum number of characters in a word or modifier before a phrase
MOST_PHRASES = 32  # maximum number in a query, to bound the time

_SHARES = {"early": (0, 3), "beginning": (0, 3), "start": (0, 3), "mid": (1, 3), "middle": (1, 3), "late": (2, 3),
           "end": (2, 3), "first half": (0, 2), "second half": (1, 2), "last half": (1, 2)}  # fmt: skip
"""The index (from 0) of the part that a modifier selects, and the number of equal parts of the span."""
_SIGNS = {"before": -1, "of": 0, "after": 1}

_BEFORE = compiled(
    rf"{BEGIN}(?:"
    r"(?:very )?(?P<share>early|mid|late)|"
    r"(?:the )?(?P<share_of>(?:very )?(?:beginning|start|middle|end)|first half|second half|last half) of|"
    rf"(?:the )?(?P<week>{_ORDINAL}) week (?:of|in)|"
    rf"(?:(?P<number>{NUMBER}){OF_THEM}(?P<units>{UNIT}) (?=before|after)|"
    rf"(?:the |last )?(?P<unit>day|week|weekend|month|year) |(?:the |last )?(?P<weekday>{WEEKDAY}) (?=before|after))"
    r"(?P<way>before|after|of)|"
    rf"(?:in |on )?(?:the )?(?P<part>{PART_OF_DAY}) of|"
    rf"(?:(?:between |from )?(?P<begin>{CLOCK})(?:\s?[-–—]\s?| (?:and|to|until|till) )|at |around |about )?"
    rf"(?P<clock>{CLOCK})(?:\s?,)?(?: on)?|"
    r"(?P<direction>more than|less than|since|before|prior to|after|up until|until|till|up to|through|by)|"
    r"(?P<plain>in|on|at|during|over|throughout|from|between)"
    r")(?:-| (?:the )?)\Z"
)
_AFTER = compiled(
    rf"(?:\s?,)?(?: (?:in the |at )?(?P<part>{PART_OF_DAY})| (?:at |around |about )?(?P<clock>{CLOCK})){END}"
)


class Phrase(NamedTuple):
    """A phrase with its modifiers: the `groups` before it, nearest first, and the time of day `after` it.

    `lead` is the preposition before the groups. The groups begin at `inner_start`, and the lead at `start`.
    """

    rule: Rule
    match: Match
    groups: tuple[Match, ...]
    lead: Match | None
    after: Match | None

    @property
    def inner_start(self) -> int:
        return self.groups[-1].start() if self.groups else self.match.start()

    @property
    def start(self) -> int:
        return self.lead.start() if self.lead else self.inner_start

    @property
    def end(self) -> int:
        return self.after.end() if self.after else self.match.end()

    @property
    def preposition(self) -> str:
        """The lead in lower case with single spaces, or "" if there is none."""
        return " ".join((self.lead["plain"] or self.lead["direction"]).lower().split()) if self.lead else ""

    @property
    def kind(self) -> Kind:
        return _KINDS[self.rule.kind]

    @property
    def is_weak(self) -> bool:
        """Whether the phrase denotes a time only in a suitable context."""
        return not self.groups and bool(self.kind.prepositions) and not _is_fixed(self.match)

    @property
    def floats(self) -> bool:
        """Whether the phrase takes its year from the range that it begins: "from March to May 2023"."""
        return self.kind.floats and not _is_fixed(self.match)

    def spans(self, calendar: Calendar) -> list[Span]:
        """Return the possible spans, with the modifiers applied. Raises `ValueError` for a date that does not exist."""
        spans = self.rule.read(self.match, calendar)
        for group in filter(None, (self.after, *self.groups)):
            spans = [_applied(group, span) for span in spans]
        return spans

    def windows(self, calendar: Calendar) -> tuple[Window, ...]:
        """Return the possible spans; a preposition such as "since" or "before" makes a span open-ended."""
        return tuple(self._directed(span, calendar) for span in self.spans(calendar))

    def _directed(self, span: Span, calendar: Calendar) -> Window:
        preposition = self.preposition
        if self.rule.kind == "ago" and preposition == "over":
            preposition = "more than"
        if preposition in ("since", "less than"):
            return Window(span.since, None)
        if preposition == "after":
            return Window(span.until, None)
        if preposition in ("before", "prior to"):
            return Window(None, span.since)
        if self.lead and (self.lead["direction"] or preposition == "more than"):
            return Window(None, span.until)
        if self.rule.kind == "ago" and self.match["way"].lower() == "ago" and not self.groups:
            span = with_ages(self.match, calendar, span)
        return Window(span.since, span.until)


def find_phrases(text: str) -> list[Phrase]:
    """Return the phrases in text order. Of overlapping phrases, the one that starts first is returned; of phrases with
    the same start, the longest.
    """
    found = [(rule, match) for rule in RULES for match in rule.pattern.finditer(text)]
    found.sort(key=lambda pair: (pair[1].start(), -pair[1].end()))
    phrases: list[Phrase] = []
    for rule, match in found:
        if not phrases or match.start() >= phrases[-1].match.end():
            phrases.append(_phrase(text, rule, match))
        if len(phrases) == MOST_PHRASES:
            break
    return phrases


def _phrase(text: str, rule: Rule, match: Match) -> Phrase:
    after = _AFTER.match(text, match.end()) if _KINDS[rule.kind].is_day else None
    groups: list[Match] = []
    start = match.start()
    while found := _BEFORE.search(text, max(0, start - REACH), start):
        if found["direction"] or found["plain"]:
            return Phrase(rule, match, tuple(groups), found, after)
        if not _belongs(found, rule, bool(groups)):
            break
        groups.append(found)
        start = found.start()
    return Phrase(rule, match, tuple(groups), None, after)


def _belongs(group: Match, rule: Rule, is_outer: bool) -> bool:
    """Whether the modifier can apply to this kind of phrase: "early March", not "early yesterday"."""
    if group["way"]:
        return True
    kind = _KINDS[rule.kind]
    return (kind.is_day if group["part"] or group["clock"] else kind.is_long) and not is_outer


def _applied(group: Match, span: Span) -> Span:
    words = {name: " ".join(value.lower().split()) for name, value in group.groupdict().items() if value}
    if "part" in words:
        return windows.part_of_day(span, words["part"])
    if "clock" in words:
        return windows.at_clock(span, words["clock"], words.get("begin"))
    if "way" in words:
        return _beside(words, span)
    if "week" in words:
        return windows.week_of(span, _ORDINALS[words["week"]])
    return windows.share(span, *_SHARES[(words.get("share") or words["share_of"]).removeprefix("very ")])


def _beside(words: dict[str, str], span: Span) -> Span:
    """Return "the week before", "two days after" or "the Sunday before" a span."""
    sign = _SIGNS[words["way"]]
    seen = Calendar(span.since if sign <= 0 else span.until - timedelta(days=1))
    if "number" in words:
        return shifted(seen, words["number"], words["units"], sign)
    if "weekday" in words:
        return seen.weekday(weekday_of(words["weekday"]), "last" if sign < 0 else "next")
    return windows.next_to(span, words["unit"], sign)
