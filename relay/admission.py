"""What may come in: bytes become an event of a user that the publisher's key allows. Pure.

Every way in passes here, and nothing else makes an event for the journal: acknowledged intake, plain PUB, tables, and
what is tried again from quarantine. The key decides whose an event is, not the event: a key for one user fills the user
in, and another user's name is refused. So events of `system`, which are handed to the owner of their run, can only come
from keys for all users. What this does not do: ask whether the key is for publishing at all (`intake`), or
find secrets (`masking`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from relay.access import Principal, Scope
from relay.config import EventLimits
from relay.errors import MalformedEventError
from relay.event import Event, decode_mapping, event_from_mapping

Mask = Callable[[Event], Event]
"""Returns an event without what must not be stored. Its id stays: a repeat must be recognised."""

Admitted = Event | MalformedEventError


MaskData = Callable[[bytes], bytes]
"""As `Mask`, for bytes that are no event and go to quarantine."""


def unmasked(event: Event) -> Event:
    """Return the event as it came."""
    return event


def unmasked_data(data: bytes) -> bytes:
    """Return the bytes as they came."""
    return data


def admit(data: bytes, principal: Principal, limits: EventLimits, now: datetime, mask: Mask = unmasked) -> Event:
    """Return the event in JSON or MessagePack bytes, checked, of a user whom `principal` may publish for, and masked.

    Raises `UserNotAllowedError` (which is told to the publisher and not kept), `MalformedEventError`.
    """
    return admit_mapping(decode_mapping(data, limits), principal, limits, now, mask)


def admit_mapping(
    mapping: object, principal: Principal, limits: EventLimits, now: datetime, mask: Mask = unmasked
) -> Event:
    """As `admit`, from what was decoded already. The user is checked before everything else."""
    if isinstance(mapping, Mapping):
        mapping = _with_user(mapping, principal)
    return mask(event_from_mapping(mapping, limits, now))


@dataclass(frozen=True)
class Admission:
    """What all ways into one relay have in common."""

    limits: EventLimits
    mask: Mask = unmasked
    mask_data: MaskData = unmasked_data

    def sift(self, data: bytes, principal: Principal, now: datetime) -> Admitted:
        """Return the event in `data`, or what is wrong with it."""
        try:
            return admit(data, principal, self.limits, now, self.mask)
        except MalformedEventError as error:
            return error

    def admit(self, data: bytes, principal: Principal, now: datetime) -> Event:
        """As the function of this name."""
        return admit(data, principal, self.limits, now, self.mask)

    def admit_mapping(self, mapping: object, principal: Principal, now: datetime) -> Event:
        """As the function of this name."""
        return admit_mapping(mapping, principal, self.limits, now, self.mask)


_OF_USER = "@"


def source_name(kind: str, name: str, principal: Principal) -> str:
    """Return under what unread bytes are quarantined; a key's user goes with them, who may own them later."""
    if principal.user_id is not None:
        return f"{kind}{_OF_USER}{principal.user_id}/{name}"
    return f"{kind}:{name}" if name else kind


def publisher_of(source: str) -> Principal:
    """Return for whom bytes of a quarantined `source` may be tried again, as `source_name` noted it."""
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
