"""Which phrases of a text are times, and what they say together: "from March to May 2023".

A phrase that is weak by itself ("March", "2022", "Monday") counts only where a preposition makes it a time, and any
month only where what follows makes no verb, name or number of it. What this does not do: find phrases (`contexts`).
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import NamedTuple

from memory_agent.recall.dates.contexts import REACH, Phrase, find_phrases
from memory_agent.recall.dates.phrases import floats
from memory_agent.recall.dates.windows import Calendar, Window
from memory_agent.recall.dates.words import compiled, word_set

_MAKES_TIME = {
    "month": word_set("in during since before after until till from throughout"),
    "weekday": word_set("on since before after until till from"),
    "season": word_set("during over since before after until till throughout"),
    "weekend": word_set("on at during over since before after until till from throughout"),
}
_MAKES_TIME["year"] = _MAKES_TIME["quarter"] = _MAKES_TIME["month"]

_HOMONYMS = word_set("may march mar dec oct sep fall spring")
"""Months and seasons that are other words, too, when they are not written like a name."""
_FIGURES_FOLLOW = word_set("mar dec oct sep")
"""Of those the ones that a number follows in their other sense: "oct 17" is 15."""
_NAMES = word_set("april may june august")
"""Months that are people's names: "before June left"."""
_INSIDE = word_set("in during throughout")
"""What is not said of people."""
_WEEKDAY_CHARS = 6
"""The shortest weekday written out."""

_CLAUSE_ENDS = compiled(r"\s*(?:\Z|[?!.,;:)\]\"'”’…](?!\w)|[-–—]\s)")
_GOES_ON = compiled(
    r"\s+(?:and|or|but|when|what|who|where|how|which|why|we|i|you|he|she|they|it|the|our|my|your|his|her|their|did|was|"
    r"were|is|are|has|had|does|with|for|by|at|on|about|because|as|already|again|then|so|too)\b"
)
"""Words that may follow a time, and neither a verb nor something counted."""
_OWNS = compiled(r"['’]s \w")
_SENTENCE_BEGINS = compiled(r"(?:\A|[.?!:\n])\s*\Z")
_SPOKEN_OF = compiled(r"(?:\b(?:and|or|is|are|means?|called|a|the)|[,=:]) \Z")
"""Before a bare weekday: a word for a day, and no time."""
_JOINT = compiled(r"\s?[-–—]\s?| (?P<word>to|and|until|till|through|thru) (?:the )?")


class Reading(NamedTuple):
    """A phrase from `start` to `end` in the text, and what it may mean."""

    start: int
    end: int
    windows: tuple[Window, ...]


def read(text: str, now: datetime) -> list[Reading]:
    """Return the times that a text names, seen from `now`, in the order of the text and without overlap."""
    calendar = Calendar(now)
    phrases = find_phrases(text)
    readings: list[Reading] = []
    place = 0
    while place < len(phrases):
        reading = _range(text, phrases[place : place + 2], calendar)
        place += 2 if reading else 1
        reading = reading or _single(text, phrases[place - 1], calendar)
        if reading:
            readings = [other for other in readings if other.end <= reading.start]  # "the Sunday" before 7 May
            readings.append(reading)
    return readings


def _single(text: str, phrase: Phrase, calendar: Calendar) -> Reading | None:
    if (phrase.is_weak and not _is_backed(text, phrase)) or _is_doubtful(text, phrase):
        return None
    with suppress(ValueError, OverflowError):
        return Reading(phrase.start, phrase.end, phrase.windows(calendar))
    return None


def _range(text: str, pair: list[Phrase], calendar: Calendar) -> Reading | None:
    """Return what two phrases say together; a begin without a year is the latest before the end."""
    if len(pair) < 2 or not _is_range(text, *pair) or _is_doubtful(text, pair[1]):
        return None
    first, last = pair
    with suppress(ValueError, OverflowError):
        end = last.spans(calendar)[0]
        begin = first.spans(Calendar(end.since) if floats(first.rule.kind, first.match) else calendar)[0]
        if begin.since < end.until:
            return Reading(first.start, last.end, (Window(begin.since, end.until),))
    return None


def _is_range(text: str, first: Phrase, last: Phrase) -> bool:
    joint = _JOINT.fullmatch(text, first.end, last.inner_start)
    if joint is None:
        return False
    is_and = (joint["word"] or "").lower() == "and"
    if first.preposition in ("between", "from"):
        return is_and == (first.preposition == "between")
    return not is_and and not last.is_weak and (not first.is_weak or first.rule.kind == last.rule.kind)


def _is_backed(text: str, phrase: Phrase) -> bool:
    """Tell whether the words around make a time of a phrase that is weak by itself."""
    kind = phrase.rule.kind
    if phrase.preposition.rpartition(" ")[2] in _MAKES_TIME[kind]:
        return kind != "season" or text[: phrase.inner_start].rstrip().lower().endswith("the")
    if kind == "weekday":
        return phrase.after is not None or _is_adverb(text, phrase)
    return kind == "weekend" and phrase.match["the"] is not None and _ends_clause(text, phrase)


def _is_adverb(text: str, phrase: Phrase) -> bool:
    """Tell whether a bare weekday says when: "what did we decide Monday?", "Monday's run"."""
    if phrase.preposition or len(phrase.match["weekday"]) < _WEEKDAY_CHARS:
        return False
    if not _ends_clause(text, phrase) and not _OWNS.match(text, phrase.end):
        return False
    start = phrase.match.start()
    return _SPOKEN_OF.search(text, max(0, start - REACH), start) is None


def _is_doubtful(text: str, phrase: Phrase) -> bool:
    """Tell whether the phrase may be a verb, a name or a number: "it may 10 times", "in 2000 rows"."""
    if not _may_be_other(text, phrase):
        return False
    if _is_other(phrase):
        return True
    return not _ends_clause(text, phrase) and _GOES_ON.match(text, phrase.end) is None


def _may_be_other(text: str, phrase: Phrase) -> bool:
    """Tell whether what follows has to show that the phrase is a time."""
    kind, word = phrase.rule.kind, _word(phrase)
    if kind == "year":
        return phrase.is_weak
    if not word or phrase.match.groupdict().get("nth"):
        return False
    is_first = _begins_sentence(text, phrase)
    if word.lower() in _HOMONYMS and phrase.match["year"]:
        return word.islower() and not (is_first or phrase.lead or phrase.groups)
    if word.lower() in _HOMONYMS and (word.islower() or is_first):
        return True
    is_name = len(word) < 4 or (word.lower() in _NAMES and phrase.preposition not in _INSIDE)
    return phrase.is_weak and is_name


def _is_other(phrase: Phrase) -> bool:
    """Tell whether the phrase is no time whatever follows: "this may", "dec 10"."""
    groups = phrase.match.groupdict()
    if groups.get("year") or _word(phrase).lower() not in _HOMONYMS:
        return False
    if (groups.get("which") or "").lower() == "this":
        return phrase.rule.kind == "month"
    return not phrase.lead and _word(phrase).lower() in _FIGURES_FOLLOW


def _word(phrase: Phrase) -> str:
    """Return the month or season as written; empty where there is none."""
    groups = phrase.match.groupdict()
    return groups.get("month") or groups.get("season") or ""


def _begins_sentence(text: str, phrase: Phrase) -> bool:
    start = phrase.match.start()
    return _SENTENCE_BEGINS.search(text, max(0, start - REACH), start) is not None


def _ends_clause(text: str, phrase: Phrase) -> bool:
    return _CLAUSE_ENDS.match(text, phrase.end) is not None
