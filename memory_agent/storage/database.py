"""A database file under our rules, and one in memory: connecting, errors in our terms, setting a file aside.

What is kept in it is the lexicon's business. Nothing is fsynced: the file is a cache. With a secret the file, its log
and what SQLite would put aside are encrypted, page by page: that is SQLCipher, an SQLite of its own, which is optional
and loaded when it is needed. The two never open the same file: neither would see the other's locks in this process.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from memory_agent.errors import DeadlineExceededError, IndexDamagedError, SettingsError, StoreFullError
from relay.disk import has_room

Connection = sqlite3.Connection
_FAILED_WRITES = frozenset({"SQLITE_IOERR_WRITE", "SQLITE_IOERR_SHMSIZE", "SQLITE_IOERR_TRUNCATE"})


def engine_version(secret: bytes | None = None) -> str:
    """Which SQLite opens a database with this secret, or with none."""
    return f"{'sqlite' if secret is None else 'sqlcipher'} {_engine(secret).sqlite_version}"


def connect(path: Path, secret: bytes | None = None) -> Connection:
    """A connection under our rules: each statement its own transaction, nothing fsynced, little memory.

    With a `secret` of 32 bytes the file is encrypted. Raises `SettingsError` where SQLCipher is not installed.
    """
    connection = _opened(path, secret, check_same_thread=False, timeout=30.0)
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


def _opened(place: Path | str, secret: bytes | None, **options: Any) -> Connection:
    connection: Connection = _engine(secret).connect(place, isolation_level=None, **options)
    if secret is not None:
        connection.execute("PRAGMA cipher_log_level = NONE")  # else it writes damage to somebody's standard error
        connection.execute(f"PRAGMA key = \"x'{secret.hex()}'\"")
    return connection


def _engine(secret: bytes | None) -> Any:
    if secret is None:
        return sqlite3
    try:
        from sqlcipher3 import dbapi2
    except ImportError as error:
        raise SettingsError("encryption.keys_folder", f"needs memory-agent[encryption]: {error}") from error
    return dbapi2


def _failures() -> tuple[type[Exception], ...]:
    """What either engine raises; the last where what it says of a damaged schema holds bytes of the damage."""
    other = sys.modules.get("sqlcipher3.dbapi2")
    ours = (sqlite3.Error, UnicodeDecodeError)
    return ours if other is None else (*ours, other.Error)


def connect_in_memory() -> Connection:
    """An empty database of its own, gone when it is closed."""
    return sqlite3.connect(":memory:", isolation_level=None)


def copy_in_memory(path: Path, secret: bytes | None = None) -> Connection:
    """A copy of the database as it is now, in memory; who works on it is not disturbed, and no file is made."""
    in_use = path.with_name(path.name + "-wal").exists()
    source = _opened(f"{path.absolute().as_uri()}?{'mode=ro' if in_use else 'immutable=1'}", secret, uri=True)
    try:
        copy = _opened(":memory:", secret)  # one with another secret, or none, takes no backup
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
    except _failures() as error:
        if getattr(error, "sqlite_errorname", "") == "SQLITE_INTERRUPT":
            raise DeadlineExceededError("the search was not through in time") from error
        if _is_full(getattr(error, "sqlite_errorname", ""), path.parent):
            raise StoreFullError(str(path), path.stat().st_size) from error
        raise IndexDamagedError(f"{path.name}: {error}") from error


def _is_full(name: str, folder: Path) -> bool:
    """A quota that is used up is an I/O error to SQLite, which knows only a full disk by name."""
    return name == "SQLITE_FULL" or (name in _FAILED_WRITES and not has_room(folder))
