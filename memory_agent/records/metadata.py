"""Metadata as values at paths, for filters: which a memory has, what matches, and a number for each. Pure.

The path `report.findings.claim` leads through objects by their keys, joined with dots, and through lists to each of
their elements: `{"report": {"findings": [{"claim": "x"}]}}` has "x" there. A key with a dot in it reads like a path.
Values are equal as in JSON: 1 and 1.0 are, 1 and true are not, "1" and 1 are not; null is a value. Objects and lists
have no value of their own, and what JSON cannot hold (bytes, NaN) has none at all. Nor has what lies at a path of more
than 1,000 characters: 9,000 values below one key of 200,000 took 8 s and 1.7 GB.
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
"""Values that one filter may name."""
MOST_PATH_CHARS = 1_000
"""Characters of a path at which a value can be found."""
_INTEGERS = range(-(2**63), 2**64)  # what MessagePack can hold

Conditions = Mapping[str, MetadataValue | tuple[MetadataValue, ...]]


def values_of(metadata: Mapping[str, Any]) -> Iterator[tuple[str, MetadataValue]]:
    """Yield each value with its path, unless that is too long; of any depth, without recursion."""
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
    """Return 64 bits of XXH3 over path and value, as a signed number; equal for equal values.

    Of a million values a filter would name another one by chance once in 10 ** 13 filters.
    """
    if isinstance(value, bool) or value is None:
        told = f"={value}"
    elif isinstance(value, str):
        told = f'"{value}'
    else:
        told = f"={int(value) if not isinstance(value, float) or value.is_integer() else value!r}"
    data = f"{len(path)} {path}{told}".encode("utf-8", "surrogatepass")
    number = xxhash.xxh3_64_intdigest(data)
    return number - (1 << 64) if number >> 63 else number


def numbers_of(metadata: Mapping[str, Any]) -> set[int]:
    """Return the numbers of all values."""
    return {number_of(path, value) for path, value in values_of(metadata)}


def wanted_numbers(conditions: Conditions) -> list[set[int]]:
    """Return for each path the numbers of its wanted values. A memory matches that has one of each set."""
    return [
        {number_of(path, value) for value in (values if isinstance(values, tuple) else (values,))}
        for path, values in conditions.items()
    ]


def matches(metadata: Mapping[str, Any], conditions: Conditions) -> bool:
    """Whether metadata has a wanted value at every path."""
    held = numbers_of(metadata) if conditions else set()
    return all(not held.isdisjoint(wanted) for wanted in wanted_numbers(conditions))


def check_conditions(field: str, conditions: Conditions) -> None:
    """Raise `InvalidInputError` for what is no value, no values or too many, and what could not be stored."""
    count = 0
    for path, values in conditions.items():
        each = values if isinstance(values, tuple) else (values,)
        count += len(each)
        place = f"{field}.{path}".encode(errors="replace").decode()
        if len(path) > MOST_PATH_CHARS:
            raise InvalidInputError(
                field, f"has a path of {len(path)} characters, at most {MOST_PATH_CHARS} are allowed"
            )
        if not each:
            raise InvalidInputError(place, "names no value")
        for value in each:
            _check(place, path, value)
    if count > MOST_VALUES:
        raise InvalidInputError(field, f"has {count} values, at most {MOST_VALUES} are allowed")


def _check(place: str, path: str, value: object) -> None:
    if value is not None and not isinstance(value, str | int | float):
        raise InvalidInputError(place, "must be text, a number, true, false or null, or several of them")
    if isinstance(value, float) and not isfinite(value):
        raise InvalidInputError(place, "is not a finite number")
    if isinstance(value, int) and value not in _INTEGERS:
        raise InvalidInputError(place, "is an integer beyond 64 bits")
    try:
        msgspec.msgpack.encode((path, value))
    except UnicodeEncodeError as error:
        raise InvalidInputError(place, "is not valid Unicode") from error
