"""Events as emitters send them, read with the default table."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from memory_agent.records.memories import MemoryRecord
from memory_agent.signals import Dropped, EventReader, SignalTable
from relay.event import Event

WHEN = datetime(2026, 2, 16, 10, tzinfo=UTC)
READER = EventReader(SignalTable.load())


def make_event(event_type: str, payload: Any, **fields: Any) -> Event:
    return Event(
        **{"event_id": "e-1", "timestamp": WHEN, "user_id": "alice"} | fields, event_type=event_type, payload=payload
    )


def read(event_type: str, payload: Any, **fields: Any) -> MemoryRecord | Dropped:
    return READER.read(make_event(event_type, payload, **fields))


def kept(event_type: str, payload: Any, **fields: Any) -> MemoryRecord:
    record = read(event_type, payload, **fields)
    assert isinstance(record, MemoryRecord), record
    return record


OBJECTIVE = "Fix the race in the auth module"
