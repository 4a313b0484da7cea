"""Sources of quarantine entries: the intake or consumer that quarantined the bytes, and the user. Pure."""

from __future__ import annotations

from relay.access import Principal, Scope
from relay.config import EventLimits
from relay.errors import MalformedEventError
from relay.event import decode_mapping
from relay.validation import SYSTEM_USER, validate_user_id

_OF_USER = "@"
_OF_MEMORY = "memory:"
_LIMITS = EventLimits(max_bytes=16 << 20)


def source_name(kind: str, name: str, principal: Principal) -> str:
    """Return the source to store with quarantined bytes. It names the key's user."""
    if principal.user_id is not None:
        return f"{kind}{_OF_USER}{principal.user_id}/{name}"
    return f"{kind}:{name}" if name else kind


def publisher_of(source: str) -> Principal:
    """Return the principal that publishes quarantined bytes again, from a result of `source_name`."""
    kind, at, rest = source.partition(_OF_USER)
    is_of_user = bool(at) and ":" not in kind
    return Principal("quarantine", rest.partition("/")[0] if is_of_user else None, frozenset({Scope.PUBLISH}))


def user_of_source(source: str) -> str | None:
    """Return the user named by a source: the owner of a memory, or the user of the publishing key."""
    return source.removeprefix(_OF_MEMORY) if source.startswith(_OF_MEMORY) else publisher_of(source).user_id


def user_of(data: bytes, source: str) -> str:
    """Return the user whose key encrypts quarantined bytes: named by the source, else by the content, else `system`."""
    try:
        named = user_of_source(source) or decode_mapping(data, _LIMITS)
        return validate_user_id(named.get("user_id") if isinstance(named, dict) else named)
    except MalformedEventError:
        return SYSTEM_USER
