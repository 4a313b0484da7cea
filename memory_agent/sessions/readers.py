"""The interface of a format's reader, and the buffer of tool calls that have no result yet."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

from memory_agent.sessions.entries import Found, Left, Session
from memory_agent.sessions.tool_calls import Call

Value = TypeVar("Value")

_MOST_PENDING = 256


class Pending(Generic[Value]):
    """At most 256 values by id, in order of arrival; adding another value evicts the oldest."""

    def __init__(self) -> None:
        self._values: dict[str, Value] = {}

    def put(self, id: str, value: Value) -> list[Value]:
        """Add a value at the end, replacing any value with the same id; return the evicted values."""
        self._values.pop(id, None)
        self._values[id] = value
        return [self._values.pop(next(iter(self._values)))] if len(self._values) > _MOST_PENDING else []

    def take(self, id: str) -> Value | None:
        return self._values.pop(id, None)

    def clear(self) -> Iterator[Value]:
        while self._values:
            yield self._values.pop(next(iter(self._values)))


class Reader(ABC):
    """Reads a file of JSON lines, or a JSON document item by item. The entries yielded last are from `session`."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._calls: Pending[Call] = Pending()

    def begin(self, head: Mapping[str, bytes]) -> Iterator[Found]:
        """Read the members of a document that are not lists, and the first items of each list (as `name[1]` and so on).

        Raises `msgspec.DecodeError`. Not called for JSON lines.
        """
        yield from ()

    @abstractmethod
    def read(self, item: bytes, number: int, member: str = "") -> Iterator[Found]:
        """Yield the entries of a line, or of an item in the list `member` ("" if the document is a list).

        Numbers start at 1. Raises `msgspec.DecodeError` for an item that does not match the format.
        """

    def release(self) -> Iterator[Found]:
        """Yield messages that were held back in case later lines change them. Called when no lines remain for now."""
        yield from ()

    def end(self) -> Iterator[Found]:
        """Yield the entries that remain after the last item."""
        yield from (Left.UNANSWERED for _ in self._calls.clear())

    def _called(self, id: str, call: Call) -> Iterator[Found]:
        """Hold a call until its result arrives; yield `Left.UNANSWERED` for each call that this evicts."""
        yield from (Left.UNANSWERED for _ in self._calls.put(id, call))
