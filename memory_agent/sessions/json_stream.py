"""Read JSON files of any size in bounded memory: line by line, or a document's lists item by item.

`ijson` is two to four times as fast. However, it needs 714 MB of memory instead of 82 MB for an item of 200 MB, and it
stops at the first byte that is not UTF-8.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import msgspec

LONGEST_BYTES = 32 << 20
"""Longer lines and items are skipped."""
_CHUNK_BYTES = 1 << 20
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{},:]|"', re.DOTALL)
_ESCAPE = re.compile(
    rb"\\\\"  # an escaped backslash, so that the next character is not an escape
    rb"|\\u[dD][89abAB][\da-fA-F]{2}\\u[dD][c-fC-F][\da-fA-F]{2}"  # a surrogate pair
    rb"|\\u[dD][89a-fA-F][\da-fA-F]{2}"  # half of one
)
_HALF_CHARS = 6
_STRAY = re.compile(rb"[^\s]")


class Line(NamedTuple):
    """A line without its line ending; `data` is None if the line is too long. `end` is the offset of the next line."""

    number: int
    data: bytes | None
    end: int
    is_whole: bool


class Member(NamedTuple):
    """A member of a document (`number` is 0), or an item of its list `name` (numbered from 1).

    `name` is "" if the document is a list; `data` is None if the value is too long.
    """

    name: str
    number: int
    data: bytes | None


class NotJsonError(ValueError):
    """The argument is the reason."""


class BadPlace(msgspec.Struct, frozen=True, kw_only=True):
    """An unreadable place in a file ("" for the file as a whole), and the reason."""

    file: str
    place: str
    reason: str

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.file, self.place, self.reason)))


def lines(stream: BinaryIO, number: int = 0, longest: int = LONGEST_BYTES) -> Iterator[Line]:
    """Yield the lines from the stream's position, numbered from `number` + 1. The last line may be incomplete."""
    end = stream.tell()
    while data := stream.readline(longest + 1):
        number += 1
        end += len(data)
        kept: bytes | None = data.strip()
        while len(data) > longest and not data.endswith(b"\n"):
            kept = None
            data = stream.readline(longest + 1)
            end += len(data)
            if not data:
                break
        yield Line(number, kept, end, data.endswith(b"\n"))


def members(stream: BinaryIO, longest: int = LONGEST_BYTES) -> Iterator[Member]:
    """Yield the members of the object or list in a stream, in order. A member that is a list is yielded item by item.

    Raises `NotJsonError` after yielding the members before the fault. The contents of members are not checked.
    """
    scan = _Scan(stream, longest)
    opening = scan.next_token()
    if opening == b"[":
        yield from _items(scan, "")
    elif opening == b"{":
        yield from _fields(scan)
    else:
        raise NotJsonError("is neither a JSON object nor a list")
    if scan.has_more():
        raise NotJsonError("continues after its end")


def mended(data: bytes) -> bytes:
    """Return JSON text with lone surrogates replaced. Clients that truncate text within a surrogate pair produce these.

    >>> mended(rb'"cut \\ud83d"')
    b'"cut \\\\ufffd"'
    """
    return _ESCAPE.sub(lambda found: rb"\ufffd" if len(found[0]) == _HALF_CHARS else found[0], data)


def _fields(scan: _Scan) -> Iterator[Member]:
    token = scan.next_token()
    while token != b"}":
        if not token.startswith(b'"'):
            raise NotJsonError("has a member without a name")
        try:
            name = msgspec.json.decode(token, type=str)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise NotJsonError("has a member whose name is not text") from error
        if scan.next_token() != b":":
            raise NotJsonError("has a name without a value")
        scan.mark()
        token = scan.next_token()
        if token == b"[":
            yield from _items(scan, name)
            token = scan.next_token()
        else:
            token, data = _value(scan, token)
            yield Member(name, 0, data)
        if token not in (b",", b"}"):
            raise NotJsonError("has no comma between two members")
        if token == b",":
            token = scan.next_token()


def _items(scan: _Scan, name: str) -> Iterator[Member]:
    number = 0
    scan.mark()
    while True:
        token, data = _value(scan, scan.next_token())
        if data is None or data:
            number += 1
            yield Member(name, number, data)
        if token == b"]":
            return
        if token != b",":
            raise NotJsonError("has an unterminated list")
        scan.mark()


def _value(scan: _Scan, token: bytes) -> tuple[bytes, bytes | None]:
    """Return the token after the value that began at the mark, and the value (None if it is too long)."""
    depth = 0
    while depth or token not in (b",", b"]", b"}"):
        depth += (token in (b"[", b"{")) - (token in (b"]", b"}"))
        token = scan.next_token()
    return token, scan.marked()


class _Scan:
    """Splits a stream into tokens, and retains the bytes since a mark."""

    def __init__(self, stream: BinaryIO, longest: int) -> None:
        self._stream = stream
        self._longest = longest
        self._buffer = b""
        self._at = self._before = self._mark = 0
        self._is_lost = False

    def mark(self) -> None:
        self._mark, self._is_lost = self._at, False

    def marked(self) -> bytes | None:
        """Return the bytes between the mark and the last token, or None if there were too many to retain."""
        return None if self._is_lost else self._buffer[self._mark : self._before].strip()

    def next_token(self) -> bytes:
        """Return a bracket, a comma, a colon or a whole string. Raises `NotJsonError` at the end of the stream."""
        while True:
            found = _TOKEN.search(self._buffer, self._at)
            if found is not None and found.group() != b'"':
                self._before, self._at = found.span()
                return found.group()
            self._at = len(self._buffer) if found is None else found.start()
            if len(self._buffer) - self._at > self._longest:
                raise NotJsonError("has a string that is too long")
            if not self._read_on():
                raise NotJsonError("ends early")

    def has_more(self) -> bool:
        """Return whether anything except white space follows."""
        while not _STRAY.search(self._buffer, self._at):
            self._at = self._mark = len(self._buffer)
            if not self._read_on():
                return False
        return True

    def _read_on(self) -> bool:
        if self._at - self._mark > self._longest:
            self._is_lost = True
        begin = self._at if self._is_lost else min(self._mark, self._at)
        chunk = self._stream.read(_CHUNK_BYTES)
        self._buffer = self._buffer[begin:] + chunk
        self._at -= begin
        self._mark = max(0, self._mark - begin)
        return bool(chunk)
