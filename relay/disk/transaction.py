"""The transactions of an LMDB environment, and the errors that they raise. Does not import LMDB."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from relay.disk.room import says_no_room

Pair = tuple[bytes, bytes]


class StoredChange(NamedTuple):
    """A change to one pair as stored (after encryption). If `key` is None, the whole database was cleared."""

    database: str
    key: bytes | None
    value: bytes | None  # None: deleted


OnCommit = Callable[[list[StoredChange] | None], None]
"""Receives the changes of a committed transaction, or None if the commit was interrupted and its outcome is unknown."""


class ErrorFamily(NamedTuple):
    """The exceptions for one kind of environment. The comments list their arguments."""

    failed: type[Exception]  # (message): unusable until it is reopened
    full: type[Exception]  # (path, limit_bytes): no space in the map or on the disk
    damaged: type[Exception]  # (message)
    in_use: type[Exception]  # (path, owner): another process may write
    fenced: Callable[[str, int, int], Exception]  # (path, own epoch, current epoch)
    is_encrypted: Callable[[str], Exception]  # (path): opened without a key
    not_encrypted: Callable[[str], Exception]  # (path): opened with a key

    def of_system(self, error: OSError, path: Path, limit_bytes: int) -> Exception:
        return self.full(str(path), limit_bytes) if says_no_room(error) else self.failed(f"{path}: {error.strerror}")


class Failures(Protocol):
    engine: type[Exception]

    def translate(self, error: Any) -> Exception: ...

    def damaged(self, message: str) -> Exception: ...


class PairCipher(Protocol):
    def key(self, database: str, key: bytes) -> bytes: ...

    def plain_key(self, database: str, stored: bytes) -> bytes: ...

    def seal(self, database: str, stored: bytes, value: bytes) -> bytes: ...

    def open(self, database: str, stored: bytes, sealed: bytes) -> bytes: ...


class Transaction:
    """A consistent view of an environment; a write transaction can also change the environment.

    A database without a handle is empty and cannot be written to. Keys are 1 to 511 bytes, sorted as bytes. Each method
    raises the errors of the environment.
    """

    def __init__(
        self,
        transaction: Any,
        databases: Mapping[str, Any],
        failures: Failures,
        recorded: list[StoredChange] | None = None,
    ) -> None:
        self._transaction = transaction
        self._databases = databases
        self._failures = failures
        self._recorded = recorded

    def get(self, database: str, key: bytes) -> bytes | None:
        handle = self._databases[database]
        try:
            value: bytes | None = None if handle is None else self._transaction.get(key, db=handle)
        except self._failures.engine as error:
            raise self._failures.translate(error) from error
        return value

    def put(self, database: str, key: bytes, value: bytes, *, append: bool = False) -> None:
        """Set `key` to `value`. `append` is a hint that `key` is the greatest key; pages are then filled completely."""
        handle = self._databases[database]
        try:
            if not (append and self._transaction.put(key, value, db=handle, append=True, overwrite=False)):
                self._transaction.put(key, value, db=handle)
        except self._failures.engine as error:
            raise self._failures.translate(error) from error
        if self._recorded is not None:
            self._recorded.append(StoredChange(database, key, value))

    def put_all(self, database: str, pairs: Collection[Pair]) -> None:
        """Set each key to its value, in half the time of separate `put` calls."""
        self._put_many(database, pairs, append=False)

    def append_all(self, database: str, pairs: Collection[Pair]) -> None:
        """Add pairs in ascending order, with keys above all existing keys. Raises `damaged` otherwise."""
        added = self._put_many(database, pairs, append=True)
        if added < len(pairs):
            first, _ = next(iter(pairs))
            raise self._failures.damaged(f"{database} already contains a key at or above {first.hex()}")

    def _put_many(self, database: str, pairs: Collection[Pair], *, append: bool) -> int:
        try:
            with self._transaction.cursor(db=self._databases[database]) as cursor:
                _, added = cursor.putmulti(pairs, append=append)
        except self._failures.engine as error:
            raise self._failures.translate(error) from error
        for key, value in pairs if self._recorded is not None else ():
            self._record(database, key, value)
        return int(added)

    def delete(self, database: str, key: bytes) -> bool:
        """Remove `key`; return whether it existed."""
        try:
            existed = bool(self._transaction.delete(key, db=self._databases[database]))
        except self._failures.engine as error:
            raise self._failures.translate(error) from error
        if existed:
            self._record(database, key, None)
        return existed

    def clear(self, database: str) -> None:
        try:
            self._transaction.drop(self._databases[database], delete=False)
        except self._failures.engine as error:
            raise self._failures.translate(error) from error
        self._record(database, None, None)

    def scan(
        self, database: str, start: bytes = b"", end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[Pair]:
        """Yield the pairs in order of their keys, from `start` (inclusive) to `end` (exclusive), or in reverse order.

        In a write transaction, do not change the database during the scan. Encrypted names are unordered and cannot
        serve as bounds.
        """
        return self.scan_stored(database, start, end, reverse=reverse)

    def scan_stored(
        self, database: str, start: bytes = b"", end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[Pair]:
        """Like `scan`, but yield the pairs without decrypting them."""
        if self._databases[database] is None:
            return
        try:
            with self._transaction.cursor(db=self._databases[database]) as cursor:
                yield from _down(cursor, start, end) if reverse else _up(cursor, start, end)
        except self._failures.engine as error:
            raise self._failures.translate(error) from error

    def stored_keys(self, database: str, start: bytes, end: bytes) -> Iterator[bytes]:
        """Yield the keys from `start` (inclusive) to `end` (exclusive) without decrypting them. Reads no values."""
        if self._databases[database] is None:
            return
        try:
            with self._transaction.cursor(db=self._databases[database]) as cursor:
                if cursor.set_range(start):
                    yield from takewhile(lambda key: key < end, cursor.iternext(keys=True, values=False))
        except self._failures.engine as error:
            raise self._failures.translate(error) from error

    def consume(self, database: str) -> Iterator[Pair]:
        """Yield the pairs in order without decrypting them; delete each pair when the next pair is requested.

        If the caller stops early, the last pair that it received is not deleted. Other databases may be changed
        meanwhile.
        """
        try:
            with self._transaction.cursor(db=self._databases[database]) as cursor:
                found = cursor.first()
                while found:
                    key, value = cursor.item()
                    yield key, value
                    cursor.delete()
                    self._record(database, key, None)
                    found = bool(cursor.key())
        except self._failures.engine as error:
            raise self._failures.translate(error) from error

    def first_key(self, database: str) -> bytes | None:
        return next((key for key, _ in self.scan(database)), None)

    def last_key(self, database: str) -> bytes | None:
        return next((key for key, _ in self.scan(database, reverse=True)), None)

    def count(self, database: str) -> int:
        return 0 if self._databases[database] is None else int(self._stat(database)["entries"])

    def used_bytes(self) -> int:
        """Return the total size of the pages in use in all databases, excluding free pages."""
        used = 0
        for name in (name for name, handle in self._databases.items() if handle is not None):
            stat = self._stat(name)
            used += stat["psize"] * (stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"])
        return used

    def _record(self, database: str, key: bytes | None, value: bytes | None) -> None:
        if self._recorded is not None:
            self._recorded.append(StoredChange(database, key, value))

    def _stat(self, database: str) -> dict[str, int]:
        try:
            stat: dict[str, int] = self._transaction.stat(self._databases[database])
        except self._failures.engine as error:
            raise self._failures.translate(error) from error
        return stat


class EncryptedTransaction(Transaction):
    """A transaction whose keys and values are encrypted on disk but plaintext to callers."""

    def __init__(
        self,
        transaction: Any,
        databases: Mapping[str, Any],
        failures: Failures,
        recorded: list[StoredChange] | None,
        cipher: PairCipher,
    ) -> None:
        super().__init__(transaction, databases, failures, recorded)
        self._cipher = cipher

    def get(self, database: str, key: bytes) -> bytes | None:
        stored = self._cipher.key(database, key)
        value = super().get(database, stored)
        return None if value is None else self._cipher.open(database, stored, value)

    def put(self, database: str, key: bytes, value: bytes, *, append: bool = False) -> None:
        stored = self._cipher.key(database, key)
        super().put(database, stored, self._cipher.seal(database, stored, value), append=append)

    def put_all(self, database: str, pairs: Collection[Pair]) -> None:
        super().put_all(database, self._sealed(database, pairs))

    def append_all(self, database: str, pairs: Collection[Pair]) -> None:
        super().append_all(database, self._sealed(database, pairs))

    def _sealed(self, database: str, pairs: Collection[Pair]) -> list[Pair]:
        stored = ((self._cipher.key(database, key), value) for key, value in pairs)
        return [(key, self._cipher.seal(database, key, value)) for key, value in stored]

    def delete(self, database: str, key: bytes) -> bool:
        return super().delete(database, self._cipher.key(database, key))

    def scan(
        self, database: str, start: bytes = b"", end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[Pair]:
        for stored, value in self.scan_stored(database, start, end, reverse=reverse):
            yield self._cipher.plain_key(database, stored), self._cipher.open(database, stored, value)


def _up(cursor: Any, start: bytes, end: bytes | None) -> Iterator[Pair]:
    if not (cursor.set_range(start) if start else cursor.first()):
        return
    if end is None:
        yield from cursor
        return
    for key, value in cursor:
        if key >= end:
            return
        yield key, value


def _down(cursor: Any, start: bytes, end: bytes | None) -> Iterator[Pair]:
    is_above = end is not None and cursor.set_range(end)
    if cursor.prev() if is_above else cursor.last():
        for key, value in cursor.iterprev():
            if key < start:
                return
            yield key, value
