"""The events of runs, as a conductor publishes them, and a memory with every kind of stored data."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from memory_agent.memory import Memory
from memory_agent.settings import StoreSettings

NOW = datetime(2026, 2, 16, 10, 0, tzinfo=UTC)
GRAPH = StoreSettings(exact_search_limit=10)


def run_events(number: int, user_id: str = "alice") -> list[dict[str, Any]]:
    """The events of one run, as a conductor publishes them."""
    at = NOW + timedelta(minutes=10 * number)
    shared = {"user_id": user_id, "session_id": f"s{number // 3}", "actor_id": f"conductor:run{number}"}
    told = [
        ("chat.user_msg", {"text": f"please fix the flaky login test number {number} in the auth module"}),
        ("conductor.run.started", {"objective": f"fix the flaky login test {number}", "run_id": f"run{number}"}),
        ("worker.task.finding", {"claim": f"the mutex {number} is missing in the session manager"}),
        ("conductor.run.completed", {"summary": f"added mutex {number} and the login test passes", "status": "ok"}),
    ]
    return [
        {
            "event_id": f"{user_id}-{number}-{place}",
            "event_type": kind,
            "timestamp": (at + timedelta(minutes=place)).isoformat(),
            "payload": payload | {"run_id": f"run{number}"},
            **shared,
        }
        for place, (kind, payload) in enumerate(told)
    ]


def fill(memory: Memory, runs: int = 8) -> None:
    """Add runs, recalls, feedback, memories (one with several passages), and a deletion."""
    for number in range(runs):
        memory.ingest(run_events(number, memory.user_id), seqs=range(4 * number + 1, 4 * number + 5))
        result = memory.recall("flaky login test mutex", now=NOW + timedelta(days=1))
        if number % 2 and result.memories:
            memory.feedback(result.recall_id, [result.memories[0].record.id], 0.9)
    memory.remember(
        "the deploy needs the VPN " + "and patience " * 300, tags=["deploy"], metadata={"n": [1, None, "x"]}
    )
    gone = memory.remember("this memory is deleted")
    memory.forget([gone.id])
