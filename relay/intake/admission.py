"""Decodes and masks an event, and checks that the publisher's key may write events of its user.

Every event in the journal passes through this module. If the key is for one user, an event without a user is assigned
to that user, and an event that names another user is rejected. Events of `system` require a key for all users. The
caller checks the scope of the key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from relay.access import LOCAL, Principal
from relay.config import EventLimits
from relay.errors import MalformedEventError, UserNotAllowedError
from relay.event import Event, decode_mapping, event_from_mapping
from relay.intake.masking import Masker
from relay.journal import Suspect
from relay.validation import validate_event_user

Admitted = Event | MalformedEventError  # an event, or the error that rejects it


@dataclass(frozen=True)
class Admission:
    """Admits events. All intakes of one relay share its limits and masker."""

    limits: EventLimits
    masker: Masker = field(default_factory=Masker)

    def admit(self, data: bytes, principal: Principal, now: datetime) -> Event:
        """Decode, validate and mask an event. Raises `UserNotAllowedError` and `MalformedEventError`."""
        return self.admit_mapping(decode_mapping(data, self.limits), principal, now)

    def admit_mapping(self, mapping: object, principal: Principal, now: datetime) -> Event:
        """Like `admit`, for a decoded event. Checks the user first."""
        if isinstance(mapping, Mapping):
            mapping = _with_user(mapping, principal)
        event = event_from_mapping(mapping, self.limits, now)
        if principal.key_id != LOCAL:
            validate_event_user(event.user_id)
        return self.masker.event(event)

    def try_admit(self, data: bytes, principal: Principal, now: datetime) -> Admitted:
        """Like `admit`, but return the error."""
        try:
            return self.admit(data, principal, now)
        except MalformedEventError as error:
            return error

    def suspects(self, admitted: Iterable[tuple[bytes, Admitted]], source: str) -> list[Suspect]:
        """Return masked quarantine entries for malformed events, except events of users that the key does not
        permit.
        """
        mask = self.masker.data
        return [
            Suspect(mask(data), outcome.code, mask(str(outcome).encode()).decode(), source)
            for data, outcome in admitted
            if not isinstance(outcome, (Event, UserNotAllowedError))
        ]


def _with_user(mapping: Mapping[Any, Any], principal: Principal) -> Mapping[Any, Any]:
    if principal.user_id is None:
        return mapping
    named = mapping.get("user_id")
    if named is None or named == "":
        return {**mapping, "user_id": principal.user_id}
    if named != principal.user_id:
        raise principal.not_for_user()
    return mapping
