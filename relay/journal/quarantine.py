"""The quarantine of a journal: stores malformed events, and events that could not be handled, with the reasons.

Entries are never evicted. A full quarantine rejects and counts further bytes. Events from the journal (with a `seq`)
are always accepted. A source identifies the user, and the intake or consumer that quarantined the bytes. Identical
bytes from the same source are stored only once.
"""

from __future__ import annotations

from datetime import datetime
from hashlib import blake2b
from itertools import islice
from typing import NamedTuple

from relay.access import Principal, Scope
from relay.config import EventLimits, JournalSettings
from relay.disk import Transaction
from relay.errors import EncryptionKeyMissingError, EntryDamagedError, MalformedEventError
from relay.event import decode_mapping
from relay.journal import entries
from relay.journal.sealing import Sealing
from relay.validation import SYSTEM_USER, validate_user_id
from relay.wire import QuarantineEntry

REFUSED = 0
_OF_USER = "@"
_OF_MEMORY = "memory:"
_LIMITS = EventLimits(max_bytes=16 << 20)


class Suspect(NamedTuple):
    """Bytes or an event to quarantine. `seq` is set for an event from the journal."""

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
        """Store `suspect` and return its id. Returns the existing id if `suspect` is a repeat, and `REFUSED` if there
        is no room.
        """
        user_id = user_of(suspect.data, suspect.source)
        digest = self._sealing.digest(user_id, _digest(suspect))
        known = transaction.get("unread", digest)
        if known is not None:
            return entries.number(known)
        if suspect.seq is None and self._is_full(transaction, len(suspect.data)):
            entries.add_to_counter(transaction, "quarantine_refused", 1)
            return REFUSED
        entry_id = entries.add_to_counter(transaction, "quarantine_last_id", 1)
        key = entries.number_key(entry_id)
        plain = entries.StoredQuarantine(*suspect[:4], entries.milliseconds(now), suspect.seq, digest)
        stored = self._sealing.quarantine(key, user_id, plain)
        transaction.append_all("quarantine", [(key, entries.dump_entry(key, stored))])
        transaction.put("unread", digest, key)
        entries.add_to_counter(transaction, "quarantine_bytes", stored.size_bytes)
        return entry_id

    def after(self, transaction: Transaction, after: int, limit: int) -> list[QuarantineEntry]:
        pairs = islice(transaction.scan("quarantine", entries.number_key(after + 1)), max(limit, 0))
        return [self._opened(key, value) for key, value in pairs]

    def get(self, transaction: Transaction, entry_id: int) -> QuarantineEntry | None:
        key = entries.number_key(entry_id)
        value = transaction.get("quarantine", key)
        return None if value is None else self._opened(key, value)

    def remove(self, transaction: Transaction, entry_id: int) -> bool:
        key = entries.number_key(entry_id)
        value = transaction.get("quarantine", key)
        if value is None:
            return False
        transaction.delete("quarantine", key)
        stored = entries.load_quarantine(key, value)
        if stored is not None:
            transaction.delete("unread", stored.digest)
            entries.add_to_counter(transaction, "quarantine_bytes", -stored.size_bytes)
        return True

    def _opened(self, key: bytes, value: bytes) -> QuarantineEntry:
        sealed = entries.load_quarantine(key, value)
        try:
            stored = None if sealed is None else self._sealing.open_quarantine(key, sealed)
        except EncryptionKeyMissingError as error:
            assert sealed is not None
            source = source_name("locked", "", Principal("", error.user_id, frozenset()))  # needed to erase the entry
            stored = entries.StoredQuarantine(
                b"", error.code, str(error), source, sealed.quarantined_ms, sealed.seq, b""
            )
        if stored is None:
            reason = "the quarantine entry does not match its checksum"
            stored = entries.StoredQuarantine(value, EntryDamagedError.code, reason, "quarantine", 0, None, b"")
        return QuarantineEntry(
            id=entries.number(key),
            data=stored.data,
            code=stored.code,
            reason=stored.reason,
            source=stored.source,
            quarantined_at=entries.moment(stored.quarantined_ms),
            seq=stored.seq,
        )

    def _is_full(self, transaction: Transaction, more_bytes: int) -> bool:
        return (
            transaction.count("quarantine") >= self._settings.quarantine_max_entries
            or entries.counter(transaction, "quarantine_bytes") + more_bytes > self._settings.quarantine_max_bytes
        )


def _digest(suspect: Suspect) -> bytes:
    what = suspect.data if suspect.seq is None else entries.number_key(suspect.seq)
    return blake2b(what, digest_size=16, key=blake2b(suspect.source.encode(), digest_size=32).digest()).digest()


def source_name(kind: str, name: str, principal: Principal) -> str:
    """Return the source to store with quarantined bytes; it includes the user of the key."""
    if principal.user_id is not None:
        return f"{kind}{_OF_USER}{principal.user_id}/{name}"
    return f"{kind}:{name}" if name else kind


def publisher_of(source: str) -> Principal:
    """Return the principal for publishing quarantined bytes again, given a `source` from `source_name`."""
    kind, at, rest = source.partition(_OF_USER)
    is_of_user = bool(at) and ":" not in kind
    return Principal("quarantine", rest.partition("/")[0] if is_of_user else None, frozenset({Scope.PUBLISH}))


def user_of_source(source: str) -> str | None:
    """Return the user named in a source: the owner of a memory, or the user of the publishing key."""
    return source.removeprefix(_OF_MEMORY) if source.startswith(_OF_MEMORY) else publisher_of(source).user_id


def user_of(data: bytes, source: str) -> str:
    """Return the user whose key encrypts quarantined bytes: the user in the source or in the content, or `system`."""
    try:
        named = user_of_source(source) or decode_mapping(data, _LIMITS)
        return validate_user_id(named.get("user_id") if isinstance(named, dict) else named)
    except MalformedEventError:
        return SYSTEM_USER
