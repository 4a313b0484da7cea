"""After a run, calls the product to read the disk into a `History`, while nothing else is running."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from memory_agent.embedders import Embedder
from memory_agent.records.embedded import Embedding
from memory_agent.records.memories import MemoryRecord
from memory_agent.settings import StoreSettings
from memory_agent.storage.archive import Archive
from memory_agent.storage.environment import open_user_key
from memory_agent.storage.folders import known_users, user_folder
from memory_agent.storage.store import Store as RecordStore
from memory_agent.storage.view import View
from memory_agent.triggers.block import RECALLED
from relay import Journal, MalformedEventError, journal_folder, read_event
from relay.crypto import open_key_ring
from tests.memory_agent.store_checks import verified

from .encryption import encryption_of
from .history import Entry, History, Store, Stored
from .owner_process import STORE
from .word_vectors import WordVectors

WORDS = WordVectors()


def read_history(
    data_dir: Path,
    notes: Path,
    *,
    with_stores: bool = True,
    settings: StoreSettings = STORE,
    embedder: Embedder | None = WORDS,
) -> History:
    """Read the acknowledgements in `notes` and everything in `data_dir`, decrypted with the keys beside `data_dir`, if
    any.

    Opening the stores rebuilds their columns. Without `embedder`, a memory is searched for by its stored vector instead
    of its text.
    """
    journal, quarantined, handled = read_journal(data_dir)
    stores = None
    if with_stores:
        stores = {user_id: read_store(data_dir, user_id, settings, embedder) for user_id in known_users(data_dir)}
    deleted = lines(notes / "deleted")
    return History(
        acked={file.stem: lines(file) for file in sorted(notes.glob("*.acked"))},
        journal=journal,
        stores=stores,
        handled=handled,
        taken_in=frozenset(lines(notes / "taken")),
        deleted=frozenset(deleted),
        doubtful=frozenset(lines(notes / "doubtful")) - frozenset(deleted),
        quarantined=quarantined,
    )


def read_journal(data_dir: Path, consumer: str = "memory") -> tuple[list[Entry], frozenset[str], int]:
    """Return the publishers' entries in the journal, the ids in quarantine, and the cursor of `consumer`.

    Omits the blocks that a daemon publishes in response to messages.
    """
    entries: list[Entry] = []
    read_through = 0
    keys = open_key_ring(encryption_of(data_dir.parent), data_dir)
    with Journal.open(journal_folder(data_dir), readonly=True, keys=keys) as journal:
        while batch := journal.read(read_through, 5_000, 64 << 20):
            read_through = batch[-1].seq
            for found in batch:
                event = read_event(found.data)
                if event.event_type == RECALLED:
                    continue
                publisher, _, number = event.event_id.rpartition("-")
                entries.append(Entry(found.seq, publisher, int(number), event.event_id, found.user_id))
        quarantined = frozenset(_event_id(entry.data) for entry in journal.quarantined(limit=10_000))
        return entries, quarantined, journal.cursor(consumer)


def read_store(data_dir: Path, user_id: str, settings: StoreSettings, embedder: Embedder | None) -> Store:
    """Return a user's memories, and the rows that a search for each memory's own words and vector finds."""
    key = open_user_key(encryption_of(data_dir.parent), data_dir, user_id)
    archive = Archive.open(user_folder(data_dir, user_id), settings, "library", key)
    try:
        records = dict(archive.store.scan())
        assert verified(archive.store) == len(records)
        memories = _memories(user_id, records)
        view = archive.settled_view()
        listed = set(view.rows[view.alive].tolist())
        words = {row for row, record in records.items() if row in _found(view, record.text)} | listed - set(records)
        vectors = _found_by_vector(archive, view, records, embedder)
        surplus = view.vectors.count - len(records)
        return Store(
            memories,
            archive.store.state.cursor,
            frozenset(vectors | {-n for n in range(1, surplus + 1)}),
            frozenset(words & listed | listed - set(records)),
        )
    finally:
        archive.close()


def read_records(data_dir: Path) -> dict[str, Store]:
    """Return every user's memories, without opening or rebuilding derived files."""
    stores = {}
    for user_id in known_users(data_dir):
        key = open_user_key(encryption_of(data_dir.parent), data_dir, user_id)
        with RecordStore.open(user_folder(data_dir, user_id), STORE, key=key) as store:
            memories = _memories(user_id, dict(store.scan()))
            rows = frozenset(memory.row for memory in memories)
            stores[user_id] = Store(memories, store.state.cursor, rows, rows)
    return stores


def _memories(user_id: str, records: Mapping[int, MemoryRecord]) -> list[Stored]:
    return [
        Stored(user_id, str(record.event_id), record.text.partition(" ")[0], row) for row, record in records.items()
    ]


def _found_by_vector(
    archive: Archive, view: View, records: Mapping[int, MemoryRecord], embedder: Embedder | None
) -> set[int]:
    """Return the rows that a search for their own vector finds."""
    found: set[int] = set()
    if embedder is not None and archive.store.state.ndim == embedder.info.ndim:
        for record in records.values():
            found.update(_nearest(view, embedder.embed_query(record.text), 1))
    elif embedder is None:
        with archive.store.snapshot() as snapshot:
            own = {row: snapshot.vectors([row])[0] for row in records}
        found = {row for row, vector in own.items() if vector.any() and row in _nearest(view, vector, 5)}
    return found


def _nearest(view: View, vector: Embedding, count: int) -> list[int]:
    """The nearest rows."""
    slots = np.argsort(-np.nan_to_num(view.vectors.scan(vector, count).values, nan=-2.0), kind="stable")[: 2 * count]
    best = np.argsort(-view.vectors.cosines(vector, slots), kind="stable")[:count]
    nearest: list[int] = view.rows[slots[best]].tolist()
    return nearest


def _found(view: View, text: str) -> set[int]:
    """Return the rows that a search for the text's unique word finds."""
    word = next(word for word in text.split() if word.startswith("lamp"))
    return set(view.rows[view.words.scores([word]) > 0].tolist())


def lines(file: Path) -> list[str]:
    """Return the complete lines of a file that a killed process wrote."""
    if not file.exists():
        return []
    text = file.read_text(encoding="utf-8")
    return text[: text.rfind("\n") + 1].splitlines()


def _event_id(data: bytes) -> str:
    try:
        return read_event(data).event_id
    except MalformedEventError:
        return ""
