"""Publishes events that arrive over HTTP, with the caller's key and under the relay's own rules.

A refused event does not affect the request's other events.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, NamedTuple

import msgspec

from memory_agent.doors.bodies import DeadlineMs, UserId
from memory_agent.errors import UnavailableError
from memory_agent.layout import Layout
from memory_agent.verbs.protocol import DEFAULT_USER
from relay import EventLimits, Identity, Principal, RelayUnavailableError, Submitted, check_events, submit

MOST_EVENTS = 1_000
_PATIENCE_MS = 5_000.0


class EventsRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Events to publish, in order. `user_id` applies to events without one; default: the key's user, else `default`.

    Each has an `event_type` and, optionally, `event_id`, `timestamp`, `user_id`, `session_id`, `actor_id`, `thread_id`,
    `channel_id`, `agent_id`, `correlation_id` and `payload` (an object).
    """

    events: Annotated[tuple[dict[str, Any], ...], msgspec.Meta(max_length=MOST_EVENTS)]
    user_id: UserId | None = None
    deadline_ms: DeadlineMs | None = None


class EventReceipt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The outcome for an event: its journal number, or the `code`, `field` and `reason` of its refusal.

    `duplicate`: whether the journal already contained an event with this id, so that nothing was stored.
    """

    event_id: str | None = None
    seq: int | None = None
    duplicate: bool = False
    code: str | None = None
    field: str | None = None
    reason: str | None = None


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """The receipts of all events, in order. All events except the `refused` ones are durable."""

    accepted: int
    duplicates: int
    refused: int
    receipts: tuple[EventReceipt, ...]


class Intake(NamedTuple):
    """The destination of events from requests: the relay's endpoint with its limits, and the data folder."""

    endpoint: str
    limits: EventLimits
    layout: Layout


async def publish_events(request: EventsRequest, principal: Principal, token: str, intake: Intake) -> Published:
    """Publish events and wait for their acknowledgements.

    Raises `UnavailableError` if any are missing at the deadline; the request can be repeated. Raises
    `ScopeMissingError`, `JournalPausedError` or `ConsumerBehindError` if the relay refuses all events.
    """
    user_id = request.user_id or principal.user_id or DEFAULT_USER
    events = [_with_user(event, user_id) for event in request.events]
    patience_ms = _PATIENCE_MS if request.deadline_ms is None else request.deadline_ms
    try:
        submitted = await submit(
            intake.endpoint,
            check_events(events, intake.limits, datetime.now(UTC)),
            identity=Identity(token=token),
            timeout_s=patience_ms / 1000,
        )
    except RelayUnavailableError as error:
        raise UnavailableError(f"relay: {error}") from error
    receipts = tuple(map(_receipt, submitted))
    duplicates = sum(one.duplicate for one in receipts)
    refused = sum(one.seq is None for one in receipts)
    return Published(
        accepted=len(receipts) - duplicates - refused, duplicates=duplicates, refused=refused, receipts=receipts
    )


def _with_user(event: Mapping[str, Any], user_id: str) -> Mapping[str, Any]:
    return event if event.get("user_id") else {**event, "user_id": user_id}


def _receipt(submitted: Submitted) -> EventReceipt:
    receipt = submitted.receipt
    if receipt.code:
        return EventReceipt(
            event_id=submitted.event_id or None, code=receipt.code, field=receipt.field, reason=receipt.reason
        )
    return EventReceipt(event_id=submitted.event_id, seq=receipt.seq, duplicate=receipt.duplicate)
