"""A journal that is not encrypted, turned into one that is: entry by entry into a new file, put in place whole.

What this does not do: overwrite the blocks of the old file, which are given up to the file system.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from itertools import islice
from pathlib import Path

from relay.config import JournalSettings
from relay.crypto import KeyRing
from relay.disk import Environment, Transaction, discard_copy, room_for_copy
from relay.encryption_mark import is_encrypted, set_mark
from relay.entries import (
    DATABASES,
    StoredEvent,
    StoredQuarantine,
    number_key,
    open_event,
    open_quarantine,
    seal,
)
from relay.errors import EntryDamagedError
from relay.journal import Journal
from relay.sealing import Sealing, user_of

_AS_THEY_ARE = ("users", "consumers", "sources", "counters")
_PAGE = 1_000

Put = tuple[str, bytes, bytes]
"""A database, a key and a value."""


def encrypt_journal(folder: Path, settings: JournalSettings, keys: KeyRing, now: datetime) -> int:
    """Encrypt the journal in `folder`, which nobody has open; return how many events it holds. Durable on return.

    Killed at any moment, it leaves the old file or the new one, whole; one that is encrypted already stays as it is.
    Damaged entries go to its quarantine. Raises `JournalInUseError`, `JournalFullError`, other `JournalError`s,
    `KeyFileError`, `EncryptionKeyMissingError`.
    """
    if is_encrypted(folder, settings) is False:
        with Journal.open(folder, settings) as journal:
            _set_damaged_aside(journal, now)
        with closing(Environment.open(folder, settings.map_size_bytes, DATABASES)) as environment:
            copy = room_for_copy(folder)
            try:
                _write_copy(environment, copy, settings, keys)
                environment.put_in_place(copy)
            finally:
                discard_copy(copy)
    with Journal.open(folder, settings, keys=keys) as journal:
        return journal.stats().entries


def _set_damaged_aside(journal: Journal, now: datetime) -> None:
    after_seq = 0
    while True:
        try:
            entries = journal.read(after_seq, _PAGE)
        except EntryDamagedError as error:
            journal.set_aside(error.seq, now)
            continue
        if not entries:
            return
        after_seq = entries[-1].seq


def _write_copy(environment: Environment, copy: Path, settings: JournalSettings, keys: KeyRing) -> None:
    with (
        environment.read() as transaction,
        closing(Environment.open(copy, settings.map_size_bytes, DATABASES)) as target,
    ):
        puts = _Encrypted(environment, transaction, Sealing(keys)).puts()
        while page := list(islice(puts, _PAGE)):
            with target.write() as writing:
                for database, key, value in page:
                    writing.put(key, value, db=target.databases[database])
        with target.write() as writing:
            set_mark(target, writing, keys)


class _Encrypted:
    """What a journal holds, as it is when it is encrypted."""

    def __init__(self, environment: Environment, transaction: Transaction, sealing: Sealing) -> None:
        self._databases = environment.databases
        self._transaction = transaction
        self._sealing = sealing

    def puts(self) -> Iterator[Put]:
        """Go over everything that the new file is to hold; sizes come last, when they are known."""
        for database in _AS_THEY_ARE:
            yield from ((database, key, value) for key, value in self._items(database))
        yield from (("ids", self._id_key(key), value) for key, value in self._items("ids"))
        yield from (("forgotten", key, value[:8] + self._id_key(value[8:])) for key, value in self._items("forgotten"))
        yield from self._events()
        yield from self._quarantine()

    def _events(self) -> Iterator[Put]:
        size_bytes = 0
        for key, value in self._items("events"):
            plain = open_event(key, value)
            assert isinstance(plain, StoredEvent), "damaged entries were set aside"
            event_key = self._sealing.id_key(plain.user_id, plain.event_id)
            stored = self._sealing.event(key, plain, event_key)
            size_bytes += stored.size_bytes
            yield "events", key, seal(key, stored)
        yield "counters", b"event_bytes", number_key(size_bytes)

    def _quarantine(self) -> Iterator[Put]:
        size_bytes = 0
        for key, value in self._items("quarantine"):
            plain = open_quarantine(key, value)
            if not isinstance(plain, StoredQuarantine):
                reason = "the quarantine entry does not match its checksum"
                plain = StoredQuarantine(value, EntryDamagedError.code, reason, "quarantine", 0, None, key)
            user_id = user_of(plain.data, plain.source)
            digest = self._sealing.digest(user_id, plain.digest)
            plain = StoredQuarantine(
                plain.data, plain.code, plain.reason, plain.source, plain.quarantined_ms, plain.seq, digest
            )
            stored = self._sealing.quarantine(key, user_id, plain)
            size_bytes += stored.size_bytes
            yield "quarantine", key, seal(key, stored)
            yield "unread", digest, key
        yield "counters", b"quarantine_bytes", number_key(size_bytes)

    def _id_key(self, plain: bytes) -> bytes:
        user_id, _, event_id = plain.partition(b"\0")
        return self._sealing.id_key(user_id.decode(), event_id.decode())

    def _items(self, database: str) -> Iterator[tuple[bytes, bytes]]:
        with self._transaction.cursor(db=self._databases[database]) as cursor:
            yield from cursor
