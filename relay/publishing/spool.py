"""A bounded on-disk queue of events, for a publisher that cannot reach its relay. Stored as a separate journal.

The spool is drained in order, by this process or by the next process that opens its folder. Only one process may use it
at a time. A full spool rejects events. The spool is not encrypted, because the emitter's machine does not have the
users' keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from relay.config import JournalSettings
from relay.errors import EntryDamagedError, JournalFullError, SpoolFullError
from relay.event import Event, read_event
from relay.journal import Journal
from relay.publishing.delivery import Outgoing
from relay.wire import JournalEntry

_CONSUMER = "relay"
_READ_BYTES = 4 << 20


class Spool:
    """The spool in one folder."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        """Open the spool; events of an earlier process are sent first. Raises `JournalError`s."""
        settings = JournalSettings(
            map_size_bytes=2 * max_bytes,  # sparse; the second half is reserved for deletions
            reserve_bytes=max_bytes,
            disk_reserve_bytes=0,
            repeat_horizon_s=0,
        )
        self._journal = Journal.open(path, settings)
        self._path = path
        self._max_bytes = max_bytes
        self.taken_through = self._released_through = self._journal.cursor(_CONSUMER)
        self._last_seq = self._journal.last_seq

    @property
    def untaken(self) -> int:
        """Number of events that are only on disk."""
        return self._last_seq - self.taken_through

    @property
    def unreleased(self) -> int:
        """Total number of events on disk, including those already taken."""
        return self._last_seq - self._released_through

    def add(self, event: Event, now: datetime) -> bool:
        """Append an event; return False if it is already in the spool. Durable. Raises `SpoolFullError`."""
        seq, duplicate = self._append([event], now)[0]
        self._last_seq = max(self._last_seq, seq)
        return not duplicate

    def keep(self, window: Iterable[Outgoing], now: datetime) -> None:
        """Append the events of a publisher's window that are not yet on disk. Durable. Raises `SpoolFullError`."""
        loose = [outgoing for outgoing in window if not outgoing.spool_seq]
        if not loose:
            return
        for outgoing, (seq, _) in zip(loose, self._append([read_event(o.data) for o in loose], now), strict=True):
            outgoing.spool_seq = seq
            self._last_seq = max(self._last_seq, seq)
        self.taken_through = self._last_seq

    def take(self, limit: int) -> list[Outgoing]:
        """Return the next events in order. Raises `EntryDamagedError` after moving a damaged event to the
        quarantine.
        """
        taken = []
        for entry in self._read(limit):
            event = read_event(entry.data)
            taken.append(Outgoing(event.event_id, event.user_id, entry.data, entry.seq))
            self.taken_through = entry.seq
        return taken

    def release(self, through_seq: int, now: datetime) -> None:
        """Delete the events up to `through_seq`, which the relay has accepted or rejected. Durable on return."""
        if through_seq > self._released_through:
            self._journal.discard(through_seq, _CONSUMER, now)
            self._released_through = through_seq

    def close(self) -> None:
        self._journal.close()

    def _read(self, limit: int) -> list[JournalEntry]:
        try:
            return self._journal.read(self.taken_through, limit, _READ_BYTES)
        except EntryDamagedError as error:
            self._journal.set_aside(error.seq, datetime.now(UTC))
            self.taken_through = max(self.taken_through, error.seq)
            raise

    def _append(self, events: Sequence[Event], now: datetime) -> list[tuple[int, bool]]:
        try:
            return [(seq, duplicate) for seq, duplicate in self._journal.append(events, now)]
        except JournalFullError as error:
            raise SpoolFullError(str(self._path), self._max_bytes) from error
