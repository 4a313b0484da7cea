"""Deletes old entries of a journal by age and size; by default, only entries that every consumer has read.

Deletes entries in bounded transactions, so that appends can run between them. An id is retained for `repeat_horizon_s`
after its event was received. LMDB reuses freed pages. No keys are needed, because times and sizes are not encrypted.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from relay.config import JournalSettings
from relay.disk import Environment, Transaction, keep_reserve, release_reserve
from relay.errors import JournalFullError
from relay.journal import entries

_CHUNK = 1_000


class RetentionReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one run. `held_by` is the consumer that prevented further deletions.

    If `retention_ignores_consumers` is set, `passed` gives, for each consumer, the number of its unread entries that
    were deleted.
    """

    deleted: int = 0
    deleted_bytes: int = 0
    first_seq: int = 1
    held_by: str | None = None
    passed: dict[str, int] = {}


class Retention:
    """Deletes the old entries of one journal."""

    def __init__(self, environment: Environment, settings: JournalSettings) -> None:
        self._environment = environment
        self._settings = settings

    def retain(self, now: datetime) -> RetentionReport:
        """Delete the entries beyond the configured age and size. Durable on return. Raises `JournalFullError`."""
        deleted, deleted_bytes = 0, 0
        target, held_by, passed = self._plan(now)
        while chunk := self._delete_chunk(target, now):
            deleted += chunk[0]
            deleted_bytes += chunk[1]
        if self._settings.disk_reserve_bytes:
            keep_reserve(self._environment.path, self._settings.disk_reserve_bytes)
        return RetentionReport(
            deleted=deleted, deleted_bytes=deleted_bytes, first_seq=target + 1, held_by=held_by, passed=passed
        )

    def delete_through(self, transaction: Transaction, through_seq: int, now: datetime, limit: int = 1 << 62) -> int:
        """Delete at most `limit` entries up to `through_seq`; return the total size of their event data in bytes."""
        deleted_bytes = 0
        for done, (key, value) in enumerate(transaction.consume("events")):
            if done >= limit or entries.number(key) > through_seq:
                break
            stored = entries.load_event(key, value)
            if stored is not None:
                deleted_bytes += stored.size_bytes
                self._forget(transaction, entries.number(key), stored, now)
        if deleted_bytes:
            entries.add_to_counter(transaction, "event_bytes", -deleted_bytes)
        return deleted_bytes

    def delete_one(self, transaction: Transaction, seq: int, stored: entries.AnyEvent, now: datetime) -> None:
        """Delete one entry out of order. The id of its event is still recognised until `repeat_horizon_s` has
        passed.
        """
        transaction.delete("events", entries.number_key(seq))
        self._forget(transaction, seq, stored, now)
        entries.add_to_counter(transaction, "event_bytes", -stored.size_bytes)

    def _plan(self, now: datetime) -> tuple[int, str | None, dict[str, int]]:
        """Return the last number to delete, the consumer that prevents further deletions, and how many entries each
        consumer loses.
        """
        with self._environment.read() as transaction:
            first, wanted = self._wanted(transaction, now)
            cursors = {name.decode(): entries.number(seq) for name, seq in transaction.scan("consumers")}
        behind = {name: seq for name, seq in cursors.items() if seq < wanted and wanted >= first}
        if not behind:
            return wanted, None, {}
        if self._settings.retention_ignores_consumers:
            return wanted, None, {name: wanted - max(seq, first - 1) for name, seq in behind.items()}
        slowest = min(behind, key=lambda name: behind[name])
        return max(behind[slowest], first - 1), slowest, {}

    def _wanted(self, transaction: Transaction, now: datetime) -> tuple[int, int]:
        """Return the numbers of two entries: the first entry, and the last entry that exceeds the age or size limit.
        Ignores consumers.
        """
        oldest_ms = entries.milliseconds(now) - int(self._settings.retention_age_s * 1000)
        excess = entries.counter(transaction, "event_bytes") - self._settings.retention_bytes
        first_key = transaction.first_key("events")
        first = entries.counter(transaction, "last_seq") + 1 if first_key is None else entries.number(first_key)
        wanted = first - 1
        for key, value in transaction.scan("events"):
            stored = entries.load_event(key, value)
            if stored is None:
                continue  # its age is unknown, so it is deleted together with the next entry
            too_old = self._settings.retention_age_s > 0 and stored.received_ms < oldest_ms
            too_much = self._settings.retention_bytes > 0 and excess > 0
            if not (too_old or too_much):
                break
            excess -= stored.size_bytes
            wanted = entries.number(key)
        return first, wanted

    def _delete_chunk(self, target: int, now: datetime) -> tuple[int, int] | None:
        try:
            return self._delete_some(target, now)
        except JournalFullError:
            if not release_reserve(self._environment.path):
                raise
            return self._delete_some(target, now)

    def _delete_some(self, target: int, now: datetime) -> tuple[int, int] | None:
        """Delete a bounded number of entries and expired ids; return None if nothing is left to delete."""
        with self._environment.write() as transaction:
            before = transaction.count("events")
            deleted_bytes = self.delete_through(transaction, target, now, _CHUNK)
            expired = self._expire_ids(transaction, now)
            deleted = before - transaction.count("events")
        return (deleted, deleted_bytes) if deleted or expired else None

    def _forget(self, transaction: Transaction, seq: int, stored: entries.AnyEvent, now: datetime) -> None:
        transaction.delete("users", entries.user_key(stored.user_id, seq))
        if stored.received_ms <= entries.milliseconds(now) - int(self._settings.repeat_horizon_s * 1000):
            transaction.delete("ids", stored.id_key)
        else:
            value = entries.number_key(stored.received_ms) + stored.id_key
            transaction.put("forgotten", entries.number_key(seq), value)

    def _expire_ids(self, transaction: Transaction, now: datetime) -> int:
        """Delete the ids whose horizon has passed. Ids are stored in order of arrival."""
        oldest_ms = entries.milliseconds(now) - int(self._settings.repeat_horizon_s * 1000)
        expired = 0
        for _, value in transaction.consume("forgotten"):
            if expired == _CHUNK or int.from_bytes(value[:8], "big") > oldest_ms:
                break
            transaction.delete("ids", value[8:])
            expired += 1
        return expired
