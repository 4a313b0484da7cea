"""Opens and reads the data folder named on each line of standard input, and prints the findings as a line of JSON.

Each line is a JSON array: the folder, and the parts to read (all, if there are none).

The finding for a part (the journal, the spool, a user) consists of its answers and the result of verification, or is
one of our errors or a bug.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from memory_agent.care import check_events, check_owners, check_user
from memory_agent.erasure.logs import read_history, read_intent
from memory_agent.errors import MemoryAgentError
from memory_agent.layout import Layout
from memory_agent.memory import Memory
from memory_agent.storage.environment import open_user_key
from memory_agent.storage.folders import known_users, user_folder
from memory_agent.storage.owners import Owners, owner_keys
from relay import (
    SYSTEM_USER,
    Credentials,
    Journal,
    JournalSettings,
    RelayError,
    curve_pair,
    ensure_local_key,
    journal_folder,
    read_keys,
)
from relay.access import server_pair
from relay.crypto import KeyRing, open_key_ring

from .data_folder import ERASED, RUNS, open_memory
from .encryption import encryption_of
from .events import ROOMS
from .owner_process import STORE

QUESTIONS = 6


def main() -> None:
    for line in sys.stdin:
        folder, names = json.loads(line)
        parts = _parts(Path(folder))
        found = {name: _tried(parts[name]) for name in names or parts}
        print(json.dumps(found), flush=True)


def _parts(folder: Path) -> dict[str, Callable[[], dict[str, Any]]]:
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "journal": lambda: _journal(
            journal_folder(folder / "data"), open_key_ring(encryption_of(folder), folder / "data")
        ),
        "spool": lambda: _journal(folder / "spool"),
        "owners": lambda: _owners(folder / "data"),
        "keys": lambda: _keys(folder / "data"),
        "erased before": lambda: _erased_before(folder / "data"),
    }
    for user_id in known_users(folder / "data"):
        parts[f"user {user_id}"] = lambda user_id=user_id: _user(folder / "data", user_id)  # type: ignore[misc]
    return parts


def _tried(read: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return read()
    except (MemoryAgentError, RelayError) as error:
        return {"error": error.code, "text": str(error)}
    except Exception as error:
        return {"bug": f"{type(error).__name__}: {error}"}


def _journal(path: Path, keys: KeyRing | None = None) -> dict[str, Any]:
    """Return all entries, by number and by user, and the consumers' cursors."""
    with Journal.open(path, keys=keys) as journal:
        entries = [(entry.seq, entry.user_id, entry.data.decode(errors="replace")) for entry in _entries(journal)]
        users = sorted({user_id for _, user_id, _ in entries})
        by_user = {user: [entry.seq for entry in journal.read(0, 10_000, 64 << 20, user)] for user in users}
        consumers = sorted(str(state) for state in journal.consumers())
        ends = [journal.first_seq, journal.last_seq, len(journal.quarantined())]
    report = check_events(path, JournalSettings(), _quietly)
    return {"answers": [entries, by_user, consumers, ends], "verified": not report.findings}


def _entries(journal: Journal) -> list[Any]:
    found: list[Any] = []
    while batch := journal.read(found[-1].seq if found else 0, 1_000, 64 << 20):
        found += batch
    return found


def _user(data_dir: Path, user_id: str) -> dict[str, Any]:
    """Return every memory, the first result of some queries, and the statistics."""
    folder = user_folder(data_dir, user_id)
    key = open_user_key(encryption_of(data_dir.parent), data_dir, user_id)
    intent = repr(read_intent(folder, key))  # still to be erased from the journal
    with open_memory(data_dir, user_id) as memory:
        store = memory._archive.store
        records = [(row, record.id, record.event_id, record.text) for row, record in store.scan()]
        known = [store.row_of_event(event_id) for _, _, event_id, _ in records if event_id]
        found = [_first(memory, text) for _, _, _, text in records[:: max(1, len(records) // QUESTIONS)]]
        status = memory.sona.status()
        learnt = [status.credited, status.exemplars, [_first(memory, f"the {room}") for room in ROOMS[:3]]]
        view = memory._archive.settled_view()
        lengths = [view.vectors.count, view.live]
        answers = [intent, records, known, found, store.state.cursor, lengths, learnt]
    report = check_user(folder, user_id, STORE, _quietly, key)
    return {"answers": answers, "verified": not report.findings}


def _owners(data_dir: Path) -> dict[str, Any]:
    """Return the owner of each run, after storing the owner of a new run."""
    key = open_user_key(encryption_of(data_dir.parent), data_dir, SYSTEM_USER)
    owners = Owners(Layout(data_dir).owners, key=key)
    try:
        answers = [owners.owner(owner_keys(run_id, None)) for run_id in (*RUNS, "run-unknown")]
    finally:
        owners.close()
    report = check_owners(Layout(data_dir).owners, key)
    return {"answers": answers, "verified": not report.findings}


def _keys(data_dir: Path) -> dict[str, Any]:
    """Return the keys and scopes. The token of the folder's own key may change, because clients read it from the
    file.
    """
    token = ensure_local_key(data_dir)
    own = Credentials(data_dir).of_token(token.encode())
    others = [str(key) for key in read_keys(data_dir) if key.id != own.key_id]
    pair = server_pair(data_dir, curve_pair)
    return {"answers": [str(own), others, pair], "verified": True}


def _erased_before(data_dir: Path) -> dict[str, Any]:
    """Return the memories that a restore would erase again."""
    history = read_history(user_folder(data_dir, ERASED), ERASED)
    answers = [
        sorted(history.memories_in(datetime.now(UTC))),
        sorted(history.events),
        [str(one.at) for one in history.erasures],
    ]
    return {"answers": answers, "verified": not history.unread}


def _first(memory: Memory, text: str) -> str:
    """Return the id of the best result; repeat a degraded recall after the rebuild."""
    for _ in range(3):
        result = memory.recall(text, 1, deadline_ms=30_000.0)
        if not result.degraded:
            break
        memory._archive._wait_for_rebuild()
    return result.memories[0].record.id if result.memories else ""


def _quietly(_what: str, _done: int, _total: int) -> None:
    pass


if __name__ == "__main__":
    main()
