"""A memory that somebody states outright, without an event: its fields, checked. Pure.

What this does not do: cut a text that is too long. Whoever states a memory is there to hear that it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypeVar

import msgspec
from ulid import ULID

from memory_agent.embedders import check_text
from memory_agent.errors import InvalidInputError
from memory_agent.records import KINDS, PROVENANCES, SOURCES, Kind, MemoryRecord, Provenance, Source
from relay import Masker, validate_object
from relay.errors import MalformedEventError

_MAX_DEPTH = 64

Word = TypeVar("Word", bound=str)


def make_record(
    text: str,
    *,
    kind: Kind,
    source: Source,
    tags: Sequence[str],
    title: str | None,
    provenance: Provenance | None,
    metadata: dict[str, Any] | None,
    session_id: str | None,
    now: datetime,
    max_chars: int,
) -> MemoryRecord:
    """Return the memory. Raises `InvalidInputError` naming the field that cannot be stored."""
    check_text("text", text)
    if not text.strip():
        raise InvalidInputError("text", "is empty")
    if len(text) > max_chars:
        raise InvalidInputError("text", f"has {len(text)} characters, at most {max_chars} are allowed")
    return MemoryRecord(
        id=str(ULID.from_datetime(now)),
        text=text,
        source=_one_of("source", source, SOURCES),
        kind=_one_of("kind", kind, KINDS),
        timestamp=now,
        title=_optional_text("title", title),
        tags=_check_tags(tags),
        provenance=None if provenance is None else _one_of("provenance", provenance, PROVENANCES),
        metadata=_check_metadata(metadata),
        session_id=_optional_text("session_id", session_id),
    )


def masked_record(record: MemoryRecord, masker: Masker) -> MemoryRecord:
    """Return the memory with the secrets in its text, title, tags and metadata masked."""
    return msgspec.structs.replace(
        record,
        text=masker.text(record.text),
        title=None if record.title is None else masker.text(record.title),
        tags=tuple(dict.fromkeys(map(masker.text, record.tags))),
        metadata=masker.value(record.metadata),
    )


def _one_of(field: str, value: Word, choices: Sequence[Word]) -> Word:
    if value not in choices:
        raise InvalidInputError(field, f"must be one of {', '.join(choices)}")
    return value


def _optional_text(field: str, text: str | None) -> str | None:
    if text is not None:
        check_text(field, text)
    return text or None


def _check_tags(tags: Sequence[str]) -> tuple[str, ...]:
    if isinstance(tags, str) or not isinstance(tags, Sequence):
        raise InvalidInputError("tags", "must be a list of texts")
    for tag in tags:
        check_text("tags", tag)
    return tuple(dict.fromkeys(tag for tag in tags if tag))


def _check_metadata(metadata: dict[str, Any] | None) -> dict[str, Any]:
    try:
        return validate_object("metadata", metadata, _MAX_DEPTH)
    except MalformedEventError as error:
        raise InvalidInputError(error.field, error.reason) from error
