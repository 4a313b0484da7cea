"""Encrypts and reads the entries of a journal (events, their ids, the quarantine), each with its user's key.

User ids, numbers, times and sizes are not encrypted, so an entry whose key is missing can still be deleted, erased and
checked. Readers skip such an entry as if it had been erased.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from relay import errors
from relay.crypto import Cipher, KeyRing
from relay.disk import Pair, Transaction
from relay.event import ON_BEHALF_OF, read_event
from relay.journal import entries
from relay.validation import SYSTEM_USER, validate_user_id
from relay.wire import JournalEntry

PURPOSE = "journal"


class Sealing:
    """Encrypts the entries of one journal with the keys of a ring, or leaves them unencrypted without a ring."""

    def __init__(self, keys: KeyRing | _KeySnapshot | None, ring: bytes | None = None) -> None:
        """`ring` is the id of the system key in the only permitted ring; None permits any ring."""
        self._keys = keys
        self._ring = ring

    def at_once(self) -> Sealing:
        """Return a `Sealing` that looks up each user's key only once, for one transaction on one thread."""
        return Sealing(_KeySnapshot(self._keys), self._ring) if isinstance(self._keys, KeyRing) else self

    def require_keys(self) -> None:
        """Raise `KeysUnavailableError` if the keys folder is missing or contains other keys."""
        if self._keys is not None:
            with _as_unavailable():
                found = self._keys.cipher(SYSTEM_USER, PURPOSE).key_id
            if self._ring not in (None, found):
                raise errors.KeysUnavailableError(f"{self._keys.folder} does not contain the keys of this journal")

    def id_key(self, user_id: str, event_id: str) -> bytes:
        """Return the key under which an event's id is stored. Creates a missing encryption key."""
        if self._keys is None:
            return entries.id_key(user_id, event_id)
        return entries.user_key(user_id) + self._own(user_id).name(event_id.encode())

    def event(self, key: bytes, stored: entries.StoredEvent, event_key: bytes) -> entries.AnyEvent:
        if self._keys is None:
            return stored
        owner = _owner_of(stored)
        cipher = self._own(owner or stored.user_id)
        name = event_key[len(entries.user_key(stored.user_id)) :]
        sealed = cipher.seal(entries.pack(stored), key + name)
        return entries.SealedEvent(stored.received_ms, stored.user_id, name, cipher.key_id, sealed, owner)

    def open_event(self, key: bytes, stored: entries.AnyEvent) -> entries.StoredEvent | None:
        """Return the plain event, or None if it was not stored under this key. Raises `EncryptionKeyMissingError`."""
        if not isinstance(stored, entries.SealedEvent):
            return stored if self._keys is None else None
        plain = self._open(stored, stored.owner or stored.user_id, key + stored.name)
        opened = None if plain is None else entries.unpack_event(plain)
        return opened if isinstance(opened, entries.StoredEvent) else None

    def digest(self, user_id: str, digest: bytes) -> bytes:
        """Return the stored form of a digest, which reveals nothing without the user's key."""
        return digest if self._keys is None else self._own(user_id).fingerprint(digest)

    def quarantine(self, key: bytes, user_id: str, stored: entries.StoredQuarantine) -> entries.AnyQuarantine:
        if self._keys is None:
            return stored
        cipher = self._own(user_id)
        sealed = cipher.seal(entries.pack(stored), key)
        return entries.SealedQuarantine(
            user_id, cipher.key_id, sealed, stored.quarantined_ms, stored.seq, stored.digest
        )

    def open_quarantine(self, key: bytes, stored: entries.AnyQuarantine) -> entries.StoredQuarantine | None:
        if not isinstance(stored, entries.SealedQuarantine):
            return stored if self._keys is None else None
        plain = self._open(stored, stored.user_id, key)
        opened = None if plain is None else entries.unpack_quarantine(plain)
        return opened if isinstance(opened, entries.StoredQuarantine) else None

    def _own(self, user_id: str) -> Cipher:
        assert self._keys is not None
        with _as_unavailable():
            return self._keys.cipher(user_id, PURPOSE, create=True)

    def _open(self, stored: entries.SealedEvent | entries.SealedQuarantine, user_id: str, about: bytes) -> bytes | None:
        if self._keys is None:
            return None
        try:
            cipher = self._keys.cipher(user_id, PURPOSE)
        except errors.MalformedEventError:
            return None  # no user with this name has ever been stored
        if cipher.key_id != stored.key_id:
            raise errors.EncryptionKeyMissingError(user_id, str(self._keys.folder))
        try:
            return cipher.open(stored.sealed, about)
        except errors.UndecipherableError:
            return None


class _KeySnapshot:
    """A cache of a ring's ciphers. It saves 5 us for each event of a user after the first."""

    def __init__(self, ring: KeyRing) -> None:
        self._ring = ring
        self.folder = ring.folder
        self._known: dict[str, Cipher | errors.EncryptionKeyMissingError] = {}

    def cipher(self, user_id: str, purpose: str, *, create: bool = False) -> Cipher:
        known = self._known.get(user_id)
        if known is None:
            try:
                known = self._ring.cipher(user_id, purpose, create=create)
            except errors.EncryptionKeyMissingError as error:
                known = error
            self._known[user_id] = known
        if isinstance(known, errors.EncryptionKeyMissingError):
            raise known.with_traceback(None)  # otherwise, the traceback grows each time and keeps the entry alive
        return known


@contextmanager
def _as_unavailable() -> Iterator[None]:
    try:
        yield
    except (errors.EncryptionKeyMissingError, errors.KeyFileError) as error:
        raise errors.KeysUnavailableError(str(error)) from error


def _owner_of(stored: entries.StoredEvent) -> str:
    """Return the user named as owner by an event of `system`, or an empty string."""
    if stored.user_id != SYSTEM_USER:
        return ""
    try:
        return validate_user_id(read_event(stored.data).extra.get(ON_BEHALF_OF))
    except errors.MalformedEventError:
        return ""


class Reading:
    """Reads the entries of one journal in order. `locked` counts entries that were skipped because their key is
    missing.
    """

    def __init__(self, path: Path, sealing: Sealing) -> None:
        self._path = path
        self._sealing = sealing
        self.locked = 0

    def entries(self, transaction: Transaction, after_seq: int, user_id: str | None) -> Iterator[JournalEntry]:
        """Yield entries, and stop before a damaged entry. Raises `EntryDamagedError` if the first entry is damaged."""
        first, sealing = True, self._sealing.at_once()
        for key, value in self._values(transaction, after_seq, user_id):
            stored = entries.load_event(key, value)
            try:
                plain = None if stored is None else sealing.open_event(key, stored)
            except errors.EncryptionKeyMissingError:
                self.locked += 1
                continue
            if plain is None and not first:
                return
            if plain is None:
                raise errors.EntryDamagedError(str(self._path), entries.number(key))
            first = False
            yield JournalEntry(
                entries.number(key), plain.user_id, plain.event_type, plain.data, plain.origin, plain.received_ms
            )

    def seqs_of(self, transaction: Transaction, user_id: str, after_seq: int) -> Iterator[int]:
        start, end = entries.user_key(user_id, after_seq + 1), user_id.encode() + b"\1"
        return (entries.number(key) for key, _ in transaction.scan("users", start, end))

    def _values(self, transaction: Transaction, after_seq: int, user_id: str | None) -> Iterator[Pair]:
        if not user_id:
            yield from transaction.scan("events", entries.number_key(after_seq + 1))
            return
        for key in map(entries.number_key, self.seqs_of(transaction, user_id, after_seq)):
            value = transaction.get("events", key)
            if value is not None:
                yield key, value
