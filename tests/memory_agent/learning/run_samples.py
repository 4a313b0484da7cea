"""Events about runs, as sent by conductors, workers and people; and memories that need no model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from memory_agent.memory import Memory
from memory_agent.settings import EmbedderSettings, LearningSettings, Settings, StoreSettings
from memory_agent.storage.stored_runs import RecallNote, Shown, request_digest

START = datetime(2026, 2, 16, 10, tzinfo=UTC)
LATER = START + timedelta(days=3)
SMALL = StoreSettings(map_size_bytes=64 << 20, reserve_bytes=64 << 10)
OBJECTIVE = "Fix the race in the auth module"


def at(minute: float) -> datetime:
    """Return the time `minute` minutes after the start."""
    return START + timedelta(minutes=minute)


def event(event_id: str, event_type: str, minute: float, run_id: str | None = None, **payload: Any) -> dict[str, Any]:
    """Return an event of a run, with `session_id` moved from the payload to the event."""
    own = {"run_id": run_id} if run_id is not None else {}
    return {
        "event_id": event_id,
        "event_type": event_type,
        "timestamp": at(minute).isoformat(),
        "user_id": "alice",
        "session_id": payload.pop("session_id", None),
        "payload": own | payload,
    }


def begin(run_id: str, minute: float, objective: str = OBJECTIVE, **payload: Any) -> dict[str, Any]:
    return event(f"{run_id}-begin", "conductor.run.started", minute, run_id, objective=objective, **payload)


def step(run_id: str, number: int, minute: float, **payload: Any) -> dict[str, Any]:
    said = {"summary": f"Report {number} of {run_id}: looked at the token refresh"} | payload
    return event(f"{run_id}-step-{number}", "worker.report.received", minute, run_id, **said)


def end(run_id: str, minute: float, **payload: Any) -> dict[str, Any]:
    said = {"summary": f"{run_id} made the token rotation atomic"} | payload
    return event(f"{run_id}-end", "conductor.run.completed", minute, run_id, **said)


def failure(run_id: str, minute: float) -> dict[str, Any]:
    return event(f"{run_id}-failure", "conductor.run.failed", minute, run_id, error="The test suite timed out")


def approval(run_id: str, minute: float, **payload: Any) -> dict[str, Any]:
    return event(f"{run_id}-approval", "feedback.approved", minute, run_id, comment="That is what I wanted", **payload)


def whole(run_id: str, minute: float, objective: str = OBJECTIVE, **payload: Any) -> list[dict[str, Any]]:
    """Return the events of a completed five-minute run; the begin event carries the payload."""
    return [begin(run_id, minute, objective, **payload), end(run_id, minute + 5)]


@contextmanager
def without_model(folder: Path, **settings: Any) -> Iterator[Memory]:
    """Yield a memory on a machine without a model."""
    nowhere = EmbedderSettings(folder=str(folder.parent / "no-such-model"), allow_download=False)
    learning = LearningSettings(**settings)
    with Memory.open(folder, settings=Settings(embedder=nowhere, store=SMALL, learning=learning)) as memory:
        yield memory


def things_to_use(memory: Memory, count: int = 5) -> list[str]:
    """Store some memories that runs can use; return their ids, which are the same every time."""
    events = [
        event(f"thing-{number}", "chat.user_msg", -60 + number, text=f"Thing {number} that somebody said")
        for number in range(count)
    ]
    memory.ingest(events, now=LATER)
    rows = [memory._archive.store.row_of_event(thing["event_id"]) for thing in events]
    return [record.id for record in memory._archive.store.records(row or 0 for row in rows) if record is not None]


def note(memory: Memory, recall_id: str, minute: float, shown: Sequence[str], query: str = "", **fields: Any) -> None:
    """Store the note about a recall as a real recall does."""
    store = memory._archive.store
    rows = [store.row_of_id(record_id) for record_id in shown]
    store.note_recall(
        RecallNote(
            recall_id=recall_id,
            at_us=round(at(minute).timestamp() * 1_000_000),
            shown=tuple(Shown(row) for row in rows if row is not None),
            size=len(shown),
            request=request_digest(query) if query else b"",
            **fields,
        )
    )


def qualities(memory: Memory) -> dict[str, float | None]:
    """Return the quality of every memory, by event id, or by memory id for memories without an event."""
    return {record.event_id or record.id: record.quality_score for _, record in memory._archive.store.scan()}
