"""An index in one SQLite file in the user's folder, searched exactly by the distance functions of sqlite-vec.

The driver is sqlcipher3: it encrypts the file with the user's key and can load extensions. In many Python builds, the
`sqlite3` module cannot load extensions. Vectors are int8, each scaled by its largest component. This is sufficient,
because recall computes exact cosines from the records. `vec0` is not used (decision 0002).

d = dimensions.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
import sqlite_vec
from sqlcipher3 import dbapi2 as sqlite

from memory_agent.errors import IndexDamagedError, IndexUnavailableError, IndexUnusableError
from memory_agent.indexes import contract
from memory_agent.indexes.contract import COLUMNS, EVERYTHING, Entry, Hits, IndexOf, Position, Where
from memory_agent.records.embedded import Embedding
from relay import described
from relay.locks import WAIT_FOR_EVER, holding

FILE = "index.sqlite"

_NAME = "sqlite-vec"
_STEPS = 127  # the largest component of a vector becomes 127 or -127
_CHECKED_EVERY = 10_000  # SQLite instructions between two checks of the clock: 2 ms
_INDEXED = ("session", "run", "channel")
_NAMES = ", ".join(f"{column} TEXT" for column in COLUMNS)
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS position (content BLOB NOT NULL)",
    f"CREATE TABLE IF NOT EXISTS vectors (memory INTEGER NOT NULL, {_NAMES}, time_us INTEGER NOT NULL, "
    "embedding BLOB NOT NULL)",
    "CREATE INDEX IF NOT EXISTS vectors_memory ON vectors (memory)",
    *(f"CREATE INDEX IF NOT EXISTS vectors_{one} ON vectors ({one}) WHERE {one} IS NOT NULL" for one in _INDEXED),
)
_INSERT = f"INSERT INTO vectors VALUES ({', '.join('?' * (len(COLUMNS) + 3))})"

_AWAY = (sqlite.SQLITE_BUSY, sqlite.SQLITE_LOCKED, sqlite.SQLITE_NOMEM, sqlite.SQLITE_FULL, sqlite.SQLITE_CANTOPEN)
"""Transient errors: the file is not damaged."""

_positions = msgspec.msgpack.Decoder(described(Position))


class SqliteVecIndex:
    """One user's vectors in an SQLite file. Thread-safe."""

    name = _NAME
    is_approximate = False
    is_due = False

    def __init__(self, of: IndexOf) -> None:
        self._path = of.folder / FILE
        self._secret = of.secret
        self._timeout_s = of.settings.timeout_s
        self._using = threading.RLock()
        self._connection: Any = None
        self._position: Position | None = None

    @property
    def position(self) -> Position | None:
        with self._transaction():
            return self._position

    def begin(self, position: Position) -> None:
        with self._transaction() as connection:
            connection.execute("DELETE FROM vectors")
            self._move_to(connection, position)

    def index(self, entries: Sequence[Entry], position: Position) -> None:
        for entry in entries:
            contract.check_width(entry.vectors, position.ndim)
        lines = [
            (entry.row, *entry.names, entry.time_us, vector.tobytes())
            for entry in entries
            for vector in _quantized(entry.vectors)
        ]
        with self._transaction() as connection:
            connection.executemany("DELETE FROM vectors WHERE memory = ?", [(entry.row,) for entry in entries])
            connection.executemany(_INSERT, lines)
            self._move_to(connection, position)

    def delete(self, rows: Sequence[int]) -> None:
        with self._transaction() as connection:
            connection.executemany("DELETE FROM vectors WHERE memory = ?", [(row,) for row in rows])

    def search(self, vector: Embedding, limit: int, where: Where = EVERYTHING, timeout_s: float | None = None) -> Hits:
        condition, values = where.condition("?")
        with self._transaction(timeout_s) as connection:
            if self._position is None or not self._position.ndim:
                return Hits.of()
            contract.check_width(vector, self._position.ndim)
            found = connection.execute(
                f"SELECT memory, vec_distance_cosine(vec_int8(embedding), vec_int8(?)) AS distance FROM vectors "
                f"WHERE {condition} ORDER BY distance LIMIT ?",
                (_quantized(vector[None])[0].tobytes(), *values, limit),
            ).fetchall()
        return Hits.of(found)

    def count(self, scope: str | None = None, id: str = "") -> int:
        condition, values = Where.of_scope(scope, id).condition("?")
        with self._transaction() as connection:
            query = f"SELECT count(DISTINCT memory) FROM vectors WHERE {condition}"
            return int(connection.execute(query, values).fetchone()[0])

    def compact(self) -> None:
        with self._using, self._translated():
            connection = self._connected()
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def interrupt(self) -> None:
        """Do nothing, because `compact` takes only seconds."""

    def clear(self) -> None:
        with self._using:
            self.close()
            for suffix in ("", "-wal", "-shm", "-journal"):
                self._path.with_name(FILE + suffix).unlink(missing_ok=True)

    def close(self) -> None:
        with self._using:
            if self._connection is not None:
                self._connection.close()
            self._connection = self._position = None

    @contextmanager
    def _transaction(self, timeout_s: float | None = None) -> Iterator[Any]:
        """Hold the connection for one transaction, which is rolled back on an exception. Raises `TimeoutError`."""
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        with holding(self._using, WAIT_FOR_EVER if timeout_s is None else timeout_s) as is_held, self._translated():
            if not is_held:
                raise TimeoutError
            try:
                connection = self._connected()
                if until_s is not None:
                    connection.set_progress_handler(lambda: time.monotonic() > until_s, _CHECKED_EVERY)
                connection.execute("BEGIN")
                yield connection
                connection.execute("COMMIT")
                connection.set_progress_handler(None, 0)
            except BaseException:
                self.close()
                raise

    def _connected(self) -> Any:
        if self._connection is None:
            connection = sqlite.connect(
                str(self._path), timeout=self._timeout_s, isolation_level=None, check_same_thread=False
            )
            try:
                self._prepare(connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _prepare(self, connection: Any) -> None:
        if self._secret is not None:
            connection.execute(f"PRAGMA key = \"x'{self._secret.hex()}'\"")
        connection.enable_load_extension(True)
        sqlite_vec.load(connection)
        connection.enable_load_extension(False)
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        contract.check_version(_NAME, version or contract.SCHEMA_VERSION)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA secure_delete = ON")
        if not version:
            for statement in _SCHEMA:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {contract.SCHEMA_VERSION}")
        stored = connection.execute("SELECT content FROM position").fetchone()
        self._position = None if stored is None else _positions.decode(stored[0])

    def _move_to(self, connection: Any, position: Position) -> None:
        connection.execute("DELETE FROM position")
        connection.execute("INSERT INTO position VALUES (?)", (msgspec.msgpack.encode(position),))
        self._position = position  # read again from the file if the transaction fails

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite.Error as error:
            reason, code = str(error), getattr(error, "sqlite_errorcode", 0) & 0xFF  # the primary code
            if code == sqlite.SQLITE_INTERRUPT:
                raise TimeoutError from error
            if code in _AWAY:
                raise IndexUnavailableError(_NAME, reason) from error
            if code == sqlite.SQLITE_READONLY:
                raise IndexUnusableError(_NAME, f"{FILE} is read-only", f"make {self._path} writable") from error
            raise IndexDamagedError(f"{FILE}: {reason}") from error


def _quantized(vectors: Embedding) -> Any:
    """Return int8 vectors in the same directions."""
    largest = np.abs(vectors).max(axis=1, keepdims=True)
    return np.rint(vectors * (_STEPS / np.where(largest > 0, largest, 1))).astype(np.int8)
