"""A data folder to damage: written by the relay and by the host, in this process, and closed in order."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from memory_agent.daemon.host import MemoryHost
from memory_agent.protocol import IngestBatch, decode_reply, encode
from memory_agent.records import IngestReport
from memory_agent.settings import Settings
from relay import Event, EventLimits, Journal, event_from_mapping, journal_folder

from .events import USERS, event
from .owner_process import STORE
from .word_vectors import WordVectors

EVENTS = 150
NOW = datetime(2026, 2, 16, 10, tzinfo=UTC)


def make_data_folder(folder: Path) -> None:
    """Journal, consumers, a quarantined event, a spool with events in it, and every user's memories of the journal."""
    data_dir = folder / "data"
    with Journal.open(journal_folder(data_dir)) as journal:
        journal.append([_checked("p", number) for number in range(EVENTS)], NOW)
        journal.commit("memory", EVENTS)
        journal.quarantine(b"{", "malformed_event", "is no event", "ingest", NOW)
        host = MemoryHost(data_dir, Settings(store=STORE), WordVectors())
        for user_id in USERS:
            events = tuple((entry.seq, entry.data) for entry in journal.read(0, EVENTS, user_id=user_id))
            decode_reply(host.ingest(user_id, encode(IngestBatch(events=events))), IngestReport)
        host.close()
    with Journal.open(folder / "spool") as spool:
        spool.append([_checked("q", number) for number in range(30)], NOW)


def _checked(publisher: str, number: int) -> Event:
    return event_from_mapping(event(publisher, number), EventLimits(), NOW)
