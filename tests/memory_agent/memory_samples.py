"""Events as sent by conductors, and a memory without a model."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from memory_agent.memory import Memory
from memory_agent.records.memories import RecallResult
from memory_agent.settings import EmbedderSettings, Settings

START = datetime(2026, 2, 1, 9, tzinfo=UTC)
NOW = datetime(2026, 2, 16, 10, tzinfo=UTC)

SUBJECTS = (
    "Fix the race in the auth module with a mutex",
    "The login page shows a blank screen on Safari",
    "Migrate the invoices table to the new schema",
    "Bake a sourdough bread with a dark crust",
    "Plan the hiking trip to the Dolomites in June",
    "The nightly backup of the database ran out of disk",
    "Write a blog post about vector search",
    "Rotate the API keys of the payment provider",
)


def message(number: int, text: str | None = None, **fields: Any) -> dict[str, Any]:
    """Return the event for a user's message; the default text is a numbered subject."""
    text = f"{SUBJECTS[number % len(SUBJECTS)]}, part {number}" if text is None else text
    return {
        "event_id": f"event-{number}",
        "event_type": "chat.user_msg",
        "timestamp": (START + timedelta(minutes=number)).isoformat(),
        "user_id": "alice",
        "session_id": f"s-{number // 10}",
        "payload": {"message": text},
    } | fields


def progress(number: int, text: str, run_id: str = "run_7") -> dict[str, Any]:
    """Return an event about a worker's progress in a run."""
    payload = {"message": text, "run_id": run_id}
    return message(number, event_type="worker.task.progress", payload=payload)


def texts(result: RecallResult) -> list[str]:
    """Return the recalled texts, best first."""
    return [memory.record.text for memory in result.memories]


def open_without_model(path: Path) -> Memory:
    """Open a memory on a machine without a model."""
    nowhere = EmbedderSettings(folder=str(path.parent / "no-such-model"), allow_download=False)
    return Memory.open(path, settings=Settings(embedder=nowhere))
