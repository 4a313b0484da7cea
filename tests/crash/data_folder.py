"""Creates a data folder to damage. Calls the product in this process to write every file that a daemon writes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from memory_agent.daemon.host import MemoryHost
from memory_agent.erasure.logs import note_erasure, write_intent
from memory_agent.erasure.request import Intent
from memory_agent.layout import Layout
from memory_agent.memory import Memory
from memory_agent.records.memories import IngestReport
from memory_agent.settings import LearningSettings, Settings
from memory_agent.storage.environment import open_user_key
from memory_agent.storage.folders import user_folder
from memory_agent.storage.owners import Owners, owner_keys
from memory_agent.verbs.protocol import IngestBatch, decode_reply, encode
from relay import (
    SYSTEM_USER,
    Event,
    EventLimits,
    Journal,
    Scope,
    create_key,
    curve_pair,
    ensure_local_key,
    event_from_mapping,
    journal_folder,
    revoke_key,
)
from relay.access import server_pair
from relay.crypto import open_key_ring

from .encryption import KEYS, encryption_of
from .events import ROOMS, USERS, event
from .owner_process import STORE
from .word_vectors import WordVectors

EVENTS = 150
LEARNT, ERASED = "alice", "bob"
"""The user with a saved learner, and the user with an unfinished erasure."""
LEARNING = LearningSettings(mode="on")
RUNS = {f"run-{number:02d}": USERS[number % len(USERS)] for number in range(24)}
NOW = datetime(2026, 2, 16, 10, tzinfo=UTC)


def make_data_folder(folder: Path, *, is_encrypted: bool = False) -> None:
    """Create a journal, consumers, a quarantined event, a spool, every user's memories with derived and learned files,
    an unfinished erasure, run owners, and keys; with encryption, also the encryption keys.
    """
    data_dir = folder / "data"
    if is_encrypted:
        (folder / KEYS).mkdir(parents=True)
    encryption = encryption_of(folder)
    with Journal.open(journal_folder(data_dir), keys=open_key_ring(encryption, data_dir)) as journal:
        journal.append([_checked("p", number) for number in range(EVENTS)], NOW)
        journal.commit("memory", EVENTS)
        journal.quarantine(b"{", "malformed_event", "is no event", "ingest", NOW)
        host = MemoryHost(data_dir, Settings(store=STORE, encryption=encryption), WordVectors())
        for user_id in USERS:
            events = tuple((entry.seq, entry.data) for entry in journal.read(0, EVENTS, user_id=user_id))
            decode_reply(host.ingest(user_id, encode(IngestBatch(events=events))), IngestReport)
        host.close()
    with Journal.open(folder / "spool") as spool:
        spool.append([_checked("q", number) for number in range(30)], NOW)
    _teach(data_dir)
    _begin_erasure(data_dir)
    owners = Owners(Layout(data_dir).owners, key=open_user_key(encryption, data_dir, SYSTEM_USER))
    for run_id, user_id in RUNS.items():
        owners.learn(owner_keys(run_id, None), user_id)
    owners.close()
    _make_keys(data_dir)


def _teach(data_dir: Path) -> None:
    """Record successful runs that used the second recalled memory."""
    with open_memory(data_dir, LEARNT) as memory:
        for number in range(12):
            now, run_id = NOW + timedelta(hours=1, minutes=number), f"taught-{number}"
            result = memory.recall(
                f"who looks after the {ROOMS[number % 3]}", 3, by_run=run_id, now=now, deadline_ms=30_000.0
            )
            used = [result.memories[1].record.id]
            memory.runs.begin("look after", run_id, now=now)
            memory.runs.end(run_id, quality=1.0, memory_ids=used, now=now)


def _begin_erasure(data_dir: Path) -> None:
    """Write the history of earlier erasures, and the intent of an erasure; opening the store completes a part of it."""
    folder = user_folder(data_dir, ERASED)
    key = open_user_key(encryption_of(data_dir.parent), data_dir, ERASED)
    with open_memory(data_dir, ERASED) as memory:
        chosen = [record for _, record in memory._archive.store.scan()][:3]
    events = tuple(str(record.event_id) for record in chosen)
    ids = tuple(record.id for record in chosen)
    for number in range(3):
        gone = Intent(started_at=NOW, record_ids=(f"gone-{number}",), event_ids=(f"gone-event-{number}",))
        note_erasure(folder, ERASED, gone, NOW + timedelta(days=number))
    write_intent(folder, Intent(started_at=NOW, record_ids=ids, event_ids=events, with_journal=True), key)


def _make_keys(data_dir: Path) -> None:
    """Create a key of each kind, and revoke one."""
    ensure_local_key(data_dir)
    create_key(data_dir, "planner", "alice", frozenset({Scope.RECALL}))
    create_key(data_dir, "elsewhere", "bob", frozenset({Scope.PUBLISH}), curve_pair())
    create_key(data_dir, "former", "carol", frozenset({Scope.RECALL}))
    revoke_key(data_dir, "former")
    server_pair(data_dir, curve_pair)


def open_memory(data_dir: Path, user_id: str) -> Memory:
    """Open one user's memory with the laboratory's settings."""
    return Memory.open(
        user_folder(data_dir, user_id),
        user_id=user_id,
        embedder=WordVectors(),
        settings=Settings(store=STORE, learning=LEARNING, encryption=encryption_of(data_dir.parent)),
    )


def _checked(publisher: str, number: int) -> Event:
    return event_from_mapping(event(publisher, number), EventLimits(), NOW)
