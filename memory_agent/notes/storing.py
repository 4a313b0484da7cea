"""Store notes: remember new and changed notes, skip unchanged notes, and forget removed notes."""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from memory_agent.errors import InvalidInputError
from memory_agent.notes.markdown import SECTION, SUFFIXES, read_markdown
from memory_agent.notes.note import DIGEST, FILE, Note
from memory_agent.records.memories import MemoryFilter
from memory_agent.sessions.json_stream import BadPlace

if TYPE_CHECKING:  # so that the command line renders notes without loading the engines
    from memory_agent.provider import MemoryProvider
    from relay.disk import Report

MOST_NAMED = 1_000
_BATCH = 100
_PAGE = 1_000
_LARGEST_BYTES = 8 << 20
_HEAD_BYTES = 64
_FORMATS = {
    b"%PDF-": "a PDF document",
    b"{\\rtf": "an RTF document",
    b"%!PS": "a PostScript document",
    b"PK\x03\x04": "an archive or an office document",
    b"\xd0\xcf\x11\xe0": "an office document",
    b"\x1f\x8b": "a compressed file",
    b"\x89PNG": "an image",
    b"\xff\xd8\xff": "an image",
    b"GIF8": "an image",
    b"RIFF": "an image or a recording",
    b"\x7fELF": "a program",
    b"SQLite format 3": "a database",
}
"""The first bytes of common formats. Some of them are also valid UTF-8."""
_CONTROL = re.compile(r"[\x00-\x07\x0e-\x1a\x1c-\x1f]")
"""Characters that text does not contain. Backspaces and escapes are omitted: manual pages and logs contain them."""
_IGNORED = frozenset({"node_modules", "__pycache__", "site-packages", "target", "dist", "build", "venv"})


class StoredNotes(msgspec.Struct, kw_only=True):
    """Counts of stored notes. `bad_places` lists the first thousand unreadable places."""

    files: int = 0
    added: int = 0
    replaced: int = 0
    unchanged: int = 0
    removed: int = 0
    bad: int = 0
    bad_places: list[BadPlace] = []

    def reject(self, bad: BadPlace) -> None:
        self.bad += 1
        if len(self.bad_places) < MOST_NAMED:
            self.bad_places = [*self.bad_places, bad]


def store_notes(memory: MemoryProvider, notes: Iterable[Note | BadPlace], file: str) -> StoredNotes:
    """Store the notes of one file. Unreadable parts are counted and do not affect other notes. Idempotent."""
    stored = StoredNotes(files=1)
    waiting = iter(notes)
    while batch := list(islice(waiting, _BATCH)):
        _store(memory, batch, file, stored)
    return stored


def index_documents(
    memory: MemoryProvider, root: Path, now: datetime, report: Report, only: Collection[Path] | None = None
) -> StoredNotes:
    """Update the memories of a document, or of all documents below a folder, to match their sections. Idempotent.

    With `only`, other documents are not read. Forgets removed sections, including the sections of deleted documents.
    Keeps the sections of documents that cannot be read or are in skipped folders such as `.claude`.
    """
    stored, kept, read = StoredNotes(), set[str](), set[str]()
    files = [path for path in documents(root) if only is None or path in only]
    for number, path in enumerate(files):
        report("documents", number, len(files))
        notes = _read(path, now)
        if isinstance(notes, BadPlace):
            stored.reject(notes)
            continue
        read.add(str(path))
        stored.files += 1
        kept |= {note.id for note in notes}
        for begin in range(0, len(notes), _BATCH):
            _store(memory, notes[begin : begin + _BATCH], str(path), stored)
    report("documents", len(files), len(files))
    gone = [id for id, file in _sections_of(memory, root) if id not in kept and (file in read or _is_gone(file))]
    for begin in range(0, len(gone), _BATCH):
        stored.removed += memory.forget(gone[begin : begin + _BATCH])
    return stored


def _store(memory: MemoryProvider, notes: Iterable[Note | BadPlace], file: str, stored: StoredNotes) -> None:
    good: dict[str, Note] = {}
    for note in notes:
        if isinstance(note, BadPlace):
            stored.reject(note)
        else:
            good[note.id] = note
    known = {record.id: record.metadata.get(DIGEST) for record in memory.get(list(good))} if good else {}
    for note in good.values():
        if known.get(note.id) == note.digest:
            stored.unchanged += 1
            continue
        try:
            memory.remember(
                note.text,
                id=note.id,
                title=note.title,
                timestamp=note.timestamp,
                metadata={**note.metadata, DIGEST: note.digest},
                **note.fields,
            )
        except InvalidInputError as error:
            stored.reject(BadPlace(file=file, place=note.place, reason=str(error)))
            continue
        stored.replaced += note.id in known
        stored.added += note.id not in known


def documents(root: Path) -> Iterator[Path]:
    """Yield the documents below a folder, except those in skipped folders. If the root is a file, yield it."""
    if not root.is_dir():
        yield root
        return
    for folder, names, files in os.walk(root):
        names[:] = sorted(name for name in names if name not in _IGNORED and not name.startswith("."))
        yield from (Path(folder, name) for name in sorted(files) if name.lower().endswith(SUFFIXES))


def _is_gone(file: str) -> bool:
    """Return whether a file is missing; False if its folder cannot be searched."""
    try:
        os.stat(file)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def read_document(path: Path) -> str | BadPlace:
    """Return the text of a file, or the reason why it cannot be read."""
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            return BadPlace(file=str(path), place="", reason=f"is larger than {_LARGEST_BYTES} bytes")
        data = path.read_bytes()
    except OSError as error:
        return BadPlace(file=str(path), place="", reason=f"cannot be read: {error.strerror}")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        reason = _not_text(data) or f"is not valid UTF-8 at byte {error.start}; convert it to UTF-8"
        return BadPlace(file=str(path), place="", reason=reason)
    reason = _not_text(data) or ("is binary" if _CONTROL.search(text) else "")
    return BadPlace(file=str(path), place="", reason=reason) if reason else text


def _not_text(data: bytes) -> str:
    """Return the reason why data is not UTF-8 text, if its first bytes show this, else ""."""
    for begin, kind in _FORMATS.items():
        if data.startswith(begin):
            return f"is {kind}, not text; convert it to Markdown or plain text"
    head = data[:_HEAD_BYTES]
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or any(
        len(head) > 1 and not any(head[place::2]) for place in (0, 1)
    ):
        return "is UTF-16 or UTF-32; convert it to UTF-8"
    return ""


def _read(path: Path, now: datetime) -> list[Note] | BadPlace:
    text = read_document(path)
    if isinstance(text, BadPlace):
        return text
    try:
        written = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    except OSError as error:
        return BadPlace(file=str(path), place="", reason=f"cannot be read: {error.strerror}")
    return list(read_markdown(path, text, min(written, now)))


def _sections_of(memory: MemoryProvider, root: Path) -> list[tuple[str, str]]:
    """Return the id and file of each stored section of a document, or of all documents below a folder."""
    sections: list[tuple[str, str]] = []
    after: str | None = None
    while True:
        page = memory.list(MemoryFilter(type=SECTION), "newest", _PAGE, after)
        for record in page.records:
            file = record.metadata.get(FILE)
            if isinstance(file, str) and (Path(file) == root or root in Path(file).parents):
                sections.append((record.id, file))
        after = page.next_cursor
        if after is None:
            return sections
