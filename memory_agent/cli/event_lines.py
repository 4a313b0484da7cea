"""Events as JSON lines: a file or standard input, line by line, each line good or bad by itself."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import IO, Any

import msgspec


class BadLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line that is no event, or that the relay refused; `line` is 0 where it is not known which one it was."""

    line: int
    field: str
    reason: str

    def __str__(self) -> str:
        place = f"line {self.line}: " if self.line else ""
        return f"{place}{self.field}: {self.reason}"


class EventLines:
    """The lines of a stream as mappings. `user_id` is given to those that name no user, unless it is None."""

    def __init__(self, stream: IO[bytes], user_id: str | None) -> None:
        self._stream = stream
        self._user_id = user_id

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any] | BadLine]]:
        """Go over number and content of each line that is not blank."""
        for number, line in enumerate(self._stream, 1):
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            if line.strip():
                yield number, self._read(number, line)

    def _read(self, number: int, line: bytes) -> dict[str, Any] | BadLine:
        try:
            event = msgspec.json.decode(line)
        except UnicodeDecodeError as error:
            return BadLine(line=number, field="event", reason=f"is not UTF-8 at byte {error.start} of a text")
        except (msgspec.DecodeError, RecursionError) as error:
            reason = str(error).partition(" - at `")[0].removeprefix("JSON is malformed: ")
            return BadLine(line=number, field="event", reason=f"is not JSON: {reason}")
        if not isinstance(event, dict):
            return BadLine(line=number, field="event", reason="is not a JSON object")
        if self._user_id is not None and not event.get("user_id"):
            event["user_id"] = self._user_id
        return event


def count_lines(stream: IO[bytes]) -> int:
    """Return how many lines a stream has that are not blank, and rewind it; 0 for one that cannot be rewound."""
    if not stream.seekable():
        return 0
    lines = sum(1 for line in stream if line.strip())
    stream.seek(0)
    return lines
