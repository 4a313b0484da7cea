"""Measures the cost of encrypting the journal: events/s written and read, and bytes on disk.

`python -m ops.bench.encryption` reports this together with the cost for a memory. Plain and encrypted journals
alternate. Events of 1 KB from eight users are appended in transactions of 100 events, as in a group commit, and in
transactions of one event, which mostly measures the disk. They are read in batches of 1,000. In addition, a plain
journal is converted to an encrypted one. Everything runs in one process, so any difference is due to the cipher.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path

from ops.bench.spread import Spread, spread
from ops.bench.timing import timed_s
from relay import Event, EventLimits, Journal, JournalSettings, encrypt_journal, event_from_mapping
from relay.crypto import KeyRing
from relay.disk import DATA_FILE

ROUNDS = 5
EVENTS = 4_000
ALONE = 200
BATCH = 100
PAGE = 1_000
PAYLOAD_BYTES = 850
USERS = 8

Figures = dict[str, dict[str, Spread]]
"""Measurements with their ranges, under `plain` and `encrypted`."""


def measure(rounds: int = ROUNDS, events: int = EVENTS) -> Figures:
    """Measure a plain and an encrypted journal.

    Each has append_per_s, append_cpu_us (processor time per event), commit_ms (a single event), read_per_s, read_cpu_us
    and bytes_per_event; the plain journal also has convert_per_s.
    """
    samples: dict[str, dict[str, list[float]]] = {kind: defaultdict(list) for kind in ("plain", "encrypted")}
    for _ in range(rounds):
        for kind, found in samples.items():
            with tempfile.TemporaryDirectory(prefix="bench-encrypted-") as folder:
                _round(Path(folder), found, events, is_encrypted=kind == "encrypted")
    return {kind: {name: spread(values) for name, values in found.items()} for kind, found in samples.items()}


def _round(folder: Path, found: dict[str, list[float]], count: int, *, is_encrypted: bool) -> None:
    keys = KeyRing(folder / "keys")
    now = datetime.now(UTC)
    events = [_event(number, now) for number in range(count + ALONE)]
    journal_folder = folder / "journal"
    with Journal.open(journal_folder, keys=keys if is_encrypted else None) as journal:
        took_s, cpu_s = timed_s(lambda: [journal.append(events[at : at + BATCH], now) for at in range(0, count, BATCH)])
        found["append_per_s"].append(count / took_s)
        found["append_cpu_us"].append(cpu_s / count * 1e6)
        took_s, _ = timed_s(lambda: [journal.append([event], now) for event in events[count:]])
        found["commit_ms"].append(took_s / ALONE * 1000)
        took_s, cpu_s = timed_s(_read_all, journal)
        found["read_per_s"].append(len(events) / took_s)
        found["read_cpu_us"].append(cpu_s / len(events) * 1e6)
    found["bytes_per_event"].append((journal_folder / DATA_FILE).stat().st_size / len(events))
    if not is_encrypted:
        took_s, _ = timed_s(encrypt_journal, journal_folder, JournalSettings(), keys, now)
        found["convert_per_s"].append(len(events) / took_s)


def _read_all(journal: Journal) -> None:
    after = 0
    while entries := journal.read(after, PAGE):
        after = entries[-1].seq


def _event(number: int, now: datetime) -> Event:
    mapping = {
        "event_id": f"event-{number:08d}",
        "event_type": "worker.task.progress",
        "timestamp": "2026-02-16T10:00:00Z",
        "user_id": f"user-{number % USERS}",
        "session_id": "session-1",
        "payload": {"text": "x" * PAYLOAD_BYTES},
    }
    return event_from_mapping(mapping, EventLimits(), now)
