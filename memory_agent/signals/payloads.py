"""Extract text, names and small fields from the payloads of events. Pure.

A place is a dotted path (`report.findings[].claim`) that is looked up in the payload and in the objects that it wraps.
A value becomes plain text or nothing, never a JSON dump. If no known place contains text, the payload is searched for
natural language (`language`).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import msgspec

from memory_agent.signals.language import reads_as_language

_WRAPPERS = ("payload", "data")
_REPORTS = ("report", "result", "output")
_HEADINGS = ("title", "name")
_WORDS = (
    *("claim", "insight", "finding", "summary", "message", "text", "content", "snippet", "description", "objective"),
    *("output", "result", "answer", "reason", "details", "steps", "error_message", "error"),
)
_ENDINGS = ("summary", "message", "text", "error", "result")
_MISLEADING = ("context",)
_MAX_DEPTH = 6
_MAX_ITEMS = 50
_MAX_VALUES = 2_000
_MAX_FIELDS = 32
_MAX_FIELD_CHARS = 256
_MAX_NAME_CHARS = 64
_INT64 = 1 << 63
_UNREADABLE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")

Step = str
Place = tuple[Step, ...]


class NotTextError(ValueError):
    """A field is not valid Unicode text. The argument is its name."""


@dataclass(frozen=True)
class Part:
    """A part of a memory's text: its places and label, and whether it is used only together with other parts."""

    places: tuple[Place, ...]
    label: str = ""
    accompanies: bool = False


def parse_part(line: str) -> Part:
    """Parse `[+] [Label:] place | place | ...`. Raises ValueError for an empty place."""
    body = line.strip()
    accompanies = body.startswith("+")
    label, colon, rest = body.removeprefix("+").rpartition(":")
    paths = (place.strip().replace("[]", ".[]").split(".") for place in rest.split("|"))
    places = tuple(tuple(filter(None, path)) for path in paths)
    if not all(places):
        raise ValueError(f"{line!r} contains an empty place")
    return Part(places, label.strip() + colon, accompanies)


def clean(text: str, field: str) -> str:
    """Remove terminal escapes and control characters. Raises `NotTextError` for lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise NotTextError(field) from error
    return _readable(text)


def _readable(text: str) -> str:
    return _UNREADABLE.sub("", text.replace("\r\n", "\n")).strip()


def roots(payload: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """Return the payload and the objects that it wraps, in search order."""
    wrapped = (payload.get(name) for name in _WRAPPERS)
    return (payload, *(inner for value in wrapped if isinstance(inner := _unfold(value), dict)))


def with_reports(objects: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """Return `objects`, and the objects in their `report`, `result` and `output` fields."""
    nested = (read_value(objects, name) for name in _REPORTS)
    return (*objects, *(value for value in nested if isinstance(value, dict)))


def read_part(objects: Sequence[Mapping[str, Any]], part: Part) -> str:
    """Return the text at the first place of `part` that contains text, or "". Raises `NotTextError`."""
    for place in part.places:
        for root in objects:
            values = list(_values_at(root, place))
            words = _joined((_words(value, ".".join(place), 0) for value in values), "\n")
            if words:
                return words
    return ""


def read_unknown(payload: Mapping[str, Any], without: Container[str] = ()) -> str:
    """Return the text of a payload with no known fields, or "".

    Prefers the outermost field whose name ends in summary, message, text, error or result, in this order; otherwise
    returns the longest text at any depth that looks like natural language. Skips texts in `without`. Examines at most
    2,000 values and 6 levels.
    """
    best, best_key = "", (_MAX_DEPTH + 1, 0)
    longest = ""
    for name, value, depth in _fields_below(payload):
        ending = _ending_of(name)
        if ending is not None and (depth, ending) < best_key:
            words = _quiet_words(value)
            if words not in without and reads_as_language(words, least_words=1):
                best, best_key = words, (depth, ending)
        if isinstance(value, str) and not best:
            words = _quiet_words(value)
            if len(words) > len(longest) and words not in without and reads_as_language(words):
                longest = words
    return best or longest


def _ending_of(name: str) -> int | None:
    lowered = name.lower()
    if lowered.endswith(_MISLEADING):
        return None
    return next((place for place, ending in enumerate(_ENDINGS) if lowered.endswith(ending)), None)


def _fields_below(payload: Mapping[str, Any]) -> Iterator[tuple[str, object, int]]:
    """Yield (name, value, depth) for all values in a payload, outermost first. Items of a list take its name."""
    waiting: deque[tuple[str, object, int]] = deque((name, value, 0) for name, value in payload.items())
    for _ in range(_MAX_VALUES):
        if not waiting:
            return
        name, value, depth = waiting.popleft()
        value = _unfold(value)
        yield str(name), value, depth
        if depth < _MAX_DEPTH and isinstance(value, dict):
            waiting.extend((inner, below, depth + 1) for inner, below in value.items())
        elif depth < _MAX_DEPTH and isinstance(value, list):
            waiting.extend((name, item, depth + 1) for item in value[:_MAX_ITEMS])


def _quiet_words(value: object) -> str:
    try:
        return _words(value, "", 0)
    except NotTextError:
        return ""


def read_value(objects: Sequence[Mapping[str, Any]], name: str) -> Any:
    for root in objects:
        if root.get(name) is not None:
            return root[name]
    return None


def read_name(objects: Sequence[Mapping[str, Any]], name: str) -> str | None:
    """Return the text or integer in field `name` as text of up to 256 characters, or None. Raises `NotTextError`."""
    value = read_value(objects, name)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < _INT64:
        value = str(value)
    return clean(value, name)[:_MAX_FIELD_CHARS] or None if isinstance(value, str) else None


def small_fields(objects: Sequence[Mapping[str, Any]], without: frozenset[str]) -> dict[str, Any]:
    """Return at most 32 fields that are short scalars or lists of short texts, omitting the texts in `without`."""
    fields: dict[str, Any] = {}
    for root in objects:
        for name, value in root.items():
            if len(fields) == _MAX_FIELDS:
                return fields
            if name not in fields and _is_name(name) and _is_small(value, without):
                fields[name] = value
    return fields


def _is_name(name: object) -> bool:
    return isinstance(name, str) and len(name) <= _MAX_NAME_CHARS and _is_unicode(name)


def _is_small(value: object, without: frozenset[str]) -> bool:
    if isinstance(value, str):
        return len(value) <= _MAX_FIELD_CHARS and _is_unicode(value) and _readable(value) not in without
    if isinstance(value, list):
        return 0 < len(value) <= 16 and all(isinstance(item, str) and _is_small(item, without) for item in value)
    return _is_number(value) or isinstance(value, bool)


def _is_number(value: object) -> bool:
    if isinstance(value, int):
        return -_INT64 <= value < _INT64 and not isinstance(value, bool)
    return isinstance(value, float) and isfinite(value)


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _values_at(value: object, place: Place) -> Iterator[object]:
    if not place:
        yield value
        return
    value, step = _unfold(value), place[0]
    if step == "[]" and isinstance(value, list):
        for item in value[:_MAX_ITEMS]:
            yield from _values_at(item, place[1:])
    elif isinstance(value, dict) and step in value:
        yield from _values_at(value[step], place[1:])


def _unfold(value: object) -> object:
    """Decode a string that is itself a JSON object or list; return anything else unchanged."""
    if not isinstance(value, str) or value.strip()[:1] not in ("{", "["):
        return value
    try:
        return msgspec.json.decode(value.strip())
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return value


def _words(value: object, field: str, depth: int) -> str:
    value = _unfold(value)
    if isinstance(value, str):
        return clean(value, field)
    if _is_number(value):
        return str(value)
    if depth == _MAX_DEPTH:
        return ""
    if isinstance(value, list):
        return _joined((_words(item, field, depth + 1) for item in value[:_MAX_ITEMS]), "\n")
    if isinstance(value, dict):
        return _joined([_first(value, names, field, depth) for names in (_HEADINGS, _WORDS)], ": ")
    return ""


def _first(value: dict[str, Any], names: tuple[str, ...], field: str, depth: int) -> str:
    for name in names:
        if name in value and (words := _words(value[name], f"{field}.{name}", depth + 1)):
            return words
    return ""


def _joined(texts: Iterator[str] | Sequence[str], separator: str) -> str:
    return separator.join(dict.fromkeys(text for text in texts if text))
