"""Admission: turns bytes into a masked event of a user that the publisher's key allows. Pure.

Every event of the journal is made here: of acknowledged intake, plain PUB, tables and quarantine retries. The key
decides the user: a key for one user fills in that user and refuses any other. Events of `system`, which go to the owner
of their run, can therefore only come from keys for all users. `intake` checks the scope.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from relay.access import LOCAL, Principal, Scope
from relay.config import EventLimits
from relay.errors import MalformedEventError
from relay.event import Event, decode_mapping, event_from_mapping
from relay.validation import validate_event_user

Mask = Callable[[Event], Event]
"""Returns an event without its secrets. Keeps the id, so that a repeat is recognised."""

Admitted = Event | MalformedEventError


MaskData = Callable[[bytes], bytes]
"""`Mask` for malformed bytes, which go to quarantine."""


def unmasked(event: Event) -> Event:
    """Return the event unchanged."""
    return event


def unmasked_data(data: bytes) -> bytes:
    """Return the bytes unchanged."""
    return data


def admit(data: bytes, principal: Principal, limits: EventLimits, now: datetime, mask: Mask = unmasked) -> Event:
    """Return the event in JSON or MessagePack bytes, validated, masked, and of a user that `principal` may publish for.

    Raises `UserNotAllowedError` (which is replied and never quarantined), `MalformedEventError`.
    """
    return admit_mapping(decode_mapping(data, limits), principal, limits, now, mask)


def admit_mapping(
    mapping: object, principal: Principal, limits: EventLimits, now: datetime, mask: Mask = unmasked
) -> Event:
    """As `admit`, for a decoded event. Checks the user first."""
    if isinstance(mapping, Mapping):
        mapping = _with_user(mapping, principal)
    event = event_from_mapping(mapping, limits, now)
    if principal.key_id != LOCAL:
        validate_event_user(event.user_id)
    return mask(event)


@dataclass(frozen=True)
class Admission:
    """The limits and masks that all intakes of one relay share."""

    limits: EventLimits
    mask: Mask = unmasked
    mask_data: MaskData = unmasked_data

    def sift(self, data: bytes, principal: Principal, now: datetime) -> Admitted:
        """Return the event in `data`, or the error that refuses it."""
        try:
            return admit(data, principal, self.limits, now, self.mask)
        except MalformedEventError as error:
            return error

    def admit(self, data: bytes, principal: Principal, now: datetime) -> Event:
        """As the function of this name, with these limits and masks."""
        return admit(data, principal, self.limits, now, self.mask)

    def admit_mapping(self, mapping: object, principal: Principal, now: datetime) -> Event:
        """As the function of this name, with these limits and masks."""
        return admit_mapping(mapping, principal, self.limits, now, self.mask)


_OF_USER = "@"


def source_name(kind: str, name: str, principal: Principal) -> str:
    """Return the source to note in quarantine. It names the key's user, for whom a retry publishes."""
    if principal.user_id is not None:
        return f"{kind}{_OF_USER}{principal.user_id}/{name}"
    return f"{kind}:{name}" if name else kind


def publisher_of(source: str) -> Principal:
    """Return the principal to retry quarantined bytes for, from a source that `source_name` made."""
    kind, at, rest = source.partition(_OF_USER)
    is_of_user = bool(at) and ":" not in kind
    return Principal("quarantine", rest.partition("/")[0] if is_of_user else None, frozenset({Scope.PUBLISH}))


def _with_user(mapping: Mapping[Any, Any], principal: Principal) -> Mapping[Any, Any]:
    if principal.user_id is None:
        return mapping
    named = mapping.get("user_id")
    if named is None or named == "":
        return {**mapping, "user_id": principal.user_id}
    if named != principal.user_id:
        raise principal.not_for_user()
    return mapping
