"""Decides which phrases of a text are times, and combines them: "from March to May 2023".

A weak phrase ("March", "2022", "Monday") counts only after a suitable preposition. In addition, a month counts only if
the words after it do not make it a verb, a name or a number. Phrases that are joined to a time by "and", "or" or a
comma count too: "in March, April and May 2025". An excluded time ("not last week") is ignored, since the query asks
about every other time.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import NamedTuple

from memory_agent.recall.dates.phrases import REACH, Phrase, compiled, find_phrases, is_dated, word_set
from memory_agent.recall.dates.windows import Calendar, Window

_HOMONYMS = word_set("may march mar dec oct sep fall spring")  # in lower case, these also have other meanings
_FIGURES_FOLLOW = word_set("mar dec oct sep")  # these may also precede a number in another sense: octal 17 ("oct 17")
_NAMES = word_set("april may june august")  # also people's names: "before June left"
_INSIDE = word_set("in during throughout")  # these words do not precede a person's name
_WEEKDAY_CHARS = 6  # length of the shortest name that is not abbreviated

_CLAUSE_ENDS = compiled(r"\s*(?:\Z|[?!.,;:)\]\"'”’…](?!\w)|[-–—]\s)")
_GOES_ON = compiled(
    r"\s+(?:and|or|but|when|what|who|where|how|which|why|we|i|you|he|she|they|it|the|our|my|your|his|her|their|did|was|"
    r"were|is|are|has|had|does|with|for|by|at|on|about|because|as|already|again|then|so|too)\b"
)
"""Words that often follow a time, but rarely follow a verb or a number."""
_OWNS = compiled(r"['’]s \w")
_SENTENCE_BEGINS = compiled(r"(?:\A|[.?!:\n])\s*\Z")
_NAMES_A_DAY = compiled(r"(?:\b(?:and|or|is|are|means?|called|a|the)|[,=:]) \Z")
"""Matches the text before a bare weekday if the weekday is used as a name, not as a time."""
_LISTED = compiled(r"\s?,(?: and| or| nor)? | (?:and|or|nor|and/or|&) ")
_AND = compiled(r"(?:\s?,)? (?:and|or|nor|and/or|&) ")
_LEFT_OUT = compiled(
    r"(?:(?<!\w)(?:(?<!or\s)not|nor|except(?:ing)?(?: for)?|excluding|exclud(?:e|es)|other than|apart from|aside from|"
    r"rather than|instead of|outside(?: of)?|besides|without|ignoring|ignore|skip(?:ping)?|"
    r"(?:all|any|everything|anything|every day|any day) but)|(?P<short>n['’]t)) \Z"
)
"""Matches the text before an excluded time. "n't" excludes only a time with a preposition: "weren't in March", not "why
didn't yesterday's build pass".
"""
_JOINT = compiled(r"\s?[-–—]\s?| (?P<word>to|and|until|till|through|thru) (?:the )?")


class Reading(NamedTuple):
    start: int
    end: int
    windows: tuple[Window, ...]
    has_lead: bool  # whether the phrase begins with a preposition


def read(text: str, now: datetime) -> list[Reading]:
    """Return the times that a text names, relative to `now`, in text order and without overlap."""
    calendar = Calendar(now)
    phrases = find_phrases(text)
    readings: list[Reading] = []
    left_out: Reading | None = None
    while phrases:
        taken, found = _together(text, phrases, calendar)
        phrases = phrases[taken:]
        if not found:
            continue
        readings = [other for other in readings if other.end <= found[0].start]  # as in "the Sunday before 7 May"
        left_out = found[-1] if _is_left_out(text, found[0], left_out) else None
        readings += [] if left_out else found
    return readings


def _together(text: str, phrases: list[Phrase], calendar: Calendar) -> tuple[int, list[Reading]]:
    """Return how many of the first phrases form a list or range (at least 1), and the times that they name."""
    if reading := _range(text, phrases[:2], calendar):
        return 2, [reading]
    listed = _listed(text, phrases)
    return len(listed), _all_of(text, listed, calendar)


def _listed(text: str, phrases: list[Phrase]) -> list[Phrase]:
    """Return the first phrase and those that continue its list: phrases of the same kind without modifiers."""
    lead, count = phrases[0].lead, 1
    if lead is not None and lead["direction"]:  # "since March and April" is not a list
        return phrases[:1]
    while count < len(phrases) and _continues(text, phrases[count - 1], phrases[count]):
        ahead = phrases[count : count + 2]
        if len(ahead) == 2 and _is_range(text, *ahead):
            break
        count += 1
    return phrases[:count]


def _continues(text: str, before: Phrase, phrase: Phrase) -> bool:
    if phrase.lead is not None or phrase.rule.kind != before.rule.kind:
        return False
    return _LISTED.fullmatch(text, before.end, phrase.start) is not None


def _all_of(text: str, phrases: list[Phrase], calendar: Calendar) -> list[Reading]:
    """Return the times that a list of phrases refers to.

    If a phrase counts as a time, so does the next phrase. A year at the end of the list applies to all phrases. A year
    in the middle does not apply to all phrases, since the year of those after it is unknown.
    """
    last = phrases[-1]
    end = _single(text, last, calendar) if len(phrases) > 1 and is_dated(last.match) else None
    seen = calendar if end is None else Calendar(_begin(end))
    readings: list[Reading] = []
    is_backed = False
    for phrase, following in zip(phrases, [*phrases[1:], None], strict=True):
        counts = _may_follow(text, phrase, following) if is_backed else end is not None and not _is_homonym(phrase)
        own = seen if phrase.floats else calendar
        reading = _single(text, phrase, own, counts)
        is_backed = reading is not None and (end is not None or not is_dated(phrase.match))
        readings += [reading] if reading else []
    return readings


def _begin(reading: Reading) -> datetime:
    since = reading.windows[0].since
    assert since is not None  # None only for a time with "before" or the like, which cannot be in a list
    return since


def _may_follow(text: str, phrase: Phrase, following: Phrase | None) -> bool:
    """Whether the phrase can continue a list; it cannot in "in April, may I ask" and "on Monday and sat down"."""
    goes_on = following is not None or _ends_clause(text, phrase)
    if _is_homonym(phrase):
        return goes_on
    if phrase.rule.kind == "weekday" and len(phrase.match["weekday"]) < _WEEKDAY_CHARS:
        return goes_on or _GOES_ON.match(text, phrase.end) is not None
    return True


def _is_homonym(phrase: Phrase) -> bool:
    word = _word(phrase)
    return word.islower() and word in _HOMONYMS


def _is_left_out(text: str, reading: Reading, before: Reading | None) -> bool:
    """Whether the time is excluded ("not last week"). A time that "and" or "or" joins to an excluded time (`before`) is
    excluded too.
    """
    if before is not None and _AND.fullmatch(text, before.end, reading.start):
        return True
    words = _LEFT_OUT.search(text, max(0, reading.start - REACH), reading.start)
    return words is not None and (not words["short"] or reading.has_lead)


def _single(text: str, phrase: Phrase, calendar: Calendar, counts: bool = False) -> Reading | None:
    """Return the time that one phrase refers to. With `counts`, even a weak phrase counts as a time, since it is part
    of a list of times.
    """
    if (phrase.is_weak and not (counts or _is_backed(text, phrase))) or _is_doubtful(text, phrase):
        return None
    with suppress(ValueError, OverflowError):
        return Reading(phrase.start, phrase.end, phrase.windows(calendar), phrase.lead is not None)
    return None


def _range(text: str, pair: list[Phrase], calendar: Calendar) -> Reading | None:
    """Return the range between two phrases. If the start is given without a year, it is the latest matching date before
    the end.
    """
    if len(pair) < 2 or not _is_range(text, *pair) or _is_doubtful(text, pair[1]):
        return None
    first, last = pair
    with suppress(ValueError, OverflowError):
        end = last.spans(calendar)[0]
        begin = first.spans(Calendar(end.since) if first.floats else calendar)[0]
        if begin.since < end.until:
            return Reading(first.start, last.end, (Window(begin.since, end.until),), first.lead is not None)
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
    """Whether the context makes a weak phrase count as a time."""
    kind = phrase.rule.kind
    if phrase.preposition.rpartition(" ")[2] in phrase.kind.prepositions:
        return kind != "season" or text[: phrase.inner_start].rstrip().lower().endswith("the")
    if kind == "weekday":
        return phrase.after is not None or _is_adverb(text, phrase)
    return kind == "weekend" and phrase.match["the"] is not None and _ends_clause(text, phrase)


def _is_adverb(text: str, phrase: Phrase) -> bool:
    """Whether a bare weekday is a time: "what did we decide Monday?", "Monday's run"."""
    if phrase.preposition or len(phrase.match["weekday"]) < _WEEKDAY_CHARS:
        return False
    if not _ends_clause(text, phrase) and not _OWNS.match(text, phrase.end):
        return False
    start = phrase.match.start()
    return _NAMES_A_DAY.search(text, max(0, start - REACH), start) is None


def _is_doubtful(text: str, phrase: Phrase) -> bool:
    """Whether the phrase may be a verb, a name or a number: "it may 10 times", "in 2000 rows"."""
    if not _may_be_other(text, phrase):
        return False
    if _is_other(phrase):
        return True
    return not _ends_clause(text, phrase) and _GOES_ON.match(text, phrase.end) is None


def _may_be_other(text: str, phrase: Phrase) -> bool:
    """Whether the phrase is ambiguous: it is a time only if the words after it confirm that."""
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
    """Whether the phrase never denotes a time, whatever follows it: "this may", "dec 10"."""
    groups = phrase.match.groupdict()
    if groups.get("year") or _word(phrase).lower() not in _HOMONYMS:
        return False
    if (groups.get("which") or "").lower() == "this":
        return phrase.rule.kind == "month"
    return not phrase.lead and _word(phrase).lower() in _FIGURES_FOLLOW


def _word(phrase: Phrase) -> str:
    """Return the month or season as written, or an empty string."""
    groups = phrase.match.groupdict()
    return groups.get("month") or groups.get("season") or ""


def _begins_sentence(text: str, phrase: Phrase) -> bool:
    start = phrase.match.start()
    return _SENTENCE_BEGINS.search(text, max(0, start - REACH), start) is not None


def _ends_clause(text: str, phrase: Phrase) -> bool:
    return _CLAUSE_ENDS.match(text, phrase.end) is not None
