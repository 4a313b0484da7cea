"""A database file under our rules, and one in memory: connecting, errors in our terms, setting a file aside.

What is kept in it is the lexicon's business. Nothing is fsynced: the file is a cache.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from memory_agent.errors import DeadlineExceededError, IndexDamagedError, StoreFullError
from relay.disk_room import has_room

Connection = sqlite3.Connection
_FAILED_WRITES = frozenset({"SQLITE_IOERR_WRITE", "SQLITE_IOERR_SHMSIZE", "SQLITE_IOERR_TRUNCATE"})
ENGINE_VERSION = f"sqlite {sqlite3.sqlite_version}"


def connect(path: Path) -> Connection:
    """A connection under our rules: each statement its own transaction, nothing fsynced, little memory."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30.0)
    for setting in (
        "journal_mode = WAL",
        "synchronous = OFF",
        "cache_size = -1024",  # KiB
        "journal_size_limit = 1048576",
        "wal_autocheckpoint = 256",  # pages
        "temp_store = MEMORY",
    ):
        connection.execute(f"PRAGMA {setting}")
    return connection


def connect_in_memory() -> Connection:
    """An empty database of its own, gone when it is closed."""
    return sqlite3.connect(":memory:", isolation_level=None)


def copy_in_memory(path: Path) -> Connection:
    """A copy of the database as it is now, in memory; who works on it is not disturbed, and no file is made."""
    in_use = path.with_name(path.name + "-wal").exists()
    source = sqlite3.connect(f"{path.absolute().as_uri()}?{'mode=ro' if in_use else 'immutable=1'}", uri=True)
    try:
        copy = connect_in_memory()
        source.backup(copy)
    finally:
        source.close()
    return copy


def set_aside(path: Path) -> None:
    """Rename a database, adding `.damaged`, and remove what belongs to it."""
    if path.exists():
        damaged = path.with_name(path.name + ".damaged")
        path.replace(damaged)
    remove(path)


def remove(path: Path) -> None:
    """Remove a database with all that belongs to it; what is not there does no harm."""
    for suffix in ("", "-wal", "-shm", ".seal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


@contextmanager
def translating(path: Path) -> Iterator[None]:
    """Raise what the engine says in our terms: `DeadlineExceededError`, `StoreFullError`, `IndexDamagedError`."""
    try:
        yield
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorname", "") == "SQLITE_INTERRUPT":
            raise DeadlineExceededError("the search was not through in time") from error
        if _is_full(getattr(error, "sqlite_errorname", ""), path.parent):
            raise StoreFullError(str(path), path.stat().st_size) from error
        raise IndexDamagedError(f"{path.name}: {error}") from error


def _is_full(name: str, folder: Path) -> bool:
    """A quota that is used up is an I/O error to SQLite, which knows only a full disk by name."""
    return name == "SQLITE_FULL" or (name in _FAILED_WRITES and not has_room(folder))
