"""Answers every request except `Publish`: reads by cursor, consumers, quarantine, erasure and statistics.

When a reader reaches a damaged entry, the entry is moved to quarantine, so that readers are not blocked.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime

from relay import errors, wire
from relay.access import Principal, Scope
from relay.config import RelaySettings
from relay.histogram import Histogram
from relay.intake.admission import Admission
from relay.journal import Journal, publisher_of
from relay.log import log
from relay.validation import SHARED_USER, validate_user_id

_MAX_LISTED = 1_000


class Answers:
    """Answers requests about one journal, in one thread."""

    def __init__(
        self,
        journal: Journal,
        settings: RelaySettings,
        admission: Admission,
        counts: Counter[str],
        on_erased: Callable[[], None] = lambda: None,
        acks: Histogram | None = None,
    ) -> None:
        """`on_erased` is called after each erasure, while the erased bytes are still in the file."""
        self._acks = acks or Histogram()
        self._on_erased = on_erased
        self._journal = journal
        self._admission = admission
        self._settings = settings
        self._counts = counts

    def answer(self, request: wire.Request, principal: Principal) -> object:
        """Check that `principal` may make the request; return its result. Raises the `RelayError` to be sent back."""
        _require(request, principal)
        journal = self._journal
        match request:
            case wire.Fetch():
                return self._fetch(request, principal.audiences if request.user_id == SHARED_USER else None)
            case wire.Cursor():
                return journal.commit(request.consumer, 0)
            case wire.Commit():
                return journal.commit(request.consumer, request.seq)
            case wire.Consumers():
                return journal.consumers()
            case wire.RemoveConsumer():
                return journal.remove_consumer(request.consumer)
            case wire.Quarantine(data=data, code=code, reason=reason, source=source):
                seq = None if request.seq is None else _natural("seq", request.seq)
                return journal.quarantine(data, code, reason, source, datetime.now(UTC), seq)
            case wire.Quarantined():
                return journal.quarantined(_natural("after", request.after), min(request.limit, _MAX_LISTED))
            case wire.QuarantinedEntry():
                return journal.quarantined_entry(_natural("id", request.id))
            case wire.DropQuarantined():
                journal.drop(_natural("id", request.id))
                return None
            case wire.RetryQuarantined():
                return self._retry_quarantined(request)
            case wire.Erase():
                return self.erase(request)
            case wire.Stats():
                counts, stats = dict(self._counts), journal.stats()
                return wire.RelayStats(
                    version=wire.VERSION, pid=os.getpid(), journal=stats, counts=counts, acks=self._acks
                )
            case wire.Ping():
                return wire.VERSION
        raise AssertionError(f"{type(request).__name__} is answered by the intake")

    def _fetch(self, request: wire.Fetch, audiences: frozenset[str] | None) -> wire.Batch:
        after_seq = _natural("after_seq", request.after_seq)
        limit = min(request.limit, self._settings.broker.fetch_max_events)
        max_bytes = min(request.max_bytes, self._settings.broker.fetch_max_bytes)
        user_id = None if request.user_id is None else validate_user_id(request.user_id)
        while True:
            try:
                return self._journal.fetch(after_seq, limit, max_bytes, user_id, audiences)
            except errors.EntryDamagedError as error:
                entry_id = self._journal.set_aside(error.seq, datetime.now(UTC))
                self._counts["damaged"] += 1
                log.error("entry.set_aside", seq=error.seq, quarantine_id=entry_id)

    def _retry_quarantined(self, request: wire.RetryQuarantined) -> bool:
        """Decode an entry again with the current settings; if it is now valid, journal it and return True."""
        entry = self._journal.quarantined_entry(_natural("id", request.id))
        if entry.code == errors.EncryptionKeyMissingError.code:
            return False
        if entry.seq is not None:
            raise errors.QuarantineEntryError(
                entry.id, f"is event {entry.seq} of the journal, which only {entry.source} can retry"
            )
        now = datetime.now(UTC)
        try:
            publisher = publisher_of(entry.source)
            event = self._admission.admit(entry.data, publisher, now)
        except errors.MalformedEventError:
            return False
        self._journal.release(entry.id, event, publisher.origin, now)
        return True

    def erase(self, request: wire.Erase) -> wire.Erased:
        validate_user_id(request.wanted.user_id)
        erased = self._journal.erase(request.wanted, datetime.now(UTC), dry_run=request.dry_run)
        if not request.dry_run:
            self._on_erased()
        return erased


def _require(request: wire.Request, principal: Principal) -> None:
    """Check the scope. A user may read an event about shared items only if its audience includes the user."""
    if isinstance(request, wire.Ping):
        return
    user_id = request.user_id if isinstance(request, wire.Fetch) else None
    scope = Scope.ADMIN if user_id is None or Scope.ADMIN in principal.scopes else Scope.RECALL
    principal.require(scope, principal.user_id if user_id == SHARED_USER else user_id)


def _natural(field: str, value: int) -> int:
    if not 0 <= value < 1 << 63:
        raise errors.ProtocolError(f"{field}: {value} is out of bounds")
    return value
