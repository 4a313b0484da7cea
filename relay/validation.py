"""Validates event fields (ids, user ids, timestamps, JSON values) and group names. Pure.

Unlike msgspec, this module rejects NaN, lone surrogates, and names that are unsafe as folder names.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from typing import Any

from relay.errors import MalformedEventError

SYSTEM_USER = "system"  # the user id under which conductors publish events; each event belongs to the user of its run
SHARED_USER = "shared-knowledge"
"""The user id of the store of shared items. No key can be created for this user. Each event of this user has an
`audience`, and only the key `local` may publish such events.
"""
_USER_ID = re.compile(r"[A-Za-z0-9_@+:-][A-Za-z0-9._@+:-]{0,127}")
_GROUP_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_MAX_TYPE_CHARS = 128
_MILLISECONDS_FROM = 1e11  # the year 5138 if read as seconds, 1973 if read as milliseconds
_INTEGERS = range(-(2**63), 2**64)  # the integers that MessagePack can represent
_SHOWN_CHARS = 40


def validate_user_id(user_id: object) -> str:
    """Return `user_id` if it is safe as a folder name and in a database key.

    Allows 1 to 128 ASCII letters, digits and `._:@+-`, without a leading dot. Raises `MalformedEventError`.
    """
    if user_id is None or user_id == "":
        raise MalformedEventError("user_id", "is missing")
    if not isinstance(user_id, str):
        raise MalformedEventError("user_id", f"expected text, got {type(user_id).__name__}")
    if len(user_id) > 128:
        raise MalformedEventError("user_id", f"has {len(user_id)} characters; at most 128 are allowed")
    if not _USER_ID.fullmatch(user_id):
        raise MalformedEventError(
            "user_id",
            f"{_shown(user_id)} is unsafe: ASCII letters, digits and ._:@+- are allowed, without a leading dot",
        )
    return user_id


def validate_event_user(user_id: object) -> str:
    """Return `user_id` if it may have events and keys. Raises `MalformedEventError`."""
    user = validate_user_id(user_id)
    if user == SHARED_USER:
        raise MalformedEventError("user_id", f"{SHARED_USER} is reserved for shared items")
    return user


def validate_owner(field: str, user_id: object) -> str:
    """Return `user_id` if it may own events of `system`; `system` itself may not. Raises `MalformedEventError`."""
    try:
        owner = validate_event_user(user_id)
    except MalformedEventError as error:
        raise MalformedEventError(field, error.reason) from error
    if owner == SYSTEM_USER:
        raise MalformedEventError(field, f"{SYSTEM_USER} is not a user: its events belong to other users")
    return owner


def validate_group_name(field: str, name: object) -> str:
    """Return `name` if it is a valid organisation or tier name. Raises `MalformedEventError` (with `field`)."""
    if not isinstance(name, str) or not _GROUP_NAME.fullmatch(name):
        raise MalformedEventError(field, f"must be 1 to 64 ASCII letters, digits or ._-, not {_shown(name)}")
    return name


def validate_event_type(event_type: object) -> str:
    """Return `event_type` if it is text without spaces or wildcards. Raises `MalformedEventError`."""
    if event_type is None or event_type == "":
        raise MalformedEventError("event_type", "is missing")
    if not isinstance(event_type, str):
        raise MalformedEventError("event_type", f"expected text, got {type(event_type).__name__}")
    if len(event_type) > _MAX_TYPE_CHARS:
        raise MalformedEventError(
            "event_type", f"has {len(event_type)} characters; at most {_MAX_TYPE_CHARS} are allowed"
        )
    if not event_type.isprintable() or " " in event_type or "*" in event_type:
        raise MalformedEventError(
            "event_type", f"{_shown(event_type)} contains spaces, control characters or a wildcard"
        )
    return event_type


def validate_id(field: str, value: object, max_bytes: int) -> str | None:
    """Return an optional id, or None if it is empty. Raises `MalformedEventError` (with `field`)."""
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise MalformedEventError(field, f"expected text, got {type(value).__name__}")
    length = len(_utf8(field, value))
    if length > max_bytes:
        raise MalformedEventError(field, f"has {length} bytes; at most {max_bytes} are allowed")
    if not value.isprintable() and _CONTROL.search(value):
        raise MalformedEventError(field, f"{_shown(value)} contains control characters")
    return value


def validate_timestamp(value: object, now: datetime, max_future_s: float) -> datetime:
    """Return a timestamp in UTC.

    Text must be in ISO 8601 format; without a zone, it is interpreted as UTC. A number is in seconds since 1970 or, if
    it is 1e11 or greater, in milliseconds. Raises `MalformedEventError` if the time is invalid or is more than
    `max_future_s` after `now`.
    """
    try:
        moment = _moment(value)
    except (ValueError, OverflowError, OSError) as error:
        raise MalformedEventError(
            "timestamp", f"{_shown(value)} is neither an ISO 8601 time nor an epoch timestamp"
        ) from error
    ahead_s = (moment - now).total_seconds()
    if ahead_s > max_future_s:
        raise MalformedEventError(
            "timestamp", f"is {ahead_s:.0f} s in the future; at most {max_future_s:g} s are allowed"
        )
    return moment


def validate_object(field: str, value: object, max_depth: int) -> dict[str, Any]:
    """Return a JSON object with any content, or an empty object for None.

    Raises `MalformedEventError` with the path of a value that JSON or MessagePack cannot represent, or that is nested
    deeper than `max_depth`.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise MalformedEventError(field, f"expected an object, got {type(value).__name__}")
    try:
        _check(value, max_depth)
    except _BadValueError as bad:
        raise MalformedEventError(field + "".join(reversed(bad.path)), bad.reason) from None
    return value


class _BadValueError(Exception):
    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: list[str] = []


def _check(value: object, levels: int) -> None:
    kind = type(value)
    if kind is str:
        _check_text(value)  # type: ignore[arg-type]
    elif kind is dict or kind is list or kind is tuple:
        if levels == 0:
            raise _BadValueError("is nested too deeply")
        _check_members(value, levels - 1)
    elif kind is float:
        if not math.isfinite(value):  # type: ignore[arg-type]
            raise _BadValueError("is not a finite number")
    elif kind is int:
        if value not in _INTEGERS:
            raise _BadValueError("is an integer that does not fit in 64 bits")
    elif value is not None and kind is not bool:
        raise _BadValueError(f"cannot be stored as JSON ({kind.__name__})")


def _check_members(value: Any, levels: int) -> None:
    position: object = 0
    try:
        if type(value) is dict:
            for position, member in value.items():
                if type(position) is not str:
                    raise _BadValueError(f"a key is {type(position).__name__}, not text")
                _check_text(position)
                _check(member, levels)
        else:
            for position, member in enumerate(value):  # noqa: B007
                _check(member, levels)
    except _BadValueError as bad:
        if len(bad.path) < 16:
            bad.path.append(f"[{position}]" if isinstance(position, int) else f".{_shown(position, quote=False)}")
        raise


def _check_text(text: str) -> None:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise _BadValueError("has a lone surrogate") from None


def _moment(value: object) -> datetime:
    if isinstance(value, datetime):
        moment = value
    elif isinstance(value, str):
        moment = datetime.fromisoformat(value)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        seconds = value / 1000 if abs(value) >= _MILLISECONDS_FROM else value
        moment = datetime.fromtimestamp(seconds, UTC)
    else:
        raise ValueError(type(value).__name__)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _utf8(field: str, value: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise MalformedEventError(field, "has a lone surrogate") from error


def _shown(value: object, *, quote: bool = True) -> str:
    """Return a short, printable form of an untrusted value."""
    if isinstance(value, int) and value not in _INTEGERS:
        return f"an integer of {value.bit_length()} bits"
    text = ascii(value) if quote else ascii(value).strip("'\"")
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…"
