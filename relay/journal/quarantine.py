"""The quarantine of a journal: bytes that are not an event, and events that could not be handled, with the reason.

Entries are never evicted. When the quarantine is full, more bytes are rejected and counted, so that a broken emitter
cannot fill the disk. Events of the journal (`seq`) always fit, because the journal bounds their number. Equal bytes
from one source are stored once. `answers` implements retries.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from hashlib import blake2b
from typing import NamedTuple

from relay.access import Principal
from relay.config import JournalSettings
from relay.disk import Transaction
from relay.errors import EncryptionKeyMissingError
from relay.journal.entries import (
    AnyQuarantine,
    StoredQuarantine,
    add_to_counter,
    counter,
    dump_entry,
    load_quarantine,
    milliseconds,
    moment,
    number,
    number_key,
)
from relay.journal.sealing import Sealing
from relay.journal.sources import source_name, user_of
from relay.wire import QuarantineEntry

REFUSED = 0
"""Returned instead of an id if the entry does not fit."""


class Suspect(NamedTuple):
    """Bytes or an event to quarantine. `seq` is set for an event of the journal."""

    data: bytes
    code: str
    reason: str
    source: str
    seq: int | None = None


class Quarantine:
    """The quarantine of one journal. Its methods run inside the caller's transactions."""

    def __init__(self, settings: JournalSettings, sealing: Sealing) -> None:
        self._settings = settings
        self._sealing = sealing

    def add(self, transaction: Transaction, suspect: Suspect, now: datetime) -> int:
        """Store `suspect` and return its id, which is the existing id for a repeat and `REFUSED` if it does not fit."""
        user_id = user_of(suspect.data, suspect.source)
        digest = self._sealing.digest(user_id, _digest(suspect))
        known = transaction.get("unread", digest)
        if known is not None:
            return number(known)
        if suspect.seq is None and self._is_full(transaction, len(suspect.data)):
            add_to_counter(transaction, "quarantine_refused", 1)
            return REFUSED
        entry_id = add_to_counter(transaction, "quarantine_last_id", 1)
        key = number_key(entry_id)
        plain = StoredQuarantine(*suspect[:4], milliseconds(now), suspect.seq, digest)
        stored = self._sealing.quarantine(key, user_id, plain)
        transaction.append_all("quarantine", [(key, dump_entry(key, stored))])
        transaction.put("unread", digest, key)
        add_to_counter(transaction, "quarantine_bytes", stored.size_bytes)
        return entry_id

    def after(self, transaction: Transaction, after: int, limit: int) -> list[QuarantineEntry]:
        """Return at most `limit` entries with an id above `after`, in order."""
        return [entry for _, entry in zip(range(limit), self._scan(transaction, after), strict=False)]

    def get(self, transaction: Transaction, entry_id: int) -> QuarantineEntry | None:
        key = number_key(entry_id)
        value = transaction.get("quarantine", key)
        return None if value is None else self._opened(key, value)

    def remove(self, transaction: Transaction, entry_id: int) -> bool:
        """Remove an entry; return False if it does not exist."""
        key = number_key(entry_id)
        value = transaction.get("quarantine", key)
        if value is None:
            return False
        transaction.delete("quarantine", key)
        stored = load_quarantine(key, value)
        if stored is not None:
            transaction.delete("unread", stored.digest)
            add_to_counter(transaction, "quarantine_bytes", -stored.size_bytes)
        return True

    def count(self, transaction: Transaction) -> int:
        return transaction.count("quarantine")

    def size_bytes(self, transaction: Transaction) -> int:
        return counter(transaction, "quarantine_bytes")

    def refused(self, transaction: Transaction) -> int:
        return counter(transaction, "quarantine_refused")

    def _scan(self, transaction: Transaction, after: int) -> Iterator[QuarantineEntry]:
        for key, value in transaction.scan("quarantine", number_key(after + 1)):
            yield self._opened(key, value)

    def _opened(self, key: bytes, value: bytes) -> QuarantineEntry:
        sealed = load_quarantine(key, value)
        try:
            stored = None if sealed is None else self._sealing.open_quarantine(key, sealed)
        except EncryptionKeyMissingError as error:
            assert sealed is not None
            return _locked(number(key), sealed, error)
        if stored is None:
            return _damaged(number(key), value)
        return QuarantineEntry(
            id=number(key),
            data=stored.data,
            code=stored.code,
            reason=stored.reason,
            source=stored.source,
            quarantined_at=moment(stored.quarantined_ms),
            seq=stored.seq,
        )

    def _is_full(self, transaction: Transaction, more_bytes: int) -> bool:
        return (
            self.count(transaction) >= self._settings.quarantine_max_entries
            or self.size_bytes(transaction) + more_bytes > self._settings.quarantine_max_bytes
        )


def _damaged(entry_id: int, value: bytes) -> QuarantineEntry:
    return QuarantineEntry(
        id=entry_id,
        data=value,
        code="entry_damaged",
        reason="the quarantine entry does not match its checksum",
        source="quarantine",
        quarantined_at=moment(0),
    )


def _locked(entry_id: int, sealed: AnyQuarantine, error: EncryptionKeyMissingError) -> QuarantineEntry:
    """Return the readable part of an entry whose key is missing. It includes the user, so the entry can be erased."""
    return QuarantineEntry(
        id=entry_id,
        data=b"",
        code=error.code,
        reason=str(error),
        source=source_name("locked", "", Principal("", error.user_id, frozenset())),
        quarantined_at=moment(sealed.quarantined_ms),
        seq=sealed.seq,
    )


def _digest(suspect: Suspect) -> bytes:
    what = suspect.data if suspect.seq is None else number_key(suspect.seq)
    return blake2b(what, digest_size=16, key=blake2b(suspect.source.encode(), digest_size=32).digest()).digest()
