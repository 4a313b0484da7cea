"""When the next memory of one user reaches its age, so that nobody is looked through, or woken, for nothing.

Kept in a small file when the memory is closed, together with the owner's epoch. Whoever opens the store raises that, so
a note is believed only if nobody has had the store since, a crash included; without one the user is looked at. What
this does not do: say what is too old (`rules`), erase (`eraser`).
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from memory_agent.erasure.ledger import write_whole
from memory_agent.erasure.rules import Rules
from memory_agent.errors import StoreError
from memory_agent.storage.environment import has_records, last_epoch
from memory_agent.storage.store import Store
from relay.disk import add_checksum, verify_checksum

NOTE_FILE = "retention.json"


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """What was known when a memory was closed: nothing up to row `through` reaches its age before `next_at`."""

    rules: str
    epoch: int
    through: int
    next_at: datetime | None
    looked_at: datetime | None

    def is_due(self, now: datetime, interval_s: float) -> bool:
        """Whether to look: something has reached its age, and it was not looked at lately, or the clock was reset."""
        was_lately = self.looked_at is not None and timedelta() <= now - self.looked_at < timedelta(seconds=interval_s)
        return self.next_at is not None and self.next_at <= now and not was_lately


class Expired(msgspec.Struct, frozen=True, kw_only=True):
    """The ids of memories that reached their age, by rule. `next_at`: when the next one of the others does."""

    by_rule: dict[str, tuple[str, ...]]
    through: int
    next_at: datetime | None
    has_more: bool


class Aging:
    """Looks at one user's open store. What comes in is looked at once; all of it when something is due."""

    def __init__(self, store: Store, rules: Rules, interval_s: float) -> None:
        self._store = store
        self._rules = rules
        self._interval_s = interval_s
        kept = _read_note(store.folder)
        fits = kept is not None and (kept.rules, kept.epoch) == (rules.digest, store.epoch - 1)
        blank = Note(rules=rules.digest, epoch=store.epoch, through=0, next_at=None, looked_at=None)
        self._note = msgspec.structs.replace(kept, epoch=store.epoch) if kept is not None and fits else blank

    def is_due(self, now: datetime) -> bool:
        """Whether something has reached its age and it is time to look. Raises `StoreError`."""
        if self._rules.is_off:
            return False
        self._follow()
        return self._note.is_due(now, self._interval_s)

    def expired(self, now: datetime, limit: int | None = None) -> Expired:
        """Return what has reached its age, at most `limit` of it. Raises `StoreError`."""
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
        """Note that what had reached its age is being erased; where that was not all, it is due again at once."""
        looked_at = None if expired.has_more else now
        self._note = msgspec.structs.replace(
            self._note, through=expired.through, next_at=expired.next_at, looked_at=looked_at
        )

    def finish(self) -> None:
        """Look at what came in last, before the store is closed. Raises `StoreError`."""
        if not self._rules.is_off:
            self._follow()

    def save(self) -> None:
        """Keep what is known; call it when the store is closed. Without it, the user is looked at once more."""
        if not self._rules.is_off:
            with suppress(StoreError):
                write_whole(self._store.folder / NOTE_FILE, add_checksum(msgspec.json.encode(self._note)))

    def _follow(self) -> None:
        through, next_at = self._note.through, self._note.next_at
        with self._store.snapshot() as snapshot:
            for row, record in snapshot.scan(through):
                through = row
                expiry = self._rules.expiry(record)
                if expiry is not None:
                    next_at = expiry[0] if next_at is None else min(expiry[0], next_at)
        if through != self._note.through:
            self._note = msgspec.structs.replace(self._note, through=through, next_at=next_at)


def is_due_asleep(folder: Path, rules: Rules, interval_s: float, now: datetime) -> bool:
    """Whether a user whose memory is closed has to be looked at: also where that cannot be told. Opens no store."""
    if rules.is_off or not has_records(folder):
        return False
    note = _read_note(folder)
    try:
        is_believed = note is not None and (note.rules, note.epoch) == (rules.digest, last_epoch(folder))
    except StoreError:
        return True  # it is said why when the memory is opened
    return note is None or not is_believed or note.is_due(now, interval_s)


def _read_note(folder: Path) -> Note | None:
    try:
        return msgspec.json.decode(verify_checksum((folder / NOTE_FILE).read_bytes()), type=Note)
    except (OSError, msgspec.DecodeError, ValueError, RecursionError):  # a cache
        return None
