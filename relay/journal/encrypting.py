"""Encrypts a plain journal: copies each entry into a new file, which then replaces the old file atomically."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from functools import partial
from pathlib import Path

from relay.config import JournalSettings
from relay.crypto import KeyRing, Put, encrypt_in_place
from relay.disk import Transaction
from relay.errors import EntryDamagedError
from relay.journal import entries
from relay.journal.file import MARK, claim_ring, open_copy, open_file, read_mark
from relay.journal.journal import Journal
from relay.journal.quarantine import user_of
from relay.journal.sealing import Sealing

_COPIED_UNCHANGED = ("users", "consumers", "sources")
_SIZES = (b"event_bytes", b"quarantine_bytes")
_PAGE = 1_000


def encrypt_journal(folder: Path, settings: JournalSettings, keys: KeyRing, now: datetime) -> int:
    """Encrypt the closed journal in `folder`; return the number of its events. Durable on return. Idempotent.

    If the process is killed at any time, either the old or the new file remains. Damaged entries are moved to the
    quarantine. Raises `JournalError`s, `KeyFileError` and `EncryptionKeyMissingError`.
    """
    mark = read_mark(folder, settings)
    if not mark.is_new and mark.key_id is None:
        with Journal.open(folder, settings) as journal:
            _set_damaged_aside(journal, now)
        with closing(open_file(folder, settings)) as environment:
            ring = claim_ring(keys)
            encrypt_in_place(
                environment,
                partial(open_copy, settings=settings),
                lambda transaction: _Encrypted(transaction, Sealing(keys), ring).puts(),
            )
    with Journal.open(folder, settings, keys=keys) as journal:
        return journal.stats().entries


def _set_damaged_aside(journal: Journal, now: datetime) -> None:
    after_seq = 0
    while True:
        try:
            page = journal.read(after_seq, _PAGE)
        except EntryDamagedError as error:
            journal.set_aside(error.seq, now)
            continue
        if not page:
            return
        after_seq = page[-1].seq


class _Encrypted:
    def __init__(self, transaction: Transaction, sealing: Sealing, mark: bytes) -> None:
        self._transaction = transaction
        self._sealing = sealing
        self._mark = mark

    def puts(self) -> Iterator[Put]:
        for database in _COPIED_UNCHANGED:
            yield from ((database, key, value) for key, value in self._transaction.scan(database))
        yield from (
            (entries.COUNTERS, key, value)
            for key, value in self._transaction.scan(entries.COUNTERS)
            if key not in _SIZES
        )
        yield entries.COUNTERS, MARK, self._mark
        yield from (("ids", self._id_key(key), value) for key, value in self._transaction.scan("ids"))
        yield from (
            ("forgotten", key, value[:8] + self._id_key(value[8:]))
            for key, value in self._transaction.scan("forgotten")
        )
        yield from self._events()
        yield from self._quarantine()

    def _events(self) -> Iterator[Put]:
        size_bytes = 0
        for key, value in self._transaction.scan("events"):
            plain = entries.load_event(key, value)
            assert isinstance(plain, entries.StoredEvent), "damaged entries were set aside"
            event_key = self._sealing.id_key(plain.user_id, plain.event_id)
            stored = self._sealing.event(key, plain, event_key)
            size_bytes += stored.size_bytes
            yield "events", key, entries.dump_entry(key, stored)
        yield entries.COUNTERS, _SIZES[0], entries.number_key(size_bytes)

    def _quarantine(self) -> Iterator[Put]:
        size_bytes, digests = 0, set()
        for key, value in self._transaction.scan("quarantine"):
            plain = entries.load_quarantine(key, value)
            if not isinstance(plain, entries.StoredQuarantine):
                reason = "the quarantine entry does not match its checksum"
                plain = entries.StoredQuarantine(value, EntryDamagedError.code, reason, "quarantine", 0, None, key)
            user_id = user_of(plain.data, plain.source)
            digest = self._sealing.digest(user_id, plain.digest)
            plain = entries.StoredQuarantine(
                plain.data, plain.code, plain.reason, plain.source, plain.quarantined_ms, plain.seq, digest
            )
            stored = self._sealing.quarantine(key, user_id, plain)
            size_bytes += stored.size_bytes
            yield "quarantine", key, entries.dump_entry(key, stored)
            if digest not in digests:
                digests.add(digest)
                yield "unread", digest, key
        yield entries.COUNTERS, _SIZES[1], entries.number_key(size_bytes)

    def _id_key(self, plain: bytes) -> bytes:
        user_id, _, event_id = plain.partition(b"\0")
        return self._sealing.id_key(user_id.decode(), event_id.decode())
