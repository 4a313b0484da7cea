"""An LMDB environment for journals and stores. A committed transaction is durable.

`writemap` is off, because with this option a full disk kills the process with SIGBUS. The map size is set only once,
because the file is corrupted if two processes increase the size. LMDB detects only some kinds of damage, so callers
store a checksum in each value, and `pages` checks the pages before LMDB reads them.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Protocol

import lmdb
import xxhash

from relay.disk.fence import WriterLock
from relay.disk.files import discard_copy, flush_copy, make_first_file, replace_by_copy, room_for_copy
from relay.disk.pages import DATA_FILE, CommitGoneError, clear_unused, examine
from relay.disk.room import means_no_room
from relay.disk.transaction import (
    EncryptedTransaction,
    ErrorFamily,
    OnCommit,
    Pair,
    PairCipher,
    StoredChange,
    Transaction,
)
from relay.locks import ReadWriteLock, holding

# Before a replacement, new transactions are blocked for up to this time, to let open transactions end. Between
# attempts, new transactions may run for the same length of time.
_TURN_S = 2.0
_AT_ONCE = 256
_AT_ONCE_BYTES = 4 << 20
_SPARE_DATABASES = 32  # for the marker and for databases of other versions
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
_MARKER_VERSION = b"1"  # stored before the id of the key
_ADVICE = "nothing was changed; for details, run memory-agent verify; to restore a backup, run memory-agent restore"


class Encryption(Protocol):
    def begin(self, errors: ErrorFamily) -> PairCipher: ...

    def settle(self, key_id: bytes | None, *, may_create: bool) -> bytes:
        """Return the id of the key. Raises if the id differs from the stored `key_id` (None in a new environment)."""


class Environment:
    """A folder with `data.mdb` and `lock.mdb`. Thread-safe; a forked child must not use it."""

    def __init__(
        self,
        engine: Any,
        failures: _Failures,
        databases: Sequence[str],
        encryption: Encryption | None,
        lock: WriterLock | None,
        on_commit: OnCommit | None,
        *,
        readonly: bool,
    ) -> None:
        self._engine = engine
        self._pid = os.getpid()
        self._transactions = ReadWriteLock()
        self._writing = threading.RLock()
        self._failures = failures
        self.errors = failures.errors
        self._encryption = encryption
        self._lock = lock
        self._on_commit = on_commit
        self.path = failures.path
        self.map_size_bytes = failures.map_size_bytes
        self._databases: dict[str, Any] = _open_databases(engine, databases, readonly=readonly)

    @classmethod
    def open(
        cls,
        path: Path,
        map_size_bytes: int,
        databases: Sequence[str] = (),
        *,
        errors: ErrorFamily,
        readonly: bool = False,
        encryption: Encryption | None = None,
        lock: WriterLock | None = None,
        on_commit: OnCommit | None = None,
    ) -> Environment:
        """Open the environment in folder `path`; create it and its databases unless `readonly`.

        The map is address space, not disk space. An encrypted environment must be opened with its `encryption`, and a
        plain environment without `encryption`. If `databases` is empty, the environment can be copied but not read,
        whether or not it is encrypted. `lock` guards the replacement of the file, and is released by `close`.
        `on_commit` receives the changes of each write transaction after its commit, in commit order. The callback must
        not raise, and the next write waits for it. Raises `failed`, `full`, `damaged`, `is_encrypted` and
        `not_encrypted` of `errors`, and the errors of `encryption`.
        """
        failures = _Failures(errors, path, map_size_bytes)
        engine = None
        try:
            if not readonly:
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
                make_first_file(path, lambda aside: lmdb.open(str(aside), map_size=map_size_bytes, mode=0o600).close())
            engine = _open_engine(failures, len(databases), readonly=readonly)
            opened = cls(engine, failures, databases, encryption, lock, on_commit, readonly=readonly)
            if databases:
                opened._require_encryption(readonly=readonly)
        except BaseException as error:
            if engine is not None:
                engine.close()
            if isinstance(error, lmdb.Error):
                raise failures.translate(error) from error
            if isinstance(error, OSError):
                raise failures.of_system(error) from error
            raise
        return opened

    def read(self) -> AbstractContextManager[Transaction]:
        """Read from a snapshot within the block. Do not write inside the block, because the write may wait for a
        compaction, which waits for the block. Keep the block short, because a snapshot keeps old pages alive.
        """
        return self._begin(write=False)

    @contextmanager
    def write(self) -> Iterator[Transaction]:
        """Wait for the current write transaction to end, then open a new one.

        The transaction is committed durably when the block ends, and rolled back if the block raises. Raises `full` or
        `failed` after a rollback. After `full`, the environment stays usable; after `failed`, close and reopen it.
        """
        self._refuse_fork()  # before locking: another thread of the parent may have held the lock at the fork
        try:
            with self._writing:
                if self._on_commit is not None:
                    yield from self._recording(self._on_commit)
                else:
                    with self._begin(write=True) as transaction:
                        yield transaction
        except self.errors.full:
            self._reopen_if_unusable()
            raise

    def _recording(self, on_commit: OnCommit) -> Iterator[Transaction]:
        recorded: list[StoredChange] = []
        is_committing = False
        try:
            with self._begin(write=True, recorded=recorded) as transaction:
                yield transaction
                is_committing = bool(recorded)
            if recorded:
                on_commit(recorded)
            is_committing = False
        finally:
            if is_committing:
                on_commit(None)

    @contextmanager
    def _begin(self, *, write: bool, recorded: list[StoredChange] | None = None) -> Iterator[Transaction]:
        self._refuse_fork()
        cipher = None if self._encryption is None else self._encryption.begin(self.errors)
        try:
            with self._transactions.shared(), self._engine.begin(write=write) as engine:
                common = engine, self._databases, self._failures, recorded
                yield Transaction(*common) if cipher is None else EncryptedTransaction(*common, cipher)
        except lmdb.Error as error:
            raise self._failures.translate(error) from error

    def _refuse_fork(self) -> None:
        if os.getpid() != self._pid:
            raise self.errors.failed(f"{self.path} was opened before a fork; open it again in the child")

    def _reopen_if_unusable(self) -> None:
        """Reopen after a failed write of a meta page, because LMDB then rejects all operations, even reads."""
        try:
            self._engine.begin().abort()
        except lmdb.PanicError:
            with suppress(TimeoutError), self._transactions.exclusive(_TURN_S):
                self._engine.close()
                self._reopen()

    def _reopen(self) -> None:
        with self._failures.translated():
            self._engine = _open_engine(self._failures, len(self._databases), readonly=False)
            self._databases = _open_databases(self._engine, tuple(self._databases), readonly=False)

    def _require_encryption(self, *, readonly: bool) -> None:
        """Check that the encryption on disk matches the requested encryption. A new environment adopts it."""
        known = self._marked_key()
        if self._encryption is None:
            if known is not None:
                raise self.errors.is_encrypted(str(self.path))
            return
        if known is None:
            with self._engine.begin(write=False) as transaction:
                if any(handle and transaction.stat(handle)["entries"] for handle in self._databases.values()):
                    raise self.errors.not_encrypted(str(self.path))
        key_id = self._encryption.settle(known, may_create=not readonly)
        if known is None and not readonly:
            markers = self._markers(create=True)
            with self._engine.begin(write=True) as transaction:
                transaction.put(_MARKER, _MARKER_VERSION + key_id, db=markers)

    @property
    def databases(self) -> tuple[str, ...]:
        return tuple(self._databases)

    def key_id(self) -> bytes | None:
        """Return the id of the key that encrypts the environment, or None if the environment is plain. Needs no key."""
        with self._failures.translated(), self._transactions.shared():
            return self._marked_key()

    def _marked_key(self) -> bytes | None:
        markers = self._markers(create=False)
        if markers is None:
            return None
        with self._engine.begin(write=False) as transaction:
            marker: bytes | None = transaction.get(_MARKER, db=markers)
        if marker is None or marker.startswith(_MARKER_VERSION):
            return marker and marker.removeprefix(_MARKER_VERSION)
        return b"of another version: " + marker  # matches no key id

    def _markers(self, *, create: bool) -> Any:
        try:
            return self._engine.open_db(_MARKERS.encode(), create=create)
        except lmdb.NotFoundError:
            return None

    def clear_dead_readers(self) -> int:
        """Free the slots of readers whose process died. Return their number."""
        with self._failures.translated(), self._transactions.shared():
            return int(self._engine.reader_check())

    def copy(self, folder: Path, *, clears_unused: bool = False) -> None:
        """Write a compact copy of a snapshot into the empty `folder`, even while the environment changes. Not fsynced.

        `clears_unused` zeroes the unused bytes, which can contain parts of deleted values.
        """
        with self._failures.translated(), self._transactions.shared():
            self._engine.copy(str(folder), compact=True)
        if clears_unused:
            clear_unused(folder)

    def apply(self, changes: Iterable[StoredChange]) -> None:
        """Apply changes recorded by another environment (`on_commit`) in one transaction. Durable on return.

        The changes are not decrypted or recorded again. Creates missing databases. Raises the same errors as `write`.
        """
        handles: dict[str, Any] = {}
        with (
            self._failures.translated(),
            self._writing,
            self._transactions.shared(),
            self._engine.begin(write=True) as engine,
        ):
            transaction = Transaction(engine, handles, self._failures)
            for database, key, value in changes:
                if database not in handles:
                    handles[database] = self._engine.open_db(database.encode(), txn=engine)
                if key is None:
                    transaction.clear(database)
                elif value is None:
                    transaction.delete(database, key)
                else:
                    transaction.put(database, key, value)

    def compact(self, tries: int = 8) -> None:
        """Replace the file with a verified compact copy that contains no deleted data. Durable on return.

        Writes wait; reads wait only while the file is replaced. If the process is killed, either the old or the new
        file remains. Raises `full` and `damaged`. Raises `TimeoutError` if open transactions have not ended after
        `tries` attempts of 2 s. Do not call it inside a `write` on the same thread.
        """
        copy = room_for_copy(self.path)
        try:
            with self._failures.system_errors_translated(), self._without_writes(tries):
                self._copy_pairs(copy)
                clear_unused(copy)
                self._require_equal(copy)
                flush_copy(copy)
                with self._swapping(), self._without_transactions(tries):
                    try:
                        self._engine.close()
                        replace_by_copy(copy)
                    finally:
                        self._reopen()
        finally:
            discard_copy(copy)

    def _copy_pairs(self, folder: Path) -> None:
        """Write a compact copy pair by pair, because LMDB's own copy keeps deleted keys. Not fsynced."""
        aside = folder / "pairs"
        aside.mkdir(mode=0o700)
        options: dict[str, Any] = {
            "map_size": self.map_size_bytes,
            "max_dbs": len(self._databases) + _SPARE_DATABASES,
        }
        with self._failures.translated(), closing(lmdb.open(str(aside), sync=False, mode=0o600, **options)) as target:
            with self._transactions.shared():
                self._put_all_into(target)
            target.copy(str(folder), compact=True)
        shutil.rmtree(aside)

    def _put_all_into(self, target: Any) -> None:
        with self._engine.begin() as source:
            names = list(source.cursor().iternext(values=False))
        handles = [(self._engine.open_db(name, create=False), target.open_db(name)) for name in names]
        with self._engine.begin() as source:
            for database, copy in handles:
                for chunk in in_chunks(source.cursor(db=database)):
                    with target.begin(write=True) as transaction:
                        transaction.cursor(db=copy).putmulti(chunk, append=True)

    def replace_by(self, copy: Path) -> None:
        """Close, and replace the file with the copy from `room_for_copy`. Durable. Raises `failed`, `full`,
        `TimeoutError`.
        """
        with self._failures.system_errors_translated():
            flush_copy(copy)
            with self._swapping(), self._without_transactions(1):
                self._engine.close()
                replace_by_copy(copy)

    def _require_equal(self, folder: Path) -> None:
        opened = Environment.open(
            folder, self.map_size_bytes, self.databases, errors=self.errors, readonly=True, encryption=self._encryption
        )
        with closing(opened) as copy, self.read() as original, copy.read() as copied:
            for name in self.databases:
                if _digest(original.scan_stored(name)) != _digest(copied.scan_stored(name)):
                    raise self.errors.damaged(f"{self.path}: the copy of {name} differs from the original")

    def _swapping(self) -> AbstractContextManager[None]:
        return nullcontext() if self._lock is None else self._lock.swapping()

    @contextmanager
    def _without_writes(self, tries: int) -> Iterator[None]:
        with holding(self._writing, 2 * tries * _TURN_S) as is_held:
            if not is_held:
                raise TimeoutError(f"{self.path}: a write transaction did not end in time")
            yield

    @contextmanager
    def _without_transactions(self, tries: int) -> Iterator[None]:
        """Block new transactions, wait for open ones to end, and run the block."""
        with ExitStack() as stack:
            for attempt in range(tries):
                if attempt:
                    time.sleep(_TURN_S)  # one long read must not delay all others
                try:
                    stack.enter_context(self._transactions.exclusive(_TURN_S))
                except TimeoutError:
                    continue
                break
            else:
                raise TimeoutError(f"{self.path}: a transaction did not end in time")
            yield

    @property
    def file_bytes(self) -> int:
        """Size of the file up to the last used page; the rest of the file is a hole."""
        with self._transactions.shared():
            return int((self._engine.info()["last_pgno"] + 1) * self._engine.stat()["psize"])

    def close(self) -> None:
        """Close, and release the lock. LMDB waits for open transactions in other threads. Idempotent."""
        if os.getpid() == self._pid:
            self._engine.close()
        if self._lock is not None:
            self._lock.release()


class _Failures:
    engine: type[Exception] = lmdb.Error

    def __init__(self, errors: ErrorFamily, path: Path, map_size_bytes: int) -> None:
        self.errors = errors
        self.path = path
        self.map_size_bytes = map_size_bytes

    def translate(self, error: lmdb.Error) -> Exception:
        # py-lmdb reports ENOSPC as DiskError; only the text of its errors identifies other system errors.
        if isinstance(error, lmdb.MapFullError | lmdb.DiskError) or means_no_room(str(error), self.path):
            return self.errors.full(str(self.path), self.map_size_bytes)
        if isinstance(error, _DAMAGE):
            return self.damaged(str(error))
        return self.errors.failed(f"{self.path}: {error}")

    @contextmanager
    def translated(self) -> Iterator[None]:
        try:
            yield
        except lmdb.Error as error:
            raise self.translate(error) from error

    @contextmanager
    def system_errors_translated(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError:  # from a lock; it is also an `OSError`
            raise
        except OSError as error:
            raise self.of_system(error) from error

    def of_system(self, error: OSError) -> Exception:
        return self.errors.of_system(error, self.path, self.map_size_bytes)

    def damaged(self, message: str) -> Exception:
        return self.errors.damaged(f"{self.path}: {message}")


def in_chunks(pairs: Iterable[tuple[bytes, bytes]]) -> Iterator[list[tuple[bytes, bytes]]]:
    """Yield pairs in lists of at most 256 pairs and 4 MiB; a larger pair gets its own list."""
    chunk: list[tuple[bytes, bytes]] = []
    size = 0
    for pair in pairs:
        length = len(pair[0]) + len(pair[1])
        if chunk and (len(chunk) == _AT_ONCE or size + length > _AT_ONCE_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(pair)
        size += length
    if chunk:
        yield chunk


def _open_databases(engine: Any, names: Sequence[str], *, readonly: bool) -> dict[str, Any]:
    """Return the handles by name. If an older read-only file lacks a database, its handle is None."""
    handles = dict.fromkeys(names)
    for name in names:
        with suppress(*(lmdb.NotFoundError,) if readonly else ()):
            handles[name] = engine.open_db(name.encode(), create=not readonly)
    return handles


def _open_engine(failures: _Failures, databases: int, *, readonly: bool) -> Any:
    """Open the engine, free the slots of dead readers, and check the pages before LMDB reads any."""
    path = failures.path
    _require_whole(failures)
    engine = lmdb.open(
        str(path),
        map_size=failures.map_size_bytes,
        max_dbs=databases + _SPARE_DATABASES,
        readonly=readonly,
        create=not readonly,
        sync=True,
        metasync=True,
        writemap=False,
        mode=0o600,
    )
    try:
        if not readonly:
            engine.reader_check()
        fault = examine(engine.begin, path)
    except BaseException as error:
        engine.close()
        if isinstance(error, CommitGoneError):
            raise failures.errors.failed(f"{path}: {error}") from error
        raise
    if fault is not None:
        engine.close()
        raise failures.damaged(f"{fault}; {_ADVICE}")
    return engine


def _require_whole(failures: _Failures) -> None:
    """Reject a file that was truncated within its meta pages, because LMDB would treat it as a new file."""
    file = failures.path / DATA_FILE
    if file.exists() and 0 < file.stat().st_size < 2 * os.sysconf("SC_PAGESIZE"):
        raise failures.damaged(f"{DATA_FILE} was truncated to {file.stat().st_size} bytes")


def _digest(pairs: Iterable[Pair]) -> bytes:
    digest = xxhash.xxh3_128()
    for key, value in pairs:
        digest.update(len(key).to_bytes(4, "big") + key + len(value).to_bytes(4, "big"))
        digest.update(value)
    return digest.digest()
