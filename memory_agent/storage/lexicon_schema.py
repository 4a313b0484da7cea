"""The lexicon's tables, and how a memory is written to them. Needs no engine: the caller passes a connection.

The word table is contentless: words are removed by naming them, and wrong ones would damage it silently. So every
change is checked against the held rows first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from memory_agent.errors import IndexDamagedError
from memory_agent.records import MemoryRecord
from memory_agent.storage.changes import Change, IndexedText, indexed_text
from memory_agent.storage.codec import microseconds
from memory_agent.storage.terms import fingerprint

TOKENIZER = "tokenize='porter unicode61 remove_diacritics 2'"
SCHEMA_VERSION = "3"
SCHEMA = f"""
CREATE TABLE state (name TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
CREATE TABLE names (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE memories (
    row INTEGER PRIMARY KEY, kind INTEGER, source INTEGER, timestamp INTEGER, session INTEGER, run INTEGER,
    channel INTEGER, agent INTEGER, provenance INTEGER, quality REAL, fingerprint INTEGER
);
CREATE INDEX by_session ON memories (session, timestamp) WHERE session IS NOT NULL;
CREATE INDEX by_run ON memories (run) WHERE run IS NOT NULL;
CREATE INDEX by_timestamp ON memories (timestamp);
CREATE INDEX by_fingerprint ON memories (fingerprint);
CREATE TABLE tags (name INTEGER, row INTEGER, PRIMARY KEY (name, row)) WITHOUT ROWID;
CREATE VIRTUAL TABLE words USING fts5 (title, text, tags, content='', {TOKENIZER});
"""


class Connection(Protocol):
    """The part of a database connection used here."""

    def execute(self, sql: str, parameters: Any = ..., /) -> Any:
        """Run one statement."""
        ...


def follow(connection: Connection, change: Change) -> None:
    """Apply one change to its row. Raises `IndexDamagedError` when the row does not fit the change."""
    if change.op == "vector":
        return
    is_held = connection.execute("SELECT 1 FROM memories WHERE row = ?", (change.row,)).fetchone() is not None
    if is_held != _should_be_held(change):
        raise IndexDamagedError(f"row {change.row} does not fit its change")
    if change.op == "put" and change.record is not None:
        insert(connection, change.row, change.record)
    elif change.record is not None:
        _replace(connection, change.row, change.before, change.record)
    elif change.before is not None:
        _remove_words(connection, change.row, change.before)
        _remove_columns(connection, change.row, change.before.tags)


def insert(connection: Connection, row: int, record: MemoryRecord) -> None:
    """Add a memory that is not yet held."""
    insert_words(connection, row, indexed_text(record))
    _insert_columns(connection, row, record)


def insert_words(connection: Connection, row: int, words: IndexedText) -> None:
    """Add the words of a memory, without its columns."""
    connection.execute(
        "INSERT INTO words (rowid, title, text, tags) VALUES (?, ?, ?, ?)",
        (row, words.title, words.text, " ".join(words.tags)),
    )


def applied_in(state: Mapping[str, str]) -> int:
    """Return the last applied change. Raises `IndexDamagedError` when the state is damaged."""
    try:
        return int(state.get("applied", 0))
    except ValueError as error:
        raise IndexDamagedError("the last applied change is damaged") from error


def put_state(connection: Connection, name: str, value: str) -> None:
    """Set a value of the lexicon's state."""
    connection.execute("REPLACE INTO state VALUES (?, ?)", (name, value))


def record_fingerprint(record: MemoryRecord) -> int:
    """Return a number that is equal for memories of one kind and title whose texts say the same."""
    return fingerprint(record.kind, record.title or "", record.text)


def _should_be_held(change: Change) -> bool:
    """Whether the row was held before the change; one put and deleted within one stretch was not."""
    return change.before is not None if change.op == "delete" else change.op != "put"


def _replace(connection: Connection, row: int, before: IndexedText | None, record: MemoryRecord) -> None:
    now = indexed_text(record)
    if before is not None:
        _remove_words(connection, row, before)
        insert_words(connection, row, now)
    _remove_columns(connection, row, (before or now).tags)
    _insert_columns(connection, row, record)


def _remove_words(connection: Connection, row: int, words: IndexedText) -> None:
    connection.execute(
        "INSERT INTO words (words, rowid, title, text, tags) VALUES ('delete', ?, ?, ?, ?)",
        (row, words.title, words.text, " ".join(words.tags)),
    )


def _insert_columns(connection: Connection, row: int, record: MemoryRecord) -> None:
    names = (record.session_id, record.run_id, record.channel_id, record.agent_id, record.provenance)
    connection.execute(
        "INSERT INTO memories "
        "(row, kind, source, timestamp, quality, fingerprint, session, run, channel, agent, provenance) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            row,
            _name(connection, record.kind),
            _name(connection, record.source),
            microseconds(record.timestamp, "timestamp"),
            record.quality_score,
            record_fingerprint(record),
            *(None if name is None else _name(connection, name) for name in names),
        ),
    )
    for tag in set(record.tags):
        connection.execute("INSERT INTO tags VALUES (?, ?)", (_name(connection, tag), row))


def _remove_columns(connection: Connection, row: int, tags: tuple[str, ...]) -> None:
    connection.execute("DELETE FROM memories WHERE row = ?", (row,))
    for tag in set(tags):
        connection.execute("DELETE FROM tags WHERE name = ? AND row = ?", (_name(connection, tag), row))


def _name(connection: Connection, name: str) -> int:
    """Return the id of a name, adding it if needed. Names repeat; an id takes 3 bytes, a session id 26."""
    found = connection.execute("SELECT id FROM names WHERE name = ?", (name,)).fetchone()
    if found is not None:
        return int(found[0])
    return int(connection.execute("INSERT INTO names (name) VALUES (?)", (name,)).lastrowid)
