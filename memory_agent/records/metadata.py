"""Metadata filters: a memory's values by path, with a number (hash) per value for fast comparison. Pure.

A path consists of the keys of nested objects, joined with dots, and applies to each element of a list: "x" is at
`report.findings.claim` in `{"report": {"findings": [{"claim": "x"}]}}`. Values are compared as in JSON: 1 equals 1.0,
but not true or "1"; null is a value. Objects, lists, values that JSON cannot represent, and values at a path of more
than 1,000 characters are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import repeat
from math import isfinite
from typing import Any

import msgspec
import xxhash

from memory_agent.errors import InvalidInputError
from memory_agent.records.memories import MetadataValue

MOST_VALUES = 1_000
"""Maximum number of values in a filter."""
MOST_PATH_CHARS = 1_000
"""Maximum length of a path, in characters."""
_INTEGERS = range(-(2**63), 2**64)  # MessagePack's range of integers

Conditions = Mapping[str, MetadataValue | tuple[MetadataValue, ...]]


def values_of(metadata: Mapping[str, Any]) -> Iterator[tuple[str, MetadataValue]]:
    """Yield each value with its path, unless the path is too long. Works at any depth."""
    waiting: list[Iterator[tuple[str, Any]]] = [_below("", metadata)]
    while waiting:
        found = next(waiting[-1], None)
        if found is None:
            waiting.pop()
            continue
        path, value = found
        if len(path) > MOST_PATH_CHARS:
            continue
        if isinstance(value, Mapping):
            waiting.append(_below(f"{path}.", value))
        elif isinstance(value, list | tuple):
            waiting.append(zip(repeat(path), value, strict=False))
        elif value is None or isinstance(value, str | int) or (isinstance(value, float) and isfinite(value)):
            yield path, value


def _below(prefix: str, members: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    return ((f"{prefix}{key}", value) for key, value in members.items())


def number_of(path: str, value: MetadataValue) -> int:
    """Return the 64-bit XXH3 hash of path and value as a signed integer. Equal values have equal hashes.

    With a million values, about one filter in 10 ** 13 matches a wrong value because of a collision.
    """
    if isinstance(value, bool) or value is None:
        text = f"={value}"
    elif isinstance(value, str):
        text = f'"{value}'
    else:
        text = f"={int(value) if not isinstance(value, float) or value.is_integer() else value!r}"
    data = f"{len(path)} {path}{text}".encode("utf-8", "surrogatepass")
    number = xxhash.xxh3_64_intdigest(data)
    return number - (1 << 64) if number >> 63 else number


def numbers_of(metadata: Mapping[str, Any]) -> set[int]:
    return {number_of(path, value) for path, value in values_of(metadata)}


def wanted_numbers(conditions: Conditions) -> list[set[int]]:
    """Return the hashes (`number_of`) of each path's values to match. A memory matches if it has one from each set."""
    return [
        {number_of(path, value) for value in (values if isinstance(values, tuple) else (values,))}
        for path, values in conditions.items()
    ]


def matches(metadata: Mapping[str, Any], conditions: Conditions) -> bool:
    found = numbers_of(metadata) if conditions else set()
    return all(not found.isdisjoint(wanted) for wanted in wanted_numbers(conditions))


def check_conditions(field: str, conditions: Conditions) -> None:
    """Raise `InvalidInputError` for a value of the wrong type, a path without values, or too many values."""
    count = 0
    for path, values in conditions.items():
        each = values if isinstance(values, tuple) else (values,)
        count += len(each)
        place = f"{field}.{path}".encode(errors="replace").decode()
        if len(path) > MOST_PATH_CHARS:
            raise InvalidInputError(field, f"has a path of {len(path)} characters; the limit is {MOST_PATH_CHARS}")
        if not each:
            raise InvalidInputError(place, "must have at least one value")
        for value in each:
            _check(place, path, value)
    if count > MOST_VALUES:
        raise InvalidInputError(field, f"has {count} values; the limit is {MOST_VALUES}")


def _check(place: str, path: str, value: object) -> None:
    if value is not None and not isinstance(value, str | int | float):
        raise InvalidInputError(place, "must be text, a number, true, false or null, or a list of these")
    if isinstance(value, float) and not isfinite(value):
        raise InvalidInputError(place, "must be a finite number")
    if isinstance(value, int) and value not in _INTEGERS:
        raise InvalidInputError(place, "must fit in 64 bits")
    try:
        msgspec.msgpack.encode((path, value))
    except UnicodeEncodeError as error:
        raise InvalidInputError(place, "is not valid Unicode") from error
