"""Test how runs in progress are derived from events and requests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from memory_agent.daemon.open_runs import OpenRuns
from memory_agent.signals import SignalTable
from relay import Event, JournalEntry, encode_event


def entry(event_type: str, run_id: str, session_id: str | None = None, age_hours: float = 0) -> JournalEntry:
    event = Event(
        event_id=f"{event_type}-{run_id}",
        event_type=event_type,
        timestamp=datetime.now(UTC) - timedelta(hours=age_hours),
        user_id="ann",
        session_id=session_id,
        payload={"run_id": run_id},
    )
    return JournalEntry(1, "ann", event_type, encode_event(event))


class Clock:
    now_s = 1_000_000.0


def runs_at(clock: Clock) -> OpenRuns:
    return OpenRuns(SignalTable.load(""), lambda: clock.now_s)


def test_a_run_is_in_progress_from_its_first_to_its_last_event() -> None:
    runs = runs_at(Clock())
    runs.notice("ann", entry("session.run.started", "r-1"))
    runs.notice("ann", entry("session.command.completed", "r-1"))
    assert len(runs) == 1
    for end in ("session.run.completed", "session.run.completed"):
        runs.notice("ann", entry(end, "r-1"))
        assert len(runs) == 0
    runs.notice("ann", entry("session.run.started", "r-2"))
    runs.notice("ann", entry("session.run.cancelled", "r-2"))
    assert len(runs) == 0


def test_requests_count_as_events_do_and_users_have_their_own_runs() -> None:
    runs = runs_at(Clock())
    runs.begin("ann", "r-1", None)
    runs.begin("bob", "r-1", None)
    runs.end("bob", "r-1")
    assert len(runs) == 1
    runs.notice("ann", entry("session.run.completed", "r-1"))
    assert len(runs) == 0


def test_an_interrupted_run_does_not_count_for_ever() -> None:
    clock = Clock()
    runs = runs_at(clock)
    runs.notice("ann", entry("session.run.started", "r-1", "s-1"))
    runs.notice("ann", entry("session.run.started", "r-2", "s-1"))  # the client never reports the end of r-1
    assert len(runs) == 1
    runs.notice("ann", entry("session.run.completed", "r-2", "s-1"))
    assert len(runs) == 0
    runs.notice("ann", entry("session.run.started", "r-3"))
    clock.now_s += 11 * 3600
    assert len(runs) == 1
    clock.now_s += 2 * 3600
    assert len(runs) == 0


def test_a_run_of_an_imported_session_is_not_in_progress() -> None:
    runs = runs_at(Clock())
    runs.notice("ann", entry("session.run.started", "r-1", age_hours=13))
    assert len(runs) == 0
    runs.notice("ann", entry("session.run.started", "r-2", age_hours=11))
    assert len(runs) == 1


def test_interrupted_runs_are_dropped_without_being_counted() -> None:
    """Only a daemon that may exit when idle counts the runs."""
    clock = Clock()
    runs = runs_at(clock)
    for number in range(48):
        clock.now_s += 3600
        runs.begin("ann", f"r-{number}", None)
    assert len(runs._began_s) == 12
