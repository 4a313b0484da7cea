"""Erases events out of order, by user, session, run or id. Readers skip the missing numbers.

The ids of erased events are remembered for `repeat_horizon_s`, as if retention had deleted the events. An event whose
key is missing can only be erased by its number, or together with all events of its user.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from relay.config import EventLimits
from relay.decoding import described
from relay.disk import Environment, Transaction
from relay.errors import EncryptionKeyMissingError, MalformedEventError
from relay.event import decode_mapping
from relay.journal.entries import AnyEvent, StoredEvent, add_to_counter, load_event, number_key
from relay.journal.quarantine import Quarantine, user_of_source
from relay.journal.retention import Retention
from relay.journal.sealing import Reading, Sealing
from relay.validation import SYSTEM_USER
from relay.wire import Erasable, Erased, QuarantineEntry

_PAGE = 500


class _NamedIds(msgspec.Struct):
    session_id: str | None = None
    actor_id: str | None = None
    payload: dict[str, Any] = {}


_decoder = msgspec.msgpack.Decoder(described(_NamedIds))


@dataclass(frozen=True)
class Erasure:
    """Erases events from one journal."""

    environment: Environment
    retention: Retention
    quarantine: Quarantine
    sealing: Sealing
    reading: Reading

    def erase(self, wanted: Erasable, now: datetime, *, dry_run: bool = False, limit: int = 20_000) -> Erased:
        """Erase the selected events among the next `limit` candidates, in one transaction. Durable on return.

        Repeat with `after_seq` set to `next_after` until `next_after` is None. The last call also erases the selected
        quarantine entries.
        """
        with self.environment.read() if dry_run else self.environment.write() as transaction:
            return self._part(transaction, wanted, now, limit, dry_run=dry_run)

    def _part(self, transaction: Transaction, wanted: Erasable, now: datetime, limit: int, *, dry_run: bool) -> Erased:
        found: list[tuple[int, AnyEvent]] = []
        examined, after = 0, wanted.after_seq
        candidates = {seq for seq in wanted.system_seqs if seq > after}
        candidates.update(self.reading.seqs_of(transaction, wanted.user_id, after))
        for seq in sorted(candidates):
            if examined >= limit:
                break
            examined, after = examined + 1, seq
            key = number_key(seq)
            value = transaction.get("events", key)
            stored = None if value is None else load_event(key, value)
            if stored is not None and self._is_wanted(seq, stored, wanted):
                found.append((seq, stored))
        else:
            after = -1
        quarantined = self._quarantined(transaction, wanted) if after < 0 else []
        if not dry_run and (found or quarantined):
            for seq, stored in found:
                self.retention.delete_one(transaction, seq, stored, now)
            for entry_id in quarantined:
                self.quarantine.remove(transaction, entry_id)
            add_to_counter(transaction, "uncompacted", len(found) + len(quarantined))
        return Erased(
            seqs=[seq for seq, _ in found], quarantined=len(quarantined), next_after=None if after < 0 else after
        )

    def _is_wanted(self, seq: int, stored: AnyEvent, wanted: Erasable) -> bool:
        if stored.user_id != wanted.user_id:
            return stored.user_id == SYSTEM_USER and seq in wanted.system_seqs
        if wanted.everything:
            return True
        try:
            event = self.sealing.open_event(number_key(seq), stored)
        except EncryptionKeyMissingError:
            return False
        return event is not None and _is_named(event, wanted)

    def _quarantined(self, transaction: Transaction, wanted: Erasable) -> list[int]:
        found, after = [], 0
        while page := self.quarantine.after(transaction, after, _PAGE):
            found += [entry.id for entry in page if _is_wanted_entry(entry, wanted)]
            after = page[-1].id
        return found


def _is_named(event: StoredEvent, wanted: Erasable) -> bool:
    if event.event_id in wanted.event_ids:
        return True
    if not wanted.session_ids and not wanted.run_ids and not wanted.quoted:
        return False
    named = _decoder.decode(event.data)
    quotes = named.payload.get("quotes")
    is_quoting = isinstance(quotes, list) and any(isinstance(one, str) and one in wanted.quoted for one in quotes)
    if is_quoting and event.event_id not in wanted.kept_ids:
        return True
    return wanted.is_of(named.session_id, named.payload.get("run_id"), named.actor_id)


def _is_wanted_entry(entry: QuarantineEntry, wanted: Erasable) -> bool:
    """Whether a quarantine entry is selected. Unreadable bytes are selected only by their source."""
    is_users = user_of_source(entry.source) == wanted.user_id
    is_named = entry.seq in wanted.system_seqs or entry.id in wanted.quarantine_ids
    if (is_users and wanted.everything) or is_named:
        return True
    try:
        fields = decode_mapping(entry.data, EventLimits(max_bytes=16 << 20))
    except MalformedEventError:
        return False
    if not isinstance(fields, dict):
        return False
    return (is_users or fields.get("user_id") == wanted.user_id) and wanted.selects(fields)
