"""Reads the file of a session, or the files in a folder, and later resumes where it stopped.

An unreadable part is yielded as `Bad` with its place and does not affect the rest.
"""

from __future__ import annotations

import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar

import msgspec

from memory_agent.sessions.entries import Bad, Found, Session
from memory_agent.sessions.json_stream import LONGEST_BYTES, Line, NotJsonError, lines, members, mended
from memory_agent.sessions.readers import Reader

Data = TypeVar("Data", bytes, dict[str, bytes])

_FIRST_ITEMS = 8
_MOST_HEAD_BYTES = 4 << 20
_CONVERSATIONS = "conversations.json"
_TOO_LONG = Bad(f"is longer than {LONGEST_BYTES} bytes")
_HALF = Bad("is incomplete: it has no line ending and is not valid JSON")


class Placed(NamedTuple):
    """An entry and its place: "line 12", "steps 3", or "" for the file as a whole."""

    place: str
    found: Found


class Transcript(ABC):
    """The file or folder of a session or an export. `read_bytes` of its `size_bytes` have been read so far."""

    def __init__(self, path: Path, make: Callable[[], Reader]) -> None:
        self.path = path
        self.read_bytes = 0
        self._make = make
        self._reader = make()

    @property
    def session(self) -> Session:
        return self._reader.session

    @property
    def size_bytes(self) -> int:
        return _size(self.path)

    @property
    @abstractmethod
    def has_news(self) -> bool:
        """Whether there is new content to read, or an entry is held back."""

    @abstractmethod
    def read(self, *, is_growing: bool = False) -> Iterator[Placed]:
        """Yield the unread entries. With `is_growing`, an incomplete entry at the end is left for the next call."""


class LineTranscript(Transcript):
    """A growing file of JSON lines. If the file has become shorter, it is read from the start again."""

    def __init__(self, path: Path, make: Callable[[], Reader]) -> None:
        super().__init__(path, make)
        self._numbers = 0
        self._is_holding = False

    @property
    def has_news(self) -> bool:
        return self._is_holding or self.size_bytes != self.read_bytes

    def read(self, *, is_growing: bool = False) -> Iterator[Placed]:
        """If there are no new lines, yields the messages that were held back."""
        if self.size_bytes < self.read_bytes:
            self.read_bytes = self._numbers = 0
            self._reader = self._make()
        self._is_holding, before = is_growing, self._numbers
        try:
            with self.path.open("rb") as stream:
                stream.seek(self.read_bytes)
                for line in lines(stream, self._numbers):
                    if is_growing and not line.is_whole:
                        break
                    yield from self._line(line)
                    self.read_bytes, self._numbers = line.end, line.number
        except OSError as error:
            yield Placed("", Bad(f"cannot be read: {error.strerror}"))
        if not is_growing or self._numbers == before:
            self._is_holding = False
            yield from (Placed("", found) for found in self._reader.release())
        if not is_growing:
            yield from (Placed("", found) for found in self._reader.end())

    def _line(self, line: Line) -> Iterator[Placed]:
        place = f"line {line.number}"
        if line.data is None:
            yield Placed(place, _TOO_LONG)
        elif line.data:
            for found in _guarded(partial(self._reader.read, number=line.number), line.data):
                is_cut = isinstance(found, Bad) and not line.is_whole
                yield Placed(place, _HALF if is_cut else found)


class DocumentTranscript(Transcript):
    """A JSON document, or `conversations.json` in a ZIP archive. It is read again after any change."""

    def __init__(self, path: Path, make: Callable[[], Reader]) -> None:
        super().__init__(path, make)
        self._state: tuple[int, int] | None = None

    @property
    def has_news(self) -> bool:
        return _state(self.path) != self._state

    def read(self, *, is_growing: bool = False) -> Iterator[Placed]:
        """With `is_growing`, a document that ends early is left for the next call."""
        state = _state(self.path)
        self._reader = self._make()
        try:
            with open_document(self.path) as stream:
                head = _head(stream, is_whole=is_growing)
            yield from (Placed("", found) for found in _guarded(self._reader.begin, head))
            with open_document(self.path) as stream:
                yield from self._items(stream)
        except NotJsonError as error:
            if is_growing:
                return  # the document is still being written
            yield Placed("", Bad(f"{error}"))
        except (OSError, zipfile.BadZipFile, KeyError) as error:
            yield Placed("", Bad(f"cannot be read: {getattr(error, 'strerror', None) or 'not a valid export'}"))
        else:
            yield from (Placed("", found) for found in self._reader.release())
            yield from (Placed("", found) for found in self._reader.end())
        self._state, self.read_bytes = state, self.size_bytes

    def _items(self, stream: BinaryIO) -> Iterator[Placed]:
        for name, number, data in members(stream):
            place = f"{name or 'item'} {number}"
            if number and data is None:
                yield Placed(place, _TOO_LONG)
            elif number and data is not None:
                read = partial(self._reader.read, number=number, member=name)
                yield from (Placed(place, found) for found in _guarded(read, data))


class FolderTranscript(Transcript):
    """A growing folder of JSON files, read in name order."""

    def __init__(self, path: Path, pattern: str, make: Callable[[], Reader]) -> None:
        super().__init__(path, make)
        self._pattern = pattern
        self._known: set[str] = set()

    @property
    def size_bytes(self) -> int:
        return sum(map(_size, self.path.glob(self._pattern)))

    @property
    def has_news(self) -> bool:
        return any(file.name not in self._known for file in self.path.glob(self._pattern))

    def read(self, *, is_growing: bool = False) -> Iterator[Placed]:
        for number, file in enumerate(sorted(self.path.glob(self._pattern)), 1):
            if file.name not in self._known:
                yield from self._file(number, file, is_growing)
        if not is_growing:
            yield from (Placed("", found) for found in self._reader.end())

    def _file(self, number: int, file: Path, is_growing: bool) -> Iterator[Placed]:
        size = _size(file)
        if size > LONGEST_BYTES:
            yield Placed(file.name, _TOO_LONG)
        else:
            try:
                data = file.read_bytes()
            except OSError as error:
                yield Placed(file.name, Bad(f"cannot be read: {error.strerror}"))
                data = b""
            for found in _guarded(partial(self._reader.read, number=number), data) if data else ():
                if is_growing and isinstance(found, Bad):
                    return
                yield Placed(file.name, found)
        self._known.add(file.name)
        self.read_bytes += size


def _guarded(read: Callable[[Data], Iterator[Found]], data: Data) -> Iterator[Found]:
    """Yield the entries that a reader finds in `data`; an error in the reader becomes `Bad`."""
    try:
        yield from read(data)
    except msgspec.ValidationError as error:
        yield Bad(f"does not match the format: {error}")
    except (msgspec.DecodeError, UnicodeDecodeError):
        whole = mended(data) if isinstance(data, bytes) else data
        if whole == data:
            yield Bad("is not JSON")
        else:
            yield from _guarded(read, whole)
    except RecursionError:
        yield Bad("is nested too deeply")


@contextmanager
def open_document(path: Path) -> Iterator[BinaryIO]:
    """Open a document, or `conversations.json` in a ZIP archive. Raises `OSError`, `BadZipFile` and `KeyError`."""
    if path.suffix != ".zip":
        with path.open("rb") as stream:
            yield stream
        return
    with zipfile.ZipFile(path) as archive:
        name = next((one for one in archive.namelist() if one.rpartition("/")[2] == _CONVERSATIONS), _CONVERSATIONS)
        with archive.open(name) as member:
            yield member  # type: ignore[misc]


def _head(stream: BinaryIO, *, is_whole: bool) -> dict[str, bytes]:
    """Return the members of a document that are not lists, and the first `_FIRST_ITEMS` items of each list.

    With `is_whole`, raises `NotJsonError` for a damaged or incomplete document.
    """
    found: dict[str, bytes] = {}
    size = 0
    try:
        for name, number, data in members(stream):
            if data is not None and number <= _FIRST_ITEMS and size + len(data) <= _MOST_HEAD_BYTES:
                size += len(data)
                found[f"{name}[{number}]" if number else name] = data
    except NotJsonError:
        if is_whole:
            raise
    return found


def _size(path: Path) -> int:
    state = _state(path)
    return 0 if state is None else state[0]


def _state(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns
