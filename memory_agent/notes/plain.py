"""Plain memories: JSON lines, a JSON list, or an object with a list `entries`; an object with a `text` each.

    {"text": "Staging needs the VPN", "tags": ["deploy"], "timestamp": "2026-02-16T10:00:00Z"}

An entry may have the arguments of `remember`; some go by other names elsewhere (`content`, `created_at`). What else
it has becomes metadata. Without an `id` it gets one of its content.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, BinaryIO

import msgspec

from memory_agent.notes.note import BadNote, Note, digest_of
from memory_agent.sessions.json_stream import LONGEST_BYTES, NotJsonError, lines, members

_ENTRIES = "entries"
_TEXTS = ("text", "content", "memory")
_TIMES = ("timestamp", "created_at")
_LONGEST_ID = 200
_FIELDS = frozenset(
    {
        *("kind", "source", "tags", "provenance", "session_id", "run_id", "channel_id", "agent_id", "type", "phase"),
        "quality_score",
    }
)
_objects = msgspec.json.Decoder(dict[str, Any])


def read_plain(stream: BinaryIO, file: str) -> Iterator[Note | BadNote]:
    """Yield the memories in a seekable stream, and what is none."""
    if _is_document(stream):
        yield from _of_document(stream, file)
        return
    for line in lines(stream):
        if line.data is None:
            yield BadNote(file=file, place=f"line {line.number}", reason=f"is longer than {LONGEST_BYTES} bytes")
        elif line.data:
            yield _read(line.data, file, f"line {line.number}")


def has_notes(stream: BinaryIO) -> bool:
    """Return whether there is a memory in a seekable stream, which is then at its beginning."""
    found = any(isinstance(one, Note) for one in read_plain(stream, ""))
    stream.seek(0)
    return found


def _is_document(stream: BinaryIO) -> bool:
    """Return whether a stream is one document, and not a line for each memory."""
    stream.seek(0)
    first = next((line.data for line in lines(stream) if line.data is None or line.data), b"")
    stream.seek(0)
    if first is None or first.startswith(b"["):
        return True
    try:
        return isinstance(_objects.decode(first.removeprefix(b"\xef\xbb\xbf")).get(_ENTRIES), list)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return first in (b"{", b"[") or first.startswith(b'{"entries"')


def _of_document(stream: BinaryIO, file: str) -> Iterator[Note | BadNote]:
    try:
        for name, number, data in members(stream):
            place = f"entry {number}"
            if name not in ("", _ENTRIES) or not number:
                continue
            if data is None:
                yield BadNote(file=file, place=place, reason=f"is longer than {LONGEST_BYTES} bytes")
            else:
                yield _read(data, file, place)
    except NotJsonError as error:
        yield BadNote(file=file, place="", reason=str(error))


def _read(data: bytes, file: str, place: str) -> Note | BadNote:
    try:
        said = _objects.decode(data.removeprefix(b"\xef\xbb\xbf"))
    except msgspec.ValidationError:
        return BadNote(file=file, place=place, reason="is not a JSON object")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return BadNote(file=file, place=place, reason="is not JSON")
    except RecursionError:
        return BadNote(file=file, place=place, reason="is nested too deeply")
    text = next((said[name] for name in _TEXTS if isinstance(said.get(name), str) and said[name].strip()), None)
    if text is None:
        return BadNote(file=file, place=place, reason="has no text")
    time = next((said[name] for name in _TIMES if said.get(name) is not None), None)
    moment = _moment(time)
    if time is not None and moment is None:
        return BadNote(file=file, place=place, reason="has a timestamp that is no ISO time and no number of seconds")
    stated = said.get("metadata")
    if stated is not None and not isinstance(stated, dict):
        return BadNote(file=file, place=place, reason="has metadata that is not an object")
    title, id = said.get("title"), said.get("id")
    if not isinstance(title, str | None):
        return BadNote(file=file, place=place, reason="has a title that is not text")
    if not isinstance(id, str | int | None) or len(str(id)) > _LONGEST_ID:
        return BadNote(file=file, place=place, reason="has an id that is no short text")
    known = {*_FIELDS, *_TEXTS, *_TIMES, "metadata", "title", "id"}
    rest = {name: value for name, value in said.items() if name not in known}
    fields = {name: said[name] for name in _FIELDS if said.get(name) is not None}
    return Note(
        id=f"note:{digest_of(text, title, fields.get('session_id'))}" if id in (None, "") else str(id),
        text=text,
        place=place,
        title=title,
        timestamp=moment,
        metadata={**rest, **(stated or {})},
        fields=fields,
    )


def _moment(value: Any) -> datetime | None:
    try:
        if isinstance(value, str):
            moment = datetime.fromisoformat(value)
            return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
        if isinstance(value, int | float) and not isinstance(value, bool):
            return datetime.fromtimestamp(value, UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return None
