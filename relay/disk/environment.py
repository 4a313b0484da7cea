"""The LMDB environment under a journal: what is committed is on the disk when the call returns.

sync and metasync on, writemap off (with it a full disk kills the process by SIGBUS, measured), the map size set once
and never grown (growing from two processes corrupts), one writer held by a file lock, dead readers cleared. LMDB's
errors leave this file as ours. It does not know what is stored. LMDB sees little damage (0 of 15 bit flips inside
values, measured) and dies of some, so callers keep a checksum in each value, and `pages` looks before it opens.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import lmdb

from relay.disk.atomic_files import (
    allow_opening,
    discard_copy,
    flush_copy,
    make_first_file,
    opening,
    replace_by_copy,
    room_for_copy,
    swapping,
)
from relay.disk.pages import DATA_FILE, CommitGoneError, examine
from relay.disk.room import allocate, means_no_room, says_no_room
from relay.errors import JournalDamagedError, JournalError, JournalFullError, JournalInUseError
from relay.rwlock import ReadWriteLock

_LOCK_FILE = "owner.lock"
_RESERVE_FILE = "reserve"
_ADVICE = "nothing was changed; memory-agent restore brings a backup back in its place"
_DAMAGE = (
    lmdb.CorruptedError,
    lmdb.InvalidError,
    lmdb.PageNotFoundError,
    lmdb.VersionMismatchError,
    lmdb.PageFullError,
    lmdb.CursorFullError,
)

_PATIENCE_S = 10.0
Transaction = Any
"""An LMDB transaction; used only inside the blocks of `Environment.read` and `Environment.write`."""


class Environment:
    """A folder with one LMDB environment. Threads share it; not to be used in a child made by fork."""

    def __init__(self, engine: Any, path: Path, map_size_bytes: int, databases: Sequence[str], lock: int) -> None:
        self._engine = engine
        self._lock = lock
        self._pid = os.getpid()
        self._rwlock = ReadWriteLock()
        self.path = path
        self.map_size_bytes = map_size_bytes
        self.databases: dict[str, Any] = {name: engine.open_db(name.encode()) for name in databases}

    @classmethod
    def open(cls, path: Path, map_size_bytes: int, databases: Sequence[str], *, readonly: bool = False) -> Environment:
        """Open the environment in `path`; a writer creates it, and holds it alone until `close`.

        Raises `JournalInUseError`, `JournalDamagedError`, `JournalFullError`, `JournalError`.
        """
        lock = -1
        engine = None
        try:
            if not readonly:
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
                lock = take_lock(path)
                allow_opening(path)
                make_first_file(path, lambda aside: lmdb.open(str(aside), map_size=map_size_bytes, mode=0o600).close())
            with opening(path) if readonly else nullcontext():
                engine = _open_engine(path, map_size_bytes, len(databases), readonly=readonly)
                return cls(engine, path, map_size_bytes, databases, lock)
        except BaseException as error:
            if engine is not None:
                engine.close()
            if lock >= 0:
                os.close(lock)
            if isinstance(error, lmdb.Error):
                raise _translated(error, path, map_size_bytes) from error
            if isinstance(error, OSError):
                raise _of_system(error, path, map_size_bytes) from error
            raise

    @contextmanager
    def read(self) -> Iterator[Transaction]:
        """Give a snapshot. Keep it short: it keeps old pages alive."""
        with self._begin(write=False) as transaction:
            yield transaction

    @contextmanager
    def write(self) -> Iterator[Transaction]:
        """Give the one write transaction. Durable when the block ends; undone when it raises.

        Raises `JournalFullError` (undone, the environment stays usable) and `JournalError` (undone; close, reopen).
        """
        try:
            with self._begin(write=True) as transaction:
                yield transaction
        except JournalFullError:
            self._open_again_if_unusable()
            raise

    @contextmanager
    def _begin(self, *, write: bool) -> Iterator[Transaction]:
        if os.getpid() != self._pid:
            raise JournalError(f"{self.path} was opened before a fork; open it again in the child")
        try:
            with self._rwlock.shared(), self._engine.begin(write=write) as transaction:
                yield transaction
        except lmdb.Error as error:
            raise _translated(error, self.path, self.map_size_bytes) from error

    def _open_again_if_unusable(self) -> None:
        """After a meta page that found no room LMDB refuses everything, reading too, until it is opened again."""
        try:
            self._engine.begin().abort()
        except lmdb.PanicError:
            with suppress(TimeoutError), self._rwlock.exclusive(_PATIENCE_S):
                self._engine.close()
                self._open_again()

    def _open_again(self) -> None:
        try:
            self._engine = _open_engine(self.path, self.map_size_bytes, len(self.databases), readonly=False)
            for name in self.databases:
                self.databases[name] = self._engine.open_db(name.encode())
        except lmdb.Error as error:
            raise _translated(error, self.path, self.map_size_bytes) from error

    def used_bytes(self, transaction: Transaction) -> int:
        """Return the bytes of the pages that hold something, as `transaction` sees them; free pages not counted."""
        stats = [transaction.stat(database) for database in self.databases.values()]
        return sum(s["psize"] * (s["branch_pages"] + s["leaf_pages"] + s["overflow_pages"]) for s in stats)

    def file_bytes(self) -> int:
        """Return the size of the file up to its last page in use."""
        return int((self._engine.info()["last_pgno"] + 1) * self._engine.stat()["psize"])

    def clear_dead_readers(self) -> int:
        """Free the slots of readers whose process died: they keep old pages alive for ever. Returns how many."""
        try:
            return int(self._engine.reader_check())
        except lmdb.Error as error:
            raise _translated(error, self.path, self.map_size_bytes) from error

    def copy(self, folder: Path) -> None:
        """Write a compact copy of a snapshot into the empty folder `folder`, while in use; not yet fsynced."""
        try:
            self._engine.copy(str(folder), compact=True)
        except lmdb.Error as error:
            raise _translated(error, self.path, self.map_size_bytes) from error

    def compact(self) -> None:
        """Put a compact copy in the place of the file: what was deleted is gone then. Durable on return.

        No transaction begins meanwhile, and nobody else opens the file. Killed at any moment, it leaves the old file
        or the new one. Raises `JournalFullError`, `TimeoutError` when transactions do not end: nothing changed then.
        """
        copy = room_for_copy(self.path)
        try:
            with swapping(self.path, _PATIENCE_S), self._rwlock.exclusive(_PATIENCE_S):
                self.copy(copy)
                self._swap(copy)
        except TimeoutError:
            raise
        except OSError as error:
            raise _of_system(error, self.path, self.map_size_bytes) from error
        finally:
            discard_copy(copy)

    def put_in_place(self, copy: Path) -> None:
        """Put the environment in `copy` (`room_for_copy`) in the place of this one, as `compact` does. Durable.

        What was written here since the copy was made is lost. Raises `JournalError`, `TimeoutError`.
        """
        try:
            with swapping(self.path, _PATIENCE_S), self._rwlock.exclusive(_PATIENCE_S):
                self._swap(copy)
        except TimeoutError:
            raise
        except OSError as error:
            raise _of_system(error, self.path, self.map_size_bytes) from error

    def _swap(self, copy: Path) -> None:
        flush_copy(copy)
        self._engine.close()
        replace_by_copy(copy)
        self._open_again()

    def keep_disk_reserve(self, size_bytes: int) -> bool:
        """Occupy disk room that `give_up_disk_reserve` frees; False when there is none to be had now."""
        file = self.path / _RESERVE_FILE
        try:
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                if size_bytes > os.fstat(descriptor).st_size:
                    allocate(descriptor, size_bytes)
            finally:
                os.close(descriptor)
        except OSError:
            file.unlink(missing_ok=True)
            return False
        return True

    def give_up_disk_reserve(self) -> bool:
        """Free the reserved disk room, so that something can be deleted; False when there was none."""
        try:
            (self.path / _RESERVE_FILE).unlink()
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Close, and let another writer in. Twice does no harm."""
        if os.getpid() == self._pid:
            self._engine.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def take_lock(path: Path) -> int:
    """Hold the folder for as long as the descriptor is open; the kernel lets go of it when the process dies."""
    descriptor = os.open(path / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        owner = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "another process"
        os.close(descriptor)
        raise JournalInUseError(str(path), owner) from error
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"process {os.getpid()}\n".encode(), 0)
    return descriptor


def _open_engine(path: Path, map_size_bytes: int, databases: int, *, readonly: bool) -> Any:
    _require_whole(path)
    engine = lmdb.open(
        str(path),
        map_size=map_size_bytes,
        max_dbs=databases,
        readonly=readonly,
        create=not readonly,
        sync=True,
        metasync=True,
        writemap=False,
        mode=0o600,
    )
    if not readonly:
        engine.reader_check()
    try:
        _require_sound(engine, path)
    except BaseException:
        engine.close()
        raise
    return engine


def _require_sound(engine: Any, path: Path) -> None:
    """Go through the pages before LMDB follows one: some damage would kill the process."""
    try:
        fault = examine(engine.begin, path)
    except CommitGoneError as error:
        raise JournalError(f"{path}: {error}") from error
    if fault is not None:
        raise JournalDamagedError(f"{path}: {fault}; {_ADVICE}")


def _require_whole(path: Path) -> None:
    """Refuse a file that was cut inside its meta pages; LMDB would take it for a new one."""
    file = path / DATA_FILE
    if file.exists() and 0 < file.stat().st_size < 2 * os.sysconf("SC_PAGESIZE"):
        raise JournalDamagedError(f"{path}: {DATA_FILE} was cut to {file.stat().st_size} bytes")


def _of_system(error: OSError, path: Path, map_size_bytes: int) -> JournalError:
    if says_no_room(error):
        return JournalFullError(str(path), map_size_bytes)
    return JournalError(f"{path}: {error.strerror}")


def _translated(error: lmdb.Error, path: Path, map_size_bytes: int) -> JournalError:
    # py-lmdb names ENOSPC DiskError; the system's other errors have no name, only its words.
    if isinstance(error, (lmdb.MapFullError, lmdb.DiskError)) or means_no_room(str(error), path):
        return JournalFullError(str(path), map_size_bytes)
    if isinstance(error, _DAMAGE):
        return JournalDamagedError(f"{path}: {error}")
    return JournalError(f"{path}: {error}")
