"""Time phrases with their modifiers: "since early March", "3pm on Monday", "the week before 7 May".

`phrases` parses a bare phrase; `readings` decides whether it is a time at all.
"""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple

from memory_agent.recall.dates import windows
from memory_agent.recall.dates.phrases import RULES, Rule, is_weak, shifted, with_ages
from memory_agent.recall.dates.windows import Calendar, Span, Window
from memory_agent.recall.dates.words import (
    BEGIN,
    CLOCK,
    END,
    NUMBER,
    OF_THEM,
    PART_OF_DAY,
    UNIT,
    WEEKDAY,
    Match,
    compiled,
    weekday_of,
)

REACH = 48
"""Most characters of one word or group before a phrase."""
MOST_PHRASES = 32
"""Phrases that are read, to bound the time."""

_ONE_DAY = frozenset({"near_day", "weekday", "day", "iso", "figures"})
_LONG = frozenset({"month", "year", "season", "quarter", "unit", "days"})
_THIRDS = {"early": 0, "beginning": 0, "start": 0, "mid": 1, "middle": 1, "late": 2, "end": 2}
_HALVES = {"first half": 0, "second half": 1, "last half": 1}
_WEEKS = {"first": 1, "1st": 1, "second": 2, "2nd": 2, "third": 3, "3rd": 3, "fourth": 4, "4th": 4, "last": -1}
_SIGNS = {"before": -1, "of": 0, "after": 1}

_BEFORE = compiled(
    rf"{BEGIN}(?:"
    r"(?:very )?(?P<third>early|mid|late)|(?:the )?(?:very )?(?P<third_of>beginning|start|middle|end) of|"
    r"(?:the )?(?P<half>first half|second half|last half) of|"
    rf"(?:the )?(?P<week>{'|'.join(_WEEKS)}) week (?:of|in)|"
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
    """A phrase with its modifiers: `groups` before it, nearest first, and a time of day `after` it.

    `lead` is the preposition before the groups. The groups begin at `inner_start`, the lead at `start`.
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
        """The lead in lower case with single spaces; empty without one."""
        return " ".join((self.lead["plain"] or self.lead["direction"]).lower().split()) if self.lead else ""

    @property
    def is_weak(self) -> bool:
        """Whether it is a time only in a suitable context."""
        return not self.groups and is_weak(self.rule.kind, self.match)

    def spans(self, calendar: Calendar) -> list[Span]:
        """Return the possible spans, with the groups applied. Raises `ValueError` for a date that does not exist."""
        spans = self.rule.read(self.match, calendar)
        for group in filter(None, (self.after, *self.groups)):
            spans = [_applied(group, span) for span in spans]
        return spans

    def windows(self, calendar: Calendar) -> tuple[Window, ...]:
        """Return the spans as its preposition extends them: all time since, or all time before."""
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
    """Return the phrases in text order; of overlapping ones the first, and of those that begin alike the longest."""
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
    after = _AFTER.match(text, match.end()) if rule.kind in _ONE_DAY else None
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
    """Whether the modifier fits this kind of phrase: "early March", not "early yesterday"."""
    if group["way"]:
        return True
    kinds = _ONE_DAY if group["part"] or group["clock"] else _LONG
    return rule.kind in kinds and not is_outer


def _applied(group: Match, span: Span) -> Span:
    """Return the part of the span, or the span next to it, that a modifier selects."""
    said = {name: " ".join(value.lower().split()) for name, value in group.groupdict().items() if value}
    if "part" in said:
        return windows.part_of_day(span, said["part"])
    if "clock" in said:
        return windows.at_clock(span, said["clock"], said.get("begin"))
    if "way" in said:
        return _beside(said, span)
    if "week" in said:
        return windows.week_of(span, _WEEKS[said["week"]])
    if "half" in said:
        return windows.share(span, _HALVES[said["half"]], 2)
    return windows.share(span, _THIRDS[said.get("third") or said["third_of"]], 3)


def _beside(said: dict[str, str], span: Span) -> Span:
    """Return the span of "the week before", "two days after" or "the Sunday before" the given one."""
    sign = _SIGNS[said["way"]]
    seen = Calendar(span.since if sign <= 0 else span.until - timedelta(days=1))
    if "number" in said:
        return shifted(seen, said["number"], said["units"], sign)
    if "weekday" in said:
        return seen.weekday(weekday_of(said["weekday"]), "last" if sign < 0 else "next")
    return windows.next_to(span, said["unit"], sign)
