"""Converts `story.toml` to events: gives each row a time, ids and an emitter, and adds noise.

Times are relative to `now`, so that "two weeks ago" is correct whenever the demo runs. Ids depend on the position in
the file, so a resent event has the same id.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Literal

import msgspec

from memory_agent.records.memories import Kind

Event = dict[str, Any]
Week = Literal[1, 2, 3]

FILE = Path(__file__).with_name("story.toml")
CONDUCTOR = "conductor"

_CONDUCTOR_TYPES = ("conductor.", "worker.report.", "chat.", "feedback.", "writer.")
_SYSTEM_TYPES = ("conductor.", "worker.report.")
_STEP = timedelta(minutes=4)
_NOISE_STEP = timedelta(seconds=20)


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A run: rows of (event type, payload), starting `days_ago` days before `now`."""

    id: str
    user: str
    session: str
    days_ago: float
    events: list[tuple[str, dict[str, Any]]]

    @property
    def week(self) -> Week:
        """The run's week, 1 to 3."""
        return 1 if self.days_ago > 14 else 2 if self.days_ago > 7 else 3


class Noise(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Noise that workers send after each event: the next `after_each` rows, cycling through the list."""

    after_each: int
    events: list[tuple[str, dict[str, Any]]]


class PlainPub(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The plain PUB tool's messages. `torn` is not valid JSON."""

    torn: str
    run: list[Run]


class PlannerRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A recall before planning. One of the first three memories must be from the run `expects`."""

    moment: str
    user: str
    after_week: Week
    text: str
    top_k: int
    expects: str
    kinds: list[Kind] = []


class Story(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Three weeks of two users' work."""

    run: list[Run]
    noise: Noise
    request: list[PlannerRequest]
    plain_pub: PlainPub

    @classmethod
    def load(cls) -> Story:
        """Read `story.toml`."""
        return msgspec.convert(tomllib.loads(FILE.read_text(encoding="utf-8")), cls)

    @property
    def users(self) -> list[str]:
        """The users, in order of first appearance."""
        return list(dict.fromkeys(run.user for run in self.run))

    def events(self, weeks: tuple[Week, ...], now: datetime) -> dict[str, list[Event]]:
        """Return the events of `weeks` by sending process: the conductor, and each user's workers."""
        sent: dict[str, list[Event]] = {name: [] for name in (CONDUCTOR, *map(workers_of, self.users))}
        noise = cycle(self.noise.events)
        for run in self.run:
            if run.week in weeks:
                for event in self._with_noise(run, now, noise):
                    sent[emitter_of(event, run.user)].append(event)
        return sent

    def plain_events(self, now: datetime) -> list[Event]:
        """Return the plain PUB tool's events, without the malformed message."""
        return [_plain(event, place) for run in self.plain_pub.run for place, event in enumerate(events_of(run, now))]

    def texts(self, user: str) -> list[str]:
        """Return the longest text of each of the user's events, for use as queries."""
        payloads = [payload for run in self.run if run.user == user for _, payload in run.events]
        return [max((value for value in payload.values() if isinstance(value, str)), key=len, default="")
                for payload in payloads]  # fmt: skip

    def owner_of(self, run_id: str | None) -> str | None:
        """Return the user who owns a run."""
        return next((run.user for run in self.run if run.id == run_id), None)

    def _with_noise(self, run: Run, now: datetime, noise: Iterator[tuple[str, dict[str, Any]]]) -> Iterator[Event]:
        for event in events_of(run, now):
            yield event
            if _sender(event["event_type"]) != CONDUCTOR:
                rows = islice(noise, self.noise.after_each)
                yield from (_noise(event, place, *row) for place, row in enumerate(rows, 1))


def workers_of(user: str) -> str:
    """Return the name of the process that sends the events of a user's workers."""
    return f"{user}'s workers"


def emitter_of(event: Event, user: str) -> str:
    """Return the name of the process that sends an event."""
    return CONDUCTOR if _sender(event["event_type"]) == CONDUCTOR else workers_of(user)


def events_of(run: Run, now: datetime) -> Iterator[Event]:
    began = now.astimezone(UTC) - timedelta(days=run.days_ago)
    for place, (event_type, payload) in enumerate(run.events):
        yield {
            "event_id": f"{run.id}.{place:02}",
            "event_type": event_type,
            "timestamp": (began + place * _STEP).isoformat(),
            "user_id": "system" if event_type.startswith(_SYSTEM_TYPES) else run.user,
            "session_id": run.session,
            "actor_id": _actor(event_type, run),
            "payload": {"run_id": run.id, **payload},
        }


def _noise(event: Event, place: int, event_type: str, payload: dict[str, Any]) -> Event:
    timestamp = datetime.fromisoformat(event["timestamp"]) + place * _NOISE_STEP
    return event | {
        "event_id": f"{event['event_id']}.{place}",
        "event_type": event_type,
        "timestamp": timestamp.isoformat(),
        "payload": {"run_id": event["payload"]["run_id"], **payload},
    }


def _plain(event: Event, place: int) -> Event:
    return event | {"event_id": f"plain-{event['payload']['run_id']}.{place:02}"}


def _sender(event_type: str) -> str:
    return CONDUCTOR if event_type.startswith(_CONDUCTOR_TYPES) else "worker"


def _actor(event_type: str, run: Run) -> str:
    return f"conductor:{run.id}" if _sender(event_type) == CONDUCTOR else f"worker:{run.user}"
