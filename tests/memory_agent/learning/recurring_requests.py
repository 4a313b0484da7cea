"""A small company whose requests recur in different words. Some memories answer these requests; other memories only
look similar.

Each thing has a note that was used by runs, and a ticket that is more similar to every request.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from memory_agent.embedders import Embedder
from memory_agent.memory import Memory
from memory_agent.records.memories import MemoryRecord, RecallResult
from memory_agent.settings import LearningSettings, Settings, StoreSettings

START = datetime(2026, 3, 2, 9, tzinfo=UTC)
SMALL = StoreSettings(map_size_bytes=64 << 20, reserve_bytes=64 << 10)

THINGS = {
    "the invoice export": "Since customers have umlauts the invoice export needs encoding = utf-8 in export.toml",
    "the login page": "The login page hangs when Redis evicts sessions: raise maxmemory and restart the pod",
    "the nightly backup": "The nightly backup stops when /var fills up: prune old snapshots, then resume it",
    "the search index": "The search index lags behind after a schema change until reindex --full has run once",
    "the payment webhook": "The payment webhook answers 404 before the row is committed: let the provider retry",
}
REQUESTS = (
    "Why does {} not work",
    "Please have a look at {}",
    "A customer complains about {}",
    "{} is broken again",
    "Can somebody repair {} today",
    "There is another ticket about {}",
    "What is wrong with {}",
    "{} fails since this morning",
    "Help, trouble with {}",
    "Something is off with {}",
    "Find out what happened to {}",
)


@dataclass
class Company:
    """The company's memory. `notes` and `tickets` map things to records."""

    memory: Memory
    notes: dict[str, MemoryRecord]
    tickets: dict[str, MemoryRecord]

    def request(self, number: int) -> tuple[str, str]:
        """Return the subject of request `number`, and the request's wording."""
        things = list(THINGS)
        return things[number % len(things)], REQUESTS[number // len(things) % len(REQUESTS)]

    def ask(self, number: int, top_k: int = 3) -> tuple[str, RecallResult]:
        thing, words = self.request(number)
        now = START + timedelta(days=1, minutes=10 * number)
        return thing, self.memory.recall(words.format(thing), top_k, now=now, deadline_ms=60_000, min_relevance=0)

    def learn(self, numbers: Sequence[int]) -> None:
        """Recall, and report the note about the subject as used if the answer contains it."""
        for number in numbers:
            thing, result = self.ask(number)
            self.judge(number, result, [self.notes[thing]])

    def run(self, number: int, session: str) -> None:
        """Recall within a conductor's run; the run reports the note as used and stores no memory."""
        run_id, (thing, words) = f"run-{number}", self.request(number)
        now = START + timedelta(days=1, minutes=10 * number)
        self.memory.recall(words.format(thing), 3, by_run=run_id, now=now, deadline_ms=60_000)
        self.memory.runs.begin("fix", run_id, session, now=now + timedelta(minutes=1))
        used = [self.notes[thing].id]
        self.memory.runs.end(run_id, quality=1.0, memory_ids=used, now=now + timedelta(minutes=2))

    def judge(self, number: int, result: RecallResult, used: Sequence[MemoryRecord], quality: float = 1.0) -> None:
        shown = {found.record.id for found in result.memories}
        ids = [record.id for record in used if record.id in shown]
        now = START + timedelta(days=1, minutes=10 * number + 5)
        self.memory.feedback(result.recall_id, ids, quality, now=now)

    def leads(self, numbers: Sequence[int]) -> int:
        """Return the number of these requests for which the note ranks first."""
        asked = (self.ask(number) for number in numbers)
        return sum(self.places(result)[0] == self.notes[thing].id for thing, result in asked)

    def places(self, result: RecallResult) -> list[str]:
        return [found.record.id for found in result.memories]


def open_company(folder: Path, embedder: Embedder, settings: LearningSettings) -> Company:
    """Open a company's memory after `set_up`."""
    memory = Memory.open(folder, embedder=embedder, settings=Settings(store=SMALL, learning=settings))
    with memory._archive.store.snapshot() as snapshot:
        records = [record for _, record in snapshot.scan()]
    notes = {thing: record for record in records for thing in THINGS if record.text == THINGS[thing]}
    tickets = {thing: record for record in records for thing in THINGS if record.text == ticket(thing)}
    return Company(memory, notes, tickets)


def set_up(folder: Path, embedder: Embedder) -> None:
    """Store a company's memories, before any recall."""
    with Memory.open(folder, embedder=embedder, store_settings=SMALL) as memory:
        for thing, note in THINGS.items():
            memory.remember(note, now=START)
            memory.remember(ticket(thing), kind="episode", now=START)


def copied(source: Path, target: Path) -> Path:
    """Copy a closed store."""
    return Path(shutil.copytree(source, target))


def ticket(thing: str) -> str:
    """Return the text of the ticket about `thing`, the text that is most similar to the requests."""
    return f"{thing} does not work, a customer complains: please have a look at it today"
