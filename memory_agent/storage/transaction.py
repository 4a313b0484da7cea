"""One transaction of an LMDB environment, as whoever reads and writes it sees it. Knows no engine.

It is handed the engine's transaction. Given a way to encrypt (`encrypted`), it keeps keys and values so; nobody above
need know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from memory_agent.errors import StoreError
from memory_agent.storage.encrypted import Encrypted

Failures = tuple[type[Exception], Callable[[Any], StoreError]]


class Transaction:
    """A consistent view of the environment, and in a write transaction the way to change it.

    Databases are named; keys are 1 to 511 bytes and sorted as bytes.
    """

    def __init__(
        self, transaction: Any, databases: Mapping[str, Any], failures: Failures, encrypted: Encrypted | None
    ) -> None:
        """`failures` are what the engine raises, and what they are in our terms."""
        self._transaction = transaction
        self._databases = databases
        self._failure, self._translate = failures
        self._encrypted = encrypted

    def get(self, database: str, key: bytes) -> bytes | None:
        """Return the value under `key`, or None."""
        key = self._kept(database, key)
        try:
            value: bytes | None = self._transaction.get(key, db=self._databases[database])
        except self._failure as error:
            raise self._translate(error) from error
        return value if self._encrypted is None or value is None else self._encrypted.open(database, key, value)

    def put(self, database: str, key: bytes, value: bytes, *, append: bool = False) -> None:
        """Set `key` to `value`.

        `append` is a hint that `key` is greater than every key there is: pages are then filled to the brim instead of
        to the half. Where the hint is wrong it is ignored.
        """
        handle, key = self._databases[database], self._kept(database, key)
        if self._encrypted is not None:
            value = self._encrypted.seal(database, key, value)
        try:
            if append and self._transaction.put(key, value, db=handle, append=True, overwrite=False):
                return
        except self._failure as error:
            raise self._translate(error) from error
        self._put(handle, key, value)

    def _put(self, handle: Any, key: bytes, value: bytes) -> None:
        try:
            self._transaction.put(key, value, db=handle)
        except self._failure as error:
            raise self._translate(error) from error

    def delete(self, database: str, key: bytes) -> bool:
        """Remove `key`; return whether it was there."""
        try:
            return bool(self._transaction.delete(self._kept(database, key), db=self._databases[database]))
        except self._failure as error:
            raise self._translate(error) from error

    def clear(self, database: str) -> None:
        """Remove every key of a database."""
        try:
            self._transaction.drop(self._databases[database], delete=False)
        except self._failure as error:
            raise self._translate(error) from error

    def scan(
        self, database: str, start: bytes = b"", end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Go over keys and values in order, from the first key that is not less than `start`, to before `end`.

        Reversed: from the last key below `end` down to `start`. In a write transaction, do not change the database
        meanwhile. Encrypted names have no order, and are no bounds.
        """
        for key, value in self.scan_kept(database, start, end, reverse=reverse):
            if self._encrypted is None:
                yield key, value
            else:
                yield self._encrypted.plain_key(database, key), self._encrypted.open(database, key, value)

    def scan_kept(
        self, database: str, start: bytes = b"", end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """As `scan`, of keys and values as they are on the disk."""
        try:
            with self._transaction.cursor(db=self._databases[database]) as cursor:
                yield from _down(cursor, start, end) if reverse else _up(cursor, start, end)
        except self._failure as error:
            raise self._translate(error) from error

    def last_key(self, database: str) -> bytes | None:
        """Return the greatest key, or None when the database is empty."""
        return next((key for key, _ in self.scan(database, reverse=True)), None)

    def count(self, database: str) -> int:
        """Return the number of keys."""
        return int(self._stat(database)["entries"])

    def used_bytes(self) -> int:
        """Return the bytes of the pages that hold something, over all databases; free pages are not counted."""
        stats = [self._stat(name) for name in self._databases]
        return sum(s["psize"] * (s["branch_pages"] + s["leaf_pages"] + s["overflow_pages"]) for s in stats)

    def _kept(self, database: str, key: bytes) -> bytes:
        return key if self._encrypted is None else self._encrypted.key(database, key)

    def _stat(self, database: str) -> dict[str, int]:
        try:
            stat: dict[str, int] = self._transaction.stat(self._databases[database])
        except self._failure as error:
            raise self._translate(error) from error
        return stat


def _up(cursor: Any, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
    if cursor.set_range(start) if start else cursor.first():
        for key, value in cursor:
            if end is not None and key >= end:
                return
            yield key, value


def _down(cursor: Any, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
    is_above = end is not None and cursor.set_range(end)
    if cursor.prev() if is_above else cursor.last():
        for key, value in cursor.iterprev():
            if key < start:
                return
            yield key, value
