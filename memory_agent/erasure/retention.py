"""Retention rules, and the schedule by which memories expire.

The first rule that matches a memory applies; the memory's age is counted from its own timestamp. When a store is
closed, the time of the next expiry is saved in a small file. Therefore, a daemon opens only stores with expired
memories. A file from a different owner epoch is ignored.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path

import msgspec

from memory_agent.erasure.logs import write_atomically
from memory_agent.errors import SettingsError, StoreError
from memory_agent.records.memories import MemoryRecord
from memory_agent.settings import RetentionRule, RetentionSettings
from memory_agent.signals import SignalTable
from memory_agent.storage.environment import has_records, last_epoch
from memory_agent.storage.store import Store
from relay import described, matches_any
from relay.disk import add_checksum, verify_checksum

RETENTION_FILE = "retention.json"


class RetentionRules:
    """The retention rules from the settings, in order. Immutable."""

    def __init__(self, settings: RetentionSettings, table: SignalTable) -> None:
        """Raises `SettingsError` for a repeated name, or a signal that is not in `table`."""
        self._rules = settings.rules
        self._table = table
        for place, rule in enumerate(self._rules):
            if any(rule.name == earlier.name for earlier in self._rules[:place]):
                raise SettingsError(f"retention.rules[{place}].name", f"{rule.name} is already the name of a rule")
            if unknown := set(rule.signals) - table.names:
                raise SettingsError(f"retention.rules[{place}].signals", f"no such signal: {min(unknown)}")

    @property
    def is_off(self) -> bool:
        return not any(rule.age_s for rule in self._rules)

    @property
    def digest(self) -> str:
        meant = [(rule, self._table.digest if rule.signals else "") for rule in self._rules]
        return sha256(msgspec.json.encode(meant)).hexdigest()[:16]

    def expiry(self, record: MemoryRecord) -> tuple[datetime, str] | None:
        """Return a memory's expiry time with the name of the rule, or None if the memory never expires."""
        rule = next((rule for rule in self._rules if self._fits(rule, record)), None)
        if rule is None or not rule.age_s:
            return None
        try:
            return record.timestamp + timedelta(seconds=rule.age_s), rule.name
        except OverflowError:
            return None

    def _fits(self, rule: RetentionRule, record: MemoryRecord) -> bool:
        return (
            _is_among(record.kind, rule.kinds)
            and _is_among(record.source, rule.sources)
            and (not rule.tags or not set(rule.tags).isdisjoint(record.tags))
            and (not (rule.events or rule.signals) or self._comes_from(rule, record.metadata.get("event_type")))
        )

    def _comes_from(self, rule: RetentionRule, event_type: object) -> bool:
        if not isinstance(event_type, str):
            return False
        is_of_events = not rule.events or matches_any(rule.events, event_type)
        return is_of_events and (not rule.signals or self._table.name_of(event_type) in rule.signals)


class ExpiryNote(msgspec.Struct, frozen=True, kw_only=True):
    """The saved schedule of a closed store: no memory up to row `through` expires before `next_at`."""

    rules: str
    epoch: int
    through: int
    next_at: datetime | None
    looked_at: datetime | None

    def is_due(self, now: datetime, interval_s: float) -> bool:
        """Whether a memory has expired and the last scan was not within the past `interval_s`."""
        was_lately = self.looked_at is not None and timedelta() <= now - self.looked_at < timedelta(seconds=interval_s)
        return self.next_at is not None and self.next_at <= now and not was_lately


class Expired(msgspec.Struct, frozen=True, kw_only=True):
    """The ids of expired memories, grouped by rule, that a scan up to row `through` found.

    `next_at` is the time at which the next memory expires. `has_more`: whether a limit excluded some expired memories.
    """

    by_rule: dict[str, tuple[str, ...]]
    through: int
    next_at: datetime | None
    has_more: bool


class RetentionSchedule:
    """The expiry schedule of one open store. Reads each new row once, and all rows when a scan is due."""

    def __init__(self, store: Store, rules: RetentionRules, interval_s: float) -> None:
        self._store = store
        self._rules = rules
        self._interval_s = interval_s
        saved = _read_note(store.folder)
        fits = saved is not None and (saved.rules, saved.epoch) == (rules.digest, store.epoch - 1)
        blank = ExpiryNote(rules=rules.digest, epoch=store.epoch, through=0, next_at=None, looked_at=None)
        self._note = msgspec.structs.replace(saved, epoch=store.epoch) if saved is not None and fits else blank

    def is_due(self, now: datetime) -> bool:
        """Whether a memory has expired and a scan is due. Raises `StoreError`."""
        if self._rules.is_off:
            return False
        self._read_new_rows()
        return self._note.is_due(now, self._interval_s)

    def expired(self, now: datetime, limit: int | None = None) -> Expired:
        """Return the expired memories, up to `limit`. Scans all records. Raises `StoreError`."""
        found: defaultdict[str, list[str]] = defaultdict(list)
        next_at: datetime | None = None
        taken = through = 0
        has_more = False
        with self._store.snapshot() as snapshot:
            for row, record in snapshot.scan():
                through = row
                expiry = self._rules.expiry(record)
                if expiry is None:
                    continue
                at, rule = expiry
                if at <= now and (limit is None or taken < limit):
                    found[rule].append(record.id)
                    taken += 1
                    continue
                has_more = has_more or at <= now
                next_at = at if next_at is None else min(at, next_at)
        by_rule = {rule: tuple(ids) for rule, ids in found.items()}
        return Expired(by_rule=by_rule, through=through, next_at=next_at, has_more=has_more)

    def settle(self, expired: Expired, now: datetime) -> None:
        """Update the schedule after erasing the memories found by a scan. A scan remains due if others have expired."""
        looked_at = None if expired.has_more else now
        self._note = msgspec.structs.replace(
            self._note, through=expired.through, next_at=expired.next_at, looked_at=looked_at
        )

    def finish(self) -> None:
        if not self._rules.is_off:
            self._read_new_rows()

    def save(self) -> None:
        """Save the schedule after the store has been closed. If this fails, the next process scans the store."""
        if not self._rules.is_off:
            with suppress(StoreError):
                write_atomically(self._store.folder / RETENTION_FILE, add_checksum(msgspec.json.encode(self._note)))

    def _read_new_rows(self) -> None:
        through, next_at = self._note.through, self._note.next_at
        with self._store.snapshot() as snapshot:
            for row, record in snapshot.scan(through):
                through = row
                expiry = self._rules.expiry(record)
                if expiry is not None:
                    next_at = expiry[0] if next_at is None else min(expiry[0], next_at)
        if through != self._note.through:
            self._note = msgspec.structs.replace(self._note, through=through, next_at=next_at)


def is_due_while_closed(folder: Path, rules: RetentionRules, interval_s: float, now: datetime) -> bool:
    """Whether a closed store must be scanned; true if its schedule is missing or invalid. Does not open the store."""
    if rules.is_off or not has_records(folder):
        return False
    note = _read_note(folder)
    try:
        is_valid = note is not None and (note.rules, note.epoch) == (rules.digest, last_epoch(folder))
    except StoreError:
        return True  # opening the store reports the error
    return note is None or not is_valid or note.is_due(now, interval_s)


def _read_note(folder: Path) -> ExpiryNote | None:
    try:
        return msgspec.json.decode(verify_checksum((folder / RETENTION_FILE).read_bytes()), type=described(ExpiryNote))
    except (OSError, msgspec.DecodeError, ValueError, RecursionError):  # a cache
        return None


def _is_among(value: str, wanted: Sequence[str]) -> bool:
    return not wanted or value in wanted
