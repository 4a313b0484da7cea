"""An SQLite file used as a cache: connections, errors in our terms, setting aside, the clean-shutdown mark.

Nothing is fsynced. With a secret the file, its log and its temporary files are encrypted page by page by SQLCipher, an
optional SQLite of its own, loaded when needed. The two engines never open the same file in one process, since neither
sees the other's locks.

A clean-shutdown mark is a file beside the database with its checksum, written at close and removed at open. A database
without a mark was left by a process that died; whether its writes reached the disk depends on whether the machine kept
running, which `boot_id` tells.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import xxhash

from memory_agent.errors import DeadlineExceededError, IndexDamagedError, SettingsError, StoreFullError
from relay.disk import has_room

Connection = sqlite3.Connection
_MARK_SUFFIX = ".seal"
_CHUNK_BYTES = 1 << 20
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_FAILED_WRITES = frozenset({"SQLITE_IOERR_WRITE", "SQLITE_IOERR_SHMSIZE", "SQLITE_IOERR_TRUNCATE"})


def engine_version(secret: bytes | None = None) -> str:
    """Return the name and version of the engine for this secret, or for none."""
    return f"{'sqlite' if secret is None else 'sqlcipher'} {_engine(secret).sqlite_version}"


def connect(path: Path, secret: bytes | None = None) -> Connection:
    """Connect with autocommit, WAL, no fsync and a small page cache.

    A `secret` of 32 bytes encrypts the file. Raises `SettingsError` where SQLCipher is not installed.
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
        connection.execute("PRAGMA cipher_log_level = NONE")  # else it reports damage on standard error
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
    """Return what the engines raise; `UnicodeDecodeError` when the message quotes a damaged schema."""
    other = sys.modules.get("sqlcipher3.dbapi2")
    ours = (sqlite3.Error, UnicodeDecodeError)
    return ours if other is None else (*ours, other.Error)


def connect_in_memory() -> Connection:
    """Return a connection to a new, empty database in memory."""
    return sqlite3.connect(":memory:", isolation_level=None)


def copy_in_memory(path: Path, secret: bytes | None = None) -> Connection:
    """Copy the database into memory as it is now, without disturbing its users or creating files."""
    in_use = path.with_name(path.name + "-wal").exists()
    source = _opened(f"{path.absolute().as_uri()}?{'mode=ro' if in_use else 'immutable=1'}", secret, uri=True)
    try:
        copy = _opened(":memory:", secret)  # a backup needs the same secret on both sides
        source.backup(copy)
    finally:
        source.close()
    return copy


def set_aside(path: Path) -> None:
    """Rename a database to `….damaged` and remove its log and mark."""
    if path.exists():
        damaged = path.with_name(path.name + ".damaged")
        path.replace(damaged)
    remove(path)


def remove(path: Path) -> None:
    """Remove a database with its log and mark. Idempotent."""
    for suffix in ("", "-wal", "-shm", _MARK_SUFFIX):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


@contextmanager
def translating(path: Path) -> Iterator[None]:
    """Translate engine errors: `DeadlineExceededError`, `StoreFullError`, else `IndexDamagedError`."""
    try:
        yield
    except _failures() as error:
        if getattr(error, "sqlite_errorname", "") == "SQLITE_INTERRUPT":
            raise DeadlineExceededError("the search did not finish in time") from error
        if _is_full(getattr(error, "sqlite_errorname", ""), path.parent):
            raise StoreFullError(str(path), path.stat().st_size) from error
        raise IndexDamagedError(f"{path.name}: {error}") from error


def _is_full(name: str, folder: Path) -> bool:
    """Whether the disk is full. SQLite reports an exhausted quota as an I/O error."""
    return name == "SQLITE_FULL" or (name in _FAILED_WRITES and not has_room(folder))


def write_clean_mark(path: Path) -> None:
    """Mark the database as cleanly closed, with its checksum as of now."""
    mark = _mark_of(path)
    temporary = mark.with_suffix(".new")
    temporary.write_bytes(_digest(path))
    temporary.replace(mark)


def take_clean_mark(path: Path) -> bool:
    """Remove the clean-shutdown mark and return whether there was one.

    Raises `IndexDamagedError` when the database does not match it.
    """
    mark = _mark_of(path)
    try:
        expected = mark.read_bytes()
    except FileNotFoundError:
        return False
    actual = _digest(path)
    mark.unlink()
    if actual != expected:
        raise IndexDamagedError(f"{path.name} changed since it was closed")
    return True


def is_cleanly_closed(path: Path) -> bool | None:
    """Return whether the database matches its clean-shutdown mark, None without one. Changes nothing."""
    try:
        return _mark_of(path).read_bytes() == _digest(path)
    except FileNotFoundError:
        return None


def boot_id() -> str | None:
    """Return the id of this boot of the machine, None where the kernel has none."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return None


def _mark_of(path: Path) -> Path:
    return path.with_name(path.name + _MARK_SUFFIX)


def _digest(path: Path) -> bytes:
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.digest()
