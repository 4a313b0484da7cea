"""Read notes: objects with a `text`, as JSON Lines, as a JSON list, or in the `entries` list of an object.

    {"text": "Staging needs the VPN", "tags": ["deploy"], "timestamp": "2026-02-16T10:00:00Z"}

A note may contain the arguments of `remember`, or the names `content`, `memory` and `created_at` used by other tools.
Other fields become metadata. A note without an `id` gets one derived from its content.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

import msgspec

from memory_agent.notes.note import Note, digest_of
from memory_agent.sessions.entries import time_of
from memory_agent.sessions.json_stream import LONGEST_BYTES, BadPlace, NotJsonError, lines, members

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


def read_plain(stream: BinaryIO, file: str) -> Iterator[Note | BadPlace]:
    if _is_document(stream):
        yield from _of_document(stream, file)
        return
    for line in lines(stream):
        if line.data is None:
            yield BadPlace(file=file, place=f"line {line.number}", reason=f"is longer than {LONGEST_BYTES} bytes")
        elif line.data:
            yield _read(line.data, file, f"line {line.number}")


def has_notes(stream: BinaryIO) -> bool:
    """Return whether a seekable stream contains a note. Rewinds the stream."""
    found = any(isinstance(one, Note) for one in read_plain(stream, ""))
    stream.seek(0)
    return found


def _is_document(stream: BinaryIO) -> bool:
    """Return whether a stream contains one JSON document rather than JSON lines."""
    stream.seek(0)
    first = next((line.data for line in lines(stream) if line.data is None or line.data), b"")
    stream.seek(0)
    if first is None or first.startswith(b"["):
        return True
    try:
        return isinstance(_objects.decode(first.removeprefix(b"\xef\xbb\xbf")).get(_ENTRIES), list)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return first in (b"{", b"[") or first.startswith(b'{"entries"')


def _of_document(stream: BinaryIO, file: str) -> Iterator[Note | BadPlace]:
    try:
        for name, number, data in members(stream):
            place = f"entry {number}"
            if name not in ("", _ENTRIES) or not number:
                continue
            if data is None:
                yield BadPlace(file=file, place=place, reason=f"is longer than {LONGEST_BYTES} bytes")
            else:
                yield _read(data, file, place)
    except NotJsonError as error:
        yield BadPlace(file=file, place="", reason=str(error))


def _read(data: bytes, file: str, place: str) -> Note | BadPlace:
    try:
        said = _objects.decode(data.removeprefix(b"\xef\xbb\xbf"))
    except msgspec.ValidationError:
        return BadPlace(file=file, place=place, reason="is not a JSON object")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return BadPlace(file=file, place=place, reason="is not JSON")
    except RecursionError:
        return BadPlace(file=file, place=place, reason="is nested too deeply")
    text = next((said[name] for name in _TEXTS if isinstance(said.get(name), str) and said[name].strip()), None)
    if text is None:
        return BadPlace(file=file, place=place, reason="has no text")
    time = next((said[name] for name in _TIMES if said.get(name) is not None), None)
    moment = time_of(time)
    if time is not None and moment is None:
        return BadPlace(file=file, place=place, reason="has a timestamp that is neither an ISO time nor a number")
    stated = said.get("metadata")
    if stated is not None and not isinstance(stated, dict):
        return BadPlace(file=file, place=place, reason="has metadata that is not an object")
    title, id = said.get("title"), said.get("id")
    if not isinstance(title, str | None):
        return BadPlace(file=file, place=place, reason="has a title that is not text")
    if not isinstance(id, str | int | None) or len(str(id)) > _LONGEST_ID:
        return BadPlace(file=file, place=place, reason="has an id that is too long or of the wrong type")
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
