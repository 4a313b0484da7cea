"""An LMDB environment under our durability rules: what is committed is on the disk when the call returns.

sync and metasync on, writemap off (with writemap a full disk kills the process by SIGBUS, measured), the map size set
once and never grown on the fly (growing from two processes corrupts), dead readers cleared at open. LMDB's errors
leave this file as ours. It knows nothing about what is stored, nor who may write: that is `store` and `fence`.

Given a key, it is marked with it, and what its transactions keep is encrypted.

LMDB detects little damage: 0 of 15 bit flips inside values were noticed, a file that was cut short kills the reader by
SIGBUS, and a page of zeros aborts the process. So callers keep a checksum in each value, and at open the pages are gone
through (`relay.disk`) before LMDB follows one.

Rejected: one SQLite file for everything. A commit of 1 KB costs .3 ms here, and a warm read .7 us.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import lmdb
import xxhash

from memory_agent.errors import DeadlineExceededError, StoreDamagedError, StoreError, StoreFullError
from memory_agent.storage.encrypted import Encryption, agreed_mark, marked_key
from memory_agent.storage.transaction import Transaction
from relay.disk import (
    CommitGoneError,
    discard_copy,
    examine,
    flush_copy,
    make_first_file,
    means_no_room,
    replace_by_copy,
    room_for_copy,
    says_no_room,
)
from relay.rwlock import ReadWriteLock

# New transactions wait at most so long for old ones to end; then they have as long a turn, and it is tried again.
_DOOR_SHUT_S = 2.0
_DOOR_TRIES = 8
_DAMAGE = (
    lmdb.CorruptedError,
    lmdb.InvalidError,
    lmdb.PageNotFoundError,
    lmdb.VersionMismatchError,
    lmdb.PageFullError,
    lmdb.CursorFullError,
    lmdb.BadValsizeError,
)
_MARKERS, _MARKER = "encryption", b"key"
_ADVICE = (
    "nothing was changed; memory-agent verify tells more, and memory-agent restore brings a backup back in its place"
)


class Environment:
    """One LMDB environment: a folder with `data.mdb` and `lock.mdb`. Threads may share it.

    One process writes. Do not use it in a child made by fork: that corrupts, and is refused here.
    """

    def __init__(
        self,
        environment: Any,
        path: Path,
        map_size_bytes: int,
        databases: Sequence[str],
        encryption: Encryption | None,
        *,
        readonly: bool,
    ) -> None:
        self._environment = environment
        self._pid = os.getpid()
        self._rwlock = ReadWriteLock()
        self.path = path
        self.map_size_bytes = map_size_bytes
        self._encryption = encryption
        self._databases: dict[str, Any] = {name: self._open_database(name) for name in databases}
        if databases:
            self._agree(readonly)

    @classmethod
    def open(
        cls,
        path: Path,
        map_size_bytes: int,
        databases: Sequence[str] = (),
        *,
        readonly: bool = False,
        encryption: Encryption | None = None,
    ) -> Environment:
        """Open the environment in folder `path`; create it and its databases unless `readonly`.

        The map is address space, not disk, and bounds the size for as long as the environment is open. With
        `encryption` what is kept is encrypted, and without it is not: one that is otherwise is refused. Without
        `databases` nothing can be read, and any may be opened, and copied.
        Raises `StoreDamagedError`, `StoreFullError`, `StoreError`, `StoreEncryptedError`, `StoreNotEncryptedError`,
        `EncryptionKeyMissingError`.
        """
        try:
            if not readonly:
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
                make_first_file(path, lambda aside: lmdb.open(str(aside), map_size=map_size_bytes, mode=0o600).close())
            engine = _open_engine(path, map_size_bytes, len(databases), readonly)
        except lmdb.Error as error:
            raise _translated(error, path, map_size_bytes) from error
        except OSError as error:
            raise _of_system(error, path, map_size_bytes) from error
        try:
            _require_sound(engine, path)
            return cls(engine, path, map_size_bytes, databases, encryption, readonly=readonly)
        except BaseException:
            engine.close()
            raise

    @contextmanager
    def read(self) -> Iterator[Transaction]:
        """Give a snapshot: it does not see what is committed after it began. Keep it short."""
        with self._begin(write=False) as transaction:
            yield transaction

    @contextmanager
    def write(self) -> Iterator[Transaction]:
        """Give the write transaction; waits for the one that is open.

        When the block ends it is committed, durable on return; when the block raises it is undone.
        Raises `StoreFullError` (undone, the environment stays usable) and `StoreError` (undone; close and reopen).
        """
        try:
            with self._begin(write=True) as transaction:
                yield transaction
        except StoreFullError:
            self._open_again_if_unusable()
            raise

    @contextmanager
    def _begin(self, *, write: bool) -> Iterator[Transaction]:
        if os.getpid() != self._pid:
            raise StoreError(f"{self.path} was opened before a fork; open it again in the child")
        encrypted = None if self._encryption is None else self._encryption.begin()
        try:
            with self._rwlock.shared(), self._environment.begin(write=write) as engine_transaction:
                yield Transaction(engine_transaction, self._databases, (lmdb.Error, self.translate), encrypted)
        except lmdb.Error as error:
            raise self.translate(error) from error

    def _open_again_if_unusable(self) -> None:
        """After a meta page that found no room LMDB refuses everything, reading too, until it is opened again."""
        try:
            self._environment.begin().abort()
        except lmdb.PanicError:
            with suppress(TimeoutError), self._rwlock.exclusive(_DOOR_SHUT_S):
                self._environment.close()
                self._open_again()

    def _open_again(self) -> None:
        try:
            self._environment = _open_engine(self.path, self.map_size_bytes, len(self._databases), False)
        except lmdb.Error as error:
            raise self.translate(error) from error
        _require_sound(self._environment, self.path)
        self._databases = {name: self._open_database(name) for name in self._databases}

    def _agree(self, readonly: bool) -> None:
        """Raise where what is kept is encrypted in another way than is asked for; mark a new one."""
        try:
            kept = self._marker()
            with self._environment.begin(write=False) as transaction:
                is_empty = not any(transaction.stat(handle)["entries"] for handle in self._databases.values())
            mark = agreed_mark(self._encryption, self.path, kept, is_empty=is_empty, may_create=not readonly)
            if mark not in (None, kept) and not readonly:
                markers = self._markers(create=True)
                with self._environment.begin(write=True) as transaction:
                    transaction.put(_MARKER, mark, db=markers)
        except lmdb.Error as error:
            raise self.translate(error) from error

    def key_id(self) -> bytes | None:
        """Return the id of the key that it is encrypted with, None where it is not encrypted; without using a key."""
        try:
            with self._rwlock.shared():
                marker = self._marker()
        except lmdb.Error as error:
            raise self.translate(error) from error
        return None if marker is None else marked_key(marker)

    def _marker(self) -> bytes | None:
        markers = self._markers(create=False)
        if markers is None:
            return None
        with self._environment.begin(write=False) as transaction:
            marker: bytes | None = transaction.get(_MARKER, db=markers)
        return marker

    def _markers(self, *, create: bool) -> Any:
        try:
            return self._environment.open_db(_MARKERS.encode(), create=create)
        except lmdb.NotFoundError:
            return None

    def _open_database(self, name: str) -> Any:
        try:
            return self._environment.open_db(name.encode())
        except lmdb.Error as error:
            raise self.translate(error) from error

    def clear_dead_readers(self) -> int:
        """Free the slots of readers whose process died; they keep old pages alive. Returns how many."""
        try:
            with self._rwlock.shared():
                return int(self._environment.reader_check())
        except lmdb.Error as error:
            raise self.translate(error) from error

    def copy(self, folder: Path) -> None:
        """Write a compact copy of a snapshot into the empty folder `folder`, while in use; not yet fsynced."""
        try:
            with self._rwlock.shared():
                self._environment.copy(str(folder), compact=True)
        except lmdb.Error as error:
            raise self.translate(error) from error

    def compact(self, guard: Callable[[], AbstractContextManager[None]]) -> None:
        """Put a compact copy, compared with it, in the place of the file: what was deleted is gone then. Durable.

        The caller sees to it that nobody writes meanwhile; reads go on, and new ones wait while the files are swapped,
        inside `guard`, which keeps other processes from opening them. Killed at any moment, it leaves the old file or
        the new. Raises `StoreFullError`, `StoreDamagedError`, `DeadlineExceededError` when a read does not end: nothing
        changed.
        """
        copy = room_for_copy(self.path)
        try:
            self.copy(copy)
            self._require_equal(copy)
            flush_copy(copy)
            with guard(), self._between_transactions():
                self._environment.close()
                replace_by_copy(copy)
                self._open_again()
        except OSError as error:
            raise _of_system(error, self.path, self.map_size_bytes) from error
        finally:
            discard_copy(copy)

    def _require_equal(self, folder: Path) -> None:
        """Raise `StoreDamagedError` unless the copy holds the same keys and values."""
        copy = Environment.open(
            folder, self.map_size_bytes, tuple(self._databases), readonly=True, encryption=self._encryption
        )
        try:
            with self.read() as ours, copy.read() as theirs:
                for name in self._databases:
                    if _digest(ours.scan_kept(name)) != _digest(theirs.scan_kept(name)):
                        raise StoreDamagedError(f"{self.path}: the copy of {name} is not equal")
        finally:
            copy.close()

    @contextmanager
    def _between_transactions(self) -> Iterator[None]:
        """Wait until no transaction is open, and let none begin in the block, nor, in turns, while it waits."""
        with ExitStack() as stack:
            for attempt in range(_DOOR_TRIES):
                if attempt:
                    time.sleep(_DOOR_SHUT_S)  # one long read must not hold up all the others
                try:
                    stack.enter_context(self._rwlock.exclusive(_DOOR_SHUT_S))
                except TimeoutError:
                    continue
                break
            else:
                raise DeadlineExceededError(f"{self.path}: a read of it does not end")
            yield

    @property
    def file_bytes(self) -> int:
        """Size of the file up to its last page in use; what is beyond is a hole."""
        with self._rwlock.shared():
            info = self._environment.info()
            return int((info["last_pgno"] + 1) * self._environment.stat()["psize"])

    def translate(self, error: lmdb.Error) -> StoreError:
        """Return our error for one of LMDB's; the caller raises it `from` the original."""
        return _translated(error, self.path, self.map_size_bytes)

    def close(self) -> None:
        """Close; open transactions of other threads are waited for by LMDB. Twice does no harm."""
        if os.getpid() == self._pid:
            self._environment.close()


def _open_engine(path: Path, map_size_bytes: int, databases: int, readonly: bool) -> Any:
    """Open, and clear readers that died. Named databases that do not exist yet are made by `open_db`."""
    engine = lmdb.open(
        str(path),
        map_size=map_size_bytes,
        max_dbs=databases + 1,  # and the marker's
        readonly=readonly,
        create=not readonly,
        sync=True,
        metasync=True,
        writemap=False,
        mode=0o600,
    )
    if not readonly:
        engine.reader_check()
    return engine


def _require_sound(engine: Any, path: Path) -> None:
    """Go through the pages before LMDB follows one: some damage would kill the process, and all users in it."""
    try:
        fault = examine(engine.begin, path)
    except CommitGoneError as error:
        raise StoreError(f"{path}: {error}") from error
    if fault is not None:
        raise StoreDamagedError(f"{path}: {fault}; {_ADVICE}")


def _digest(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    digest = xxhash.xxh3_128()
    for key, value in pairs:
        digest.update(len(key).to_bytes(4, "big") + key + len(value).to_bytes(4, "big"))
        digest.update(value)
    return digest.digest()


def _of_system(error: OSError, path: Path, map_size_bytes: int) -> StoreError:
    if says_no_room(error):
        return StoreFullError(str(path), map_size_bytes)
    return StoreError(f"{path}: {error.strerror}")


def _translated(error: lmdb.Error, path: Path, map_size_bytes: int) -> StoreError:
    # py-lmdb names ENOSPC DiskError; the system's other errors have no name, only its words.
    if isinstance(error, lmdb.MapFullError | lmdb.DiskError) or means_no_room(str(error), path):
        return StoreFullError(str(path), map_size_bytes)
    if isinstance(error, _DAMAGE):
        return StoreDamagedError(f"{path}: {error}")
    return StoreError(f"{path}: {error}")
