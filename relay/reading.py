"""Going over the entries of a journal in order: all of them, or one user's.

An entry whose key is gone is passed, as one that was erased is: nobody is held up by what nobody can read. A damaged
one ends it, so that whoever reads can have it set aside.
"""

from __future__ import annotations

from collections.abc import Iterator

from relay.disk import Environment, Transaction
from relay.entries import StoredEvent, number, number_key, open_event, user_key
from relay.errors import EncryptionKeyMissingError, EntryDamagedError
from relay.sealing import Sealing
from relay.wire import JournalEntry


class Reading:
    """Works inside transactions of the journal. `locked` counts the entries that were passed for want of a key."""

    def __init__(self, environment: Environment, sealing: Sealing) -> None:
        self._environment = environment
        self._sealing = sealing
        self.locked = 0

    def entries(self, transaction: Transaction, after_seq: int, user_id: str | None) -> Iterator[JournalEntry]:
        """Go over the entries after a number, of one user when asked, up to a damaged one.

        Raises `EntryDamagedError` when the first entry is damaged.
        """
        first, sealing = True, self._sealing.at_once()
        for key, value in self._values(transaction, after_seq, user_id):
            try:
                stored = _opened(key, value, sealing)
            except EncryptionKeyMissingError:
                self.locked += 1
                continue
            if stored is None and not first:
                return
            if stored is None:
                raise EntryDamagedError(str(self._environment.path), number(key))
            first = False
            yield JournalEntry(number(key), stored.user_id, stored.event_type, stored.data, stored.origin)

    def seqs_of(self, transaction: Transaction, user_id: str, after_seq: int) -> Iterator[int]:
        """Go over the numbers of one user's entries."""
        prefix = user_key(user_id)
        with transaction.cursor(db=self._environment.databases["users"]) as cursor:
            if cursor.set_range(user_key(user_id, after_seq + 1)):
                for key in cursor.iternext(keys=True, values=False):
                    if not key.startswith(prefix):
                        return
                    yield number(key)

    def _values(self, transaction: Transaction, after_seq: int, user_id: str | None) -> Iterator[tuple[bytes, bytes]]:
        events = self._environment.databases["events"]
        if user_id:
            for key in map(number_key, self.seqs_of(transaction, user_id, after_seq)):
                value: bytes | None = transaction.get(key, db=events)
                if value is not None:
                    yield key, value
            return
        with transaction.cursor(db=events) as cursor:
            if cursor.set_range(number_key(after_seq + 1)):
                yield from cursor


def _opened(key: bytes, value: bytes, sealing: Sealing) -> StoredEvent | None:
    stored = open_event(key, value)
    return None if stored is None else sealing.open_event(key, stored)
