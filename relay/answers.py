"""Answers every request except `Publish`: reads by cursor, consumers, quarantine, erasure and statistics.

A damaged entry is moved to quarantine when a reader reaches it, so one flipped bit does not block all users.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from relay import wire
from relay.access import Principal, Scope
from relay.config import RelaySettings
from relay.errors import (
    EncryptionKeyMissingError,
    EntryDamagedError,
    MalformedEventError,
    ProtocolError,
    QuarantineEntryError,
)
from relay.histogram import Histogram
from relay.intake.admission import Admission
from relay.journal import Journal, publisher_of
from relay.log import log
from relay.validation import SHARED_USER, validate_user_id

_MAX_LISTED = 1_000


class Answers:
    """Answers requests about one journal. Use it from one thread only."""

    def __init__(
        self,
        journal: Journal,
        settings: RelaySettings,
        admission: Admission,
        counts: Counter[str],
        on_erased: Callable[[], None] = lambda: None,
        acks: Histogram | None = None,
    ) -> None:
        """`on_erased` is called after each erasure, while the erased bytes are still in the file.

        `acks` is reported by `stats`.
        """
        self._acks = acks or Histogram()
        self._on_erased = on_erased
        self._journal = journal
        self._admission = admission
        self._settings = settings
        self._counts = counts

    def answer(self, request: wire.Request, principal: Principal) -> object:
        """Check that `principal` may make the request, and return its result. Raises the `RelayError` to send back."""
        _require(request, principal)
        if isinstance(request, wire.Fetch):
            return self.fetch(request, principal.audiences if request.user_id == SHARED_USER else None)
        return _VERBS[type(request)](self, request)

    def fetch(self, request: wire.Fetch, audiences: frozenset[str] | None) -> wire.Batch:
        after_seq = _natural("after_seq", request.after_seq)
        limit = min(request.limit, self._settings.broker.fetch_max_events)
        max_bytes = min(request.max_bytes, self._settings.broker.fetch_max_bytes)
        user_id = None if request.user_id is None else validate_user_id(request.user_id)
        while True:
            try:
                return self._journal.fetch(after_seq, limit, max_bytes, user_id, audiences)
            except EntryDamagedError as error:
                self._set_aside(error.seq)

    def cursor(self, request: wire.Cursor) -> int:
        return self._journal.commit(request.consumer, 0)

    def commit(self, request: wire.Commit) -> int:
        return self._journal.commit(request.consumer, request.seq)

    def consumers(self, _request: wire.Consumers) -> list[wire.ConsumerState]:
        return self._journal.consumers()

    def remove_consumer(self, request: wire.RemoveConsumer) -> bool:
        return self._journal.remove_consumer(request.consumer)

    def quarantine(self, request: wire.Quarantine) -> int:
        now = datetime.now(UTC)
        return self._journal.quarantine(
            request.data, request.code, request.reason, request.source, now, _optional_natural("seq", request.seq)
        )

    def quarantined(self, request: wire.Quarantined) -> list[wire.QuarantineEntry]:
        return self._journal.quarantined(_natural("after", request.after), min(request.limit, _MAX_LISTED))

    def quarantined_entry(self, request: wire.QuarantinedEntry) -> wire.QuarantineEntry:
        return self._journal.quarantined_entry(_natural("id", request.id))

    def drop_quarantined(self, request: wire.DropQuarantined) -> None:
        self._journal.drop(_natural("id", request.id))

    def retry_quarantined(self, request: wire.RetryQuarantined) -> bool:
        """Decode an entry again with the current settings; if it is now a valid event, journal it and return True."""
        entry = self._journal.quarantined_entry(_natural("id", request.id))
        if entry.code == EncryptionKeyMissingError.code:
            return False
        if entry.seq is not None:
            raise QuarantineEntryError(
                entry.id, f"is event {entry.seq} of the journal, which only {entry.source} can retry"
            )
        now = datetime.now(UTC)
        try:
            publisher = publisher_of(entry.source)
            event = self._admission.admit(entry.data, publisher, now)
        except MalformedEventError:
            return False
        self._journal.release(entry.id, event, publisher.origin, now)
        return True

    def erase(self, request: wire.Erase) -> wire.Erased:
        validate_user_id(request.wanted.user_id)
        erased = self._journal.erase(request.wanted, datetime.now(UTC), dry_run=request.dry_run)
        if not request.dry_run:
            self._on_erased()
        return erased

    def stats(self, _request: wire.Stats) -> wire.RelayStats:
        counts = dict(self._counts)
        journal = self._journal.stats()
        return wire.RelayStats(version=wire.VERSION, pid=os.getpid(), journal=journal, counts=counts, acks=self._acks)

    def ping(self, _request: wire.Ping) -> int:
        return wire.VERSION

    def _set_aside(self, seq: int) -> None:
        entry_id = self._journal.set_aside(seq, datetime.now(UTC))
        self._counts["damaged"] += 1
        log.error("entry.set_aside", seq=seq, quarantine_id=entry_id)


def _require(request: wire.Request, principal: Principal) -> None:
    """Check the scope: reading a user's events requires `recall` for that user; everything else requires `admin` for
    all users.

    Every user may read events about shared items that are addressed to the user's audiences. Raises `ScopeMissingError`
    and `UserNotAllowedError`.
    """
    if isinstance(request, wire.Ping):
        return
    user_id = request.user_id if isinstance(request, wire.Fetch) else None
    scope = Scope.ADMIN if user_id is None or Scope.ADMIN in principal.scopes else Scope.RECALL
    principal.require(scope, principal.user_id if user_id == SHARED_USER else user_id)


def _natural(field: str, value: int) -> int:
    if not 0 <= value < 1 << 63:
        raise ProtocolError(f"{field}: {value} is out of bounds")
    return value


def _optional_natural(field: str, value: int | None) -> int | None:
    return None if value is None else _natural(field, value)


_VERBS: dict[type[Any], Callable[[Answers, Any], object]] = {
    wire.Cursor: Answers.cursor,
    wire.Commit: Answers.commit,
    wire.Consumers: Answers.consumers,
    wire.RemoveConsumer: Answers.remove_consumer,
    wire.Quarantine: Answers.quarantine,
    wire.Quarantined: Answers.quarantined,
    wire.QuarantinedEntry: Answers.quarantined_entry,
    wire.DropQuarantined: Answers.drop_quarantined,
    wire.RetryQuarantined: Answers.retry_quarantined,
    wire.Erase: Answers.erase,
    wire.Stats: Answers.stats,
    wire.Ping: Answers.ping,
}
