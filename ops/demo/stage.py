"""The state shared by all scenes: the daemon's folder, clients, screen, and counts of published events."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from memory_agent import MemoryClient, MemoryFilter, RecallResult, RetrievedMemory
from memory_agent.verbs.protocol import DaemonStatus
from ops.demo.recurring import Recurring
from ops.demo.screen import Screen
from ops.demo.senders import Sender
from ops.demo.story import Event, Story

HEROINE = "alice"
OTHER = "bob"
PATIENCE_S = 60.0
DEADLINE_MS = 20_000.0
"""The deadline of each recall. With the default of two seconds, answers on a busy machine might be incomplete."""

_POLL_S = 0.05
_ALL = 1_000


@dataclass
class Stage:
    """The state shared by all scenes. `published` counts the events sent, and `torn` counts the malformed messages."""

    data_dir: Path
    scratch: Path
    story: Story
    screen: Screen
    now: datetime
    recurring: Recurring = field(default_factory=Recurring.load)
    clients: dict[str, MemoryClient] = field(default_factory=dict)
    published: int = 0
    repeats: int = 0
    torn: int = 0
    first_answer: RecallResult | None = None

    def client(self, user: str = HEROINE) -> MemoryClient:
        """Return the client that the user's planner uses."""
        if user not in self.clients:
            self.clients[user] = MemoryClient(user, data_dir=self.data_dir)
        return self.clients[user]

    def status(self) -> DaemonStatus:
        """Return the daemon's status."""
        return self.client().status()

    def endpoint(self, name: str) -> str:
        """Return the first endpoint of the daemon's endpoint group `name`."""
        places = self.status().endpoints[name]
        return places if isinstance(places, str) else places[0]

    @property
    def users(self) -> list[str]:
        """All users, including the learning scene's."""
        return [*self.story.users, self.recurring.user]

    def pid_of(self, part: str) -> int:
        """Wait until a part of the daemon has a process; return the process id. Raises TimeoutError."""
        found: list[int] = []

        def known() -> bool:
            found[:] = [known.pid for known in self.status().parts if known.name == part and known.pid]
            return bool(found)

        wait_until(known)
        return found[0]

    def patterns(self, user: str) -> list[RetrievedMemory]:
        """Return the patterns derived from a user's recurring runs."""
        kept = MemoryFilter(kinds=("pattern",), sources=("trajectory_outcome",))
        found = self.client(user).recall("what comes again", _ALL, kept, min_relevance=0.0).memories
        return [memory for memory in found if "run_ids" in memory.record.metadata]

    def wait_until_handled(self) -> None:
        """Wait until every event in the journal is stored, dropped or quarantined."""
        last_seq = self.status().journal["last_seq"]
        self.client().wait({"system": last_seq}, PATIENCE_S)

    @contextmanager
    def senders(
        self, events: dict[str, list[Event]], *, pace_ms: float = 0.0, again: dict[str, int] | None = None
    ) -> Iterator[list[Sender]]:
        """Start one process per emitter, which resends its last `again` events; stop the processes on exit."""
        relay = self.endpoint("relay")
        senders: list[Sender] = []
        try:
            for name, theirs in events.items():
                repeats = (again or {}).get(name, 0)
                senders.append(Sender(name, theirs, self.scratch, relay, pace_ms=pace_ms, again=repeats))
            self.published += sum(sender.total for sender in senders)
            yield senders
        finally:
            for sender in senders:
                sender.stop()

    def close(self) -> None:
        """Close all clients."""
        for client in self.clients.values():
            client.close()


def wait_until(fact: Callable[[], bool]) -> None:
    """Wait until `fact` holds. Raises TimeoutError."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not fact():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"condition not met within {PATIENCE_S:g} s")
        time.sleep(_POLL_S)
