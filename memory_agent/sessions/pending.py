"""Values that wait for what belongs to them, such as calls of tools for their results. Bounded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

Value = TypeVar("Value")

_MOST = 256


class Pending(Generic[Value]):
    """At most 256 values by id, in order of arrival; the oldest give way."""

    def __init__(self) -> None:
        self._values: dict[str, Value] = {}

    def put(self, id: str, value: Value) -> list[Value]:
        """Add a value, or replace that with its id, which then is the latest; return those that give way."""
        self._values.pop(id, None)
        self._values[id] = value
        return [self._values.pop(next(iter(self._values)))] if len(self._values) > _MOST else []

    def take(self, id: str) -> Value | None:
        """Remove the value with this id and return it, or None."""
        return self._values.pop(id, None)

    def clear(self) -> Iterator[Value]:
        """Remove all values and yield them in order."""
        while self._values:
            yield self._values.pop(next(iter(self._values)))
