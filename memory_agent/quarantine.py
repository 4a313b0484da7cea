"""What may be told about an event in quarantine: why it is there and what it was, never what it says."""

from __future__ import annotations

from msgspec.structs import replace

from memory_agent.protocol import QuarantinedEvent
from relay import MalformedEventError, QuarantineEntry, read_event


def describe(entry: QuarantineEntry) -> QuarantinedEvent:
    """Return the description of one entry; one that is no event has no user, type or event id."""
    described = QuarantinedEvent(
        id=entry.id,
        code=entry.code,
        reason=entry.reason,
        source=entry.source,
        quarantined_at=entry.quarantined_at,
        seq=entry.seq,
        size_bytes=len(entry.data),
    )
    try:
        event = read_event(entry.data)
    except MalformedEventError:
        return described
    return replace(described, user_id=event.user_id, event_type=event.event_type, event_id=event.event_id)
