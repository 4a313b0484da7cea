"""Validates the records that `Memory.remember` stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, cast

import msgspec

from memory_agent.errors import InvalidInputError
from memory_agent.records import arguments
from memory_agent.records.memories import (
    KINDS,
    SOURCES,
    STATED_PROVENANCES,
    MemoryRecord,
    StatedProvenance,
    parted_provenance,
)
from memory_agent.records.metadata import values_of
from relay import EventLimits, Masker, validate_id
from relay.errors import MalformedEventError

_MOST_METADATA_VALUES = 10_000  # each takes 12 bytes in the filter columns
_NAMES = ("type", "phase", "session_id", "run_id", "channel_id", "agent_id")
_MOST_TITLE_CHARS = 1_000  # an event keeps 200 characters of the title and 32 tags of 64 characters
_MOST_TAGS, _MOST_TAG_CHARS = 100, 200


def checked_record(record: MemoryRecord, now: datetime, max_chars: int, limits: EventLimits) -> MemoryRecord:
    """Return the validated record. Its fields may have any type. Raises `InvalidInputError` (with the field's name)."""
    arguments.check_not_blank("text", record.text)
    if len(record.text) > max_chars:
        raise InvalidInputError("text", f"must have at most {max_chars} characters, not {len(record.text)}")
    arguments.check_choice("source", record.source, SOURCES)
    arguments.check_choice("kind", record.kind, KINDS)
    if record.provenance is not None:
        arguments.check_choice("provenance", record.provenance, STATED_PROVENANCES)
    provenance, cached_from = parted_provenance(cast(StatedProvenance, record.provenance))
    if (record_id := _optional_name("id", record.id, limits.max_id_bytes)) is None:
        raise InvalidInputError("id", "is empty")
    return msgspec.structs.replace(
        record,
        id=record_id,
        timestamp=_past("timestamp", record.timestamp, now, limits.max_future_s),
        title=_title(record.title),
        tags=_check_tags(record.tags),
        metadata=_check_metadata(record.metadata),
        provenance=provenance,
        cached_from=cached_from,
        quality_score=None
        if record.quality_score is None
        else arguments.check_share("quality_score", record.quality_score),
        **{name: _optional_name(name, getattr(record, name), limits.max_id_bytes) for name in _NAMES},
    )


def masked_record(record: MemoryRecord, masker: Masker) -> MemoryRecord:
    return msgspec.structs.replace(
        record,
        text=masker.text(record.text),
        title=None if record.title is None else masker.text(record.title),
        tags=tuple(dict.fromkeys(map(masker.text, record.tags))),
        metadata=masker.value(record.metadata),
    )


def _title(text: str | None) -> str | None:
    if text is not None:
        arguments.check_text("title", text)
        if len(text) > _MOST_TITLE_CHARS:
            raise InvalidInputError("title", f"must have at most {_MOST_TITLE_CHARS} characters, not {len(text)}")
    return text or None


def _check_tags(tags: Sequence[str]) -> tuple[str, ...]:
    if isinstance(tags, str) or not isinstance(tags, Sequence):
        raise InvalidInputError("tags", "must be a list of strings")
    if len(tags) > _MOST_TAGS:
        raise InvalidInputError("tags", f"must have at most {_MOST_TAGS} tags, not {len(tags)}")
    for tag in tags:
        arguments.check_text("tags", tag)
        if len(tag) > _MOST_TAG_CHARS:
            raise InvalidInputError("tags", f"must have at most {_MOST_TAG_CHARS} characters each, not {len(tag)}")
    return tuple(dict.fromkeys(tag for tag in tags if tag))


def _optional_name(field: str, name: object, max_bytes: int) -> str | None:
    try:
        return validate_id(field, name, max_bytes)
    except MalformedEventError as error:
        raise InvalidInputError(error.field, error.reason) from error


def _past(field: str, moment: object, now: datetime, max_future_s: float) -> datetime:
    """Convert a time with a time zone to UTC. It must be after 1970 and at most `max_future_s` after `now`."""
    checked = arguments.check_time(field, moment).astimezone(UTC)
    ahead_s = (checked - now).total_seconds()
    if ahead_s > max_future_s:
        raise InvalidInputError(field, f"is {ahead_s:.0f} s in the future; the limit is {max_future_s:g} s")
    return checked


def _check_metadata(metadata: object) -> dict[str, Any]:
    checked = arguments.check_object("metadata", dict(metadata) if isinstance(metadata, Mapping) else metadata)
    if any(place == _MOST_METADATA_VALUES for place, _ in enumerate(values_of(checked))):
        raise InvalidInputError("metadata", f"has more than {_MOST_METADATA_VALUES} values")
    return checked
