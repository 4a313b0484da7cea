"""Events: decoding from JSON or MessagePack, validation, derived ids, encoding and topic matching.

Every event is validated here once, on arrival. Unknown fields are kept in `extra`. The bus does not interpret event
types and payloads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from hashlib import blake2b
from typing import Any

import msgspec

from relay.config import EventLimits
from relay.decoding import described
from relay.errors import EventTooLargeError, MalformedEventError
from relay.validation import (
    SYSTEM_USER,
    validate_event_type,
    validate_id,
    validate_object,
    validate_owner,
    validate_timestamp,
    validate_user_id,
)


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that happened, as reported by an emitter. Use `event_from_mapping` to build a validated event."""

    event_id: str
    event_type: str
    timestamp: datetime
    user_id: str
    session_id: str | None = None
    actor_id: str | None = None
    thread_id: str | None = None
    channel_id: str | None = None
    agent_id: str | None = None
    correlation_id: str | None = None
    payload: dict[str, Any] = {}
    extra: dict[str, Any] = {}


ON_BEHALF_OF = "on_behalf_of"  # the field in which an event published under `system` may name its owner
AUDIENCE = "audience"
"""The field that holds the audience of an event about shared items: `public`, `org:NAME` or `tier:NAME`."""
_IDS = ("session_id", "actor_id", "thread_id", "channel_id", "agent_id", "correlation_id")
_OWN_FIELDS = frozenset(Event.__struct_fields__) - {"extra"}
_DERIVED_PREFIX = "derived-"

# Keys are sorted, so that equal events have equal bytes, whether they arrived as JSON or MessagePack.
_encoder = msgspec.msgpack.Encoder(order="deterministic")
_event_decoder = msgspec.msgpack.Decoder(described(Event))


class _Addressed(msgspec.Struct):
    extra: dict[str, Any] = {}


_addressed_decoder = msgspec.msgpack.Decoder(described(_Addressed))


def encode_event(event: Event) -> bytes:
    """Return the canonical MessagePack of an event, as the journal stores it and publishers send it.

    >>> read_event(encode_event(events[0])) == events[0]
    True
    """
    return _encoder.encode(event)


def read_event(data: bytes) -> Event:
    """Decode an event from canonical bytes, as read from the journal. Raises `MalformedEventError`.

    >>> read_event(encode_event(events[0])).payload
    {'text': 'Staging needs the VPN'}
    """
    try:
        return _event_decoder.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise MalformedEventError("event", f"not a journaled event: {error}") from error


def audience_of(data: bytes) -> str | None:
    """Return the audience of a canonically encoded event, or None if it has none.

    >>> audience_of(encode_event(events[0]))
    """
    audience = _addressed_decoder.decode(data).extra.get(AUDIENCE)
    return audience if isinstance(audience, str) else None


def decode_event(data: bytes, limits: EventLimits, now: datetime) -> Event:
    """Decode and validate an event encoded as JSON or MessagePack.

    For any bytes, raises only `MalformedEventError` (with the field's name) and `EventTooLargeError`.

    >>> data = b'{"event_id": "e-1", "event_type": "user_input", "user_id": "alice"}'
    >>> decode_event(data, EventLimits(), now).event_id
    'e-1'
    >>> decode_event(b"{", EventLimits(), now)
    Traceback (most recent call last):
    relay.errors.MalformedEventError: ...
    """
    return event_from_mapping(decode_mapping(data, limits), limits, now)


def event_from_mapping(mapping: object, limits: EventLimits, now: datetime) -> Event:
    """Validate a mapping and return its event. Raises the same errors as `decode_event`, but does not check the size.

    A missing timestamp becomes `now`. A missing id is derived from the fields as sent, so a repeated event gets the
    same id.

    >>> event = event_from_mapping({"event_type": "user_input", "user_id": "alice"}, EventLimits(), now)
    >>> event.event_id, event.timestamp == now
    ('derived-...', True)
    """
    if not isinstance(mapping, Mapping):
        raise MalformedEventError("event", f"expected an object, got {type(mapping).__name__}")
    ids = {field: validate_id(field, mapping[field], limits.max_id_bytes) for field in _IDS if field in mapping}
    sent_at = mapping.get("timestamp")
    event = Event(
        event_id=validate_id("event_id", mapping.get("event_id"), limits.max_id_bytes) or "",
        event_type=validate_event_type(mapping.get("event_type")),
        timestamp=now if sent_at is None else validate_timestamp(sent_at, now, limits.max_future_s),
        user_id=validate_user_id(mapping.get("user_id")),
        payload=validate_object("payload", mapping.get("payload"), limits.max_depth),
        extra=_extra(mapping, limits),
        **ids,
    )
    if event.user_id == SYSTEM_USER and event.extra.get(ON_BEHALF_OF) not in (None, ""):
        validate_owner(ON_BEHALF_OF, event.extra[ON_BEHALF_OF])
    return event if event.event_id else _with_derived_id(event, dated=sent_at is not None)


def sendable(mapping: object, limits: EventLimits, now: datetime) -> tuple[Event, bytes]:
    """Validate a mapping and return its event and the bytes to publish. Raises the same errors as `decode_event`."""
    event = event_from_mapping(mapping, limits, now)
    try:
        data = encode_event(event)
    except (ValueError, OverflowError, RecursionError, TypeError) as error:
        raise MalformedEventError("event", f"cannot be encoded: {error}") from error
    if len(data) > limits.max_bytes:
        raise EventTooLargeError("event", f"has {len(data)} bytes; at most {limits.max_bytes} are allowed")
    return event, data


def decode_mapping(data: bytes, limits: EventLimits) -> object:
    """Decode JSON or MessagePack bytes, without validation. Raises `MalformedEventError` and `EventTooLargeError`."""
    if len(data) > limits.max_bytes:
        raise EventTooLargeError("event", f"has {len(data)} bytes; at most {limits.max_bytes} are allowed")
    looks_like_json = data.lstrip(b" \t\r\n")[:1] in (b"{", b"[", b'"')
    try:
        return msgspec.json.decode(data) if looks_like_json else msgspec.msgpack.decode(data)
    except RecursionError as error:
        raise MalformedEventError("event", "is nested too deeply") from error
    except UnicodeDecodeError as error:
        raise MalformedEventError("event", "is not UTF-8") from error
    except (msgspec.DecodeError, ValueError, OverflowError) as error:
        form = "JSON" if looks_like_json else "MessagePack, and does not look like JSON"
        raise MalformedEventError("event", f"is not {form}: {error}") from error


def matches(pattern: str, event_type: str) -> bool:
    """Return whether `event_type` matches a topic: an exact type, a prefix such as `worker.*`, or `*` for all types.

    >>> matches("worker.*", "worker.task.done"), matches("worker.*", "worker"), matches("*", "worker")
    (True, False, True)
    """
    if pattern == "*":
        return True
    if pattern.endswith(".*"):
        return len(event_type) >= len(pattern) and event_type.startswith(pattern[:-1])
    return pattern == event_type


def matches_any(patterns: Iterable[str], event_type: str) -> bool:
    """Return whether `event_type` matches any of the topics.

    >>> matches_any(["feedback.*", "user_input"], "user_input")
    True
    """
    return any(matches(pattern, event_type) for pattern in patterns)


def _extra(mapping: Mapping[Any, Any], limits: EventLimits) -> dict[str, Any]:
    if mapping.keys() <= _OWN_FIELDS:
        return {}
    others = {field: value for field, value in mapping.items() if field not in _OWN_FIELDS}
    nested = others.get("extra")
    if isinstance(nested, dict):
        del others["extra"]
        others = {**nested, **others}
    return validate_object("extra", others, limits.max_depth)


def _with_derived_id(event: Event, *, dated: bool) -> Event:
    content = event if dated else msgspec.structs.replace(event, timestamp=None)
    digest = blake2b(_encoder.encode(content), digest_size=16).hexdigest()
    return msgspec.structs.replace(event, event_id=_DERIVED_PREFIX + digest)
